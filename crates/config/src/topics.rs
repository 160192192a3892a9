//! The keys of a rule by topic, a table of `[[topics]]`.

use model::name::NAME_BYTES_MAX;
use model::{JoinRule, PublishRule};

use crate::setting::{DAY, Kind, TEN_YEARS, TIB};
use crate::tables::Absent::{Default, Required, Unset};
use crate::tables::table_keys;
use crate::typed::{JOIN_WORDS, PUBLISH_WORDS};

use Kind::{Bool, Bytes, Choice, Number, Text, TextBytes};

// A line is: key, type, values, and the effect of a missing key; for a limit also as in the table of settings.
table_keys! {
    /// All keys of a rule.
    TOPIC_KEYS;
    /// A rule for the topics that a pattern matches. The first that matches a topic wins.
    TopicRule;
    /// Topics to which the rule applies: * is any run of characters, also none, and everything else stands for itself.
    pattern: String = TextBytes(1, NAME_BYTES_MAX as u64), Required(r#""room:*""#);
    /// Whether a client may enter; webhook: the application decides.
    join: JoinRule = Choice(JOIN_WORDS), Default(r#""allow""#);
    /// Whether clients may publish to the topic: allow gives a message to all members, others to all but the sender, webhook to the application, which replies to the client, and ask to all members if the application allows it. Left out: only if client.publish_prefixes allows it.
    publish: Option<PublishRule> = Choice(PUBLISH_WORDS), Unset(r#""others""#);
    /// Notify members which other users are in the topic.
    presence: bool = Bool, Default("false");
    /// The application gets events when users enter or leave these topics, and when a topic is occupied or vacated, as far as webhook.events has them.
    events: bool = Bool, Default("false");
    /// Do not close a client that doesn't keep up, but send it only the newest message of each key when it reads again; all messages without a key count as one key.
    conflate: bool = Bool, Default("false");
    /// URL of this rule's webhooks, instead of webhook.url.
    webhook_url: Option<String> = Text, Unset(r#""https://example.com/throng""#);
    /// Messages of a topic that the server retains for clients that come back; 0: none. Of this limit and the next two, the first that is reached counts. With a store, a limit above 40960 may give up to 10 % more.
    history_messages_max: u64 = Number(0, 10_000_000), Default("0"),
        beyond "the oldest message of the topic is dropped; with `compact` the key that has not changed for the longest", shows "`throng_history_messages`, `throng_history_dropped_total`";
    /// Bytes of those messages, at least limits.message_bytes_max; with a store, up to 10 % more where those are over 4096 messages.
    history_bytes_max: u64 = Bytes(1, TIB), Default(r#""1MiB""#),
        beyond "the same", shows "`throng_history_bytes`, `throng_history_dropped_total`";
    /// Seconds that the server retains those messages. Left out: 86400, a day; with compact = true without end, because a state stands until it changes.
    history_seconds_max: Option<u64> = Number(1, TEN_YEARS), Unset("86400"),
        beyond "the same", shows "`throng_history_dropped_total`";
    /// Reply to a publisher only when the message is on disk; needs store.data.
    durable: bool = Bool, Default("false");
    /// Retain only the last message of each key; a client that joins gets those first. The limits above count keys: with one too many, the server drops the key that has not changed for the longest.
    compact: bool = Bool, Default("false");
    /// Users acknowledge messages; a user that comes back gets again what it has not acknowledged.
    acknowledge: bool = Bool, Default("false");
    /// Messages that one connection may have without having acknowledged them.
    ack_window_messages_max: u64 = Number(1, 1_000_000), Default("100"),
        beyond "no more are sent until one is acknowledged", shows "–";
    /// Seconds without an acknowledgement after which the server delivers a message again to a /ws or Phoenix connection that has it, for clients whose handlers may fail; 0: never. A client that connects gets what its user has not acknowledged in any case.
    ack_redelivery_seconds: u64 = Number(0, DAY), Default("0");
    /// Deliveries of a message before the server gives it up; 0: without end, or 5 where dead_letter is set.
    ack_tries_max: u64 = Number(0, 60_000), Default("0"),
        beyond "the message is given up, or goes to `dead_letter`", shows "`throng_messages_given_up_total`";
    /// Topic that gets the messages that the server gives up; "": it drops them.
    dead_letter: String = Text, Default(r#""""#);
}
