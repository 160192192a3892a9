//! Two nodes, and a NATS that rejects packets above a limit.

#![expect(clippy::wildcard_enum_match_arm, reason = "of many outputs a few matter here")]

use presence::{Change, Changes, Page, SharedEntry};

use super::*;

const LIMIT: usize = 10_000;

/// A node that publishes and has entries, and one that reads.
struct Two {
    owner: Node,
    reader: Node,
    /// The largest packet that NATS takes.
    limit: usize,
    now_us: u64,
    own: Vec<SharedEntry>,
    /// The reader's copy of the owner's entries.
    read: BTreeMap<u64, usize>,
    got: Vec<usize>,
    gaps: Vec<Option<u64>>,
    reported: Vec<TooLarge>,
    page_requests: usize,
}

fn node_of(id: u32) -> Node {
    let settings = Settings {
        node: NodeId(id),
        name: String::new(),
        version: "1".into(),
        replay_bytes_max: 1 << 20,
    };
    Node::new(settings, 0)
}

fn entry(number: u64, bytes: usize) -> SharedEntry {
    SharedEntry { number, meta: "x".repeat(bytes).into(), ..SharedEntry::default() }
}

impl Two {
    /// Makes two nodes that are not connected yet.
    fn new() -> Self {
        Two {
            owner: node_of(1),
            reader: node_of(2),
            limit: LIMIT,
            now_us: 0,
            own: Vec::new(),
            read: BTreeMap::new(),
            got: Vec::new(),
            gaps: Vec::new(),
            reported: Vec::new(),
            page_requests: 0,
        }
    }

    /// Connects the nodes, and sets the owner's limit of NATS.
    fn connect(&mut self) {
        self.owner.set_packet_bytes_max(self.limit, self.now_us);
        for node in [&mut self.owner, &mut self.reader] {
            node.on_connected(self.now_us);
        }
    }

    /// Passes packets between the nodes for `seconds` seconds.
    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.now_us += SECOND_US / 10;
            for node in [&mut self.owner, &mut self.reader] {
                node.on_time(self.now_us);
            }
            while self.exchange() {}
        }
    }

    /// Returns false if no packet is in flight any more.
    fn exchange(&mut self) -> bool {
        let to_reader = self.owner.poll_outputs(self.now_us);
        let to_owner = self.reader.poll_outputs(self.now_us);
        self.page_requests += page_requests(&to_owner).len();
        let is_busy = !to_reader.is_empty() || !to_owner.is_empty();
        for output in to_reader {
            match output {
                Output::Send { target, bytes } if bytes.len() <= self.limit => {
                    self.reader.on_packet(target, &bytes, self.now_us).unwrap();
                }
                Output::TooLarge { content, .. } => self.reported.push(content),
                Output::ReadPresence(request) => {
                    let page = self.page(request.from);
                    self.owner.on_presence_read(&request, page);
                }
                _ => {}
            }
        }
        to_owner.into_iter().for_each(|output| self.take(output));
        is_busy
    }

    /// Makes a page as the registry does: it ends with the entry that makes it too large.
    fn page(&self, from: u64) -> Page {
        let mut page = Page { from, to: None, entries: Vec::new() };
        let mut bytes = 0;
        for entry in self.own.iter().filter(|entry| entry.number >= from) {
            if bytes > PRESENCE_PACKET_BYTES {
                page.to = Some(entry.number);
                break;
            }
            bytes += entry.bytes();
            page.entries.push(entry.clone());
        }
        page
    }

    fn take(&mut self, output: Output) {
        match output {
            Output::Send { target, bytes } if bytes.len() <= self.limit => {
                self.owner.on_packet(target, &bytes, self.now_us).unwrap();
            }
            Output::Deliver { payload, .. } => self.got.push(payload.len()),
            Output::Gap { lost, .. } => self.gaps.push(lost),
            Output::PresenceChanged { changes, .. } => {
                for Change { gone, entry } in changes {
                    gone.map(|number| self.read.remove(&number));
                    entry.map(|entry| self.read.insert(entry.number, entry.meta.len()));
                }
            }
            Output::PresencePage { page, .. } => {
                self.read.retain(|number, _| !page.has(*number));
                let entries = page.entries.iter().map(|entry| (entry.number, entry.meta.len()));
                self.read.extend(entries);
            }
            _ => {}
        }
    }

    fn publish_presence(&mut self, list: Vec<Change>) {
        let changes = Changes { list, is_whole: true, has_more: false };
        self.owner.publish_presence(changes, self.now_us);
    }

    fn is_whole(&self) -> bool {
        self.reader.has_entries_of(NodeId(1))
    }
}

#[test]
fn entries_are_read_in_pages_that_nats_takes_and_one_that_it_never_takes_ends_no_read() {
    let mut two = Two::new();
    let large = 50;
    two.own = (0..100).map(|number| entry(number, 900)).collect();
    two.own[large].meta = "x".repeat(LIMIT).into();
    two.connect();
    two.run(1);
    assert!(two.is_whole());
    let expected = (0..100).filter(|number| *number != large as u64).map(|number| (number, 900));
    assert_eq!(two.read, expected.collect());
    assert_eq!(two.reported, [TooLarge::PresenceEntry]);
    assert_eq!(two.page_requests, 99_usize.div_ceil(LIMIT / (900 + 48)));
    two.run(60);
    assert_eq!(two.page_requests, 10, "it does not read them again");
    // A NATS that takes larger packets gets the excluded entries.
    two.limit = 2 * LIMIT;
    two.connect();
    two.run(2);
    assert!(two.is_whole() && two.read.len() == 100);
}

#[test]
fn changes_go_without_an_entry_that_nats_never_takes() {
    let mut two = Two::new();
    two.connect();
    two.run(1);
    let enter = |number, bytes| Change { gone: None, entry: Some(entry(number, bytes)) };
    two.publish_presence((0..20).map(|number| enter(number, 900)).collect());
    two.publish_presence(vec![enter(20, LIMIT), enter(21, 1)]);
    // A user's payload is too large, and then smaller.
    two.publish_presence(vec![Change { gone: Some(3), entry: Some(entry(22, LIMIT)) }]);
    two.run(1);
    let numbers = |two: &Two| two.read.keys().copied().collect::<Vec<_>>();
    let expected: Vec<u64> = (0..22).filter(|number| ![3, 20].contains(number)).collect();
    assert_eq!(numbers(&two), expected);
    two.publish_presence(vec![Change { gone: Some(22), entry: Some(entry(23, 5)) }]);
    two.run(1);
    assert_eq!(numbers(&two), [expected, vec![23]].concat());
    assert_eq!((two.page_requests, two.is_whole()), (1, true), "no change was lost");
    assert_eq!(two.reported, [TooLarge::PresenceEntry; 2]);
}

#[test]
fn a_message_that_nats_never_takes_is_a_gap_after_a_few_requests() {
    let mut two = Two::new();
    two.connect();
    two.run(1);
    for bytes in [10, LIMIT, 20] {
        two.owner.publish(Stream::EVERYONE, two.now_us, |out| out.resize(out.len() + bytes, 0));
    }
    two.run(2);
    assert_eq!((&two.got[..], &two.gaps[..]), (&[10, 20][..], &[Some(1)][..]));
    // The last message of all is missed as well.
    two.owner.publish(Stream::EVERYONE, two.now_us, |out| out.resize(LIMIT + 1, 0));
    two.run(60);
    assert_eq!(two.gaps, [Some(1), Some(1)]);
    let reported = two.reported.len();
    assert!((2..=8).contains(&reported), "{reported} packets were sent in vain");
    assert_eq!(two.owner.counts().too_large, reported as u64);
}

#[test]
fn a_node_that_learns_the_limit_later_ends_what_it_can_not_send() {
    let mut two = Two::new();
    // Before the connect the owner knows no limit, and publishes all in one packet.
    let entered = (0..100).map(|number| entry(number, 900));
    two.own = entered.clone().collect();
    two.publish_presence(entered.map(|it| Change { gone: None, entry: Some(it) }).collect());
    two.connect();
    two.run(5);
    assert!(two.is_whole() && two.read.len() == 100);
    let requests = two.page_requests;
    two.run(60);
    assert_eq!(two.page_requests, requests);
}

#[test]
fn requests_of_many_streams_go_in_packets_that_nats_takes() {
    let mut two = Two::new();
    two.reader.set_packet_bytes_max(LIMIT, 0);
    Stream::topics().for_each(|stream| two.reader.on_interest_begun(stream, 0, 0));
    two.connect();
    two.run(1);
    for stream in Stream::topics() {
        two.owner.publish(stream, two.now_us, |out| out.push(1));
    }
    two.run(2);
    assert_eq!((two.got.len(), two.gaps.len()), (usize::from(Stream::TOPICS), 0));
}
