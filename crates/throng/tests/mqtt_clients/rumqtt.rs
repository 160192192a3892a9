//! rumqttc in Rust: its clients for MQTT 3.1.1 and 5.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::mqtt_clients::{Server, guarded, token};
use crate::support::TIMEOUT;

/// A message in the form in which the tests compare it: topic, payload, QoS, retain.
type Message = (String, Vec<u8>, u8, bool);

fn message(topic: impl Into<String>, payload: impl AsRef<[u8]>, qos: u8, retain: bool) -> Message {
    (topic.into(), payload.as_ref().to_vec(), qos, retain)
}

/// One version has topics as text, the other as bytes.
fn text(name: &impl AsRef<[u8]>) -> String {
    String::from_utf8(name.as_ref().to_vec()).unwrap()
}

enum ClientEvent {
    Connack(bool),
    Message(Message),
    Granted(Vec<u8>),
    Done,
    Failed(String),
}

/// Both versions have the same names, in different modules.
macro_rules! version {
    ($name:ident, $client:path, $connection:path, $event:path, $qos:path, $incoming:path,
     $connect:expr, $granted:expr, $filter:expr) => {
        mod $name {
            use $client as RumqttClient;
            use $connection as Connection;
            use $event as Event;
            use $incoming as Incoming;
            use $qos as QoS;

            use super::*;

            pub struct Client {
                client: RumqttClient,
                events: Receiver<ClientEvent>,
                stop: Arc<AtomicBool>,
                thread: Option<JoinHandle<()>>,
                aside: Vec<Message>,
                pub session_present: bool,
            }

            fn listen(
                mut connection: Connection,
                stop: Arc<AtomicBool>,
            ) -> (Receiver<ClientEvent>, JoinHandle<()>) {
                let (say, events) = channel();
                let thread = std::thread::spawn(move || {
                    // A timeout would give up a connection that is being made, so the first one is long.
                    let mut time = TIMEOUT;
                    while !stop.load(Ordering::Relaxed) {
                        let said = match connection.recv_timeout(time) {
                            Ok(Ok(Event::Incoming(Incoming::ConnAck(it)))) => {
                                ClientEvent::Connack(it.session_present)
                            }
                            Ok(Ok(Event::Incoming(Incoming::Publish(it)))) => {
                                let topic = text(&it.topic);
                                ClientEvent::Message((
                                    topic,
                                    it.payload.to_vec(),
                                    it.qos as u8,
                                    it.retain,
                                ))
                            }
                            Ok(Ok(Event::Incoming(Incoming::SubAck(it)))) => {
                                ClientEvent::Granted(it.return_codes.iter().map($granted).collect())
                            }
                            Ok(Ok(Event::Incoming(Incoming::PubAck(_) | Incoming::PubComp(_)))) => {
                                ClientEvent::Done
                            }
                            Ok(Err(error)) => ClientEvent::Failed(error.to_string()),
                            _ => continue,
                        };
                        time = Duration::from_millis(100);
                        let has_failed = matches!(said, ClientEvent::Failed(_));
                        if say.send(said).is_err() || has_failed {
                            return;
                        }
                    }
                });
                (events, thread)
            }

            impl Client {
                pub fn try_open(
                    server: &Server,
                    name: &str,
                    password: &str,
                    persistent: bool,
                    will: Option<(&str, &str)>,
                ) -> Result<Self, String> {
                    let id = format!("{}-{name}", stringify!($name));
                    let (client, connection) = $connect(server, id, password, persistent, will);
                    let stop = Arc::new(AtomicBool::new(false));
                    let (events, thread) = listen(connection, stop.clone());
                    let (thread, aside) = (Some(thread), Vec::new());
                    let mut client =
                        Client { client, events, stop, thread, aside, session_present: false };
                    match client.events.recv_timeout(TIMEOUT).unwrap() {
                        ClientEvent::Connack(present) => client.session_present = present,
                        ClientEvent::Failed(why) => return Err(why),
                        _ => panic!("something came before CONNACK"),
                    }
                    Ok(client)
                }

                pub fn open(server: &Server, name: &str) -> Self {
                    Client::try_open(server, name, &token(), false, None).unwrap()
                }

                fn until<T>(&mut self, mut find: impl FnMut(&ClientEvent) -> Option<T>) -> T {
                    loop {
                        let event = self.events.recv_timeout(TIMEOUT).expect("nothing came");
                        if let Some(found) = find(&event) {
                            return found;
                        }
                        match event {
                            ClientEvent::Message(message) => self.aside.push(message),
                            ClientEvent::Failed(why) => panic!("{why}"),
                            _ => panic!("something else came"),
                        }
                    }
                }

                pub fn subscribe(&mut self, filters: &[(&str, u8)]) {
                    let all = filters.iter().map(|(filter, qos)| $filter(filter, qos_of(*qos)));
                    self.client.subscribe_many(all).unwrap();
                    let granted = self.until(|event| match event {
                        ClientEvent::Granted(codes) => Some(codes.clone()),
                        _ => None,
                    });
                    assert_eq!(granted, filters.iter().map(|(_, qos)| *qos).collect::<Vec<u8>>());
                }

                pub fn publish(&mut self, (topic, payload, qos, retain): Message) {
                    if let Err(error) = self.client.publish(topic, qos_of(qos), retain, payload) {
                        self.until(|_| None::<()>);
                        panic!("{error}");
                    }
                    if qos > 0 {
                        self.until(|event| matches!(event, ClientEvent::Done).then_some(()));
                    }
                }

                pub fn expect_messages(&mut self, expected: &[Message]) {
                    for expected in expected {
                        let got = if self.aside.is_empty() {
                            self.until(|event| match event {
                                ClientEvent::Message(message) => Some(message.clone()),
                                _ => None,
                            })
                        } else {
                            self.aside.remove(0)
                        };
                        assert_eq!(got, *expected);
                    }
                }

                /// Checks that no message comes before the one that the client sends to itself.
                pub fn is_quiet(&mut self) {
                    let end = message("version_end", "end", 1, false);
                    self.subscribe(&[(&end.0, 1)]);
                    self.publish(end.clone());
                    self.expect_messages(&[end]);
                }

                pub fn goodbye(mut self) {
                    self.client.disconnect().unwrap();
                    // The client's loop ends with an error, or because the server has closed.
                    let is_ended = |event| match event {
                        Err(RecvTimeoutError::Timeout) => panic!("the connection has not ended"),
                        event => event.is_err(),
                    };
                    while !is_ended(self.events.recv_timeout(TIMEOUT)) {}
                    self.thread.take().unwrap().join().unwrap();
                }

                /// Ends without DISCONNECT.
                pub fn cut(mut self) {
                    self.stop.store(true, Ordering::Relaxed);
                    self.thread.take().unwrap().join().unwrap();
                }
            }

            fn qos_of(number: u8) -> QoS {
                [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(number)]
            }

            pub fn run(server: &Server) {
                let topic = |rest: &str| format!("{}/{rest}", stringify!($name));
                assert!(Client::try_open(server, "stranger", "no token", false, None).is_err());
                let mut listener = Client::open(server, "listener");
                let mut speaker = Client::open(server, "speaker");
                assert!(!listener.session_present);

                let filters = [topic("+/x"), topic("deep/#"), topic("plain")];
                listener.subscribe(&[(&filters[0], 2), (&filters[1], 1), (&filters[2], 0)]);
                speaker.publish(message(topic("1/y"), "nobody", 2, false));
                for qos in 0..=2 {
                    let text = qos.to_string();
                    let topics = ["plain".into(), format!("deep/er/{qos}"), format!("{qos}/x")];
                    for (most, rest) in (0..).zip(topics) {
                        speaker.publish(message(topic(&rest), &text, qos, false));
                        listener.expect_messages(&[message(
                            topic(&rest),
                            &text,
                            qos.min(most),
                            false,
                        )]);
                    }
                }
                let every: Vec<u8> = (0..=255).cycle().take(8_000).collect();
                speaker.publish(message(topic("b/x"), &every, 2, false));
                listener.expect_messages(&[message(topic("b/x"), &every, 2, false)]);

                speaker.publish(message(topic("state/lamp"), "on", 1, true));
                let mut late = Client::open(server, "late");
                let states = topic("state/+");
                late.subscribe(&[(&states, 1)]);
                late.expect_messages(&[message(topic("state/lamp"), "on", 1, true)]);
                speaker.publish(message(topic("state/lamp"), "", 1, true));
                late.expect_messages(&[message(topic("state/lamp"), "", 1, false)]);
                let mut later = Client::open(server, "later");
                later.subscribe(&[(&states, 1)]);
                speaker.publish(message(topic("state/lamp"), "off", 1, false));
                later.expect_messages(&[message(topic("state/lamp"), "off", 1, false)]);
                late.expect_messages(&[message(topic("state/lamp"), "off", 1, false)]);

                let persistent = || Client::try_open(server, "away", &token(), true, None).unwrap();
                let mut away = persistent();
                assert!(!away.session_present);
                let filter = topic("kept/#");
                away.subscribe(&[(&filter, 2)]);
                away.goodbye();
                let missed: Vec<Message> = (0..10_u8)
                    .map(|n| message(topic(&format!("kept/{n}")), [n], 1 + n / 5, false))
                    .collect();
                missed.iter().for_each(|one| speaker.publish(one.clone()));
                let mut away = persistent();
                assert!(away.session_present);
                away.expect_messages(&missed);
                speaker.publish(message(topic("kept/live"), "there", 2, false));
                away.expect_messages(&[message(topic("kept/live"), "there", 2, false)]);
                away.goodbye();

                let will = topic("will");
                listener.subscribe(&[(&will, 1)]);
                let dying = |name, payload| {
                    let will = Some((will.as_str(), payload));
                    Client::try_open(server, name, &token(), false, will).unwrap()
                };
                dying("polite", "polite").goodbye();
                dying("cut", "gone").cut();
                listener.expect_messages(&[message(will.as_str(), "gone", 1, false)]);
                for mut client in [listener, speaker, late, later] {
                    client.is_quiet();
                    client.goodbye();
                }
            }
        }
    };
}

version!(
    version_3,
    rumqttc::Client,
    rumqttc::Connection,
    rumqttc::Event,
    rumqttc::QoS,
    rumqttc::Packet,
    connect_3,
    |code: &rumqttc::SubscribeReasonCode| match code {
        rumqttc::SubscribeReasonCode::Success(qos) => *qos as u8,
        rumqttc::SubscribeReasonCode::Failure => 0x80,
    },
    |filter: &str, qos| rumqttc::SubscribeFilter::new(filter.into(), qos)
);
version!(
    version_5,
    rumqttc::v5::Client,
    rumqttc::v5::Connection,
    rumqttc::v5::Event,
    rumqttc::v5::mqttbytes::QoS,
    rumqttc::v5::mqttbytes::v5::Packet,
    connect_5,
    |code: &rumqttc::v5::mqttbytes::v5::SubscribeReasonCode| match code {
        rumqttc::v5::mqttbytes::v5::SubscribeReasonCode::Success(qos) => *qos as u8,
        other => panic!("{other:?}"),
    },
    |filter: &str, qos| rumqttc::v5::mqttbytes::v5::Filter::new(filter, qos)
);

fn connect_3(
    server: &Server,
    id: String,
    password: &str,
    persistent: bool,
    will: Option<(&str, &str)>,
) -> (rumqttc::Client, rumqttc::Connection) {
    let mut options = rumqttc::MqttOptions::new(id, "127.0.0.1", server.client.port());
    options.set_credentials("alice", password).set_clean_session(!persistent);
    if let Some((topic, payload)) = will {
        let will = rumqttc::LastWill::new(topic, payload, rumqttc::QoS::AtLeastOnce, false);
        options.set_last_will(will);
    }
    let (client, mut connection) = rumqttc::Client::new(options, 10);
    connection.eventloop.network_options.set_connection_timeout(TIMEOUT.as_secs());
    (client, connection)
}

fn connect_5(
    server: &Server,
    id: String,
    password: &str,
    persistent: bool,
    will: Option<(&str, &str)>,
) -> (rumqttc::v5::Client, rumqttc::v5::Connection) {
    use rumqttc::v5::mqttbytes::QoS;
    use rumqttc::v5::mqttbytes::v5::LastWill;
    let mut options = rumqttc::v5::MqttOptions::new(id, "127.0.0.1", server.client.port());
    options.set_credentials("alice", password).set_clean_start(!persistent);
    options.set_connection_timeout(TIMEOUT.as_secs());
    if persistent {
        options.set_session_expiry_interval(Some(3_600));
    }
    if let Some((topic, payload)) = will {
        options.set_last_will(LastWill::new(topic, payload, QoS::AtLeastOnce, false, None));
    }
    rumqttc::v5::Client::new(options, 10)
}

#[test]
fn rumqttc_of_version_3() {
    version_3::run(&guarded());
}

#[test]
fn rumqttc_of_version_5() {
    version_5::run(&guarded());
}
