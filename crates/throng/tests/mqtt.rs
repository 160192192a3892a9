//! MQTT with packets that the tests build: the standards' rules from a client's view.

mod access;
mod auth;
pub(crate) mod client;
mod covered;
pub(crate) mod groups;
mod hostile;
mod interoperability_3;
mod interoperability_5;
mod meets;
mod normative_connect;
mod normative_format;
mod normative_publish;
mod normative_subscribe;
mod open;
mod raw;
mod reasons;
mod wills;

use crate::support::*;

/// A server with its configuration, which exists until the server has ended.
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

/// Starts a server with MQTT, with rules that reject some topics.
fn server(settings: &[(&str, &str)]) -> Configured {
    server_at("127.0.0.1:0", settings)
}

/// Starts such a server at this MQTT address.
fn server_at(mqtt: &str, settings: &[(&str, &str)]) -> Configured {
    let folder = Scratch::new("mqtt");
    let rule = "[[topics]]\npattern = \"test/nosubscribe\"\njoin = \"refuse\"\npublish = \"allow\"\n\
                [[topics]]\npattern = \"test/nopublish\"\npublish = \"refuse\"\n";
    let file = folder.write("throng.toml", rule);
    let all =
        [&[("THRONG_MQTT_KEEP_ALIVE_SECONDS_MAX", "60"), ("THRONG_LOG_LEVEL", "error")], settings]
            .concat();
    let config = file.to_str().unwrap();
    let flags = ["--mqtt", mqtt, "--shards", "2", "--config", config];
    Configured { server: Server::with(&flags, &all), _folder: folder }
}
