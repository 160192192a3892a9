//! The figures of each shard, and the orders in which the screen can show the shards.

use std::cmp::Ordering;

use serde::Deserialize;

use crate::format::{NONE, bytes, compact, grouped, milliseconds};

/// The figures of a sample that each shard has, with an element for each, as the API has them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ShardColumns {
    delivered: Vec<f64>,
    turns: Vec<f64>,
    turn_p50_ms: Vec<Option<f64>>,
    turn_p99_ms: Vec<Option<f64>>,
    asleep: Vec<f64>,
    bulk: Vec<f64>,
    cpu: Vec<Option<f64>>,
    system: Vec<Option<f64>>,
    cpu_wait: Vec<Option<f64>>,
    mailbox: Vec<f64>,
    listen_queue: Vec<f64>,
    outboxes: Vec<f64>,
    outbox_bytes: Vec<f64>,
}

/// A column of the table of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// Its number.
    #[default]
    Number,
    /// Its connections.
    Connections,
    /// Messages passed to them, a second.
    Delivered,
    /// 99 % of its turns took at most this time.
    TurnP99,
    /// The share of time in which it had nothing to do.
    Asleep,
    /// The share in system calls.
    System,
    /// The share in fan-outs over long lists.
    Bulk,
    /// The share in which it was ready and no processor was free.
    CpuWait,
    /// Commands in its mailbox.
    Mailbox,
    /// Connections that wait for its accept.
    ListenQueue,
    /// Bytes in the outboxes of its slow connections.
    OutboxBytes,
    /// The number of its slow connections.
    Outboxes,
    /// The share on a processor.
    Cpu,
    /// Half of its turns took at most this time.
    TurnP50,
    /// Turns a second.
    Turns,
}

impl Column {
    /// Returns true if small values come first: in the other columns, more is worse.
    fn is_least_first(self) -> bool {
        matches!(self, Column::Number | Column::Asleep)
    }

    /// All columns, in the order in which a screen has space for them.
    pub const ALL: [Column; 15] = [
        Column::Number,
        Column::Connections,
        Column::Delivered,
        Column::TurnP99,
        Column::Asleep,
        Column::System,
        Column::Bulk,
        Column::CpuWait,
        Column::Mailbox,
        Column::ListenQueue,
        Column::OutboxBytes,
        Column::Outboxes,
        Column::Cpu,
        Column::TurnP50,
        Column::Turns,
    ];

    /// Returns its head, and its width with the space before it.
    pub fn head(self) -> (&'static str, usize) {
        match self {
            Column::Number => ("Shard", 5),
            Column::Connections => ("Conns", 8),
            Column::Delivered => ("Msg/s", 8),
            Column::TurnP99 => ("Turn p99", 9),
            Column::Asleep => ("Asleep", 7),
            Column::System => ("System", 7),
            Column::Bulk => ("Bulk", 6),
            Column::CpuWait => ("Wait", 6),
            Column::Mailbox => ("Mailbox", 8),
            Column::ListenQueue => ("Listen", 7),
            Column::OutboxBytes => ("Unsent", 7),
            Column::Outboxes => ("Outboxes", 9),
            Column::Cpu => ("CPU", 6),
            Column::TurnP50 => ("Turn p50", 9),
            Column::Turns => ("Turns/s", 8),
        }
    }

    /// Returns the words for its order.
    pub fn words(self) -> &'static str {
        match self {
            Column::Number => "number",
            Column::Connections => "connections",
            Column::Delivered => "messages",
            Column::TurnP99 => "turn p99",
            Column::Asleep => "time asleep",
            Column::System => "time in system calls",
            Column::Bulk => "time in bulk",
            Column::CpuWait => "wait for a CPU",
            Column::Mailbox => "mailbox",
            Column::ListenQueue => "listen queue",
            Column::OutboxBytes => "unsent bytes",
            Column::Outboxes => "outboxes",
            Column::Cpu => "CPU",
            Column::TurnP50 => "turn p50",
            Column::Turns => "turns",
        }
    }

    /// Returns the columns that fit into this width.
    pub fn fitting(width: usize) -> impl Iterator<Item = Column> {
        let mut left = width;
        Column::ALL.into_iter().take_while(move |column| {
            let fits = column.head().1 <= left;
            left = left.saturating_sub(column.head().1);
            fits
        })
    }
}

/// The order of the shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sort {
    /// The column.
    pub column: Column,
    /// Reverses the order: the least interesting first.
    pub is_reversed: bool,
}

impl Sort {
    /// Sorts by the column `by` places further.
    pub fn turn(&mut self, by: isize) {
        let count = Column::ALL.len() as isize;
        let at = Column::ALL.iter().position(|column| *column == self.column).unwrap_or(0) as isize;
        self.column = Column::ALL[(at + by).rem_euclid(count) as usize];
        self.is_reversed = false;
    }

    /// Returns the order in words. If more is worse, most comes first.
    pub fn words(self) -> String {
        let first = if self.column.is_least_first() == self.is_reversed { "most" } else { "least" };
        match (self.column, self.is_reversed) {
            (Column::Number, false) => "by number".into(),
            (Column::Number, true) => "by number, highest first".into(),
            (column, _) => format!("by {}, {first} first", column.words()),
        }
    }

    fn order(self, one: &Shard, other: &Shard) -> Ordering {
        let of = |shard: &Shard| shard.value(self.column).unwrap_or(-1.0);
        let order = of(one).total_cmp(&of(other));
        let order =
            if self.column.is_least_first() == self.is_reversed { order.reverse() } else { order };
        order.then(one.number.cmp(&other.number))
    }
}

/// The shards of a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shards {
    /// Connections by shard.
    pub connections: Vec<f64>,
    /// The other figures; `None` from a node of an older version.
    pub columns: Option<Box<ShardColumns>>,
}

/// One shard.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'a> {
    /// Its number.
    pub number: usize,
    connections: f64,
    columns: &'a ShardColumns,
}

impl Shards {
    /// Returns the shards in this order; none from a node without their figures.
    pub fn sorted(&self, sort: Sort) -> Vec<Shard<'_>> {
        let Some(columns) = &self.columns else { return Vec::new() };
        let shards = self.connections.iter().enumerate();
        let mut shards: Vec<_> = shards
            .map(|(number, connections)| Shard { number, connections: *connections, columns })
            .collect();
        shards.sort_by(|one, other| sort.order(one, other));
        shards
    }

    /// Returns the shard that slept least, in a line; `None` from a node without the figures.
    pub fn busiest(&self) -> Option<String> {
        let sort = Sort { column: Column::Asleep, is_reversed: false };
        let shard = *self.sorted(sort).first()?;
        let named = [
            ("asleep", Column::Asleep),
            ("turn p99", Column::TurnP99),
            ("system", Column::System),
            ("bulk", Column::Bulk),
            ("wait", Column::CpuWait),
            ("mailbox", Column::Mailbox),
            ("listen queue", Column::ListenQueue),
            ("unsent", Column::OutboxBytes),
        ];
        let parts = named.map(|(name, column)| format!("{name} {}", shard.text(column)));
        Some(format!("{} · {}", shard.number, parts.join(" · ")))
    }
}

impl Shard<'_> {
    /// Returns its figure in a column; `None` if the node does not have it.
    pub fn value(&self, column: Column) -> Option<f64> {
        let columns = self.columns;
        let number = |values: &[f64]| values.get(self.number).copied();
        let optional = |values: &[Option<f64>]| values.get(self.number).copied().flatten();
        match column {
            Column::Number => Some(self.number as f64),
            Column::Connections => Some(self.connections),
            Column::Delivered => number(&columns.delivered),
            Column::TurnP99 => optional(&columns.turn_p99_ms),
            Column::Asleep => number(&columns.asleep),
            Column::System => optional(&columns.system),
            Column::Bulk => number(&columns.bulk),
            Column::CpuWait => optional(&columns.cpu_wait),
            Column::Mailbox => number(&columns.mailbox),
            Column::ListenQueue => number(&columns.listen_queue),
            Column::OutboxBytes => number(&columns.outbox_bytes),
            Column::Outboxes => number(&columns.outboxes),
            Column::Cpu => optional(&columns.cpu),
            Column::TurnP50 => optional(&columns.turn_p50_ms),
            Column::Turns => number(&columns.turns),
        }
    }

    /// Returns its figure in a column as a text.
    pub fn text(&self, column: Column) -> String {
        let Some(value) = self.value(column) else { return NONE.into() };
        match column {
            Column::Number => self.number.to_string(),
            Column::Connections
            | Column::Delivered
            | Column::Mailbox
            | Column::ListenQueue
            | Column::Outboxes
            | Column::Turns => match value < 100_000.0 {
                true => grouped(value as u64),
                false => compact(value),
            },
            Column::TurnP99 | Column::TurnP50 => milliseconds(value),
            Column::Asleep | Column::System | Column::Bulk | Column::CpuWait | Column::Cpu => {
                format!("{:.0} %", value * 100.0)
            }
            Column::OutboxBytes => bytes(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards() -> Shards {
        let columns = serde_json::from_value(serde_json::json!({
            "asleep": [0.9, 0.25, 0.5], "mailbox": [0, 7, 150_000], "cpu": [null, 0.5],
            "turn_p99_ms": [1.024, 65.536, null], "of_another_version": [1, 2, 3],
        }));
        Shards { connections: vec![5.0, 6.0, 7.0], columns: Some(columns.unwrap()) }
    }

    fn numbers(sort: Sort) -> Vec<usize> {
        shards().sorted(sort).iter().map(|shard| shard.number).collect()
    }

    #[test]
    fn shards_are_sorted_by_what_is_worse_first() {
        let mut sort = Sort::default();
        assert_eq!((numbers(sort), sort.words()), (vec![0, 1, 2], "by number".into()));
        sort.is_reversed = true;
        assert_eq!(numbers(sort), [2, 1, 0]);
        sort.column = Column::Asleep;
        assert_eq!(
            (numbers(sort), sort.words()),
            (vec![0, 2, 1], "by time asleep, most first".into())
        );
        sort.is_reversed = false;
        assert_eq!(numbers(sort), [1, 2, 0]);
        sort.column = Column::Mailbox;
        assert_eq!((numbers(sort), sort.words()), (vec![2, 1, 0], "by mailbox, most first".into()));
        // Shards without a figure come last; equal ones are in order.
        sort.column = Column::TurnP99;
        assert_eq!(numbers(sort), [1, 0, 2]);
        sort.column = Column::Bulk;
        assert_eq!(numbers(sort), [0, 1, 2]);
    }

    #[test]
    fn each_column_has_its_turn_and_the_way_back() {
        let mut sort = Sort { column: Column::Number, is_reversed: true };
        for column in Column::ALL {
            assert_eq!(sort.column, column);
            sort.turn(1);
        }
        assert_eq!(sort, Sort::default());
        sort.turn(-1);
        assert_eq!(sort.column, Column::Turns);
    }

    #[test]
    fn figures_that_are_not_there_are_no_zeros() {
        let shards = shards();
        let sorted = shards.sorted(Sort::default());
        assert_eq!(sorted[0].text(Column::Cpu), NONE);
        assert_eq!(sorted[1].text(Column::Cpu), "50 %");
        assert_eq!(sorted[2].text(Column::Cpu), NONE);
        assert_eq!(sorted[2].text(Column::Mailbox), "150 k");
        let busiest = shards.busiest().unwrap();
        assert!(busiest.starts_with("1 · asleep 25 % · turn p99 65.5 ms · "), "{busiest}");
        assert!(busiest.contains(" · mailbox 7 · "), "{busiest}");
        let old = Shards { connections: vec![1.0], columns: None };
        assert_eq!((old.busiest(), old.sorted(Sort::default()).len()), (None, 0));
    }

    #[test]
    fn the_first_columns_fit_into_a_small_terminal() {
        let fitting: Vec<_> = Column::fitting(78).collect();
        assert_eq!(fitting, Column::ALL[..11]);
        assert_eq!(Column::fitting(500).count(), Column::ALL.len());
        assert_eq!(Column::fitting(4).count(), 0);
    }
}
