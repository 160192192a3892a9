//! Files that make the advice permanent: settings for every boot, and a unit for the server.

use std::fmt::Write as _;
use std::path::Path;

use crate::advice::Advice;
use crate::finding::Level;
use crate::format::count;

/// Returns a file for /etc/sysctl.d/99-throng.conf with the settings that must or should be changed,
/// and the reason above each line. A setting that the host hides is in it as a comment.
pub fn sysctl_drop_in(advice: &Advice) -> String {
    let mut text = format!(
        "# Settings for {} connections{}, by throng tune.\n\
         # /etc/sysctl.d/99-throng.conf; in force after: sysctl --system\n",
        count(advice.want.connections),
        if advice.want.both_ends { " with both ends on this host" } else { "" }
    );
    for (finding, sysctl) in advice.sysctls() {
        let mark = if finding.level == Level::Unknown { "#" } else { "" };
        text.push('\n');
        comment(&mut text, &format!("was {}: {}.", finding.fact, finding.meaning));
        let _ = writeln!(text, "{mark}{} = {}", sysctl.key, sysctl.value);
    }
    if advice.sysctls().next().is_none() {
        text.push_str("\n# Nothing to change.\n");
    }
    text
}

/// Appends a comment in lines of about 90 columns. It treats control characters as blanks, since a recorded host may
/// contain any, and none may end the comment early.
fn comment(text: &mut String, words: &str) {
    let mut width = usize::MAX / 2;
    let blank = |c: char| c.is_whitespace() || c.is_control();
    for word in words.split(blank).filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        if width + 1 + length > 90 {
            let begun = if text.ends_with('\n') { "# " } else { "\n# " };
            text.push_str(begun);
            width = 1;
        } else {
            text.push(' ');
        }
        text.push_str(word);
        width += 1 + length;
    }
    text.push('\n');
}

/// Folders that a unit's user may not see, or that do not last; the unit adapts its sandbox to a binary in them.
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Returns a systemd unit that runs the server `binary` with limits for the wanted connections. It needs systemd 250
/// or later, and nothing else: the configuration and the key are optional.
pub fn systemd_unit(advice: &Advice, binary: &Path) -> String {
    let connections = advice.want.connections;
    let elsewhere = match below(binary, &[&HOMES[..], &TEMPORARY[..]].concat()) {
        true => ELSEWHERE,
        false => "",
    };
    let head = format!(
        "# /etc/systemd/system/throng.service, by throng tune for {} connections.\n\
         # As root, with this text in that file: systemctl daemon-reload && systemctl enable --now throng\n\
         {elsewhere}",
        count(connections)
    );
    unit(
        binary,
        &UnitVariant {
            head: &head,
            flags: &format!("--max-connections {connections} "),
            user: "DynamicUser=yes\n",
            readers: "# Settings: /etc/throng/throng.toml, if it exists (throng config --default makes one). The unit's\n\
                      # own user must be able to read it: mode 0644, and secrets elsewhere. The flags above override\n\
                      # it. After a change: systemctl reload throng\n",
            nofile: advice.nofile,
            connections,
        },
    )
}

/// Returns the unit of a package for any host: the server runs as the user `throng`, which the package makes, and takes
/// the number of connections from its settings.
pub fn package_unit(binary: &Path) -> String {
    unit(
        binary,
        &UnitVariant {
            head: "# To change it: systemctl edit throng\n",
            flags: "",
            user: "User=throng\nGroup=throng\n",
            readers: "# Settings: /etc/throng/throng.toml. Root and the group throng read it. The flags above override it.\n\
                      # After a change: systemctl reload throng\n",
            nofile: PACKAGE_NOFILE,
            connections: PACKAGE_CONNECTIONS,
        },
    )
}

/// The limit on open files in the unit of a package: the most that a kernel allows by default (fs.nr_open).
const PACKAGE_NOFILE: u64 = 1 << 20;
/// The connections for which that unit has time to stop.
const PACKAGE_CONNECTIONS: u64 = 1_000_000;

/// The parts that differ between units.
struct UnitVariant<'a> {
    /// The first lines, each a comment.
    head: &'a str,
    /// More flags of the server, each followed by a space.
    flags: &'a str,
    /// The lines that name the user.
    user: &'a str,
    /// The lines of a comment about the readers of the settings.
    readers: &'a str,
    nofile: u64,
    /// The connections that the kernel must close at the end.
    connections: u64,
}

fn unit(binary: &Path, variant: &UnitVariant) -> String {
    let UnitVariant { head, flags, user, readers, nofile, connections } = variant;
    let program = quoted(binary);
    // The kernel takes about as long to close the connections as to open them.
    let stop_seconds = 30 + connections / 50_000;
    // Two processes share the limit during an upgrade.
    let tasks = 2 * (64 + crate::estimate::SHARDS_MAX);
    let home = if below(binary, &HOMES) { "read-only" } else { "yes" };
    let private_tmp = if below(binary, &TEMPORARY) { "no" } else { "yes" };
    let sandbox = SANDBOX.replace("HOME", home).replace("TMP", private_tmp).replace("USER\n", user);
    format!(
        "{head}\
         [Unit]\n\
         Description=Throng push server\n\
         After=network-online.target\n\
         Wants=network-online.target\n\
         \n\
         [Service]\n\
         Type=notify\n\
         ExecStart={program} serve {flags}--data %S/throng \
         --api-key-file %d/api.key\n\
         # Upgrades to the binary and the configuration that are installed now, and keeps every connection.\n\
         # To reload only the settings: systemctl kill --signal=HUP throng\n\
         ExecReload=/bin/kill -USR2 $MAINPID\n\
         # Only the main process notifies systemd: an upgrade names the new one to systemd (MAINPID=).\n\
         NotifyAccess=main\n\
         Restart=on-failure\n\
         RestartSec=1\n\
         # Status 2 is a wrong configuration, which a restart doesn't fix.\n\
         RestartPreventExitStatus=2\n\
         KillSignal=SIGTERM\n\
         KillMode=mixed\n\
         # The server verifies its store when it starts, and the kernel takes a while to close connections.\n\
         TimeoutStartSec=300\n\
         TimeoutStopSec={stop_seconds}\n\
         \n\
         {readers}\
         # Clients reach 127.0.0.1:8000 only: put a proxy there, or set client.listen and, as long as\n\
         # nothing authenticates them, client.insecure.\n\
         ConfigurationDirectory=throng\n\
         WorkingDirectory=-%E/throng\n\
         # Data that outlives the process: /var/lib/throng.\n\
         StateDirectory=throng\n\
         StateDirectoryMode=0700\n\
         # The key of the API: /etc/throng/api.key, if it exists when the unit starts. To make one:\n\
         #   mkdir -p /etc/throng; (umask 077; openssl rand -hex 24 > /etc/throng/api.key)\n\
         # Without a key, the admin port must stay on loopback, which is its default.\n\
         LoadCredential=api.key:/etc/throng/api.key\n\
         SetCredential=api.key:none\n\
         # Other secrets, as variables: THRONG_WEBHOOK_SECRET=…, in a file that only root reads.\n\
         EnvironmentFile=-/etc/throng/environment\n\
         \n\
         # For the descriptor table of each shard. A shard is one thread.\n\
         LimitNOFILE={nofile}\n\
         TasksMax={tasks}\n\
         \n{sandbox}\n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    )
}

/// The comment about a binary that the unit's user may not be able to run, or that will not stay.
const ELSEWHERE: &str = "\
# The unit's user may be unable to read the folder of this binary, or the folder is temporary. Better:
# install the binary as /usr/local/bin/throng, and run throng tune --systemd with that one.
";

/// The sandbox of the unit. It allows io_uring and unshare(CLONE_FILES), which the server needs: @system-service
/// contains both, and RestrictNamespaces checks only the flags for namespaces.
const SANDBOX: &str = "\
# The sandbox takes away what the server doesn't need. @system-service has io_uring and unshare(2).
USER
UMask=0077
NoNewPrivileges=yes
# For a port below 1024, CAP_NET_BIND_SERVICE here and in AmbientCapabilities=.
CapabilityBoundingSet=
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
SystemCallArchitectures=native
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
ProtectSystem=strict
ProtectHome=HOME
PrivateTmp=TMP
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
";

fn below(path: &Path, folders: &[&str]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

/// Quotes a path for a command line as in systemd.service(5), where % and $ are special.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy().replace('%', "%%");
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    match text.contains(|c: char| c.is_whitespace() || "\"'\\;$".contains(c)) {
        true => {
            format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "$$"))
        }
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, Want, advise};

    #[test]
    fn the_unit_has_the_limits_and_the_binary() {
        let advice = advise(&Host::default(), &Want::new(3_000_000));
        let unit = systemd_unit(&advice, Path::new("/usr/local/bin/throng"));
        for line in [
            "ExecStart=/usr/local/bin/throng serve --max-connections 3000000 --data %S/throng \
             --api-key-file %d/api.key\n",
            "LimitNOFILE=2097152\n",
            "TimeoutStopSec=90\n",
            "ProtectHome=yes\n",
            "PrivateTmp=yes\n",
        ] {
            assert!(unit.contains(line), "{line} is not in\n{unit}");
        }
        let unit = systemd_unit(&advice, Path::new("/home/a b/50%/throng"));
        assert!(unit.contains("ExecStart=\"/home/a b/50%%/throng\" serve"), "{unit}");
        assert!(unit.contains("ProtectHome=read-only\n") && unit.contains(ELSEWHERE));
        assert!(!systemd_unit(&advice, Path::new("/opt/throng")).contains(ELSEWHERE));
        assert!(systemd_unit(&advice, Path::new("/tmp/throng")).contains("PrivateTmp=no\n"));
    }

    #[test]
    fn the_unit_of_a_package_has_a_user_and_leaves_settings_to_their_file() {
        let unit = package_unit(Path::new("/usr/bin/throng"));
        for line in [
            "ExecStart=/usr/bin/throng serve --data %S/throng --api-key-file %d/api.key\n",
            "User=throng\nGroup=throng\nUMask=0077\n",
            "LimitNOFILE=1048576\n",
        ] {
            assert!(unit.contains(line), "{line} is not in\n{unit}");
        }
        assert!(!unit.contains("DynamicUser") && !unit.contains("USER"), "{unit}");
    }

    #[test]
    fn a_drop_in_without_changes_holds_comments_only() {
        let text = sysctl_drop_in(&advise(&Host::default(), &Want::new(10)));
        assert!(text.ends_with("# Nothing to change.\n"), "{text}");
        assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')));
    }
}
