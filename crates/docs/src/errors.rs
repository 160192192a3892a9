//! The page of errors: the codes from their table in `model`, and the reasons why connections end.

use std::fmt::Write;

use model::close::CloseReason;
use model::{Blame, ErrorCode, ErrorRow, Remedy};

/// The text around the tables.
const TEXT: &str = include_str!("errors.md");

/// Returns the page.
pub fn page() -> String {
    TEXT.replace("{{CHANGE}}", codes(Remedy::Change).trim_end())
        .replace("{{RETRY}}", codes(Remedy::Retry).trim_end())
        .replace("{{PROTOCOLS}}", protocols().trim_end())
        .replace("{{ENDS}}", ends().trim_end())
}

/// Returns the table of the codes with this remedy.
fn codes(remedy: Remedy) -> String {
    let mut out =
        "| code | status | at fault | what is wrong |\n| --- | --- | --- | --- |\n".to_owned();
    let first = |code: &&ErrorCode| code.row().codes[0] == **code;
    for code in ErrorCode::ALL.iter().filter(first) {
        let ErrorRow { codes, blame, what, remedy: of, .. } = code.row();
        if *of == remedy {
            let names: Vec<String> = codes.iter().map(|code| format!("`{code}`")).collect();
            // The application may reject a client with any code.
            let own = if codes.contains(&ErrorCode::Unauthorized) {
                ", and codes of your application"
            } else {
                ""
            };
            let (names, status) = (names.join(", "), status(code.row()));
            let _ = writeln!(out, "| {names}{own} | {status} | {} | {what} |", to_blame(*blame));
        }
    }
    out
}

fn status(row: &ErrorRow) -> String {
    if let Some(shown) = row.shown {
        return shown.to_owned();
    }
    let mut statuses = row.statuses.to_vec();
    statuses.sort_unstable();
    statuses.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

fn to_blame(blame: Blame) -> &'static str {
    match blame {
        Blame::Caller => "caller",
        Blame::Application => "application",
        Blame::Operator => "operator",
        Blame::Server => "server",
    }
}

/// Returns the table of the forms of a code in other protocols.
fn protocols() -> String {
    let mut out =
        "| code | MQTT 5 | `/ws`, of a page | Phoenix |\n| --- | --- | --- | --- |\n".to_owned();
    for code in ErrorCode::ALL {
        let mqtt = code.mqtt_reason().map(|reason| format!("0x{reason:02X}")).unwrap_or_default();
        let websocket = code.handshake_close().map(|code| code.to_string()).unwrap_or_default();
        let phoenix = match &*code.phoenix_reason("…") {
            "…" => String::new(),
            reason => format!("`{reason}`"),
        };
        if !(mqtt.is_empty() && websocket.is_empty() && phoenix.is_empty()) {
            let _ = writeln!(out, "| `{code}` | {mqtt} | {websocket} | {phoenix} |");
        }
    }
    out
}

/// The page's explanation of a connection's end.
struct End {
    reason: CloseReason,
    /// The reason, after the name.
    why: &'static str,
    /// The page's text after the code of the WebSocket.
    also: &'static str,
    /// The page's advice whether to come back.
    returns: &'static str,
}

const fn end(
    reason: CloseReason,
    why: &'static str,
    also: &'static str,
    returns: &'static str,
) -> Option<End> {
    Some(End { reason, why, also, returns })
}

/// Returns the page's explanation of this reason; `None` if the client itself knows it.
fn end_of(reason: CloseReason) -> Option<End> {
    match reason {
        CloseReason::Unauthorized => end(
            reason,
            "the client had no valid token, or sent none in time",
            "; 4403 if the token does not grant the request",
            "with another token",
        ),
        CloseReason::TokenExpired => end(reason, "its token expired", "", "with a new token"),
        CloseReason::TokenRevoked => {
            end(reason, "its token was revoked", "", "no; only after a new sign-in")
        }
        CloseReason::Drain => end(reason, "the server stops or restarts", "", "yes"),
        CloseReason::UseAnotherServer => end(
            reason,
            "the node is [drained](operations.md#drain) or [rebalanced](cluster.md#rebalance), and \
             other nodes serve",
            "; to MQTT 0x9C",
            "yes, through the load balancer",
        ),
        CloseReason::ByApplication => {
            end(reason, "closed through the API", "; to Phoenix 1001", "no")
        }
        CloseReason::Overloaded => end(
            reason,
            "all connections together have too much unfinished input, or the disk is too slow",
            "",
            "yes",
        ),
        CloseReason::SlowConsumer => end(
            reason,
            "the client read more slowly than its messages arrived",
            "none: no frame can be sent in the middle of a message",
            "yes",
        ),
        CloseReason::RateLimited => end(
            reason,
            "the client kept exceeding the rate limits of its user or its address",
            "",
            "yes, after a while",
        ),
        CloseReason::TakenOver => end(
            reason,
            "another connection has its MQTT client identifier",
            "; to MQTT 0x8E",
            "no: it is connected already",
        ),
        CloseReason::Silent => end(reason, "the client sent nothing for too long", "", "yes"),
        CloseReason::ProtocolError | CloseReason::InvalidPayload | CloseReason::TooBig => {
            end(reason, "", "", "no")
        }
        CloseReason::ByClient
        | CloseReason::Lost
        | CloseReason::Replied
        | CloseReason::RequestTimeout
        | CloseReason::Idle
        | CloseReason::BadRequest
        | CloseReason::Internal => None,
    }
}

/// The reasons in the order of the page.
const ENDS: [CloseReason; 14] = [
    CloseReason::Unauthorized,
    CloseReason::TokenExpired,
    CloseReason::TokenRevoked,
    CloseReason::Drain,
    CloseReason::UseAnotherServer,
    CloseReason::ByApplication,
    CloseReason::Overloaded,
    CloseReason::SlowConsumer,
    CloseReason::RateLimited,
    CloseReason::TakenOver,
    CloseReason::Silent,
    CloseReason::ProtocolError,
    CloseReason::InvalidPayload,
    CloseReason::TooBig,
];

/// Returns the table of the reasons why connections end.
fn ends() -> String {
    let mut out = "| reason | WebSocket code | should the client come back? |\n\
                   | --- | --- | --- |\n"
        .to_owned();
    for End { reason, why, also, returns } in ENDS.into_iter().filter_map(end_of) {
        let name = reason.name();
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        let code = match also.strip_prefix("none") {
            Some(_) => also.to_owned(),
            None => format!("{}{also}", reason.code()),
        };
        let _ = writeln!(out, "| `{name}`{why} | {code} | {returns} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use model::close::Advice;

    use super::*;

    /// Texts of codes that have another meaning in their place, or that a tool reads from a server.
    const OTHERS: &[(&str, &str)] = &[
        // A client of the API.
        ("admin/src/client.rs", "no_key"),
        // An example in the description of the API.
        ("control/src/http/rejection.rs", "bad_topic"),
        // Metrics.
        ("control/src/monitor/metrics.rs", "memory_full"),
        ("control/src/monitor/metrics.rs", "store_failed"),
        ("control/src/webhook/error.rs", "timeout"),
        // Fields and parameters.
        ("control/src/api/publish/message.rs", "no_history"),
        ("control/src/webhook/mod.rs", "timeout"),
        ("protocol/src/http/parameter_typo.rs", "timeout"),
        ("protocol/src/http/parameters.rs", "timeout"),
        // An alert of TLS.
        ("tls/src/alert.rs", "certificate_required"),
        // A column of the page, and a word that names don't have.
        ("docs/src/errors.rs", "application"),
        ("docs/src/names.rs", "unanswered"),
    ];

    #[test]
    fn each_reason_is_on_the_page_and_gives_the_advice_of_the_code() {
        for reason in CloseReason::ALL {
            let end = end_of(reason);
            assert_eq!(end.is_some(), ENDS.contains(&reason), "{}", reason.name());
            let returns = end.map_or("", |end| end.returns);
            if returns.starts_with("yes") {
                assert_eq!(reason.advice(), Advice::Reconnect, "{}", reason.name());
            } else if returns.starts_with("no") {
                assert_eq!(reason.advice(), Advice::Stay, "{}", reason.name());
            }
        }
    }

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().and_then(|it| it.to_str()).unwrap();
            // Tests have the texts that clients read.
            if name.contains("test") || name == "simulation" || name == "target" {
                continue;
            }
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|it| it == "rs") {
                found.push(path);
            }
        }
    }

    /// Returns the strings of a file that are codes, except in comments and tests.
    fn codes_of(text: &str) -> Vec<&str> {
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let strings = lines.flat_map(|line| line.split('"').skip(1));
        strings.filter(|it| ErrorCode::parse(it).is_some()).collect()
    }

    #[test]
    fn no_other_crate_has_the_text_of_a_code() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (mut files, mut found, mut others) = (Vec::new(), Vec::new(), Vec::new());
        sources(&crates, &mut files);
        assert!(files.len() > 400, "{}", files.len());
        for path in files {
            let shown = path.strip_prefix(&crates).unwrap();
            // The crate's own source, not its benches.
            if shown.starts_with("model") || !shown.components().any(|it| it.as_os_str() == "src") {
                continue;
            }
            for code in codes_of(&std::fs::read_to_string(&path).unwrap()) {
                let other = OTHERS.iter().find(|(of, text)| shown.ends_with(of) && *text == code);
                match other {
                    Some(other) => others.push(*other),
                    None => found.push(format!("{}: \"{code}\"", shown.display())),
                }
            }
        }
        assert!(found.is_empty(), "say model::ErrorCode in place of these:\n{}", found.join("\n"));
        let gone: Vec<_> = OTHERS.iter().filter(|it| !others.contains(it)).collect();
        assert!(gone.is_empty(), "these are not there any more: {gone:?}");
    }

    #[test]
    fn texts_of_codes_are_found() {
        let text = "// \"bad_topic\"\nf(\"bad_user\", \"bad\", \"no_topic\\n\");\n#[cfg(test)]\nmod tests {\n\"no_user\"";
        assert_eq!(codes_of(text), ["bad_user"]);
    }
}
