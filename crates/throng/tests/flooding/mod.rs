//! Running `throng flood` and reading what it says.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::Server;

/// How long a run may say nothing, and how long what a test waits for may take: far more than it
/// does on a machine that builds and tests other things at the same time.
const PATIENCE: Duration = Duration::from_secs(90);

/// For runs that a test ends itself.
pub const LONG: &str = "600";

/// What must be zero when all is well.
const FAULTS: [&str; 10] = [
    "failed",
    "closed",
    "lost",
    "duplicated",
    "out_of_order",
    "strayed",
    "not_recovered",
    "ack_failed",
    "publish_failed",
    "probes_failed",
];

/// A `throng flood … --json` under way; killed at the end of the test.
pub struct Flood {
    child: Child,
    lines: Receiver<Value>,
    stderr: Option<JoinHandle<String>>,
    samples: Vec<Value>,
    summary: Option<Value>,
}

impl Flood {
    /// Starts a scenario. Arguments are those behind `throng flood`, with blanks between.
    pub fn start(arguments: &str) -> Self {
        Flood::with_input(arguments, "")
    }

    /// Starts one that reads this from standard input.
    pub fn with_input(arguments: &str, input: &str) -> Self {
        let mut command = command(arguments);
        command.arg("--json").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line)
                    .unwrap_or_else(|error| panic!("no JSON: {error}: {line}"));
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        Flood { child, lines, stderr: Some(stderr), samples: Vec::new(), summary: None }
    }

    /// The next line: a sample, or false when it was the last.
    fn next(&mut self) -> bool {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(mut value) => {
                match value.get_mut("summary") {
                    Some(summary) => self.summary = Some(summary.take()),
                    None => self.samples.push(value),
                }
                true
            }
            Err(RecvTimeoutError::Disconnected) => false,
            Err(RecvTimeoutError::Timeout) => {
                panic!("nothing for {PATIENCE:?} after {:?}", self.samples.last())
            }
        }
    }

    /// Reads on until a sample is so.
    pub fn until(&mut self, what: &str, so: impl Fn(&Value) -> bool) {
        let begin = Instant::now();
        let mut looked = self.samples.len();
        while looked == 0 || !so(&self.samples[looked - 1]) {
            let more = self.next();
            if !more || self.summary.is_some() {
                let said = self.said();
                panic!("it ended before {what}: {:?} {said}", self.summary);
            }
            let last = self.samples.last();
            assert!(begin.elapsed() < PATIENCE, "waited in vain until {what}: {last:?}");
            looked = self.samples.len();
        }
    }

    /// Reads on until the crowd stands.
    pub fn until_it_stands(&mut self) {
        self.until("the crowd stood", |line| line["phase"] == "holding");
    }

    /// Reads on until this many were counted.
    pub fn until_count(&mut self, name: &str, count: u64) {
        self.until(&format!("{name} was {count}"), |line| {
            line["sample"]["counts"][name].as_u64().unwrap() >= count
        });
    }

    /// What Ctrl-C does.
    pub fn interrupt(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    }

    /// Ends it as Ctrl-C does, and gives what it came to.
    pub fn stop(self) -> Ended {
        self.interrupt();
        self.end()
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        while self.next() {}
        let code = self.child.wait().unwrap().code();
        let text = self.said();
        let summary = self.summary.take();
        let summary = summary.unwrap_or_else(|| panic!("no summary; exit {code:?}: {text}"));
        let samples = std::mem::take(&mut self.samples);
        Ended { code, summary, samples }
    }

    /// What it wrote to standard error, once it has ended.
    fn said(&mut self) -> String {
        let _ = self.child.kill();
        self.stderr.take().map_or_else(String::new, |stderr| stderr.join().unwrap())
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `throng flood` with these arguments, not started.
pub fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.arg("flood").args(arguments.split_whitespace());
    command
}

/// Runs a scenario to its end.
pub fn flood(arguments: &str) -> Ended {
    Flood::start(arguments).end()
}

/// Runs many at once, for their time is mostly waiting.
pub fn all_at_once<T: Sync>(cases: &[T], run: impl Fn(&T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| run(case));
        }
    });
}

/// The target and the admin port of a Throng.
pub fn at(server: &Server) -> String {
    format!("http://{} --admin http://{}", server.client, server.admin)
}

/// What a run came to.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub summary: Value,
    /// As printed: `phase` and `sample`.
    pub samples: Vec<Value>,
}

impl Ended {
    pub fn count(&self, name: &str) -> u64 {
        let count = &self.summary["counts"][name];
        count.as_u64().unwrap_or_else(|| panic!("no count {name} in {}", self.summary))
    }

    /// Checks counts that are known exactly.
    pub fn counts<const N: usize>(&self, wanted: [(&str, u64); N]) -> &Self {
        for (name, count) in wanted {
            assert_eq!(self.count(name), count, "{name} in {:#}", self.summary);
        }
        self
    }

    /// Checks that nothing is counted as a fault but these, each exactly, and that the exit status
    /// says whether there were any.
    pub fn faults<const N: usize>(&self, wanted: [(&str, u64); N]) -> &Self {
        let wanted = BTreeMap::from(wanted);
        let got: Vec<_> = FAULTS.map(|name| (name, self.count(name))).to_vec();
        let want: Vec<_> =
            FAULTS.map(|name| (name, wanted.get(name).copied().unwrap_or(0))).to_vec();
        assert_eq!(got, want, "{:#}", self.summary);
        let bad = want.iter().any(|(_, count)| *count > 0);
        assert_eq!(self.code, Some(if bad { 3 } else { 0 }), "{:#}", self.summary);
        self
    }

    /// Checks that everyone was back in the end, and had everything once and in order, however often
    /// it was closed.
    pub fn all_recovered(&self, connections: u64) -> &Self {
        let sequences = ["lost", "duplicated", "out_of_order", "strayed", "not_recovered"]
            .map(|name| (name, 0));
        self.counts([("open", connections)]).counts(sequences);
        assert_eq!(self.summary["faults"], serde_json::json!([]));
        assert_eq!(self.code, Some(0), "{:#}", self.summary);
        self
    }

    /// Checks that so many connections were asked for, opened, and open to the end, and that
    /// nothing went wrong.
    pub fn all_is_well(&self, connections: u64) -> &Self {
        assert_eq!(self.summary["connections"], connections);
        self.counts([("opened", connections), ("open", connections), ("left", 0)]);
        self.reasons("failures", &[]).reasons("closes", &[]).faults([])
    }

    /// Checks that each message that the server took came to so many connections.
    pub fn each_came_to(&self, connections: u64) -> &Self {
        let published = self.count("published");
        assert!(published > 0, "{:#}", self.summary);
        assert_eq!(self.count("messages"), published * connections, "{:#}", self.summary);
        assert_eq!(self.summary["delivery"]["count"], published * connections);
        self
    }

    /// Checks the list of `failures` or `closes`.
    pub fn reasons(&self, list: &str, wanted: &[(&str, u64)]) -> &Self {
        let named = |value: &Value| (value[0].as_str().unwrap().to_string(), value[1].as_u64());
        let got: Vec<_> = self.summary[list].as_array().unwrap().iter().map(named).collect();
        let want: Vec<_> =
            wanted.iter().map(|(reason, count)| (reason.to_string(), Some(*count))).collect();
        assert_eq!(got, want, "{list} in {:#}", self.summary);
        self
    }
}
