//! Nodes that share retained messages: publishes, writes that get no reply, nodes that lag behind the log, restarts and
//! full reads, in random orders. In the end, all nodes have what the table has, and the table has what it must.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use model::{Data, Envelope, Epoch, Message, MessageSource, Name, Position, Publication};
use random::Random;

use super::{LocalRetained, Record, RetainedQueue, RetainedRow, RetainedWrite};
use crate::Retained;

const NODES: usize = 3;
const STEPS: usize = 300;
const SEEDS: u64 = 300;
const TOPICS: u64 = 8;
/// So many topics never lose their message.
const UNREMOVED: u64 = 4;
const LOG: Epoch = Epoch(99);

/// The table, as the functions of the database keep it.
#[derive(Default)]
struct Table {
    rows: BTreeMap<Name, Row>,
    last_change: u64,
    /// Rows of removed messages are deleted up to this change.
    forgotten: u64,
    newest: u64,
}

#[derive(Clone, Default)]
struct Row {
    record: Option<Vec<u8>>,
    log_offset: u64,
    change: u64,
}

impl Table {
    /// Returns the rows that reject the writes.
    fn write(&mut self, writes: &[(Name, RetainedWrite)]) -> Vec<RetainedRow> {
        let mut rejecting = Vec::new();
        for (topic, write) in writes {
            let row = self.rows.get(topic);
            let counts = match (row, write.log_offset) {
                (None, None) => write.record.is_some(),
                (None, Some(_)) => true,
                (Some(_), None) => !write.yields,
                (Some(row), Some(offset)) => offset > row.log_offset,
            };
            if !counts {
                let record = row.and_then(|row| row.record.clone());
                rejecting.push(RetainedRow { topic: topic.clone(), record });
                continue;
            }
            let [before, now] = [row.and_then(|row| row.record.as_ref()), write.record.as_ref()]
                .map(|record| record.map(|record| minicbor::decode::<Record>(record).unwrap()));
            if let (Some(before), Some(now)) = (before, now)
                && is_in_log(topic)
            {
                assert!(before.offset < now.offset, "an older message replaces a later one");
            }
            self.last_change += 1;
            let log_offset = write.log_offset.map(|offset| offset - u64::from(write.yields));
            let log_offset = log_offset.unwrap_or(self.newest);
            let row = Row { record: write.record.clone(), log_offset, change: self.last_change };
            self.rows.insert(topic.clone(), row);
        }
        rejecting
    }

    fn follow(&self, after: u64, rows_max: usize) -> (Vec<RetainedRow>, u64) {
        let mut rows: Vec<_> = self.rows.iter().filter(|(_, row)| row.change > after).collect();
        rows.sort_by_key(|(_, row)| row.change);
        rows.truncate(rows_max);
        let through = rows.last().map_or(after, |(_, row)| row.change);
        let row = |(topic, row): (&Name, &Row)| RetainedRow {
            topic: topic.clone(),
            record: row.record.clone(),
        };
        (rows.into_iter().map(row).collect(), through)
    }
}

struct Node {
    retained: LocalRetained,
    queue: Arc<RetainedQueue>,
    /// The last change that the node has applied.
    change: u64,
    /// The last message of the log that the node has delivered.
    delivered: usize,
    /// Messages of other nodes on their way.
    arriving: VecDeque<Arc<Envelope>>,
    clock: u64,
    epoch: Epoch,
}

impl Node {
    /// Starts a node, which reads the table.
    fn start(epoch: u32, table: &Table, delivered: usize) -> Self {
        let node = Node {
            retained: LocalRetained::new(None),
            queue: Arc::new(RetainedQueue::new(Box::new(|| ()))),
            change: table.last_change,
            delivered,
            arriving: VecDeque::new(),
            clock: 0,
            epoch: Epoch(epoch),
        };
        node.retained.share(node.queue.clone());
        node.read_all(table);
        node
    }

    fn read_all(&self, table: &Table) {
        let live = table.rows.iter().filter(|(_, row)| row.record.is_some());
        let rows: Vec<RetainedRow> = live
            .map(|(topic, row)| RetainedRow { topic: topic.clone(), record: row.record.clone() })
            .collect();
        let mut after: Option<Name> = None;
        let mut pages = rows.chunks(2).peekable();
        if pages.peek().is_none() {
            self.retained.apply_all_rows(None, Vec::new(), true, &|_| 0);
        }
        while let Some(page) = pages.next() {
            let is_last = pages.peek().is_none();
            self.retained.apply_all_rows(after.as_deref(), page.to_vec(), is_last, &|_| 0);
            after = page.last().map(|row| row.topic.clone());
        }
    }

    fn retain(&mut self, publication: Publication, log_offset: Option<u64>) -> Arc<Envelope> {
        self.clock += 1;
        let (id, source) = match log_offset {
            Some(offset) => (Position { epoch: LOG, offset }, MessageSource::SharedLog),
            None => (Position { epoch: self.epoch, offset: self.clock }, MessageSource::Here),
        };
        let message = Message::new(publication, id, 0, self.clock);
        let message = Arc::new(Envelope::from(message));
        self.retained.retain_from(&message, source);
        message
    }

    /// Gets the next message of another node.
    fn arrive(&mut self) {
        if let Some(message) = self.arriving.pop_front() {
            self.retained.retain_from(&message, MessageSource::OtherNode);
        }
    }

    /// Reads the rows of topics in doubt.
    fn check(&self, table: &Table) {
        let row = |topic: Name| {
            let record = table.rows.get(&topic).and_then(|row| row.record.clone());
            RetainedRow { topic, record }
        };
        let rows = self.queue.topics_to_verify().into_iter().map(row).collect();
        self.retained.apply_rows(rows, &|_| 0);
        self.queue.on_verified();
    }

    /// Writes some rows. If there is no reply, the table may have them or not.
    fn write(&mut self, table: &mut Table, random: &mut Random) {
        let writes = self.queue.take(1 + random.below(3_usize), usize::MAX);
        let (arrives, replies) = (random.below(10) > 0, random.below(10) > 0);
        let rejecting = if arrives { table.write(&writes) } else { Vec::new() };
        if arrives && replies {
            self.queue.written();
            self.retained.apply_rows(rejecting, &|_| 0);
        } else {
            self.queue.put_back();
        }
    }

    fn follow(&mut self, table: &Table, rows_max: usize) {
        if self.change < table.forgotten {
            self.read_all(table);
            self.change = table.last_change;
            return;
        }
        let (rows, through) = table.follow(self.change, rows_max);
        self.retained.apply_rows(rows, &|_| 0);
        self.change = through;
    }

    fn messages(&self) -> BTreeMap<Name, String> {
        let page = self.retained.all(None, usize::MAX);
        let text = |message: &Envelope| text_of(&message.publication);
        page.messages.iter().map(|it| (it.publication.topic.clone(), text(it))).collect()
    }
}

fn topic(number: u64) -> Name {
    Name::from(format!("t/{number}").as_str())
}

/// Returns true for half of the topics.
fn is_in_log(topic: &Name) -> bool {
    topic.as_bytes().last().is_some_and(|digit| digit.is_multiple_of(2))
}

fn text_of(publication: &Publication) -> String {
    let Data::Text(text) = &publication.data else { panic!("{publication:?}") };
    text.to_string()
}

fn publication(topic: &Name, text: &str) -> Publication {
    Publication { retain: true, ..Publication::new(topic.clone(), Data::Text(text.into())) }
}

/// Notes the topic once its message is confirmed to the publisher.
fn confirm(node: &Node, topic: &Name, confirmed: &Arc<Mutex<Vec<Name>>>) {
    let (confirmed, topic) = (confirmed.clone(), topic.clone());
    node.retained.settle(Box::new(move |_| confirmed.lock().unwrap().push(topic)));
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mut table = Table::default();
    let mut log: Vec<Publication> = Vec::new();
    let mut epochs = 0;
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..NODES {
        epochs += 1;
        nodes.push(Node::start(epochs, &table, 0));
    }
    let confirmed = Arc::new(Mutex::new(Vec::new()));
    // For each topic outside of the log, all texts that were published, in order.
    let mut published: BTreeMap<Name, Vec<String>> = BTreeMap::new();
    for step in 0..STEPS {
        let at = random.below(NODES);
        let number = random.below(TOPICS);
        let topic = topic(number);
        let removes = number >= UNREMOVED && random.below(3) == 0;
        let text = if removes { String::new() } else { format!("{step}") };
        match random.below(14) {
            0..=2 => {
                let publication = publication(&topic, &text);
                if is_in_log(&topic) {
                    log.push(publication);
                    table.newest += 1;
                } else {
                    let message = nodes[at].retain(publication, None);
                    let others = nodes.iter_mut().enumerate().filter(|(other, _)| *other != at);
                    others.for_each(|(_, node)| node.arriving.push_back(message.clone()));
                    confirm(&nodes[at], &topic, &confirmed);
                    published.entry(topic).or_default().push(text);
                }
            }
            3..=5 => {
                let node = &mut nodes[at];
                if let Some(publication) = log.get(node.delivered).cloned() {
                    node.delivered += 1;
                    node.retain(publication, Some(node.delivered as u64));
                }
            }
            6..=8 => nodes[at].write(&mut table, &mut random),
            9 => nodes[at].follow(&table, 2),
            10 => nodes[at].arrive(),
            11 if random.below(4) == 0 => nodes[at].check(&table),
            12 if random.below(8) == 0 => {
                // What this node has not written is lost, unless it is in the log, which the others deliver as well.
                epochs += 1;
                nodes[0] = Node::start(epochs, &table, log.len());
            }
            _ => {
                // Rows of messages that were removed long ago are deleted. A node may still write a message of the log.
                let is_gone = |topic: &Name, row: &Row| !is_in_log(topic) && row.record.is_none();
                let gone = table.rows.iter().filter(|(topic, row)| is_gone(topic, row));
                let last = gone.map(|(_, row)| row.change).max();
                table.rows.retain(|topic, row| !is_gone(topic, row));
                table.forgotten = table.forgotten.max(last.unwrap_or(0));
            }
        }
    }
    // All is delivered and written, and each node reads the rest.
    for node in &mut nodes {
        while let Some(publication) = log.get(node.delivered).cloned() {
            node.delivered += 1;
            node.retain(publication, Some(node.delivered as u64));
        }
        while !node.queue.is_idle() {
            node.write(&mut table, &mut random);
        }
    }
    for node in &mut nodes {
        node.follow(&table, usize::MAX);
        node.follow(&table, usize::MAX);
        // The last messages of others come when their rows are here already.
        (0..node.arriving.len()).for_each(|_| node.arrive());
        (0..2).for_each(|_| node.check(&table));
    }
    let first = nodes[0].messages();
    nodes.iter().for_each(|node| assert_eq!(node.messages(), first, "seed {seed}"));
    let live = table.rows.iter().filter(|(_, row)| row.record.is_some()).map(|(topic, _)| topic);
    assert!(live.eq(first.keys()), "seed {seed}: {first:?}");
    for number in (0..TOPICS).step_by(2) {
        let topic = topic(number);
        let last = log.iter().rev().find(|publication| publication.topic == topic);
        let last = last.map(text_of);
        let expected = last.filter(|text| !text.is_empty());
        assert_eq!(first.get(&topic).cloned(), expected, "seed {seed}: the last in the log");
    }
    // A topic with a confirmed message has a message, unless it was removed.
    for topic in confirmed.lock().unwrap().iter() {
        let is_removed = published[topic].iter().any(String::is_empty);
        assert!(
            is_removed || first.contains_key(topic),
            "seed {seed}: {topic} has lost its message"
        );
    }
    let texts = first.iter().filter_map(|(topic, text)| Some((published.get(topic)?, text)));
    texts.for_each(|(texts, text)| assert!(texts.contains(text), "seed {seed}"));
}

#[test]
fn all_nodes_come_to_have_what_the_table_has() {
    match std::env::var("RETAINED_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => run(seed),
        None => (0..SEEDS).for_each(run),
    }
}
