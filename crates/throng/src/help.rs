//! The text that the long help of a command adds to its flags: examples and exit statuses. A test parses every
//! example, and docs/command-line.md has all of it.

/// The examples of the binary itself, with some of the host tools if it has them.
macro_rules! all {
    ($($tools:literal)?) => {
        concat!(
            "Examples:\n",
            "  throng                                      Serve clients on port 8000, applications on 8001\n",
            "  throng --config throng.toml --data ./data   The same with rules by topic, and a store on disk\n",
            "  throng config --default                     Print every setting, explained\n",
            $($tools,)?
            "  throng help serve                           Explain a command\n\n",
            "Exit status:\n",
            "  0  done\n",
            "  1  the system or another program refused something\n",
            "  2  the command line or the configuration is wrong\n",
            "  3  the command ran and found what needs attention (flood, tune, health, key check, store, token read, config --check --public, rebalance), or moved nothing (upgrade)\n",
            "  4  connections were lost (upgrade)",
        )
    };
}

#[cfg(feature = "host-tools")]
pub const ALL: &str =
    all!("  throng top                                  Watch the server's figures\n");
#[cfg(not(feature = "host-tools"))]
pub const ALL: &str = all!();

pub const SERVE: &str = "\
The configuration is read from --config (or ./throng.toml), then from environment variables, then from \
flags; later ones win. SIGHUP reads it again. SIGUSR2 goes on as the binary that is there by now, and keeps every connection (throng help upgrade). SIGTERM and Ctrl-C end the server in order: clients are \
told to come back, and a second signal ends it at once.

Examples:
  throng serve
  throng serve --listen 127.0.0.1:9000 --admin 127.0.0.1:9001
  throng serve --config throng.toml --data /var/lib/throng
  throng serve --listen 0.0.0.0:8000 --insecure --api-key-file key
  throng serve --max-connections 1000000

Exit status:
  0  ended by a signal
  1  it can't listen, or the store can't be opened
  2  the command line or the configuration is wrong";

pub const CONFIG: &str = "\
Examples:
  throng config                          What is in force, and which source set it
  throng config --default > throng.toml  A file with every setting, explained
  throng config --check                  Whether it is good
  throng config --config new.toml --check
  throng config --check --public         Whether it is one for the public

Exit status:
  0  it is good
  2  it has mistakes; all are printed, each with its place and what to do
  3  with --public: it is good, but not for the public";

#[cfg(feature = "flood")]
pub const FLOOD: &str = "\
Examples:
  throng flood hold http://127.0.0.1:8000 --connections 10000
  throng flood one-topic http://127.0.0.1:8000 --connections 10000 --transport sse,ws
  throng flood rooms http://127.0.0.1:8000 --topics 100 --users 50 --report report
  throng flood storm http://127.0.0.1:8000 --topic-template room:all --recover --missed 10

For the last one the server must keep what is published: that of examples/history.toml has a history for \
room:*.

Exit status:
  0  all was as it should be
  1  it could not be run
  2  the command line is wrong
  3  a connection failed or was closed; a message was lost, came twice, out of order or to the wrong
     connection; a publish or a probe failed; an agent was lost";

#[cfg(feature = "tune")]
pub const TUNE: &str = "\
Examples:
  throng tune --connections 1000000
  throng tune --connections 1000000 --apply
  throng tune --connections 1000000 --sysctl > /etc/sysctl.d/99-throng.conf
  throng tune --connections 1000000 --systemd > /etc/systemd/system/throng.service

Exit status:
  0  the connections fit as the host stands
  1  what was asked for could not be done
  2  the command line is wrong
  3  they don't fit, or a setting could not be changed";

pub const HEALTH: &str = "\
Examples:
  throng health
  throng health --live
  throng health --admin http://127.0.0.1:9001

Exit status:
  0  the node takes new connections; with --live: it lives
  1  the node can't be reached
  2  the command line is wrong
  3  the node takes no new connections, and says why";

pub const KEY: &str = "\
Examples:
  throng key new --name ops --scope read
  throng key new --name billing --scope publish:invoice:* --scope publish:@*
  throng key new --name ci --scope admin --expires 2031-01-01 --output ci.key >> throng.toml
  throng key check ci.key

Exit status:
  0  the key is made, or it is one of the configuration
  1  the key can't be written
  2  the command line or the configuration is wrong
  3  the key is none of the configuration, or has expired";

pub const STORE: &str = "\
Examples:
  throng store backup 2026-11-26
  throng store backup /mnt/throng --from /var/lib/throng
  throng store check /var/lib/throng
  throng store compact /var/lib/throng
  throng store export /var/lib/throng --history-url postgres://throng@db.example:5432/app
  throng store import /var/lib/throng.new --history-url postgres://throng@db.example:5432/app
  throng store restore /mnt/throng /var/lib/throng --replace
  throng store salvage /var/lib/throng /var/lib/throng.new

Exit status:
  0  all is whole, or the copy, the shorter file, the backup, the new store or the history in PostgreSQL is written
  1  it can't be done: a server has the store open or refuses the backup, there is no store or one of
     another version, one is in the way, the disk is full, or the database can't be used or is not empty
  2  the command line is wrong
  3  something is damaged";

pub const HISTORY: &str = "\
Examples:
  throng history migrate --config throng.toml
  throng history migrate --print | psql app
  throng history migrate --print --from 1 > history.sql

Exit status:
  0  the tables and functions are there, or the statements are printed
  1  the database can't be reached, has those of a newer version, or does not allow it
  2  the command line or the configuration is wrong";

pub const OUTBOX: &str = "\
Examples:
  throng outbox migrate --config throng.toml
  throng outbox migrate --print | psql app
  throng outbox migrate --print --from 1 > outbox.sql

Exit status:
  0  the tables and functions are there, or the statements are printed
  1  the database can't be reached, has those of a newer version, or does not allow it
  2  the command line or the configuration is wrong";

pub const TRACE: &str = "\
Examples:
  throng trace --user alice
  throng trace --user alice http://10.0.0.5:8001 --api-key-file key
  throng trace --connection 5f3a91c2-0-12-345
  throng trace --user alice --json | jq .event

Exit status:
  0  the connection has ended, or the output was closed
  1  the node can't be reached, refuses the key, has no such connection or too many traces, or has
     ended the trace
  2  the command line is wrong";

pub const BUNDLE: &str = "\
Examples:
  throng bundle
  throng bundle --log /var/log/throng.log --output fault-17.txt
  throng bundle --admin http://10.0.0.7:8001 --api-key-file operator.key

Exit status:
  0  the text is written
  1  the text is written, and the server can't be reached or refuses the key; or the file can't be
     written
  2  the command line is wrong, or the file is there already";

pub const TOKEN: &str = "\
Examples:
  throng token make --config throng.toml --user alice --subscribe chat:*
  throng token make --user alice --topic room:1 --seconds 60
  throng token make --user alice --key-file private.pem --key-id 2026-11
  throng token read --config throng.toml < token.txt

Exit status:
  0  the token is made, or a server with this configuration takes it
  1  standard input can't be read
  2  the command line or the configuration is wrong, or this is no token
  3  a server with this configuration does not take the token";

pub const SUBSCRIPTIONS: &str = "\
Examples:
  throng subscriptions import followers.csv
  throng subscriptions list alice
  throng subscriptions followers feed:alice
  throng subscriptions generate --users 1000 --output followers.csv

Exit status:
  0  done
  1  the node refused it, or can't be reached
  2  the command line is wrong";

pub const UPGRADE: &str = "\
Examples:
  throng upgrade
  throng upgrade --check
  throng upgrade --binary /opt/throng-1.5/throng
  throng upgrade --admin http://127.0.0.1:9001 --api-key-file key --json
  throng upgrade --to /run/throng/take-over

Exit status:
  0  the new process serves, with every connection; with --check, it would work
  1  the server can't be asked, or its last word is not known
  2  the command line is wrong
  3  nothing moved: the server that was there serves on
  4  the new process serves, and some connections were lost";

pub const DRAIN: &str = "\
Examples:
  throng drain
  throng drain --over 15m --wait 60s
  throng drain --rate 500/s --exit
  throng drain --cancel

Exit status:
  0  no connection is left; with --cancel: the node serves
  1  the node can't be reached, refuses it, or the drain was cancelled
  2  the command line is wrong";

pub const REBALANCE: &str = "\
Examples:
  throng rebalance --dry-run
  throng rebalance --rate 500/s
  throng rebalance --within 10 --admin http://10.0.0.5:8001 --api-key-file key
  throng rebalance --cancel

Exit status:
  0  no node has more connections than it should; with --dry-run and --cancel: done
  1  the node is alone or can't be reached, or a node gives no reply, refuses it or was stopped
  2  the command line is wrong
  3  after 5 rounds there are still nodes with more";

#[cfg(feature = "top")]
pub const TOP: &str = "\
Examples:
  throng top
  throng top http://10.0.0.5:8001 --api-key-file key
  throng top --once
  throng top --json | jq .connections
  throng top --cluster --sort connections

Exit status:
  0  ended
  1  the node can't be reached, or refused the key
  2  the command line is wrong";

pub const COMPLETIONS: &str = "\
Examples:
  throng completions bash > /usr/share/bash-completion/completions/throng
  throng completions zsh > /usr/share/zsh/site-functions/_throng
  throng completions fish > /usr/share/fish/vendor_completions.d/throng.fish";

pub const MAN: &str = "\
Examples:
  throng man > throng.1
  throng man --output /usr/share/man/man1";
