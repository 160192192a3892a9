//! What the link has the shards do about MQTT clients.

use model::LogicalTime;

/// The MQTT clients of this node, in the eyes of the link. No call waits.
pub trait MqttClients: Send {
    /// A client has connected to another node. If its connection here is earlier, it ends, and where the connect `is_clean` its
    /// session, too; a later one is [told](broker::Broker::client_connected) the other nodes again. `key` is that of the session.
    fn on_connected_to_node(&self, key: &str, time: LogicalTime, is_clean: bool);

    /// Has the shards [tell](broker::Broker::client_connected) other nodes of all clients here again: some connects there are lost.
    fn repeat_connects(&self);
}
