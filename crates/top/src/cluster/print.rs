//! The table as text, and as JSON.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use admin::{Admin, AdminError, Target};
use serde::Serialize;

use super::EVERY;
use super::poll::Poll;
use super::table::{Column, Row, Sort, Table};
use crate::format::plain;
use crate::{AGENT, now_ms};

/// The time between the two polls of one sample.
const SAMPLE: Duration = Duration::from_secs(1);

/// Time between two checks for `stop` during a wait.
const TURN: Duration = Duration::from_millis(100);

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// Milliseconds since 1970.
    at: u64,
    cluster: &'a str,
    nodes: Vec<&'a Row>,
}

/// Prints the nodes of a cluster as text, with rates over one second.
///
/// # Errors
/// If the node can't be reached, is alone, or rejects the key.
pub fn print_once(target: &Target, sort: Sort, out: &mut dyn Write) -> Result<(), AdminError> {
    let (mut admin, mut table) = (Admin::new(target, AGENT), Table::default());
    table.apply(Poll::get(&mut admin)?);
    std::thread::sleep(SAMPLE);
    table.apply(Poll::get(&mut admin)?);
    // A closed pipe is no error here.
    let _ = out.write_all(text(target.name(), &table, sort).as_bytes()).and_then(|()| out.flush());
    Ok(())
}

/// Prints the nodes as one JSON object per line: one if `once`, otherwise one at each poll until `stop` is set or the
/// output is closed. It waits for a node that goes away in between.
///
/// # Errors
/// If the first poll fails, or the node rejects the key later.
pub fn print_json(
    target: &Target,
    sort: Sort,
    once: bool,
    stop: &AtomicBool,
    out: &mut dyn Write,
) -> Result<(), AdminError> {
    let (mut admin, mut table) = (Admin::new(target, AGENT), Table::default());
    table.apply(Poll::get(&mut admin)?);
    let mut is_away = false;
    wait(SAMPLE, stop);
    while !stop.load(Ordering::Relaxed) {
        match Poll::get(&mut admin) {
            Ok(poll) => {
                table.apply(poll);
                is_away = false;
                let text = json(&table, sort, now_ms());
                if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() || once {
                    return Ok(());
                }
            }
            Err(error) if once || matches!(error, AdminError::Forbidden(_)) => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut is_away, true) {
                    eprintln!("away: {error}; trying again");
                }
            }
        }
        wait(EVERY, stop);
    }
    Ok(())
}

/// Waits for this time, or until `stop` is set.
fn wait(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TURN.min(until.saturating_duration_since(Instant::now())));
    }
}

fn json(table: &Table, sort: Sort, at: u64) -> String {
    let line = Line { at, cluster: &table.cluster, nodes: table.sorted(sort) };
    // Numbers and texts can be written.
    serde_json::to_string(&line).unwrap_or_default() + "\n"
}

/// Formats the table with a line for each node, and one for all.
fn text(name: &str, table: &Table, sort: Sort) -> String {
    let rows = table.sorted(sort);
    let mut lines = vec![Column::ALL.map(|column| column.title().to_owned())];
    lines.extend(rows.iter().map(|row| Column::ALL.map(|column| column.cell(row))));
    lines.push(Column::ALL.map(|column| column.sum(&rows)));
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..Column::ALL.len()).map(width).collect();
    let (cluster, summary) = (plain(&table.cluster), table.summary());
    let mut text = format!("cluster {cluster} · {summary}\n* the called node: {}\n\n", plain(name));
    for line in &lines {
        let cell = |(at, column): (usize, Column)| match column.is_text() {
            true => format!("{:<1$}", line[at], widths[at]),
            false => format!("{:>1$}", line[at], widths[at]),
        };
        let cells: Vec<String> = Column::ALL.into_iter().enumerate().map(cell).collect();
        text += &format!("{}\n", cells.join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::table;
    use super::*;

    #[test]
    fn the_text_has_a_line_for_each_node_and_one_for_all() {
        let by_connections = Sort { column: Column::Connections, is_reversed: false };
        let text = text("10.0.0.5:8001", &table(), by_connections);
        let expected = "\
cluster throng · 3 nodes: 2 up · 1 silent
* the called node: 10.0.0.5:8001

Node   State               Version  Conns  In/s  Out/s  Publ/s  Backlog  Memory      Uptime
b *    up                  0.2.0    2,000    20   40 k      10  2.05 KB  100 MB  1 min 42 s
a      up                  0.2.0    1,000    10   20 k       5      0 B   50 MB  1 min 42 s
c      ! silent 1 min 5 s  0.2.0        7     –      –       –        –       –           –
all 3                               3,007    30   60 k      15  2.05 KB  150 MB
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_line_of_json_has_all_nodes() {
        let line = json(&table(), Sort::default(), 7);
        let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&parsed["at"], &parsed["cluster"]), (&7.into(), &"throng".into()));
        let node = &parsed["nodes"][0];
        assert_eq!((&node["name"], &node["state"]), (&"a".into(), &"up".into()));
        assert_eq!(
            (&node["connections"], &node["per_second"]["delivered"]),
            (&1e3.into(), &2e4.into())
        );
        assert_eq!(parsed["nodes"][2]["per_second"], serde_json::Value::Null);
        assert_eq!(line.matches('\n').count(), 1);
    }
}
