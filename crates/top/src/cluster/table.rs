//! The table: a row for each node, with rates between the last two polls.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::Serialize;

use super::poll::{Cluster, Figures, KnownNode, Poll};
use crate::format::{NONE, bytes, compact, duration, grouped, plain};

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// The node replies.
    Up,
    /// The node replies, and ends soon.
    Draining,
    /// The node sends packets, and has not replied in time.
    NoReply,
    /// The node has no connection to NATS.
    NoNats,
    /// The node sends nothing.
    Silent,
    /// The node has announced that it leaves.
    Left,
}

/// Messages a second, between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Messages that its shards received.
    pub messages_in: f64,
    /// Messages that it passed to connections.
    pub delivered: f64,
    /// Messages published at it.
    pub published: f64,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its id.
    pub id: String,
    /// Its operator's name for it.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// Its state.
    pub state: NodeState,
    /// True for the called node.
    pub is_called: bool,
    /// Seconds since its last packet reached the called node.
    pub silent_seconds: f64,
    /// Its connections now, or at its last packet.
    pub connections: f64,
    /// Bytes in its queue to NATS; `None` without a reply, as for the fields below.
    pub queue_bytes: Option<f64>,
    /// Resident memory, in bytes.
    pub rss_bytes: Option<f64>,
    /// Seconds since it started.
    pub uptime_seconds: Option<f64>,
    /// Rates; `None` before its second reply.
    pub per_second: Option<Rates>,
}

/// A column of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// The node's name, or its id.
    #[default]
    Node,
    /// The node's state.
    State,
    /// The version of its program.
    Version,
    /// Connections.
    Connections,
    /// Messages that its shards received.
    In,
    /// Messages that it passed to connections.
    Out,
    /// Messages published at it.
    Published,
    /// Bytes in its queue to NATS.
    Backlog,
    /// Resident memory.
    Memory,
    /// The time since it started.
    Uptime,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sort {
    /// The column: texts in their order, the largest numbers first.
    pub column: Column,
    /// Reverses the order.
    pub is_reversed: bool,
}

/// The nodes of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The cluster's name.
    pub cluster: String,
    rows: Vec<Row>,
    /// The last numbers of each node.
    figures: BTreeMap<String, Figures>,
}

impl Column {
    /// All columns, in their order.
    pub const ALL: [Column; 10] = [
        Column::Node,
        Column::State,
        Column::Version,
        Column::Connections,
        Column::In,
        Column::Out,
        Column::Published,
        Column::Backlog,
        Column::Memory,
        Column::Uptime,
    ];

    /// The names of the columns, for flags that choose one.
    pub const NAMES: [&str; 10] = [
        "node",
        "state",
        "version",
        "connections",
        "in",
        "out",
        "published",
        "backlog",
        "memory",
        "uptime",
    ];

    /// Returns the column with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        let at = Column::NAMES.iter().position(|known| *known == name)?;
        Column::ALL.get(at).copied()
    }

    /// Returns its heading.
    pub fn title(self) -> &'static str {
        match self {
            Column::Node => "Node",
            Column::State => "State",
            Column::Version => "Version",
            Column::Connections => "Conns",
            Column::In => "In/s",
            Column::Out => "Out/s",
            Column::Published => "Publ/s",
            Column::Backlog => "Backlog",
            Column::Memory => "Memory",
            Column::Uptime => "Uptime",
        }
    }

    /// Returns true if it has texts, which are aligned left.
    pub fn is_text(self) -> bool {
        matches!(self, Column::Node | Column::State | Column::Version)
    }

    /// Returns its number in a row; `None` for a text, and for an unknown number.
    fn number(self, row: &Row) -> Option<f64> {
        match self {
            Column::Node | Column::State | Column::Version => None,
            Column::Connections => Some(row.connections),
            Column::In => row.per_second.map(|rates| rates.messages_in),
            Column::Out => row.per_second.map(|rates| rates.delivered),
            Column::Published => row.per_second.map(|rates| rates.published),
            Column::Backlog => row.queue_bytes,
            Column::Memory => row.rss_bytes,
            Column::Uptime => row.uptime_seconds,
        }
    }

    /// Returns its cell in a row.
    pub fn cell(self, row: &Row) -> String {
        match self {
            Column::Node => format!("{}{}", row.label(), if row.is_called { " *" } else { "" }),
            Column::State => row.state_text(),
            Column::Version => plain(&row.version),
            _ => self.number(row).map_or(NONE.into(), |number| self.number_text(number)),
        }
    }

    fn number_text(self, number: f64) -> String {
        match self {
            Column::Connections => grouped(number as u64),
            Column::Backlog | Column::Memory => bytes(number),
            Column::Uptime => duration(number as u64),
            _ => compact(number),
        }
    }

    /// Returns its cell below the rows: a sum if that has a meaning.
    pub fn sum(self, rows: &[&Row]) -> String {
        match self {
            Column::Node => format!("all {}", rows.len()),
            Column::State | Column::Version | Column::Uptime => String::new(),
            _ => {
                let numbers: Vec<f64> = rows.iter().filter_map(|row| self.number(row)).collect();
                match numbers.is_empty() {
                    true => NONE.into(),
                    false => self.number_text(numbers.iter().sum()),
                }
            }
        }
    }

    fn compare(self, one: &Row, two: &Row) -> Ordering {
        match self {
            Column::Node => one.label().cmp(&two.label()),
            Column::State => one.state.cmp(&two.state),
            Column::Version => one.version.cmp(&two.version),
            _ => {
                let [one, two] = [one, two].map(|row| self.number(row).unwrap_or_default());
                two.total_cmp(&one)
            }
        }
    }
}

impl Row {
    fn new(
        node: &KnownNode,
        is_called: bool,
        figures: Option<&Figures>,
        last: Option<&Figures>,
    ) -> Self {
        let state = match (node.state.as_str(), figures) {
            ("left", _) => NodeState::Left,
            ("silent", _) => NodeState::Silent,
            (_, None) => NodeState::NoReply,
            (_, Some(figures)) if !figures.connected => NodeState::NoNats,
            (_, Some(_)) if node.draining => NodeState::Draining,
            (_, Some(_)) => NodeState::Up,
        };
        Row {
            id: node.id.clone(),
            name: node.name.clone(),
            version: node.version.clone(),
            state,
            is_called,
            silent_seconds: node.silent_seconds,
            connections: figures.map_or(node.connections, |figures| figures.connections),
            queue_bytes: figures.map(|figures| figures.queue_bytes),
            rss_bytes: figures.map(|figures| figures.rss_bytes),
            uptime_seconds: figures.map(|figures| figures.uptime_seconds),
            per_second: figures.zip(last).and_then(|(now, last)| Rates::between(last, now)),
        }
    }

    /// Returns the node's name, or its id without one.
    pub fn label(&self) -> String {
        plain(if self.name.is_empty() { &self.id } else { &self.name })
    }

    /// Returns true if the node delivers all messages that others publish.
    pub fn is_well(&self) -> bool {
        matches!(self.state, NodeState::Up | NodeState::Draining)
    }

    fn state_text(&self) -> String {
        let since = || duration(self.silent_seconds as u64);
        match self.state {
            NodeState::Up => "up".into(),
            NodeState::Draining => "draining".into(),
            NodeState::NoReply => "! no reply".into(),
            NodeState::NoNats => "! no NATS".into(),
            NodeState::Silent => format!("! silent {}", since()),
            NodeState::Left => format!("left {}", since()),
        }
    }
}

impl Rates {
    /// Returns the rates between two replies of a node; `None` if no time lies between them.
    fn between(last: &Figures, now: &Figures) -> Option<Self> {
        let seconds = now.uptime_seconds - last.uptime_seconds;
        let rate = |last: f64, now: f64| ((now - last) / seconds).max(0.0);
        (seconds > 0.0).then(|| Rates {
            messages_in: rate(last.messages_in, now.messages_in),
            delivered: rate(last.messages_delivered, now.messages_delivered),
            published: rate(last.published, now.published),
        })
    }
}

impl Table {
    /// Takes a poll.
    pub fn apply(&mut self, poll: Poll) {
        let Poll { cluster: Cluster { name, node, nodes }, figures } = poll;
        let figures: BTreeMap<String, Figures> =
            figures.into_iter().map(|it| (it.id.clone(), it)).collect();
        let row = |node: &KnownNode, is_called| {
            Row::new(node, is_called, figures.get(&node.id), self.figures.get(&node.id))
        };
        let called = std::iter::once(row(&node, true));
        let rows = called.chain(nodes.iter().map(|node| row(node, false))).collect();
        (self.cluster, self.rows) = (name, rows);
        // A node that missed replies has rates over a longer time at its next one.
        self.figures.extend(figures);
        self.figures.retain(|id, _| self.rows.iter().any(|row| row.id == *id));
    }

    /// Returns the rows in an order. Rows without a value in the column come last, and equal ones are in the order of
    /// their names.
    pub fn sorted(&self, Sort { column, is_reversed }: Sort) -> Vec<&Row> {
        let is_unknown = |row: &Row| !column.is_text() && column.number(row).is_none();
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by(|one, two| {
            let order = column.compare(one, two);
            let order = if is_reversed { order.reverse() } else { order };
            let by_name = || (one.label(), &one.id).cmp(&(two.label(), &two.id));
            is_unknown(one).cmp(&is_unknown(two)).then(order).then_with(by_name)
        });
        rows
    }

    /// Returns the number of nodes in each state: "3 nodes: 2 up · 1 silent".
    pub fn summary(&self) -> String {
        let mut counts = BTreeMap::<NodeState, usize>::new();
        for row in &self.rows {
            *counts.entry(row.state).or_default() += 1;
        }
        let name = |state| match state {
            NodeState::Up => "up",
            NodeState::Draining => "draining",
            NodeState::NoReply => "without a reply",
            NodeState::NoNats => "without NATS",
            NodeState::Silent => "silent",
            NodeState::Left => "left",
        };
        let count = self.rows.len();
        let counts = counts.into_iter().map(|(state, count)| format!("{count} {}", name(state)));
        let counts = counts.collect::<Vec<_>>().join(" · ");
        format!("{count} node{}: {counts}", if count == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A cluster of three: b is the called node, a replies, and c does not.
    pub fn poll(seconds: f64) -> Poll {
        let node = |id: &str, name: &str, state: &str| KnownNode {
            id: id.into(),
            name: name.into(),
            version: "0.2.0".into(),
            connections: 7.0,
            state: state.into(),
            ..KnownNode::default()
        };
        let figures = |id: &str, of: f64| Figures {
            id: id.into(),
            uptime_seconds: 100.0 + seconds,
            connections: 1_000.0 * of,
            messages_in: 10.0 * seconds * of,
            messages_delivered: 20_000.0 * seconds * of,
            published: 5.0 * seconds * of,
            rss_bytes: 50e6 * of,
            connected: true,
            queue_bytes: 2_048.0 * (of - 1.0),
        };
        let silent = KnownNode { silent_seconds: 65.0, ..node("33333333", "c", "silent") };
        let nodes = vec![node("11111111", "a", "up"), silent];
        let cluster = Cluster { name: "throng".into(), node: node("22222222", "b", ""), nodes };
        Poll { cluster, figures: vec![figures("22222222", 2.0), figures("11111111", 1.0)] }
    }

    /// Returns the table after two polls, two seconds apart.
    pub fn table() -> Table {
        let mut table = Table::default();
        table.apply(poll(0.0));
        table.apply(poll(2.0));
        table
    }

    fn names(table: &Table, column: Column, is_reversed: bool) -> String {
        let rows = table.sorted(Sort { column, is_reversed });
        rows.into_iter().map(Row::label).collect()
    }

    #[test]
    fn rates_are_those_between_two_replies_of_a_node() {
        let mut table = Table::default();
        table.apply(poll(0.0));
        assert!(table.rows.iter().all(|row| row.per_second.is_none()));
        table.apply(poll(2.0));
        let rates = |table: &Table| table.rows.iter().map(|row| row.per_second).collect::<Vec<_>>();
        let a = Rates { messages_in: 10.0, delivered: 20_000.0, published: 5.0 };
        let b = Rates { messages_in: 20.0, delivered: 40_000.0, published: 10.0 };
        assert_eq!(rates(&table), [Some(b), Some(a), None]);
        // A node that misses a poll goes on from its last reply.
        let mut late = poll(4.0);
        late.figures.pop();
        table.apply(late);
        assert_eq!(rates(&table), [Some(b), None, None]);
        assert_eq!(table.rows[1].state, NodeState::NoReply);
        table.apply(poll(12.0));
        assert_eq!(rates(&table), [Some(b), Some(a), None]);
        // The same reply twice is no time, and a node that has started again has another id.
        table.apply(poll(12.0));
        assert_eq!(rates(&table), [None, None, None]);
        let mut alone = poll(13.0);
        alone.cluster.nodes.clear();
        table.apply(alone);
        assert_eq!(table.figures.len(), 1, "a node that is gone is forgotten");
    }

    #[test]
    fn a_node_has_the_worst_of_its_states() {
        let state = |change: &dyn Fn(&mut Poll)| {
            let (mut poll, mut table) = (poll(0.0), Table::default());
            change(&mut poll);
            table.apply(poll);
            (table.rows[1].state, table.rows[1].state_text())
        };
        assert_eq!(state(&|_| {}), (NodeState::Up, "up".into()));
        assert_eq!(state(&|poll| poll.cluster.nodes[0].draining = true).0, NodeState::Draining);
        assert_eq!(state(&|poll| poll.figures[1].connected = false).1, "! no NATS");
        assert_eq!(state(&|poll| drop(poll.figures.pop())).1, "! no reply");
        assert_eq!(state(&|poll| poll.cluster.nodes[0].state = "left".into()).1, "left 0 s");
        assert_eq!(table().rows[2].state_text(), "! silent 1 min 5 s");
        assert_eq!(table().summary(), "3 nodes: 2 up · 1 silent");
    }

    #[test]
    fn rows_are_sorted_by_any_column_and_what_is_not_known_comes_last() {
        let table = table();
        for (name, wanted, reversed) in [
            ("node", "abc", "cba"),
            ("state", "abc", "cab"),
            ("version", "abc", "abc"),
            ("connections", "bac", "cab"),
            ("in", "bac", "abc"),
            ("out", "bac", "abc"),
            ("published", "bac", "abc"),
            ("backlog", "bac", "abc"),
            ("memory", "bac", "abc"),
            ("uptime", "abc", "abc"),
        ] {
            let column = Column::by_name(name).unwrap();
            assert_eq!(names(&table, column, false), wanted, "{name}");
            assert_eq!(names(&table, column, true), reversed, "{name}, reversed");
        }
        assert_eq!(Column::by_name("In/s"), None);
    }
}
