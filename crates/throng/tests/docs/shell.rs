//! A reader's terminals: a shell that keeps its variables from block to block, the server, and processes in the
//! background.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Lines, Mark, Scratch, Signal, TIMEOUT, end_by};

/// A wrapper for `throng`: commands that call the admin port find it at the port of the page's server.
const THRONG: &str = r#"#!/bin/bash
case "$1 $2" in
"top "*) [[ "$*" == *http* ]] || set -- "$@" "http://$(cat "$RUN/admin")" ;;
"flood "*) [[ "$*" == *--admin* || "$*" == *--help* ]] || set -- "$@" --admin "http://$(cat "$RUN/admin")" ;;
"bundle "*) [[ "$*" == *--admin* || "$*" == *--help* ]] || set -- "$@" --admin "http://$(cat "$RUN/admin")" ;;
"upgrade "*) [[ "$*" == *--admin* || "$*" == *--help* ]] || set -- "$@" --admin "http://$(cat "$RUN/admin")" ;;
"health "*) [[ "$*" == *--admin* || "$*" == *--help* ]] || set -- "$@" --admin "http://$(cat "$RUN/admin")" ;;
"store backup") [[ "$*" == *--admin* || "$*" == *--from* ]] || set -- "$@" --admin "http://$(cat "$RUN/admin")" ;;
"subscriptions import" | "subscriptions list" | "subscriptions followers") [[ "$*" == *--admin* ]] || set -- "$@" --admin "http://$(cat "$RUN/admin")" ;;
esac
exec "$THRONG_BIN" "$@"
"#;

/// A `pidof` that only finds the page's server.
const PIDOF: &str = "#!/bin/sh\ncat \"$RUN/server\"\n";

/// The result of a block.
#[derive(Debug)]
pub struct Done {
    pub status: i32,
    pub out: String,
    pub err: String,
    /// Commands of the block that failed.
    pub failed: String,
}

/// A process in another terminal.
pub struct Listener {
    path: PathBuf,
    /// The bytes that the page has shown already.
    pub seen: usize,
}

impl Listener {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.path).unwrap_or_default()).into_owned()
    }
}

/// A folder with the files of a clone, and a shell in it.
pub struct Shell {
    pub folder: PathBuf,
    _scratch: Scratch,
    bash: Child,
    input: ChildStdin,
    blocks: usize,
}

impl Shell {
    pub fn start(name: &str, root: &Path) -> Self {
        let scratch = Scratch::new(&format!("docs-{name}"));
        let folder = scratch.path().to_path_buf();
        let run = folder.join(".run");
        std::fs::create_dir_all(&run).unwrap();
        for entry in std::fs::read_dir(root).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            if name != "target" && name != ".git" && name != "throng.toml" {
                std::os::unix::fs::symlink(entry.path(), folder.join(name)).unwrap();
            }
        }
        for (name, text) in [("throng", THRONG), ("pidof", PIDOF)] {
            use std::os::unix::fs::PermissionsExt;
            let path = run.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        // curl's progress output would disturb the comparison.
        std::fs::write(folder.join(".curlrc"), "silent\nshow-error\n").unwrap();
        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc"]).current_dir(&folder).process_group(0);
        Shell::environment(&mut command, &folder);
        let output = std::fs::File::create(run.join("bash")).unwrap();
        command.stdin(Stdio::piped()).stdout(output.try_clone().unwrap()).stderr(output);
        let mut bash = command.spawn().unwrap();
        let mut input = bash.stdin.take().unwrap();
        writeln!(input, "set -o pipefail; trap 'echo \"$BASH_COMMAND\" >>\"$FAILED\"' ERR")
            .unwrap();
        Shell { folder, _scratch: scratch, bash, input, blocks: 0 }
    }

    fn environment(command: &mut Command, folder: &Path) {
        let run = folder.join(".run");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", run.display())).env("HOME", folder);
        command.env("RUN", &run).env("THRONG_BIN", env!("CARGO_BIN_EXE_throng"));
        command.env_remove("COLUMNS").env("TERM", "dumb");
    }

    fn write(&mut self, text: &str) -> PathBuf {
        self.blocks += 1;
        let path = self.folder.join(format!(".run/{}", self.blocks));
        std::fs::write(path.with_extension("sh"), text).unwrap();
        path
    }

    /// Runs a block to its end.
    pub fn run(&mut self, text: &str) -> Done {
        let path = self.write(text);
        let (at, of) = (path.display(), |kind: &str| path.with_extension(kind));
        writeln!(
            self.input,
            "FAILED={at}.failed; . {at}.sh </dev/null >{at}.out 2>{at}.err; echo $? >{at}.tmp; mv {at}.tmp {at}.status"
        )
        .unwrap();
        let end = Instant::now() + TIMEOUT;
        while !of("status").exists() {
            assert!(Instant::now() < end, "this ran for {TIMEOUT:?} and did not end:\n{text}");
            assert!(self.bash.try_wait().unwrap().is_none(), "the shell ended in:\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let read = |kind| {
            String::from_utf8_lossy(&std::fs::read(of(kind)).unwrap_or_default()).into_owned()
        };
        let status = read("status").trim().parse().unwrap();
        Done { status, out: read("out"), err: read("err"), failed: read("failed") }
    }

    /// Starts a block in the background, as in another terminal.
    pub fn leave(&mut self, text: &str) -> Listener {
        let path = self.write(text);
        let at = path.display();
        writeln!(self.input, "( trap - ERR; . {at}.sh ) </dev/null >{at}.out 2>&1 &").unwrap();
        Listener { path: path.with_extension("out"), seen: 0 }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = format!("-{}", self.bash.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.bash.wait();
    }
}

/// The page's server.
pub struct Server {
    child: Child,
    pub client: u16,
    pub admin: u16,
    pub listener: Listener,
    mark: Mark,
}

impl Server {
    /// Runs the command line of a page that starts a server, at ports that the system chooses.
    pub fn start(shell: &Shell, command_line: &str) -> Self {
        let mut command = Command::new("bash");
        command.args(["-c", &format!("exec {command_line}")]).current_dir(&shell.folder);
        Shell::environment(&mut command, &shell.folder);
        command
            .env("THRONG_CLIENT_LISTEN", "127.0.0.1:0")
            .env("THRONG_ADMIN_LISTEN", "127.0.0.1:0");
        let path = shell.folder.join(format!(".run/server-{}.out", shell.blocks));
        let log = std::fs::File::create(path.with_extension("log")).unwrap();
        command.stdout(Stdio::piped()).stderr(log).stdin(Stdio::null());
        let mark = Mark::new();
        mark.put(&mut command);
        let mut child = command.spawn().unwrap();
        let mut lines = Lines::of(child.stdout.take().unwrap());
        let mut out = std::fs::File::create(&path).unwrap();
        let mut port = |label: &str| -> u16 {
            for line in lines.by_ref() {
                writeln!(out, "{line}").unwrap();
                if line.trim_start().starts_with(label) {
                    let (_, rest) = line.split_once("http://").unwrap();
                    let address = rest.split(['/', ' ']).next().unwrap();
                    return address.rsplit(':').next().unwrap().parse().unwrap();
                }
            }
            let log = std::fs::read_to_string(path.with_extension("log")).unwrap();
            panic!("{command_line}: the server did not start:\n{log}");
        };
        let (client, admin) = (port("clients"), port("applications"));
        std::thread::spawn(move || {
            lines.rest().for_each(|line| drop(writeln!(out, "{line}")));
        });
        std::fs::write(shell.folder.join(".run/admin"), format!("127.0.0.1:{admin}")).unwrap();
        std::fs::write(shell.folder.join(".run/server"), child.id().to_string()).unwrap();
        Server { child, client, admin, listener: Listener { path, seen: 0 }, mark }
    }
}

impl Drop for Server {
    /// Interrupts the server as a reader does, so that it closes its store. After an upgrade it is another process.
    fn drop(&mut self) {
        for pid in self.mark.processes() {
            let _ = end_by(pid, Signal::INT);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
