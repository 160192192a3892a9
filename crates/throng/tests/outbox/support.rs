//! A PostgreSQL server, psql, and Throng servers with its outbox.

use std::io::Write;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Lines, Mark, Scratch, Server, TIMEOUT, free_port, output_within};

/// The user that runs PostgreSQL if the tests run as root, as which PostgreSQL does not start.
const UNPRIVILEGED: u32 = 65_534;

/// A PostgreSQL server (`scripts/install` installs it) in a folder of its own, with the database `app`.
pub struct Postgres {
    bin: PathBuf,
    folder: Scratch,
    options: Vec<String>,
    child: Option<Child>,
    mark: Mark,
}

/// Returns the folder of PostgreSQL's programs: what `TEST_POSTGRES` names, else the newest on this machine, which Debian
/// leaves out of the PATH.
fn programs() -> PathBuf {
    if let Some(folder) = std::env::var_os("TEST_POSTGRES") {
        return folder.into();
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("scripts/install");
    let versions = versions.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let newest = versions.max_by_key(|version| version.parse::<u32>().unwrap_or(0)).unwrap();
    Path::new("/usr/lib/postgresql").join(newest).join("bin")
}

impl Postgres {
    pub fn start() -> Self {
        Postgres::with(&[], |_| {})
    }

    /// Starts a server with further options. `prepare` may change files in its folder before.
    pub fn with(options: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        let options = options.iter().map(|option| (*option).to_string()).collect();
        let mut postgres = Postgres::in_folder(Scratch::new("pg"), options);
        let mut init = postgres.program("initdb");
        init.args(["-D", &postgres.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8"]);
        let output = output_within(init.args(["--no-locale", "--no-sync", "--no-instructions"]));
        assert!(output.status.success(), "{output:?}");
        prepare(postgres.folder.path());
        postgres.run();
        postgres.psql_in("postgres", "postgres", "CREATE DATABASE app");
        postgres
    }

    /// Makes a server that is not started, in an empty folder.
    fn in_folder(folder: Scratch, options: Vec<String>) -> Self {
        if rustix::process::getuid().is_root() {
            chown(folder.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        }
        Postgres { bin: programs(), folder, options, child: None, mark: Mark::new() }
    }

    /// Starts a standby, which has all that this server commits. This server is restarted for it.
    pub fn standby(&mut self) -> Self {
        self.kill();
        let mut standby = Postgres::in_folder(Scratch::new("standby"), self.options.clone());
        let copy = Command::new("cp").args(["-a", &self.data(), &standby.data()]).status();
        assert!(copy.unwrap().success());
        let data = standby.folder.path().join("data");
        // The copy may name the process of this server.
        let _ = std::fs::remove_file(data.join("postmaster.pid"));
        let primary = format!("primary_conninfo = 'host={} user=postgres'\n", self.folder());
        Postgres::add_file(&data, "standby.signal", "");
        Postgres::add_file(&data, "postgresql.auto.conf", &primary);
        self.run();
        standby.run();
        until("the standby receives", || {
            self.psql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == "1"
        });
        standby
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        assert_eq!(self.psql("SELECT pg_promote()"), "t");
    }

    /// Writes a file into its folder that only PostgreSQL can read.
    pub fn add_file(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        crate::support::write_secret(&path, text);
        if rustix::process::getuid().is_root() {
            chown(&path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        }
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command.current_dir(self.folder.path()).env("LC_ALL", "C");
        if rustix::process::getuid().is_root() {
            command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        }
        self.mark.put(&mut command);
        command
    }

    fn data(&self) -> String {
        self.folder.path().join("data").display().to_string()
    }

    /// Returns the folder with its Unix socket.
    pub fn folder(&self) -> String {
        self.folder.path().display().to_string()
    }

    /// Starts PostgreSQL, and waits until it accepts clients.
    pub fn run(&mut self) {
        let mut command = self.program("postgres");
        let folder = self.folder();
        command.args(["-D", &self.data(), "-k", &folder, "-c", "listen_addresses="]);
        for option in ["fsync=off", "shared_buffers=16MB", "max_connections=30", "autovacuum=off"] {
            command.args(["-c", option]);
        }
        command.args(self.options.iter().flat_map(|option| ["-c", option]));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        until("PostgreSQL lets clients in", || {
            self.try_psql("postgres", "postgres", "SELECT 1").status.success()
        });
    }

    /// Kills PostgreSQL as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // SIGQUIT: all of its processes end at once, and the next start recovers.
            let pid = child.id().to_string();
            assert!(Command::new("kill").args(["-QUIT", &pid]).status().unwrap().success());
            crate::support::wait_within(&mut child);
        }
    }

    fn client(&self, user: &str, database: &str) -> Command {
        let mut command = self.program("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", &self.folder()]);
        let port = self.options.iter().find_map(|option| option.strip_prefix("port="));
        command.args(["-U", user, "-d", database, "-p", port.unwrap_or("5432")]);
        command
    }

    pub fn try_psql(&self, user: &str, database: &str, sql: &str) -> std::process::Output {
        output_within(self.client(user, database).args(["-c", sql]))
    }

    fn psql_in(&self, user: &str, database: &str, sql: &str) -> String {
        let output = self.try_psql(user, database, sql);
        assert!(output.status.success(), "{sql}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Runs statements in the database `app`, in one transaction, and returns what they print.
    pub fn psql(&self, sql: &str) -> String {
        self.psql_in("postgres", "app", sql)
    }

    /// Runs a long script in the database `app`, each statement by itself, and returns what it prints.
    pub fn psql_script(&self, sql: &str) -> String {
        Postgres::add_file(self.folder.path(), "script.sql", sql);
        let script = self.folder.path().join("script.sql");
        let output = output_within(self.client("postgres", "app").arg("-f").arg(script));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs statements in the database `app` as another user.
    pub fn psql_as(&self, user: &str, sql: &str) -> String {
        self.psql_in(user, "app", sql)
    }

    /// Opens a psql session that stays open.
    pub fn session(&self) -> Session {
        let mut command = self.client("postgres", "app");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = Lines::of(child.stdout.take().unwrap());
        Session { child, lines }
    }

    /// Returns the URL of the database for this user, by the Unix socket.
    pub fn url(&self, user: &str) -> String {
        format!("postgres:///app?host={}&user={user}", self.folder())
    }

    /// Starts a Throng server with this database, and further flags and settings.
    pub fn server(&self, flags: &[&str], settings: &[(&str, &str)]) -> Server {
        let url = [("THRONG_OUTBOX_URL", &*self.url("postgres"))];
        Server::with(&[&["--shards", "1"], flags].concat(), &[&url, settings].concat())
    }

    /// Starts a server, and waits until it drains the outbox.
    pub fn draining_server(&self, flags: &[&str], settings: &[(&str, &str)]) -> Server {
        let server = self.server(flags, settings);
        until_draining(&server);
        server
    }

    /// Waits until a server has made the tables and functions.
    pub fn until_schema(&self) {
        until("a server has made the schema", || {
            self.psql("SELECT to_regclass('throng.outbox') IS NULL") == "f"
        });
    }

    /// Returns the number of rows that wait.
    pub fn rows(&self) -> u64 {
        self.psql("SELECT count(*) FROM throng.outbox").parse().unwrap()
    }

    /// Makes rows undeletable until the session ends. Servers can still read them.
    pub fn undeletable(&self) -> Session {
        let mut session = self.session();
        session.run("BEGIN");
        session.run("LOCK TABLE throng.outbox_refused");
        session
    }

    /// Waits until a server waits for the end of such a session, or until none does.
    pub fn until_deletes_wait(&self, wait: bool) {
        until(&format!("deletes wait: {wait}"), || {
            (self.psql("SELECT count(*) FROM pg_locks WHERE NOT granted") != "0") == wait
        });
    }

    /// Waits until no row waits.
    pub fn until_empty(&self) {
        until("no row waits", || self.rows() == 0);
    }
}

/// Waits until `is_so` is true. `what` describes it for a failure.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns a port for PostgreSQL with TCP, which can't choose one itself.
pub fn tcp_port() -> u16 {
    free_port()
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A psql session that stays open.
pub struct Session {
    child: Child,
    lines: Lines,
}

impl Session {
    /// Runs a statement, and waits for its end.
    pub fn run(&mut self, sql: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{sql};\n\\echo done").unwrap();
        assert!(self.lines.any(|line| line == "done"), "{sql}");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a server's view of its outbox.
pub fn state(server: &Server) -> Value {
    let (status, state) = server.api("GET", "/api/outbox", None);
    assert_eq!(status, 200, "{state}");
    state
}

pub fn until_draining(server: &Server) {
    server.until("it drains the outbox", |server| state(server)["draining"] == true);
}

/// Waits until the server's outbox has an error with this text.
pub fn until_error(server: &Server, part: &str) {
    server.until(&format!("an error has {part:?}"), |server| {
        state(server)["error"].as_str().is_some_and(|error| error.contains(part))
    });
}
