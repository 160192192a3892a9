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
    /// The topics it is for: * is any run of characters, also none, and all else stands for itself.
    pattern: String = TextBytes(1, NAME_BYTES_MAX as u64), Required(r#""room:*""#);
    /// Whether a client may enter; webhook asks the application.
    join: JoinRule = Choice(JOIN_WORDS), Default(r#""allow""#);
    /// Whether clients may publish to the topic: allow gives it to all members, others to all but the sender, webhook to the application, which answers the client, and ask to all members if the application allows it; left out, it is refused unless client.publish_prefixes allows it.
    publish: Option<PublishRule> = Choice(PUBLISH_WORDS), Unset(r#""others""#);
    /// Tell members who else is there.
    presence: bool = Bool, Default("false");
    /// The application hears who comes to these topics and goes, and when they are occupied and vacated, as far as webhook.events says so.
    events: bool = Bool, Default("false");
    /// Send a client that doesn't keep up only the newest message of each key, when it reads again, in place of closing it; messages without a key are as of one.
    conflate: bool = Bool, Default("false");
    /// Where this rule's webhooks go, in place of webhook.url.
    webhook_url: Option<String> = Text, Unset(r#""https://example.com/throng""#);
    /// Messages of a topic that are retained for those who come back; 0 is none. Of this limit and the next two, the first that is reached counts. With a store, a limit above 40960 may give up to 10 % more.
    history_messages_max: u64 = Number(0, 10_000_000), Default("0"),
        beyond "the oldest message of the topic is dropped; with `compact` the key that has not changed for the longest", shows "`throng_history_messages`, `throng_history_dropped_total`";
    /// What those messages may hold, at least limits.message_bytes_max; with a store, up to 10 % more where those are over 4096 messages.
    history_bytes_max: u64 = Bytes(1, TIB), Default(r#""1MiB""#),
        beyond "the same", shows "`throng_history_bytes`, `throng_history_dropped_total`";
    /// How long they are retained; left out, it is 86400, a day, and without end where compact = true: a state stands until it changes.
    history_seconds_max: Option<u64> = Number(1, TEN_YEARS), Unset("86400"),
        beyond "the same", shows "`throng_history_dropped_total`";
    /// A publisher is answered when the message is on disk, and not before; needs store.data.
    durable: bool = Bool, Default("false");
    /// Keep only the last message of each key; whoever joins gets those first. The limits above count keys: with one too many, the key that has not changed for the longest is dropped.
    compact: bool = Bool, Default("false");
    /// Users acknowledge messages, and are given again what they have not acknowledged when they come back.
    acknowledge: bool = Bool, Default("false");
    /// Messages that one connection may have without having acknowledged them.
    ack_window_messages_max: u64 = Number(1, 1_000_000), Default("100"),
        beyond "no more are sent until one is acknowledged", shows "–";
    /// A message that is not acknowledged for so long is delivered again to a /ws or Phoenix connection that has it, for clients whose handlers may fail; 0 is never. Whoever connects is given what is not acknowledged in any case.
    ack_redelivery_seconds: u64 = Number(0, DAY), Default("0");
    /// How often a message is delivered before it is given up; 0 is without end, or 5 times where dead_letter is set.
    ack_tries_max: u64 = Number(0, 60_000), Default("0"),
        beyond "the message is given up, or goes to `dead_letter`", shows "`throng_messages_given_up_total`";
    /// The topic where messages go that are given up; "" drops them.
    dead_letter: String = Text, Default(r#""""#);
}
