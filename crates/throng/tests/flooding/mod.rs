//! Runs `throng flood` and reads its output.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use serde_json::Value;

use crate::support::{Server, TIMEOUT, wait_within};

/// The flag for runs that a test ends itself.
pub const LONG: &str = "600";

/// The counts that must be zero in a clean run.
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
    /// Starts a scenario. The arguments are those after `throng flood`, separated by blanks.
    pub fn start(arguments: &str) -> Self {
        Flood::with_input(arguments, "")
    }

    /// Starts a scenario with this standard input.
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

    /// Reads the next line. Returns false if there is none.
    fn next(&mut self) -> bool {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(mut value) => {
                match value.get_mut("summary") {
                    Some(summary) => self.summary = Some(summary.take()),
                    None => self.samples.push(value),
                }
                true
            }
            Err(RecvTimeoutError::Disconnected) => false,
            Err(RecvTimeoutError::Timeout) => {
                panic!("nothing for {TIMEOUT:?} after {:?}", self.samples.last())
            }
        }
    }

    /// Reads on until `is_so` is true of a sample.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let begin = Instant::now();
        let mut seen = self.samples.len();
        while seen == 0 || !is_so(&self.samples[seen - 1]) {
            let more = self.next();
            if !more || self.summary.is_some() {
                let stderr = self.stderr();
                panic!("it ended before {what}: {:?} {stderr}", self.summary);
            }
            let last = self.samples.last();
            assert!(begin.elapsed() < TIMEOUT, "waited in vain until {what}: {last:?}");
            seen = self.samples.len();
        }
    }

    /// Reads on until all connections have arrived.
    pub fn until_all_arrived(&mut self) {
        self.until("the crowd stood", |line| line["phase"] == "holding");
    }

    /// Returns this count as it was in the last sample.
    pub fn count(&self, name: &str) -> u64 {
        self.samples.last().unwrap()["sample"]["counts"][name].as_u64().unwrap()
    }

    /// Reads on until this count is reached.
    pub fn until_count(&mut self, name: &str, count: u64) {
        self.until(&format!("{name} was {count}"), |line| {
            line["sample"]["counts"][name].as_u64().unwrap() >= count
        });
    }

    /// Sends the signal of Ctrl-C.
    pub fn interrupt(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    }

    /// Ends the run as Ctrl-C does, and returns its results.
    pub fn stop(self) -> Ended {
        self.interrupt();
        self.end()
    }

    /// Waits for the end of the run, and returns its results.
    pub fn end(mut self) -> Ended {
        while self.next() {}
        let code = wait_within(&mut self.child).code();
        let text = self.stderr();
        let summary = self.summary.take();
        let summary = summary.unwrap_or_else(|| panic!("no summary; exit {code:?}: {text}"));
        let samples = std::mem::take(&mut self.samples);
        Ended { code, summary, samples }
    }

    /// Ends the process and returns its standard error.
    fn stderr(&mut self) -> String {
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

/// Returns the command `throng flood` with these arguments.
pub fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.arg("flood").args(arguments.split_whitespace());
    command
}

/// Runs a scenario to its end.
pub fn flood(arguments: &str) -> Ended {
    Flood::start(arguments).end()
}

/// Runs many cases at once, since they mostly wait.
pub fn all_at_once<T: Sync>(cases: &[T], run: impl Fn(&T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| run(case));
        }
    });
}

/// Returns the arguments for the target and the admin port of a server.
pub fn at(server: &Server) -> String {
    format!("http://{} --admin http://{}", server.client, server.admin)
}

/// The results of a run.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub summary: Value,
    /// The printed lines, with `phase` and `sample`.
    pub samples: Vec<Value>,
}

impl Ended {
    pub fn count(&self, name: &str) -> u64 {
        let count = &self.summary["counts"][name];
        count.as_u64().unwrap_or_else(|| panic!("no count {name} in {}", self.summary))
    }

    /// Checks the values of these counts.
    pub fn counts<const N: usize>(&self, expected: [(&str, u64); N]) -> &Self {
        for (name, count) in expected {
            assert_eq!(self.count(name), count, "{name} in {:#}", self.summary);
        }
        self
    }

    /// Checks that exactly these errors are counted, and that the exit status shows whether there were
    /// any.
    pub fn errors<const N: usize>(&self, expected: [(&str, u64); N]) -> &Self {
        let expected = BTreeMap::from(expected);
        let got: Vec<_> = FAULTS.map(|name| (name, self.count(name))).to_vec();
        let want: Vec<_> =
            FAULTS.map(|name| (name, expected.get(name).copied().unwrap_or(0))).to_vec();
        assert_eq!(got, want, "{:#}", self.summary);
        let bad = want.iter().any(|(_, count)| *count > 0);
        assert_eq!(self.code, Some(if bad { 3 } else { 0 }), "{:#}", self.summary);
        self
    }

    /// Checks that all connections were open in the end, and got each message once and in order, however often they
    /// were closed.
    pub fn all_recovered(&self, connections: u64) -> &Self {
        let sequences = ["lost", "duplicated", "out_of_order", "strayed", "not_recovered"]
            .map(|name| (name, 0));
        self.counts([("open", connections)]).counts(sequences);
        assert_eq!(self.summary["faults"], serde_json::json!([]));
        assert_eq!(self.code, Some(0), "{:#}", self.summary);
        self
    }

    /// Checks that this many connections were planned, opened, and open at the end, without any error.
    pub fn is_clean(&self, connections: u64) -> &Self {
        assert_eq!(self.summary["connections"], connections);
        self.counts([("opened", connections), ("open", connections), ("left", 0)]);
        self.reasons("failures", &[]).reasons("closes", &[]).errors([])
    }

    /// Checks that each accepted message reached this many connections.
    pub fn delivered_to(&self, connections: u64) -> &Self {
        let published = self.count("published");
        assert!(published > 0, "{:#}", self.summary);
        assert_eq!(self.count("messages"), published * connections, "{:#}", self.summary);
        assert_eq!(self.summary["delivery"]["count"], published * connections);
        self
    }

    /// Checks the list of `failures` or `closes`.
    pub fn reasons(&self, list: &str, expected: &[(&str, u64)]) -> &Self {
        let named = |value: &Value| (value[0].as_str().unwrap().to_string(), value[1].as_u64());
        let got: Vec<_> = self.summary[list].as_array().unwrap().iter().map(named).collect();
        let want: Vec<_> =
            expected.iter().map(|(reason, count)| (reason.to_string(), Some(*count))).collect();
        assert_eq!(got, want, "{list} in {:#}", self.summary);
        self
    }
}
