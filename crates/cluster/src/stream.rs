//! Streams: the parts of all topics that nodes subscribe to and number.

use model::name::BROADCAST;
use xxhash_rust::xxh3::xxh3_64;

/// A part of all topics. A node's messages to a stream are numbered, and come in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream(u16);

impl Stream {
    /// Streams of topics. A subscription costs a NATS server about 0.7 kB, so that a node that has members in all of
    /// them costs it less than 1 MB, however many users the node has.
    pub const TOPICS: u16 = 1_024;

    /// All streams: those of topics, the broadcast stream, and those of presence and MQTT.
    pub const COUNT: usize = Self::TOPICS as usize + 3;

    /// The stream to which every node subscribes: broadcasts, and messages that all nodes retain.
    pub const EVERYONE: Stream = Stream(Self::TOPICS);

    /// The stream of presence changes, to which every node subscribes: they are not messages.
    pub const PRESENCE: Stream = Stream(Self::TOPICS + 1);

    /// The stream of MQTT, to which every node subscribes: the numbers of members of groups that share messages, and
    /// messages that a node passes to another one's member.
    pub const MQTT: Stream = Stream(Self::TOPICS + 2);

    /// Returns the stream of a topic: the same on every node, in every version.
    ///
    /// ```
    /// use cluster::Stream;
    /// assert_eq!(Stream::of("news").number(), 292);
    /// assert_eq!(Stream::of("*"), Stream::EVERYONE);
    /// ```
    pub fn of(topic: &str) -> Self {
        if topic == BROADCAST {
            return Self::EVERYONE;
        }
        let number = xxh3_64(topic.as_bytes()) % u64::from(Self::TOPICS);
        // It fits, being less than TOPICS.
        Stream(u16::try_from(number).unwrap_or_default())
    }

    /// Returns the stream with this number, if it exists.
    pub fn from_number(number: u16) -> Option<Self> {
        (usize::from(number) < Self::COUNT).then_some(Stream(number))
    }

    /// Returns its number, from 0 on.
    pub fn number(self) -> u16 {
        self.0
    }

    /// Returns its index in a list of all streams.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns all streams.
    pub fn all() -> impl Iterator<Item = Stream> {
        (0..=Self::MQTT.0).map(Stream)
    }

    /// Returns the streams of topics.
    pub fn topics() -> impl Iterator<Item = Stream> {
        (0..Self::TOPICS).map(Stream)
    }
}

/// Returns a message's number, computed from its payload: the same on every node, in every version.
pub fn number_of(payload: &[u8]) -> u64 {
    xxh3_64(payload)
}

/// A value for each stream.
#[derive(Clone, Debug)]
pub(crate) struct PerStream<T>(Box<[T]>);

impl<T: Copy> PerStream<T> {
    pub fn new(value: T) -> Self {
        PerStream(vec![value; Stream::COUNT].into())
    }

    pub fn get(&self, stream: Stream) -> T {
        self.0[stream.index()]
    }

    pub fn set(&mut self, stream: Stream, value: T) {
        self.0[stream.index()] = value;
    }
}
