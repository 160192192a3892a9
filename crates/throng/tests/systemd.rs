//! The unit of `throng tune --systemd`: systemd parses it, its command works as the unit says, and on machines that
//! systemd runs the unit starts.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::*;
use serde_json::json;

const KEY: &str = "a-key-of-sixteen-chars";

/// The path of a file in a test's folder, as text.
fn path(folder: &Scratch, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_string()
}

/// Returns the unit that this binary makes.
fn unit(binary: &Path) -> String {
    let arguments = ["tune", "--connections", "1000", "--systemd"];
    let output = output_within(Command::new(binary).args(arguments));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).unwrap()
}

fn this_binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_throng"))
}

/// Returns the value of a key of the unit.
fn value<'a>(unit: &'a str, key: &str) -> &'a str {
    let line = |line: &'a str| line.strip_prefix(key)?.strip_prefix('=');
    unit.lines().find_map(line).unwrap_or_else(|| panic!("no {key} in\n{unit}"))
}

#[test]
fn systemd_finds_no_fault_with_the_unit() {
    let folder = Scratch::new("verify");
    let (name, text) = (path(&folder, "throng.service"), unit(this_binary()));
    let verify = |text: &str| -> Output {
        fs::write(&name, text).unwrap();
        let mut command = Command::new("systemd-analyze");
        output_within(command.args(["verify", "--man=no", &name]))
    };
    let good = verify(&text);
    assert_eq!(String::from_utf8_lossy(&good.stderr), "", "{text}");
    assert!(good.status.success());
    // systemd-analyze does verify the unit: it finds this error.
    let bad = verify(&text.replace("StateDirectory=throng", "StateDirectory=/throng"));
    assert!(!bad.stderr.is_empty());
}

/// The socket of a service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn new(path: &str) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Manager(socket)
    }

    fn next(&self) -> String {
        let mut buffer = [0; 256];
        let length = self.0.recv(&mut buffer).expect("the manager is told");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }
}

/// Runs the unit's command as the manager would, with folders of the test.
#[test]
fn what_the_unit_starts_notifies_the_manager_and_takes_the_key() {
    let folder = Scratch::new("start");
    for name in ["state", "credentials", "etc"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let unit = unit(this_binary());
    let credential = value(&unit, "LoadCredential").split(':').next().unwrap();
    assert_eq!(value(&unit, "SetCredential"), format!("{credential}:{}", config::NO_KEY));
    let rule = "[[topics]]\npattern = \"log\"\nhistory_messages_max = 9\ndurable = true\n";
    fs::write(path(&folder, "etc/throng.toml"), rule).unwrap();
    let manager = Manager::new(&path(&folder, "notify"));
    for key in [KEY, config::NO_KEY] {
        write_secret(&folder.path().join("credentials").join(credential), key);
        let line = value(&unit, "ExecStart")
            .replace("%S", &path(&folder, "state"))
            .replace("%d", &path(&folder, "credentials"));
        assert!(!line.contains(['%', '"', '$']), "{line}");
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env("NOTIFY_SOCKET", path(&folder, "notify"));
        command.env("CREDENTIALS_DIRECTORY", path(&folder, "credentials"));
        let any = "127.0.0.1:0";
        let ports = [("THRONG_CLIENT_LISTEN", any), ("THRONG_ADMIN_LISTEN", any)];
        let mut server =
            Server::run_in(&folder.path().join("etc"), command, &ports, Stdio::inherit());
        assert_eq!(manager.next(), "READY=1");
        let call = |header: &str| {
            let message = json!({"topic": "log", "data": key});
            json(server.admin, "POST", "/api/publish", Some(message), header).0
        };
        let with_key = format!("Authorization: Bearer {KEY}\r\n");
        let open = key == config::NO_KEY;
        assert_eq!((call(&with_key), call("")), (200, if open { 200 } else { 401 }));
        server.signal("-HUP");
        let reloading = manager.next();
        let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(time.parse::<u64>().unwrap() > 0);
        assert_eq!(manager.next(), "READY=1");
        server.signal("-TERM");
        assert_eq!(manager.next(), "STOPPING=1");
        assert!(wait_within(&mut server.child).success());
    }
    assert!(folder.path().join("state/throng/throng.redb").exists());
}

#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = output_within(Command::new(program).args(arguments));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

/// A unit that a test installs under its own name, with files of that name.
struct Installed {
    name: String,
    binary: PathBuf,
}

impl Installed {
    fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> String {
        format!("/run/{}.log", self.name)
    }

    fn config(&self) -> PathBuf {
        Path::new("/etc").join(&self.name)
    }

    fn unit_file(&self) -> String {
        format!("/run/systemd/system/{}.service", self.name)
    }

    #[track_caller]
    fn control(&self, verb: &str) {
        let output = output_within(Command::new("systemctl").args([verb, &self.name]));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "systemctl {verb}: {error}\n{}", self.log());
    }

    fn property(&self, name: &str) -> String {
        run("systemctl", &["show", "--value", "--property", name, &self.name])
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = Command::new("systemctl").args(["stop", &self.name]).output();
        let _ = Command::new("systemctl").args(["reset-failed", &self.name]).output();
        let _ = fs::remove_file(self.unit_file());
        let _ = fs::remove_file(self.log_file());
        let _ = fs::remove_file(&self.binary);
        let _ = fs::remove_dir_all(self.config());
        let _ = fs::remove_file(Path::new("/var/lib").join(&self.name));
        let _ = fs::remove_dir_all(Path::new("/var/lib/private").join(&self.name));
        let _ = Command::new("systemctl").arg("daemon-reload").output();
    }
}

/// Returns the reason if the unit can't start here.
fn no_manager() -> Option<&'static str> {
    if !Path::new("/run/systemd/system").exists() {
        return Some("systemd does not run this machine");
    }
    let root =
        fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0);
    (!root).then_some("only root may start units")
}

/// The unit with other file names and ports, under the manager of this machine.
#[test]
fn systemd_starts_the_unit() {
    if let Some(reason) = no_manager() {
        eprintln!("skipped: {reason} (scripts/under-systemd runs a command where it does)");
        return;
    }
    let name = format!("throng-test-{}", std::process::id());
    let installed = Installed { binary: Path::new("/usr/local/bin").join(&name), name };
    fs::copy(this_binary(), &installed.binary).unwrap();
    fs::set_permissions(&installed.binary, fs::Permissions::from_mode(0o755)).unwrap();
    // The addresses stay the same after a restart.
    let address = || std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (client, admin) = (address(), address());
    let more = format!(
        "[Service]\nEnvironment=THRONG_CLIENT_LISTEN={client} THRONG_ADMIN_LISTEN={admin}\n\
         StandardOutput=append:{0}\nStandardError=append:{0}\n",
        installed.log_file()
    );
    let own = format!("/{}", installed.name);
    let unit = unit(&installed.binary)
        .replace("%S/throng", &format!("%S{own}"))
        .replace("%E/throng", &format!("%E{own}"))
        .replace("/etc/throng", &format!("/etc{own}"))
        .replace("Directory=throng", &format!("Directory={}", installed.name))
        .replace("[Service]\n", &more);
    fs::write(installed.unit_file(), &unit).unwrap();
    run("systemctl", &["daemon-reload"]);
    installed.control("start");
    // When systemctl returns, the server serves, without configuration and key.
    let publish = |header: &str| {
        let message = json!({"topic": "log", "data": 1});
        json(admin, "POST", "/api/publish", Some(message), header)
    };
    assert_eq!(publish("").0, 200);
    assert_eq!(TcpListener::bind(client).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    // The sandbox does not change the server's features.
    let outside = outside(&installed.binary);
    for word in ["sender=", "private_tables="] {
        assert_eq!(field(&installed.log(), word), field(&outside, word), "{}", installed.log());
    }
    let limit = value(&unit, "LimitNOFILE");
    assert_eq!(installed.property("LimitNOFILE"), limit);
    // With both it has a key after a restart, and history that outlives it.
    let rule = "[[topics]]\npattern = \"log\"\nhistory_messages_max = 9\ndurable = true\n";
    fs::write(installed.config().join("throng.toml"), rule).unwrap();
    // A reload goes on as a new process, which reads the configuration, too.
    let before = installed.property("MainPID");
    installed.control("reload");
    until("the rule holds", || json(admin, "GET", "/api/history/log", None, "").0 == 200);
    until("systemd knows the new process", || installed.property("MainPID") != before);
    until("the unit is active", || installed.property("ActiveState") == "active");
    let upgrade = json(admin, "GET", "/api/upgrade", None, "").1;
    assert_eq!(upgrade["result"], "done", "{upgrade}");
    // The old process ends, and the unit stays active.
    until("the old process ends", || !Path::new("/proc").join(&before).exists());
    assert_eq!(installed.property("ActiveState"), "active");
    // This signal only reloads the configuration.
    let pid = installed.property("MainPID");
    run("systemctl", &["kill", "--signal=HUP", &installed.name]);
    until("settings are read", || installed.log().contains("the configuration was read again"));
    assert_eq!(installed.property("MainPID"), pid);
    assert_eq!(publish("").0, 200);
    write_secret(&installed.config().join("api.key"), KEY);
    installed.control("restart");
    let key = format!("Authorization: Bearer {KEY}\r\n");
    assert_eq!((publish("").0, publish(&key).0), (401, 200));
    let page = json(admin, "GET", "/api/history/log", None, &key).1;
    assert!(page["messages"].as_array().unwrap().len() == 2, "{page}");
    let stored = Path::new("/var/lib/private").join(&installed.name).join("throng.redb");
    assert!(stored.exists(), "{stored:?}");
    let restarts = installed.property("NRestarts");
    installed.control("stop");
    assert_eq!((installed.property("Result"), restarts), ("success".into(), "0".into()));
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the log of a server outside of the sandbox.
fn outside(binary: &Path) -> String {
    let folder = Scratch::new("outside");
    let log = path(&folder, "log");
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let server = Server::run_with_log(command, &[], fs::File::create(&log).unwrap().into());
    drop(server);
    fs::read_to_string(log).unwrap()
}

/// Returns the text behind `word` in the log.
fn field(log: &str, word: &str) -> String {
    let plain = log.replace("\x1b[2m", "").replace("\x1b[0m", "").replace("\x1b[3m", "");
    let rest = plain.split(word).nth(1).unwrap_or_else(|| panic!("no {word} in\n{log}"));
    rest.split_whitespace().next().unwrap().to_string()
}
