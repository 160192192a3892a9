//! The node's figures for MQTT clients, under the names that Mosquitto gave these topics.

use std::sync::atomic::Ordering;

use broker::{Options, Publish};
use model::{Attributes, Data, Publication, Qos, name};

use super::metrics;
use crate::node::Node;

/// Publishes the node's figures as retained messages below `$SYS/broker/`.
pub(crate) fn publish(node: &Node) {
    let connected = node.sum(|metrics| metrics::of_transport(node, metrics, "mqtt"));
    let away = node.shared.mqtt_sessions.stats().away as u64;
    let figures = [
        ("version", format!("throng {}", env!("CARGO_PKG_VERSION"))),
        ("uptime", format!("{} seconds", node.started.elapsed().as_secs())),
        ("clients/connected", connected.to_string()),
        ("clients/disconnected", away.to_string()),
        ("clients/total", (connected + away).to_string()),
        ("connections", node.shared.connections.load(Ordering::Relaxed).to_string()),
        ("messages/sent", node.sum(|metrics| metrics.delivered.get()).to_string()),
        ("bytes/received", node.sum(|metrics| metrics.bytes_in.get()).to_string()),
        ("bytes/sent", node.sum(|metrics| metrics.bytes_out.get()).to_string()),
        ("retained messages/count", node.shared.retained.stats().messages.to_string()),
    ];
    for (name, value) in figures {
        let topic = format!("{}/broker/{name}", name::SYSTEM);
        let publication = Publication {
            qos: Qos::AtMostOnce,
            retain: true,
            attributes: Some(Box::new(Attributes { is_own: true, ..Attributes::default() })),
            ..Publication::new(topic, Data::Text(value.as_str().into()))
        };
        let publish = Publish { publication, options: Options::default() };
        // A figure that can't be published now is published anew soon.
        node.broker.submit(publish, None, Box::new(|_| ()));
    }
}
