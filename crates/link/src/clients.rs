//! What shards do for the link about MQTT clients.

use model::LogicalTime;

/// The MQTT clients of this node, as the link uses them. No call waits.
pub trait MqttClients: Send {
    /// Handles the connect of a client at another node. An earlier connection here ends, and if the connect
    /// `is_clean`, its session too; a later one is [announced](broker::Broker::client_connected) to the other nodes
    /// again. `key` is that of the session.
    fn on_connected_to_node(&self, key: &str, time: LogicalTime, is_clean: bool);

    /// Makes the shards [announce](broker::Broker::client_connected) all clients here to other nodes again, because
    /// some connects were lost on the way.
    fn repeat_connects(&self);
}
