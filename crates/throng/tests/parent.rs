//! `throng parent`: the process that stays in place of a server whose connections another process has taken over.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Mark, Scratch, TIMEOUT, wait_within};

const BINARY: &str = env!("CARGO_BIN_EXE_throng");

/// Returns a script that writes a file when it is ready, and ends with this status at SIGTERM.
fn child(ready: &str, status: i32) -> String {
    format!(
        "trap 'exit {status}' TERM; trap 'echo hup > {ready}' HUP; echo > {ready}; while :; do sleep 0.02; done"
    )
}

/// A shell that starts the processes of a script, and then becomes `throng parent`.
struct Tree {
    parent: Child,
    folder: Scratch,
    _mark: Mark,
}

impl Tree {
    /// The script gets two paths: a file that its children write when they are ready, and a file that [`Tree::go`]
    /// makes.
    fn new(script: impl Fn(&str, &str) -> String) -> Self {
        let (folder, mark) = (Scratch::new("parent"), Mark::new());
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
        let script = script(&path("ready"), &path("go"));
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{script} & exec {BINARY} parent")]).stdin(Stdio::null());
        mark.put(&mut command);
        Tree { parent: command.spawn().unwrap(), folder, _mark: mark }
    }

    fn go(&self) {
        self.folder.write("go", "");
    }

    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !is_so() {
            assert!(Instant::now() < end, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a child has written this text.
    fn until_said(&self, text: &str) {
        let file = self.folder.path().join("ready");
        self.until("a child has said it", || {
            std::fs::read_to_string(&file).is_ok_and(|said| said == text)
        });
    }

    fn signal(&self, name: &str) {
        let pid = self.parent.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Waits for the end of the parent.
    fn status(&mut self) -> Option<i32> {
        wait_within(&mut self.parent).code()
    }

    /// Returns the children of the parent, as the kernel lists them.
    fn children(&self) -> String {
        let pid = self.parent.id();
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap()
    }

    /// Waits until the shell has become `throng parent` and handles signals.
    fn until_parent(&self) {
        let pid = self.parent.id();
        self.until("the shell is the parent", || {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.ends_with(b"\0parent\0"))
        });
        self.until("it has its handlers", || {
            let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            mask.is_some_and(|mask| mask & (1 << 14) != 0 && mask & (1 << 16) != 0)
        });
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.parent.kill();
        let _ = self.parent.wait();
    }
}

#[test]
fn signals_go_to_the_child_and_its_status_is_the_end() {
    let mut tree = Tree::new(|ready, _| format!("({})", child(ready, 7)));
    tree.until_said("\n");
    tree.until_parent();
    tree.signal("-HUP");
    tree.until_said("hup\n");
    tree.signal("-TERM");
    assert_eq!(tree.status(), Some(7));
}

#[test]
fn the_parent_adopts_a_child_of_a_child_that_has_ended() {
    let mut tree = Tree::new(|ready, go| {
        format!("(({}) & while [ ! -e {go} ]; do sleep 0.02; done)", child(ready, 5))
    });
    tree.until_said("\n");
    tree.until_parent();
    let first = tree.children();
    assert!(!first.trim().is_empty());
    tree.go();
    tree.until("another one is its child", || {
        let now = tree.children();
        !now.trim().is_empty() && now != first
    });
    tree.signal("-TERM");
    assert_eq!(tree.status(), Some(5));
}

#[test]
fn an_orphan_that_comes_after_the_signal_gets_it_too() {
    // The signal ends the child, which leaves an orphan that has not got the signal.
    let mut tree = Tree::new(|ready, _| {
        format!("(trap 'exit 0' TERM; ({}) & while :; do sleep 0.02; done)", child(ready, 9))
    });
    tree.until_said("\n");
    tree.until_parent();
    tree.signal("-TERM");
    assert_eq!(tree.status(), Some(9));
}

#[test]
fn a_child_that_a_signal_ends_gives_the_status_of_a_shell() {
    let until = |go: &str| format!("while [ ! -e {go} ]; do sleep 0.02; done");
    let mut tree = Tree::new(|_, go| format!("({}; exit 0)", until(go)));
    tree.until_parent();
    tree.go();
    assert_eq!(tree.status(), Some(0));
    let mut tree = Tree::new(|_, go| format!("sh -c '{}; kill -9 $$'", until(go)));
    tree.until_parent();
    tree.go();
    assert_eq!(tree.status(), Some(137));
}
