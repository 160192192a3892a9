//! Starts servers for tests, and has simple clients for them.
#![allow(dead_code)]

pub mod kernel;
pub mod tls;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde_json::Value;

pub use rustix::process::Signal;

/// A test fails when it waits longer than this. It is the only deadline of these tests: a test that passes never
/// waits so long.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A fresh folder below the system's temporary one, for one test; removed at its end.
pub struct Scratch(std::path::PathBuf);

impl Scratch {
    /// Creates a folder whose name begins with `throng-NAME-`.
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = format!("throng-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(folder);
        // An earlier process with the same id may have left one.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &std::path::Path {
        &self.0
    }

    /// Writes a file in this folder and returns its path.
    pub fn write(&self, name: &str, text: &str) -> std::path::PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Accepts one connection, or fails the test after [`TIMEOUT`].
pub fn accept_within(listener: &std::net::TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let end = Instant::now() + TIMEOUT;
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false).unwrap();
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
                return socket;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(Instant::now() < end, "nobody has connected to {listener:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{listener:?}: {error}"),
        }
    }
}

/// Waits until a process has ended. Kills it and fails the test after [`TIMEOUT`].
pub fn wait_within(child: &mut Child) -> std::process::ExitStatus {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("process {} has not ended", child.id());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns a port for a program that can't choose one itself, or that must find the same one again after a
/// restart. It is below the ports that the kernel gives to other sockets.
pub fn free_port() -> u16 {
    const PORTS: std::ops::Range<u32> = 20_000..32_000;
    static STEP: AtomicU32 = AtomicU32::new(0);
    // Each test runs in its own process, with consecutive process ids, and uses a few ports.
    let begin = std::process::id().wrapping_mul(13);
    for _ in 0..PORTS.len() {
        let step = STEP.fetch_add(1, Ordering::Relaxed);
        let port = (PORTS.start + begin.wrapping_add(step) % PORTS.len() as u32) as u16;
        let is_free = |ip: &str| std::net::TcpListener::bind((ip, port)).is_ok();
        if is_free("127.0.0.1") && is_free("::1") {
            return port;
        }
    }
    panic!("no port is free in {PORTS:?}");
}

/// The lines that a process prints. Fails the test after [`TIMEOUT`] without one.
pub struct Lines(std::sync::mpsc::Receiver<String>);

impl Lines {
    pub fn of(output: impl Read + Send + 'static) -> Self {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map(|line| send.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Lines(receive)
    }

    /// Returns the lines until the process closes its output, however long they take.
    pub fn rest(self) -> impl Iterator<Item = String> {
        self.0.into_iter()
    }
}

impl Iterator for Lines {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        match self.0.recv_timeout(TIMEOUT) {
            Ok(line) => Some(line),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => None,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("no line comes"),
        }
    }
}

/// Runs a command to its end and returns what it printed. Kills it and fails the test after [`TIMEOUT`].
pub fn output_within(command: &mut Command) -> std::process::Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    printed_within(child)
}

/// Waits until a process has ended and returns what it printed to its pipes. Kills it and fails the test
/// after [`TIMEOUT`].
pub fn printed_within(mut child: Child) -> std::process::Output {
    fn all(pipe: Option<impl Read + Send + 'static>) -> std::sync::mpsc::Receiver<Vec<u8>> {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
            let _ = send.send(bytes);
        });
        receive
    }
    let (stdout, stderr) = (all(child.stdout.take()), all(child.stderr.take()));
    let status = wait_within(&mut child);
    // A process that the child has started may hold a pipe open.
    let bytes = |pipe: std::sync::mpsc::Receiver<Vec<u8>>| pipe.recv_timeout(TIMEOUT).unwrap();
    std::process::Output { status, stdout: bytes(stdout), stderr: bytes(stderr) }
}

/// Marks processes by an environment variable, which their children inherit. All processes with the mark are killed
/// when it is dropped, or when a signal ends the tests.
pub struct Mark(String);

impl Mark {
    const VARIABLE: &str = "TEST_MARK";

    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        static SIGNALS: std::sync::Once = std::sync::Once::new();
        SIGNALS.call_once(|| {
            use signal_hook::consts::{SIGINT, SIGTERM};
            // A test runner ends a test by a signal if it takes too long.
            let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).unwrap();
            std::thread::spawn(move || {
                let signal = signals.forever().next();
                let all = format!("{}-", std::process::id());
                marked(|mark| mark.starts_with(&all)).iter().for_each(|pid| kill(*pid));
                std::process::exit(128 + signal.unwrap_or_default());
            });
        });
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Mark(format!("{}-{number}", std::process::id()))
    }

    /// Marks the process that this command starts.
    pub fn put(&self, command: &mut Command) {
        command.env(Mark::VARIABLE, &self.0);
    }

    /// Returns the processes with this mark. A zombie does not count.
    pub fn processes(&self) -> Vec<u32> {
        marked(|mark| mark == self.0)
    }
}

/// Returns the processes whose mark fulfils the predicate.
fn marked(predicate: impl Fn(&str) -> bool) -> Vec<u32> {
    let is_marked = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let variables =
            environment.split(|byte| *byte == 0).filter_map(|it| str::from_utf8(it).ok());
        let mut pairs = variables.filter_map(|it| it.split_once('='));
        pairs.any(|(name, mark)| name == Mark::VARIABLE && predicate(mark))
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_marked).collect()
}

fn kill(pid: u32) {
    let _ = end_by(pid, Signal::KILL);
}

impl Drop for Mark {
    fn drop(&mut self) {
        let end = Instant::now() + TIMEOUT;
        // A process that starts another one at this moment leaves it for the next round.
        while let left @ [_, ..] = &self.processes()[..]
            && Instant::now() < end
        {
            left.iter().for_each(|pid| kill(*pid));
        }
    }
}

/// Sends a signal to a process, which need not be a child, and waits until it has ended. Returns false after
/// [`TIMEOUT`].
pub fn end_by(pid: u32, signal: Signal) -> bool {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    let _ = pidfd_send_signal(&process, signal);
    // The pidfd is readable when the whole process is gone, with its files and locks.
    let timeout = TIMEOUT.try_into().unwrap();
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// A running `throng serve`; killed at the end of the test, with every process that has taken its place.
pub struct Server {
    pub child: Child,
    /// The address for clients: without TLS, unless the server has only a port with it.
    pub client: SocketAddr,
    /// The address for clients with TLS, if the server has such a port.
    pub client_tls: Option<SocketAddr>,
    /// The address for MQTT clients with TLS.
    pub mqtt_tls: Option<SocketAddr>,
    pub admin: SocketAddr,
    /// The address for applications with TLS.
    pub admin_tls: Option<SocketAddr>,
    pub mark: Mark,
}

impl Server {
    pub fn start() -> Self {
        Server::with(&[], &[])
    }

    /// Starts a server with further flags, and settings as environment variables.
    pub fn with(flags: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(flags);
        Server::run(command, settings)
    }

    /// Spawns a server whose start text the caller reads. Until then its addresses are 0.0.0.0:0.
    pub fn spawn(command: &mut Command) -> Self {
        let mark = Mark::new();
        mark.put(command);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let (client, admin) = (unknown, unknown);
        let (client_tls, mqtt_tls, admin_tls) = (None, None, None);
        Server { child, client, client_tls, mqtt_tls, admin, admin_tls, mark }
    }

    /// Runs any command line that starts a server.
    pub fn run(command: Command, settings: &[(&str, &str)]) -> Self {
        Server::run_with_log(command, settings, Stdio::inherit())
    }

    /// Runs any command line that starts a server, which logs to `log`.
    pub fn run_with_log(command: Command, settings: &[(&str, &str)], log: Stdio) -> Self {
        // The folder has no configuration, so the developer's is not read.
        let folder = std::env::temp_dir().join("throng-tests");
        std::fs::create_dir_all(&folder).unwrap();
        Server::run_in(&folder, command, settings, log)
    }

    /// Like [`Server::run_with_log`], in this folder.
    pub fn run_in(
        folder: &std::path::Path,
        mut command: Command,
        settings: &[(&str, &str)],
        log: Stdio,
    ) -> Self {
        command.current_dir(folder).stderr(log).envs(settings.iter().copied());
        let mut server = Server::spawn(&mut command);
        let mut lines = BufReader::new(server.child.stdout.take().unwrap()).lines();
        let is_of_admin = |line: &String| line.trim_start().starts_with("applications");
        let mut seen = Vec::new();
        for line in lines.by_ref().map(|line| line.unwrap()) {
            // An empty line ends the lines about ports.
            if line.is_empty() && seen.iter().any(is_of_admin) {
                break;
            }
            seen.push(line);
        }
        let of_admin = seen.iter().position(is_of_admin).expect("the line of the admin port");
        let (of_clients, of_admin) = seen.split_at(of_admin);
        let address = |lines: &[String], label: &str, scheme: &str| -> Option<SocketAddr> {
            let line = lines
                .iter()
                .find(|line| line.trim_start().starts_with(label) && line.contains(scheme))?;
            let (_, rest) = line.split_once(scheme)?;
            Some(rest.split(['/', ' ']).next()?.parse().unwrap())
        };
        server.client_tls = address(of_clients, "", "https://");
        server.mqtt_tls = address(of_clients, "mqtt", "mqtts://");
        server.admin_tls = address(of_admin, "", "https://");
        let client = address(of_clients, "clients", "http://").or(server.client_tls);
        let admin = address(of_admin, "applications", "http://");
        let (Some(client), Some(admin)) = (client, admin) else {
            panic!("the start-up text lacks a line: {seen:?}")
        };
        (server.client, server.admin) = (client, admin);
        std::thread::spawn(move || lines.for_each(drop));
        server
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.client)
    }

    /// Sends bytes on a connection of their own and reads until the server closes.
    pub fn exchange(&self, bytes: &[u8]) -> String {
        let mut socket = self.connect();
        socket.write_all(bytes).unwrap();
        let mut all = Vec::new();
        let _ = socket.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Sends bytes and reads until the server closes, which may do so before it has read all of them.
    pub fn exchange_once(&self, bytes: &[u8]) -> String {
        let mut socket = self.connect();
        let _ = socket.write_all(bytes);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let mut all = Vec::new();
        let _ = socket.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Opens a lasting GET and reads past its head.
    pub fn listen(&self, target: &str) -> Stream {
        let mut stream = Stream::new(self.connect());
        stream.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n"));
        let head = stream.head();
        assert!(head.starts_with("HTTP/1.1 200 "), "{target}: {head}");
        stream
    }

    /// Makes a GET on the client port. Returns the status and the body.
    pub fn get(&self, target: &str) -> (u16, Value) {
        json(self.client, "GET", target, None, "")
    }

    /// Calls the API. Returns the status and the body.
    pub fn api(&self, method: &str, target: &str, body: Option<Value>) -> (u16, Value) {
        json(self.admin, method, target, body, "")
    }

    /// Makes a POST to the API, which must succeed.
    pub fn post(&self, target: &str, body: Value) -> Value {
        let (status, response) = self.api("POST", target, Some(body));
        assert_eq!(status, 200, "{target}: {response}");
        response
    }

    pub fn publish(&self, topic: &str, data: Value) -> Value {
        self.post("/api/publish", serde_json::json!({"topic": topic, "data": data}))
    }

    /// Returns the value of the line of /metrics that begins with `name`.
    pub fn metric(&self, name: &str) -> f64 {
        let text = text(self.admin, "GET", "/metrics", None, "").1;
        let line = text
            .lines()
            .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("no metric {name} in\n{text}"))
    }

    /// Waits until `is_so` is true. `what` describes it for a failure.
    pub fn until(&self, what: &str, mut is_so: impl FnMut(&Server) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !is_so(self) {
            assert!(Instant::now() < end, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a topic has this many members.
    pub fn until_members(&self, topic: &str, members: u64) {
        self.until(&format!("{topic} has {members} members"), |server| {
            server.api("GET", &format!("/api/topics/{topic}"), None).1["members"] == members
        });
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Stops the process until SIGCONT. The kernel stops a thread when it runs next: until then it may serve.
    pub fn pause(&self) {
        self.signal("-STOP");
        let tasks = format!("/proc/{}/task", self.child.id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            // The name before the state may contain parentheses.
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        self.until("all threads are stopped", |_| {
            std::fs::read_dir(&tasks).unwrap().all(is_stopped)
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a file with a secret that only its owner can read.
pub fn write_secret(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns the folder into which `scripts/install` has put packages of PyPI.
pub fn installed(folder: &str) -> std::path::PathBuf {
    let target = std::env::var("CARGO_TARGET_DIR").map_or_else(
        |_| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        Into::into,
    );
    target.join("tools").join(folder)
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// Makes one request on a connection of its own. Returns the status and the body as text.
pub fn text(
    address: SocketAddr,
    method: &str,
    target: &str,
    body: Option<Value>,
    headers: &str,
) -> (u16, String) {
    let body = body.map(|body| body.to_string());
    let mut socket = connect(address);
    let length = match &body {
        Some(body) => {
            format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len())
        }
        None => String::new(),
    };
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}{length}\r\n"
    );
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(body.unwrap_or_default().as_bytes()).unwrap();
    let mut stream = Stream::new(socket);
    let head = stream.head();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = match header(&head, "transfer-encoding") {
        Some(_) => stream.chunks(),
        None => stream.rest(),
    };
    (status.unwrap_or_else(|| panic!("no status in {head:?}")), body)
}

/// Makes one request. Returns the status and the body, which must be JSON or empty.
pub fn json(
    address: SocketAddr,
    method: &str,
    target: &str,
    body: Option<Value>,
    headers: &str,
) -> (u16, Value) {
    let (status, text) = text(address, method, target, body, headers);
    let value = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{target}: {error}: {text}"))
    };
    (status, value)
}

pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

/// A connection with methods to read parts of its input.
pub struct Stream {
    pub reader: BufReader<TcpStream>,
}

impl Stream {
    pub fn new(socket: TcpStream) -> Self {
        Stream { reader: BufReader::new(socket) }
    }

    pub fn send(&mut self, text: &str) {
        self.send_bytes(text.as_bytes());
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    /// Reads up to and including the empty line.
    pub fn head(&mut self) -> String {
        let head = self.head_if_any();
        assert!(head.ends_with("\r\n\r\n"), "the server closed after {head:?}");
        head
    }

    /// Reads a head. It is incomplete or empty if the peer closed.
    pub fn head_if_any(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && self.reader.read_line(&mut head).unwrap() > 0 {}
        head
    }

    /// Reads a line, without its end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).unwrap();
        assert!(read > 0, "the server closed");
        line.trim_end_matches(['\r', '\n']).to_string()
    }

    /// Reads a head and the body of its Content-Length. Returns the status and the body.
    pub fn read_reply(&mut self) -> (u16, String) {
        let head = self.head();
        let length = header(&head, "content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), String::from_utf8(body).unwrap())
    }

    /// Reads one chunk of a chunked body. It is empty at the end.
    pub fn chunk(&mut self) -> String {
        let size = usize::from_str_radix(&self.line(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.reader.read_exact(&mut chunk).unwrap();
        chunk.truncate(size);
        String::from_utf8(chunk).unwrap()
    }

    pub fn chunks(&mut self) -> String {
        let mut all = String::new();
        loop {
            let chunk = self.chunk();
            if chunk.is_empty() {
                return all;
            }
            all += &chunk;
        }
    }

    /// Reads a JSON line of an HTTP stream, which is one chunk.
    pub fn object(&mut self) -> Value {
        serde_json::from_str(&self.chunk()).unwrap()
    }

    /// Reads the next JSON line of an HTTP stream. Skips heartbeats, which the server may send at any time.
    pub fn next_object(&mut self) -> Value {
        // Heartbeats would keep the read timeout from ever ending this.
        let end = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < end, "no object comes");
            let object = self.object();
            if object["type"] != "heartbeat" {
                return object;
            }
        }
    }

    /// Reads the next event of an event stream as (field, value) pairs, and skips comments.
    pub fn event(&mut self) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        // Heartbeats would keep the read timeout from ever ending this.
        let end = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < end, "no event comes");
            let line = self.line();
            if line.is_empty() && !fields.is_empty() {
                return fields;
            }
            if let Some((field, value)) = line.split_once(": ")
                && !field.is_empty()
            {
                fields.push((field.to_string(), value.to_string()));
            }
        }
    }

    /// Reads the `data` of the next event that has any.
    pub fn data(&mut self) -> String {
        loop {
            let event = self.event();
            let data: Vec<_> = event.into_iter().filter(|(field, _)| field == "data").collect();
            if !data.is_empty() {
                return data.into_iter().map(|(_, value)| value).collect::<Vec<_>>().join("\n");
            }
        }
    }

    /// Reads everything until the server closes or resets the connection.
    pub fn rest(&mut self) -> String {
        let mut all = Vec::new();
        let _ = self.reader.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }
}

/// A WebSocket with tungstenite's codec.
pub type WebSocket = tungstenite::WebSocket<TcpStream>;

pub fn websocket(server: &Server, query: &str) -> WebSocket {
    let url = format!("ws://{}/ws?{query}", server.client);
    let (mut socket, _) = tungstenite::client(url, server.connect()).unwrap();
    let welcome = receive(&mut socket);
    assert_eq!(welcome["type"], "welcome");
    socket
}

/// Reads the next text message as JSON.
pub fn receive(socket: &mut WebSocket) -> Value {
    // Pings would keep the read timeout from ever ending this.
    let end = Instant::now() + TIMEOUT;
    loop {
        assert!(Instant::now() < end, "no text comes");
        if let tungstenite::Message::Text(text) = socket.read().unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

/// Sends a command and returns its reply. Drops messages that arrive in between.
pub fn command(socket: &mut WebSocket, command: Value) -> Value {
    socket.send(tungstenite::Message::text(command.to_string())).unwrap();
    loop {
        let response = receive(socket);
        if response["type"] == "reply" {
            return response;
        }
    }
}

/// Opens a Phoenix long-poll session and polls it once, since a session that was never polled ends after ten seconds.
/// Returns its token.
pub fn longpoll_session(server: &Server) -> String {
    let target = "/socket/longpoll?vsn=2.0.0";
    let (_, opened) = server.get(target);
    let token = opened["token"].as_str().unwrap_or_else(|| panic!("no session: {opened}"));
    let beat = r#"[null,"1","phoenix","heartbeat",{}]"#;
    let request = format!(
        "POST {target}&token={token} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{beat}",
        beat.len()
    );
    let sent = server.exchange(request.as_bytes());
    assert!(sent.ends_with(r#"{"status":200}"#), "{sent}");
    let (_, polled) = server.get(&format!("{target}&token={token}"));
    assert!(polled.to_string().contains("phx_reply"), "{polled}");
    token.into()
}
