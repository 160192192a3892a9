//! Writes packets that were read.

use super::client::{ConnectParts, SubscribeParts, WillParts, connect, subscribe, unsubscribe};
use super::packet::{Confirm, Connect, Packet, Subscription, Version};
use super::property::Properties;
use super::write::{
    ConfirmType, Property, PublishParts, auth, confirm, connack, disconnect, pingresp, suback,
    unsuback,
};
use super::{WriteError, client};

fn all<'a>(properties: &Properties<'a>) -> Vec<Property<'a>> {
    properties.iter().collect()
}

/// Appends a packet in the version in which it was read: the same bytes, or fewer if the sender wrote optional ones.
///
/// # Errors
/// None for a packet that was read.
pub fn rewrite(read: &Packet<'_>, version: Version, out: &mut Vec<u8>) -> Result<(), WriteError> {
    match read {
        Packet::Connect(it) => reconnect(it, out),
        Packet::Connack(it) => {
            connack(version, it.session_present, it.code, &all(&it.properties), out)
        }
        Packet::Publish(it) => {
            let (dup, qos, retain) = (it.dup, it.qos, it.retain);
            let (topic, id, payload) = (it.topic, it.id, it.payload);
            let properties = all(&it.properties);
            let properties = properties.iter().copied();
            PublishParts { version, dup, qos, retain, topic, id, properties, payload }.write(out)
        }
        Packet::Puback(it) => reconfirm(ConfirmType::Puback, version, it, out),
        Packet::Pubrec(it) => reconfirm(ConfirmType::Pubrec, version, it, out),
        Packet::Pubrel(it) => reconfirm(ConfirmType::Pubrel, version, it, out),
        Packet::Pubcomp(it) => reconfirm(ConfirmType::Pubcomp, version, it, out),
        Packet::Subscribe(it) => {
            let written = |one: &Subscription<'_>| match one.filter.group {
                Some(group) => format!("$share/{group}/{}", one.filter.filter),
                None => one.filter.filter.into(),
            };
            let filters: Vec<String> = it.subscriptions().map(|one| written(&one)).collect();
            let subscriptions = it.subscriptions().zip(&filters);
            let parts: Vec<SubscribeParts<'_>> = subscriptions
                .map(|(one, filter)| SubscribeParts {
                    filter,
                    qos: one.qos,
                    no_local: one.no_local,
                    retain_as_published: one.retain_as_published,
                    retain_handling: one.retain_handling,
                })
                .collect();
            subscribe(version, it.id, &all(&it.properties), &parts, out)
        }
        Packet::Suback(it) => suback(version, it.id, &all(&it.properties), it.codes, out),
        Packet::Unsubscribe(it) => {
            let filters: Vec<&str> = it.filters().collect();
            unsubscribe(version, it.id, &all(&it.properties), &filters, out)
        }
        Packet::Unsuback(it) => unsuback(version, it.id, &all(&it.properties), it.codes, out),
        Packet::Pingreq => {
            client::pingreq(out);
            Ok(())
        }
        Packet::Pingresp => {
            pingresp(out);
            Ok(())
        }
        Packet::Disconnect(it) => disconnect(version, it.reason, &all(&it.properties), out),
        Packet::Auth(it) => auth(it.reason, &all(&it.properties), out),
    }
}

fn reconnect(it: &Connect<'_>, out: &mut Vec<u8>) -> Result<(), WriteError> {
    let will = it.will.as_ref().map(|will| (will, all(&will.properties)));
    let parts = ConnectParts {
        version: it.version,
        is_3_1: it.is_3_1,
        clean: it.clean,
        keep_alive_s: it.keep_alive_s,
        properties: &all(&it.properties),
        client: it.client,
        will: will.as_ref().map(|(will, properties)| WillParts {
            qos: will.qos,
            retain: will.retain,
            properties,
            topic: will.topic,
            payload: will.payload,
        }),
        user: it.user,
        password: it.password,
    };
    connect(&parts, out)
}

fn reconfirm(
    kind: ConfirmType,
    version: Version,
    it: &Confirm<'_>,
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    confirm(kind, version, it.id, it.reason, &all(&it.properties), out)
}
