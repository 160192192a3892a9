//! The browser of a page's `js` blocks: Chromium, by `browser.cjs`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::TIMEOUT;

pub struct Browser {
    node: Child,
    input: ChildStdin,
    lines: Receiver<Value>,
    log: String,
    /// The bytes that the page has shown already.
    pub seen: usize,
}

impl Browser {
    pub fn start() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let packages = folder.join("phoenix");
        assert!(
            packages.join("node_modules/playwright-core").exists(),
            "the packages are not installed: run `npm ci` in {}, as scripts/test does",
            packages.display()
        );
        let mut node = Command::new("node")
            .arg(folder.join("docs/browser.cjs"))
            .current_dir(packages)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("node: {error}; scripts/test installs it"));
        let (input, output) = (node.stdin.take().unwrap(), node.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Browser { node, input, lines, log: String::new(), seen: 0 }
    }

    /// Types a snippet into the page's console, and waits until it is done.
    pub fn run(&mut self, js: &str) -> Result<(), String> {
        writeln!(self.input, "{}", json!({ "js": js })).unwrap();
        let end = Instant::now() + TIMEOUT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|_| "the browser did not answer")?;
            if line["done"] == true {
                return Ok(());
            }
            self.note(&line)?;
        }
    }

    /// Returns what the page has logged so far.
    pub fn log(&mut self) -> Result<&str, String> {
        while let Ok(line) = self.lines.try_recv() {
            self.note(&line)?;
        }
        Ok(&self.log)
    }

    fn note(&mut self, line: &Value) -> Result<(), String> {
        match (&line["log"], &line["error"]) {
            (Value::String(text), _) => self.log.push_str(&format!("{text}\n")),
            (_, error) => return Err(format!("in the browser: {error}")),
        }
        Ok(())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The script closes Chromium when its input ends.
        let _ = writeln!(self.input, "{}", json!({ "end": true }));
        let end = Instant::now() + TIMEOUT;
        while self.node.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > end {
                let _ = self.node.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
