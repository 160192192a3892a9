//! The flags that all scenarios share.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

/// Parses a number above zero, for rates and times.
///
/// # Errors
/// For anything else, with a message for the command line.
pub fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 && number <= 1e9 => Ok(number),
        _ => Err("a number above 0, at most 1e9".into()),
    }
}

/// The names of the transports, as a list in a help text.
fn transports() -> String {
    client::ALL.map(client::Client::name).join(", ")
}

/// Parses a percentage from 0 to 100.
///
/// # Errors
/// For anything else, with a message for the command line.
pub fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=100.0).contains(&number) => Ok(number),
        _ => Err("a number from 0 to 100".into()),
    }
}

/// Parses a time, in seconds or with a unit: 90, 90s, 15m, 1h. Returns seconds.
///
/// # Errors
/// For anything else, with a message for the command line.
pub fn seconds(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.as_bytes().last() {
        Some(b's') => (&text[..text.len() - 1], 1.0),
        Some(b'm') => (&text[..text.len() - 1], 60.0),
        Some(b'h') => (&text[..text.len() - 1], 3_600.0),
        _ => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() && (0.0..=1e7).contains(&number) => Ok(number * unit),
        _ => Err("a time like 30, 90s, 15m or 1h".into()),
    }
}

/// Parses a size, in bytes or with a unit of 1,024: 500M, 2G. Returns bytes.
///
/// # Errors
/// For anything else, with a message for the command line.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| "a number of bytes like 500M or 2G".into())
}

/// See the help texts of the fields.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
#[allow(rustdoc::broken_intra_doc_links, reason = "help texts name sections as files do: [inbox]")]
pub struct Common {
    /// Servers, as http://host:port or host:port, also separated by commas; connections go to them
    /// in turn. https://, wss:// and mqtts:// use TLS. A path is the template of the request, with
    /// {user} and {topic} in it; without a path the request is Throng's. Phoenix clients join the
    /// topics that the path has as topic=NAME.
    #[arg(value_name = "URL", required_unless_present = "urls")]
    pub targets: Vec<String>,
    /// Transports, in turn.
    #[arg(help = format!("Transports, in turn: {}", transports()))]
    #[arg(long, short, default_value = "sse", value_delimiter = ',', value_name = "NAMES")]
    pub transport: Vec<String>,
    /// Connect to all targets with TLS, as if their URLs began with https://. Each connection
    /// costs the server a full handshake: sessions are never resumed.
    #[arg(long)]
    pub tls: bool,
    /// Trust certificates of the authorities in this file (PEM), and the certificates in it themselves [default:
    /// those of the authorities that this machine trusts].
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub ca: Option<PathBuf>,
    /// INSECURE: trust any certificate. For tests in a trusted network.
    #[arg(long, conflicts_with = "ca")]
    pub insecure_tls: bool,
    /// QoS with which MQTT clients subscribe: 0, 1 or 2 [default: 0, or 1 if they recover missed
    /// messages].
    #[arg(long, value_name = "QOS", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: Option<u8>,
    /// Sessions of MQTT clients: clean ones end with their connections, kept ones persist until
    /// their clients come back [default: clean, or kept if they recover missed messages].
    #[arg(long, value_name = "KIND", value_parser = ["clean", "kept"])]
    pub session: Option<String>,
    /// Clients send no heartbeats; MQTT clients request a keep-alive of 0.
    #[arg(long)]
    pub no_heartbeats: bool,
    /// Publish to topics with MQTT clients, one connection each, with --qos, instead of the admin
    /// port; mqtts://HOST:PORT uses TLS.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "publish")]
    pub publish_mqtt: Option<String>,
    /// Number of connections [default: the scenario's, mostly 1,000].
    #[arg(long, short, value_parser = clap::value_parser!(u32).range(1..=100_000_000), value_name = "N")]
    pub connections: Option<u32>,
    /// Connections to open per second [default: as fast as possible].
    #[arg(long, value_parser = positive, value_name = "RATE")]
    pub rate: Option<f64>,
    /// Spread the opening of connections over this time instead.
    #[arg(long, value_parser = seconds, conflicts_with = "rate", value_name = "TIME")]
    pub ramp: Option<f64>,
    /// How long the connections stay once all are open: 30, 90s, 15m, 1h. (random-users and storm
    /// end by themselves.)
    #[arg(long, value_parser = seconds, default_value = "30", value_name = "TIME")]
    pub hold: f64,
    /// Name of a user. The letter n in braces, as in the default, stands for the user's number,
    /// {room} for the number of the user's topic. Empty for none.
    #[arg(long, default_value = "u{n}", value_name = "TEMPLATE")]
    pub user_template: String,
    /// Name of a topic [default: all, or room-{room}]. Empty for none.
    #[arg(long, value_name = "TEMPLATE")]
    pub topic_template: Option<String>,
    /// How many users share a topic, where the topics' names differ by {room} [default: all, or
    /// the scenario's number].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub users_per_topic: Option<u32>,
    /// Number of the first user.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub first: u32,
    /// Read the URLs from this file, one a line, one for each connection in turn; - is standard
    /// input.
    #[arg(long, value_name = "FILE", conflicts_with = "targets")]
    #[serde(skip)]
    pub urls: Option<PathBuf>,
    /// Source addresses of the connections: a block like 127.0.1.0/24, or a list with commas
    /// [default: as many as needed when the server is on loopback, otherwise the kernel's choice].
    #[arg(long, value_name = "ADDRESSES")]
    pub source: Option<String>,
    /// Throng's admin port, to publish and to read its memory and processor time; several
    /// separated by commas: each message is published at one of them, in turn [default: port 8001
    /// of the target's host, when the target is its port 8000].
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub admin: Vec<String>,
    /// Read the key of the admin port from this file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub api_key_file: Option<PathBuf>,
    /// Publish to another server than Throng: the payload is posted to this URL, which contains
    /// {user} or {topic}.
    #[arg(long, value_name = "URL", conflicts_with = "api_key_file")]
    pub publish: Option<String>,
    /// Messages per second to single random users, besides those of the scenario.
    #[arg(long, value_parser = positive, value_name = "RATE")]
    pub send_rate: Option<f64>,
    /// Messages per second to random topics, instead of those of the scenario.
    #[arg(long, value_parser = positive, value_name = "RATE")]
    pub topic_rate: Option<f64>,
    /// Publish a message to everyone at this interval.
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    pub broadcast_every: Option<f64>,
    /// Bytes of a message's payload, at least 50.
    #[arg(long, default_value_t = 100, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub message_bytes: u32,
    /// Publishers of each stream of messages, with one connection each.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub publishers: u32,
    /// Request this URL during the whole run, to check that ordinary requests get responses.
    /// Repeatable.
    #[arg(long, value_name = "URL")]
    pub probe: Vec<String>,
    /// Requests per second to each probe URL.
    #[arg(long, default_value_t = 20.0, value_parser = positive, value_name = "RATE")]
    pub probe_rate: f64,
    /// Open a connection that failed or was closed again after this time, on average.
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    pub reconnect: Option<f64>,
    /// Connections remember their positions in their topics, resume from there whenever they were
    /// closed, and must get the messages that they missed: none may be lost or arrive twice. The
    /// server must retain messages (history_messages_max).
    #[arg(long)]
    pub recover: bool,
    /// Connections acknowledge the messages to their users; a message without an acknowledgement
    /// may arrive again, and each must arrive at least once. On the server, [inbox] must be
    /// enabled.
    #[arg(long, conflicts_with = "publish")]
    pub ack: bool,
    /// Acknowledge only one of N messages.
    #[arg(long, default_value_t = 1, requires = "ack", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub ack_every: u32,
    /// Leave out this percentage of acknowledgements, to see that messages arrive again.
    #[arg(long, default_value_t = 0.0, requires = "ack", value_name = "PERCENT", value_parser = percent)]
    pub ack_skip: f64,
    /// Give up a connection that receives nothing for this long, not even heartbeats.
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    pub silence: Option<f64>,
    /// Measure the longest time in which each connection receives no message. With a steady stream
    /// of messages, this shows for how long the server pauses.
    #[arg(long)]
    pub silences: bool,
    /// How long a response may take.
    #[arg(long = "answer-timeout", value_parser = seconds, default_value = "60", value_name = "TIME")]
    #[serde(rename = "answer_timeout")]
    pub response_timeout: f64,
    /// How long to wait at the end for messages that are still on their way [default: 30s, after Ctrl-C 5s]
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    pub settle: Option<f64>,
    /// Connections that may be opening at the same time.
    #[arg(long, default_value_t = 2_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub in_flight: u32,
    /// Open no more connections when less memory than this is free on this host: 500M, 2G.
    #[arg(long, value_parser = size, value_name = "BYTES")]
    pub keep_memory: Option<u64>,
    /// Seed of all random choices: the same number gives the same users and messages.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Write a report into this folder: index.html, samples.csv, summary.json, samples.json.
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    pub report: Option<PathBuf>,
    /// Divide the run among agents (throng flood agent) at these addresses, HOST:PORT separated by
    /// commas.
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', conflicts_with = "urls")]
    #[serde(skip)]
    pub agents: Vec<String>,
    /// Read the key of the agents from this file.
    #[arg(long, value_name = "FILE", requires = "agents")]
    #[serde(skip)]
    pub agents_key_file: Option<PathBuf>,
    /// Print nothing but the result.
    #[arg(long, short)]
    #[serde(skip)]
    pub quiet: bool,
    /// Print a JSON object for each sample, and one for the result.
    #[arg(long, conflicts_with = "quiet")]
    #[serde(skip)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_are_parsed() {
        for (text, want) in [("30", 30.0), ("90s", 90.0), ("15m", 900.0), ("1.5h", 5_400.0)] {
            assert_eq!(seconds(text), Ok(want));
        }
        for invalid in ["", "s", "-1", "1d", "nan", "inf", "é"] {
            assert!(seconds(invalid).is_err(), "{invalid}");
        }
        assert_eq!((size("2G"), size("500M"), size("7")), (Ok(2 << 30), Ok(500 << 20), Ok(7)));
        assert!(size("G").is_err() && size("99999999999G").is_err() && size("é").is_err());
        assert_eq!(positive("0.5"), Ok(0.5));
        assert!(positive("0").is_err() && positive("inf").is_err());
    }
}
