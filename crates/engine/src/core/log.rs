//! Log lines about connections. Peers cause all of them, and they are off by default: while its level is off a line
//! costs one comparison, and of many lines only some are written.

use model::CloseReason;

use crate::core::Core;

impl Core {
    /// A connection is about to leave its topics and to end.
    pub(crate) fn log_close(&self, slot: u32, reason: CloseReason) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let Some(connection) = self.table.get(slot) else { return };
        let Some(suppressed) = self.lines.closed.pass(self.now_us, 1) else { return };
        let users: Vec<&str> = self.users(slot).collect();
        tracing::debug!(
            connection = %self.id(slot, connection.serial),
            transport = self.shared.protocols.of(connection.encoding).name(),
            address = self.peers.client(slot).map(|client| tracing::field::display(client.ip())),
            user = (!users.is_empty()).then(|| users.join(",")),
            topics = self.hub.count(slot).saturating_sub(users.len()),
            age_seconds = self.now_s().saturating_sub(connection.opened_s),
            reason = reason.name(),
            suppressed,
            "connection closed"
        );
    }

    /// A request has this reply, which may be an error.
    pub(crate) fn log_reply(&self, slot: u32, reply: &[u8]) {
        if !matches!(reply.get(9), Some(b'4' | b'5')) || !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let Some(connection) = self.table.get(slot) else { return };
        let Some(suppressed) = self.lines.rejected.pass(self.now_us, 1) else { return };
        let status = reply.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
        tracing::debug!(
            connection = %self.id(slot, connection.serial),
            status = status.and_then(|digits| digits.parse::<u16>().ok()),
            code = code_of(reply),
            suppressed,
            "request rejected"
        );
    }
}

/// The code of an error in the body of a reply: `{"error":{"code":"…`.
pub(crate) fn code_of(reply: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(reply).ok()?;
    let (code, _) = text.split_once("\"code\":\"")?.1.split_once('"')?;
    let is_code = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    code.bytes().all(is_code).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_an_error_is_found() {
        let reply = |body: &str| format!("HTTP/1.1 400 Bad Request\r\n\r\n{body}").into_bytes();
        let body = r#"{"error":{"code":"bad_topic","message":"\"code\":\"x\""}}"#;
        assert_eq!(code_of(&reply(body)), Some("bad_topic"));
        for body in ["", "not found", r#"{"error":{"code":"s3cret"}}"#, r#"{"code":"#] {
            assert_eq!(code_of(&reply(body)), None, "{body}");
        }
    }
}
