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
            "  1  the system or another program rejected something\n",
            "  2  the command line or the configuration is wrong\n",
            "  3  the command ran and found something that needs attention (flood, tune, health, \
             key check, store, token read, config --check --public, rebalance), or did not upgrade \
             (upgrade)\n",
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
flags; later ones win. SIGHUP reads it again. SIGUSR2 upgrades the server to the binary that is at its path now, and keeps every connection (throng help upgrade). SIGTERM and Ctrl-C end \
the server gracefully: it tells clients to come back, and a second signal ends it at once.

Examples:
  throng serve
  throng serve --listen 127.0.0.1:9000 --admin 127.0.0.1:9001
  throng serve --config throng.toml --data /var/lib/throng
  throng serve --listen 0.0.0.0:8000 --insecure --api-key-file key
  throng serve --max-connections 1000000

Exit status:
  0  ended by a signal
  1  the server can't listen, or can't open the store
  2  the command line or the configuration is wrong";

pub const CONFIG: &str = "\
Examples:
  throng config                          Print the values in force, and the source of each
  throng config --default > throng.toml  A file with every setting, explained
  throng config --check                  Check whether it is valid
  throng config --config new.toml --check
  throng config --check --public         Check whether it is fit for the public

Exit status:
  0  the configuration is valid
  2  it has errors; all are printed, each with its place and what to do
  3  with --public: it is valid, but not fit for the public";

#[cfg(feature = "flood")]
pub const FLOOD: &str = "\
Examples:
  throng flood hold http://127.0.0.1:8000 --connections 10000
  throng flood one-topic http://127.0.0.1:8000 --connections 10000 --transport sse,ws
  throng flood rooms http://127.0.0.1:8000 --topics 100 --users 50 --report report
  throng flood storm http://127.0.0.1:8000 --topic-template room:all --recover --missed 10

For the last one, the server must retain messages: with examples/history.toml it has a history for \
room:*.

Exit status:
  0  everything was as expected
  1  the scenario could not be run
  2  the command line is wrong
  3  a connection failed or was closed; a message was lost, or arrived twice, out of order or at the
     wrong connection; a publish or a probe failed; an agent was lost";

#[cfg(feature = "tune")]
pub const TUNE: &str = "\
Examples:
  throng tune --connections 1000000
  throng tune --connections 1000000 --apply
  throng tune --connections 1000000 --sysctl > /etc/sysctl.d/99-throng.conf
  throng tune --connections 1000000 --systemd > /etc/systemd/system/throng.service

Exit status:
  0  the connections fit with the present settings
  1  the command could not do what was requested
  2  the command line is wrong
  3  they don't fit, or a setting could not be changed";

pub const HEALTH: &str = "\
Examples:
  throng health
  throng health --live
  throng health --admin http://127.0.0.1:9001

Exit status:
  0  the node accepts new connections; with --live: the process is alive
  1  the node can't be reached
  2  the command line is wrong
  3  the node accepts no new connections; the command prints why";

pub const KEY: &str = "\
Examples:
  throng key new --name ops --scope read
  throng key new --name billing --scope publish:invoice:* --scope publish:@*
  throng key new --name ci --scope admin --expires 2031-01-01 --output ci.key >> throng.toml
  throng key check ci.key

Exit status:
  0  the key is made, or the configuration has it
  1  the key can't be written
  2  the command line or the configuration is wrong
  3  the configuration does not have the key, or the key has expired";

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
  0  nothing is damaged, or the copy, the compacted file, the backup, the new store or the history in
     PostgreSQL is written
  1  the command failed: a server has the store open or rejects the backup, there is no store or one
     of another version, the new directory has a store already, the disk is full, or the database
     can't be used or is not empty
  2  the command line is wrong
  3  something is damaged";

pub const HISTORY: &str = "\
Examples:
  throng history migrate --config throng.toml
  throng history migrate --print | psql app
  throng history migrate --print --from 1 > history.sql

Exit status:
  0  the tables and functions exist, or the statements are printed
  1  the database can't be reached, has tables of a newer version, or does not permit it
  2  the command line or the configuration is wrong";

pub const OUTBOX: &str = "\
Examples:
  throng outbox migrate --config throng.toml
  throng outbox migrate --print | psql app
  throng outbox migrate --print --from 1 > outbox.sql

Exit status:
  0  the tables and functions exist, or the statements are printed
  1  the database can't be reached, has tables of a newer version, or does not permit it
  2  the command line or the configuration is wrong";

pub const TRACE: &str = "\
Examples:
  throng trace --user alice
  throng trace --user alice http://10.0.0.5:8001 --api-key-file key
  throng trace --connection 5f3a91c2-0-12-345
  throng trace --user alice --json | jq .event

Exit status:
  0  the connection has ended, or the output was closed
  1  the node can't be reached, rejects the key, has no such connection or too many traces, or has
     ended the trace
  2  the command line is wrong";

pub const BUNDLE: &str = "\
Examples:
  throng bundle
  throng bundle --log /var/log/throng.log --output fault-17.txt
  throng bundle --admin http://10.0.0.7:8001 --api-key-file operator.key

Exit status:
  0  the file is written
  1  the file is written, but the server can't be reached or rejects the key; or the file can't be
     written
  2  the command line is wrong, or the file exists already";

pub const TOKEN: &str = "\
Examples:
  throng token make --config throng.toml --user alice --subscribe chat:*
  throng token make --user alice --topic room:1 --seconds 60
  throng token make --user alice --key-file private.pem --key-id 2026-11
  throng token read --config throng.toml < token.txt

Exit status:
  0  the token is made, or a server with this configuration accepts it
  1  standard input can't be read
  2  the command line or the configuration is wrong, or the input is not a token
  3  a server with this configuration rejects the token";

pub const SUBSCRIPTIONS: &str = "\
Examples:
  throng subscriptions import followers.csv
  throng subscriptions list alice
  throng subscriptions followers feed:alice
  throng subscriptions generate --users 1000 --output followers.csv

Exit status:
  0  done
  1  the node rejected the request, or can't be reached
  2  the command line is wrong";

pub const UPGRADE: &str = "\
Examples:
  throng upgrade
  throng upgrade --check
  throng upgrade --binary /opt/throng-1.5/throng
  throng upgrade --admin http://127.0.0.1:9001 --api-key-file key --json
  throng upgrade --to /run/throng/take-over

Exit status:
  0  the new process serves, with every connection; with --check: the upgrade would work
  1  the server can't be reached, or the result is not known
  2  the command line is wrong
  3  the upgrade did not happen: the old process continues to serve
  4  the new process serves, and some connections were lost";

pub const DRAIN: &str = "\
Examples:
  throng drain
  throng drain --over 15m --wait 60s
  throng drain --rate 500/s --exit
  throng drain --cancel

Exit status:
  0  no connection is left; with --cancel: the node serves
  1  the node can't be reached, rejects the drain, or the drain was cancelled
  2  the command line is wrong";

pub const REBALANCE: &str = "\
Examples:
  throng rebalance --dry-run
  throng rebalance --rate 500/s
  throng rebalance --within 10 --admin http://10.0.0.5:8001 --api-key-file key
  throng rebalance --cancel

Exit status:
  0  the nodes are balanced; with --dry-run and --cancel: done
  1  the cluster has no other node, or a node can't be reached, does not reply, rejects the request
     or ended its rebalance early
  2  the command line is wrong
  3  after 5 rounds some nodes still have more connections";

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
  1  the node can't be reached, or rejected the key
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
