//! A client of MQTT 3.1.1 that publishes, one message at a time.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use admin::{Connection, Layer, NotConnectedError};
use anyhow::{Context, Result, bail, ensure};
use model::Qos;
use protocol::mqtt::client::{ConnectParts, connect};
use protocol::mqtt::write::{ConfirmType, PublishParts, confirm};
use protocol::mqtt::{Packet, ReasonCode, Side, Version, read};

/// How long the broker may take to connect.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a reply, at most; replies to a publisher are short.
const REPLY_BYTES_MAX: usize = 1 << 16;

/// Publishes messages, and connects if it has no connection.
pub(crate) struct MqttPublisher {
    address: SocketAddr,
    qos: Qos,
    layer: Option<Layer>,
    socket: Option<Box<dyn Connection>>,
    id: u16,
    buffer: Vec<u8>,
}

impl MqttPublisher {
    /// Returns a publisher that is not connected yet, with this layer, if any, on each of its connections.
    pub fn new(address: SocketAddr, qos: u8, layer: Option<Layer>) -> Self {
        let qos = match qos {
            0 => Qos::AtMostOnce,
            1 => Qos::AtLeastOnce,
            _ => Qos::ExactlyOnce,
        };
        Self { address, qos, layer, socket: None, id: 0, buffer: Vec::new() }
    }

    /// Publishes, and waits for the broker's confirmation, if the QoS has one.
    ///
    /// # Errors
    /// If the broker can't be reached, which is a [`NotConnectedError`], or the connection breaks before the
    /// confirmation.
    pub fn publish(&mut self, topic: &str, payload: &str) -> Result<()> {
        let outcome = self.try_publish(topic, payload);
        if outcome.is_err() {
            self.socket = None;
        }
        outcome
    }

    fn try_publish(&mut self, topic: &str, payload: &str) -> Result<()> {
        if self.socket.is_none() {
            self.connect().context(NotConnectedError)?;
        }
        self.id = self.id.checked_add(1).unwrap_or(1);
        let (id, qos) = (self.id, self.qos);
        let mut packet = Vec::new();
        PublishParts {
            version: Version::V3,
            dup: false,
            qos,
            retain: false,
            topic,
            id,
            properties: std::iter::empty(),
            payload: payload.as_bytes(),
        }
        .write(&mut packet)
        .context("PUBLISH")?;
        self.send(&packet)?;
        match qos {
            Qos::AtMostOnce => Ok(()),
            Qos::AtLeastOnce => self.expect(|packet| match packet {
                Packet::Puback(puback) => Some(puback.id == id),
                _ => None,
            }),
            Qos::ExactlyOnce => {
                self.expect(|packet| match packet {
                    Packet::Pubrec(pubrec) => Some(pubrec.id == id),
                    _ => None,
                })?;
                packet.clear();
                confirm(
                    ConfirmType::Pubrel,
                    Version::V3,
                    id,
                    ReasonCode::Success,
                    &[],
                    &mut packet,
                )
                .context("PUBREL")?;
                self.send(&packet)?;
                self.expect(|packet| match packet {
                    Packet::Pubcomp(pubcomp) => Some(pubcomp.id == id),
                    _ => None,
                })
            }
        }
    }

    fn connect(&mut self) -> Result<()> {
        self.buffer.clear();
        self.socket = Some(admin::connect(&self.address, TIMEOUT, self.layer.as_ref())?);
        let parts = ConnectParts {
            version: Version::V3,
            is_3_1: false,
            clean: true,
            keep_alive_s: 0,
            properties: &[],
            client: "",
            will: None,
            user: None,
            password: None,
        };
        let mut packet = Vec::new();
        connect(&parts, &mut packet).context("CONNECT")?;
        self.send(&packet)?;
        self.expect(|packet| match packet {
            Packet::Connack(connack) => Some(connack.code == 0),
            _ => None,
        })
    }

    fn send(&mut self, packet: &[u8]) -> Result<()> {
        let socket = self.socket.as_mut().context("no connection")?;
        socket.write_all(packet).and_then(|()| socket.flush()).context("publishing")
    }

    /// Waits for a packet. `is_right` returns whether it reports success, or `None` for an unexpected packet.
    fn expect(&mut self, is_right: impl Fn(&Packet<'_>) -> Option<bool>) -> Result<()> {
        let socket = self.socket.as_mut().context("no connection")?;
        loop {
            let packet = read(&self.buffer, Some(Version::V3), Side::Server, REPLY_BYTES_MAX);
            if let Some((packet, bytes)) = packet.context("the broker's answer")? {
                let right = is_right(&packet);
                let said = format!("{packet:?}");
                self.buffer.drain(..bytes);
                ensure!(right == Some(true), "the broker answered with {said}");
                return Ok(());
            }
            let mut piece = [0; 512];
            match socket.read(&mut piece) {
                Ok(0) => bail!("the broker has closed the connection of a publisher"),
                Ok(bytes) => self.buffer.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("waiting for the broker's answer"),
            }
        }
    }
}
