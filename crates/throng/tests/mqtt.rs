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

/// A server with MQTT, that refuses one topic.
fn server(settings: &[(&str, &str)]) -> Server {
    let file = std::env::temp_dir().join(format!("throng-mqtt-{}.toml", std::process::id()));
    let rule = "[[topics]]\npattern = \"test/nosubscribe\"\njoin = \"refuse\"\npublish = \"allow\"\n\
                [[topics]]\npattern = \"test/nopublish\"\npublish = \"refuse\"\n";
    std::fs::write(&file, rule).unwrap();
    let all =
        [&[("THRONG_MQTT_KEEP_ALIVE_SECONDS_MAX", "60"), ("THRONG_LOG_LEVEL", "error")], settings]
            .concat();
    let config = file.to_str().unwrap();
    Server::with(&["--mqtt", "127.0.0.1:0", "--shards", "2", "--config", config], &all)
}
