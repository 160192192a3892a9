//! MQTT with packets of the test's own: what the standards say, as clients see it.

#[path = "mqtt/client.rs"]
mod client;
#[path = "mqtt/hostile.rs"]
mod hostile;
#[path = "mqtt/interoperability_3.rs"]
mod interoperability_3;
#[path = "mqtt/interoperability_5.rs"]
mod interoperability_5;
#[path = "mqtt/kill.rs"]
mod kill;
#[path = "mqtt/meets.rs"]
mod meets;
#[path = "mqtt/normative.rs"]
mod normative;
mod support;

use support::*;

/// A server with its configuration, which stays until the server has ended.
struct Configured {
    server: Server,
    _folder: Scratch,
}

impl std::ops::Deref for Configured {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// A server with MQTT, that refuses one topic.
fn server(settings: &[(&str, &str)]) -> Configured {
    let folder = Scratch::new("mqtt");
    let rule = "[[topics]]\npattern = \"test/nosubscribe\"\njoin = \"refuse\"\npublish = \"allow\"\n\
                [[topics]]\npattern = \"test/nopublish\"\npublish = \"refuse\"\n";
    let file = folder.write("throng.toml", rule);
    let all =
        [&[("THRONG_MQTT_KEEP_ALIVE_SECONDS_MAX", "60"), ("THRONG_LOG_LEVEL", "error")], settings]
            .concat();
    let config = file.to_str().unwrap();
    let flags = ["--mqtt", "127.0.0.1:0", "--shards", "2", "--config", config];
    Configured { server: Server::with(&flags, &all), _folder: folder }
}
