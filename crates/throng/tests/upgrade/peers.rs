//! The socket between the two processes: `serve --take-over` by hand, peers that are no server, and other users.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use random::Random;

use crate::support::{Lines, Mark, TIMEOUT, output_within, printed_within, wait_within};
use crate::upgrade::api::Api;
use crate::upgrade::member::{Kind, Member};
use crate::upgrade::node::{BOTH, Node, Storage, signal};

/// A server that waits for the old one; killed at the end of the test.
struct Waiting {
    child: std::process::Child,
    socket: PathBuf,
    _mark: Mark,
}

impl Waiting {
    fn begin(node: &Node, storage: Storage, name: &str) -> Self {
        let socket = node.path(name);
        let mut command = node.another(storage);
        command.args(["--shards", "2", "--take-over"]).arg(&socket).stdout(Stdio::null());
        let mark = Mark::new();
        mark.put(&mut command);
        let mut child = command.spawn().unwrap();
        node.until("it waits at its socket", |_| {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "it does not wait: {ended:?}");
            socket.exists()
        });
        Waiting { child, socket, _mark: mark }
    }

    fn to(&self) -> &str {
        self.socket.to_str().unwrap()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As between two containers: the new server was started by hand and waits. Its number of shards may differ.
#[test]
fn a_server_that_waits_takes_over() {
    for storage in BOTH {
        let mut node = Node::new(storage);
        let mut members: Vec<Member> = Member::all(&node, "h:a");
        let mut waiting = Waiting::begin(&node, storage, "take-over");
        let mode = std::fs::metadata(&waiting.socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
        let outcome = node.try_upgrade(&["--to", waiting.to()]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(wait_within(&mut node.server.child).success());
        Api::new(node.admin).publish("h:a", "by the new one");
        for member in &mut members {
            assert_eq!(member.next(), "by the new one", "{storage:?} {:?}", member.kind);
        }
        assert!(waiting.child.try_wait().unwrap().is_none());
        signal(waiting.child.id(), "-TERM");
        assert!(wait_within(&mut waiting.child).success());
        assert!(!waiting.socket.exists(), "the socket is left");
    }
}

#[test]
fn an_empty_socket_leaves_all_as_it_was() {
    let node = Node::new(Storage::Memory);
    let mut member = Member::open(&node, Kind::Ws, "h:a");
    for (to, word) in
        [("/nonexistent/socket", "/nonexistent/socket"), ("/etc/passwd", "/etc/passwd")]
    {
        let text = node.upgrade_fails(&["--to", to]);
        assert!(text.contains(word), "{text}");
    }
    let dead = node.path("dead");
    drop(UnixListener::bind(&dead).unwrap());
    node.upgrade_fails(&["--to", dead.to_str().unwrap()]);
    Api::new(node.admin).publish("h:a", "still");
    assert_eq!(member.next(), "still");
}

/// A fake peer that runs `act` with the old server's connection.
fn fake(path: &Path, act: impl FnOnce(UnixStream) + Send + 'static) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let end = Instant::now() + TIMEOUT;
        let socket = loop {
            match listener.accept() {
                Ok((socket, _)) => break socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => panic!("no connection: {error}"),
            }
        };
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        act(socket);
    })
}

type Act = Box<dyn FnOnce(UnixStream) + Send>;

/// Sends these bytes, and closes when the server has sent anything.
fn says(bytes: Vec<u8>) -> Act {
    Box::new(move |mut socket| {
        let _ = socket.write_all(&bytes);
        let _ = socket.read(&mut [0; 4_096]);
    })
}

fn garbage(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..4_096).map(|_| random.below(256u32) as u8).collect()
}

/// Checks that upgrades to these peers fail, and that the old server serves on.
fn leave_all_as_it_was(acts: Vec<(&str, Act)>) {
    let node = Node::new(Storage::Memory);
    let mut members: Vec<Member> = Member::all(&node, "h:a");
    for (at, (name, act)) in acts.into_iter().enumerate() {
        let path = node.path(&format!("fake-{at}"));
        let peer = fake(&path, act);
        let begun = Instant::now();
        let text = node.upgrade_fails(&["--to", path.to_str().unwrap()]);
        println!("{name}: after {:?}: {}", begun.elapsed(), text.trim());
        assert!(text.trim().len() > 10, "{name}: {text}");
        peer.join().unwrap();
        Api::new(node.admin).publish("h:a", name);
        for member in &mut members {
            assert_eq!(member.next(), name, "{:?}", member.kind);
        }
    }
}

#[test]
fn a_peer_that_is_no_server_leaves_all_as_it_was() {
    leave_all_as_it_was(vec![
        ("closes", Box::new(drop)),
        ("reads and closes", Box::new(|mut socket| _ = socket.read(&mut [0; 16]))),
        ("garbage", says(garbage(1))),
        ("other garbage", says(garbage(2))),
        ("zeros", says(vec![0; 65_536])),
        ("a huge length", says(vec![0xff; 64])),
    ]);
}

#[test]
#[ignore = "long: the server waits for up to a minute for each of two peers"]
fn a_peer_that_keeps_the_server_waiting_leaves_all_as_it_was() {
    let reads = |mut socket: UnixStream| while matches!(socket.read(&mut [0; 4_096]), Ok(1..)) {};
    let echoes = |mut socket: UnixStream| {
        let mut bytes = [0; 4_096];
        while let Ok(count @ 1..) = socket.read(&mut bytes) {
            if socket.write_all(&bytes[..count]).is_err() {
                return;
            }
        }
    };
    leave_all_as_it_was(vec![("silence", Box::new(reads)), ("an echo", Box::new(echoes))]);
}

/// A waiting server ends if its peer is no server. The next waiting server takes over.
#[test]
fn a_server_that_waits_is_not_hurt_by_garbage() {
    let node = Node::new(Storage::Memory);
    let mut member = Member::open(&node, Kind::Ws, "h:a");
    let mut waiting = Waiting::begin(&node, Storage::Memory, "take-over");
    let mut stranger = UnixStream::connect(&waiting.socket).unwrap();
    let _ = stranger.write_all(&garbage(3));
    drop(stranger);
    assert_eq!(wait_within(&mut waiting.child).code(), Some(1));
    let waiting = Waiting::begin(&node, Storage::Memory, "take-over");
    let outcome = node.try_upgrade(&["--to", waiting.to()]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    Api::new(node.admin).publish("h:a", "taken over");
    assert_eq!(member.next(), "taken over");
}

/// Each end rejects a process of another user, and sends it nothing.
#[test]
fn another_user_is_refused_at_either_end() {
    let is_root = rustix::process::geteuid().is_root();
    let as_other_user = |script: &str, path: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command
            .args(["/usr/bin/python3", "-c", script])
            .arg(path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let can = as_other_user("", Path::new("/")).output().is_ok_and(|it| it.status.success());
    if !is_root || !can {
        println!("skipped: this needs root, setpriv and /usr/bin/python3");
        return;
    }
    let node = Node::new(Storage::Memory);
    let mut member = Member::open(&node, Kind::Ws, "h:a");
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(node.path("log").parent().unwrap(), 0o777);
    // Another user connects to a waiting server whose socket is open to all users.
    let waiting = Waiting::begin(&node, Storage::Memory, "take-over");
    open(&waiting.socket, 0o666);
    let connects = "import socket, sys\n\
        it = socket.socket(socket.AF_UNIX)\nit.settimeout(50)\nit.connect(sys.argv[1])\n\
        try: got = it.recv(1000)\nexcept ConnectionError: got = b''\n\
        sys.exit(0 if got == b'' else 9)";
    let output = output_within(&mut as_other_user(connects, &waiting.socket));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    drop(waiting);
    // Another user has bound the socket to which the old server connects.
    let trap = node.path("trap");
    let listens = "import socket, sys\n\
        it = socket.socket(socket.AF_UNIX)\nit.bind(sys.argv[1])\nit.listen(1)\nit.settimeout(50)\n\
        print('ready', flush=True)\none, _ = it.accept()\none.settimeout(50)\n\
        try: got = one.recv(1000)\nexcept ConnectionError: got = b''\n\
        sys.exit(0 if got == b'' else 9)";
    let mut child = as_other_user(listens, &trap).spawn().unwrap();
    let mut lines = Lines::of(child.stdout.take().unwrap());
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let text = node.upgrade_fails(&["--to", trap.to_str().unwrap()]);
    assert!(text.contains("user"), "{text}");
    let output = printed_within(child);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    Api::new(node.admin).publish("h:a", "untouched");
    assert_eq!(member.next(), "untouched");
}
