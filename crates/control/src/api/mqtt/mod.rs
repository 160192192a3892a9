//! What MQTT clients have on this node: sessions, connected or away, and retained messages.

pub(super) mod retained;
pub(super) mod sessions;
