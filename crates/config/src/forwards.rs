//! The keys of a table of `[[forward]]`, which sends clients' messages to a back end.

use model::name::NAME_BYTES_MAX;

use crate::setting::{DAY, Kind, TIB};
use crate::tables::Absent::{Default, Required};
use crate::tables::table_keys;

use Kind::{Bool, Bytes, List, Number, Text, TextBytes};

// A line is: key, type, values, and the effect of a missing key; for a limit also as in the table of settings.
table_keys! {
    /// All keys of a table of `[[forward]]`.
    FORWARD_KEYS;
    /// A rule that sends the messages of matching topics to a back end. The first that matches a topic wins.
    ForwardRule;
    /// Topics to which the rule applies, as an MQTT client subscribes to them: + is one level, # at the end is all that follow.
    filter: String = TextBytes(1, NAME_BYTES_MAX as u64), Required(r##""requests/#""##);
    /// URL to which the server sends the messages, http:// or https:// without a query. It signs them as all requests to the application (webhook.signing_key, webhook.secret).
    url: String = Text, Required(r#""http://127.0.0.1:9000/requests""#);
    /// Whether the topic's members get the messages, too: after the back end has accepted them; those with QoS 0 at once.
    deliver: bool = Bool, Default("true");
    /// Filters of the topics to which a client may have replies sent although it may not publish there itself; it must still be allowed to subscribe to them.
    answer_filters: Vec<String> = List, Default("[]");
    /// Milliseconds that one request may take.
    timeout_milliseconds: u64 = Number(1, 600_000), Default("5000");
    /// Seconds that the server offers a message to a back end that does not accept it; then the server rejects the publish. 0: it offers the message once.
    retry_seconds: u64 = Number(0, DAY), Default("30");
    /// Messages that one request may have.
    batch_messages_max: u64 = Number(1, 10_000), Default("100"),
        beyond "the rest is sent with the next request", shows "`throng_forward_waiting`";
    /// Milliseconds that a message waits for others to share its request, unless the request is full earlier.
    batch_wait_milliseconds: u64 = Number(0, 60_000), Default("10");
    /// Messages that the back end has not accepted yet; the server rejects more, and drops those with QoS 0.
    queue_messages_max: u64 = Number(1, 10_000_000), Default("10000"),
        beyond "503, `overloaded`; MQTT: reason code 0x97; with QoS 0 dropped", shows "`throng_forward_waiting`, `throng_forward_refused_total`, `throng_forward_dropped_total`";
    /// Bytes of those messages; one message alone may be larger.
    queue_bytes_max: u64 = Bytes(1, TIB), Default(r#""16MiB""#),
        beyond "the same", shows "`throng_forward_waiting_bytes`";
}
