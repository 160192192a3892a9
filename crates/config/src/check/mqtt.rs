//! Checks of MQTT, which apply only if it is enabled.

use std::net::SocketAddr;

use super::{Checks, is_loopback, overlap};
use crate::Config;

/// Bytes that a packet must allow around a payload, at least: its head, a topic of 254 bytes, and a few properties.
const AROUND_PAYLOAD_BYTES_MIN: u64 = 512;

pub(super) fn check(config: &Config, checks: &mut Checks<'_>) {
    let Config { client, limits, mqtt, .. } = config;
    if !config.has_mqtt() {
        return;
    }
    if let Some(listen) = mqtt.listen {
        port(config, listen, checks);
    }
    checks.require(&["mqtt.listen", "mqtt.listen_tls", "client.user_header"], client.user_header.is_empty(), || {
        "MQTT has no headers, so an MQTT client could name any user: remove client.user_header, \
         and let tokens ([auth]) name the users"
            .into()
    });
    let packet = config.mqtt_packet_bytes_max();
    let least = limits.message_bytes_max.saturating_add(AROUND_PAYLOAD_BYTES_MIN);
    checks.require(&["mqtt.packet_bytes_max", "limits.message_bytes_max"], least <= packet, || {
        format!(
            "a packet must have space for the largest message and {AROUND_PAYLOAD_BYTES_MIN} bytes \
             around it: make mqtt.packet_bytes_max at least {least} (it is {packet}), or 0"
        )
    });
    // The buffer of a packet grows by doubling.
    let input = packet.saturating_mul(2);
    checks.require(
        &["limits.input_bytes_max", "mqtt.packet_bytes_max", "limits.message_bytes_max"],
        input <= limits.input_bytes_max,
        || {
            format!(
                "the largest packet of one client must fit the limit for all clients: make \
                 limits.input_bytes_max at least {input} (it is {}), twice what \
                 mqtt.packet_bytes_max allows",
                limits.input_bytes_max
            )
        },
    );
    let mut fits = |key: &'static str, bytes: u64, on: bool| {
        let holds = !on || limits.message_bytes_max <= bytes;
        checks.require(&[key, "limits.message_bytes_max"], holds, || {
            format!(
                "the largest message must fit: make {key} (it is {bytes}) at least \
                 limits.message_bytes_max, which is {}",
                limits.message_bytes_max
            )
        });
    };
    fits("mqtt.session_bytes_max", mqtt.session_bytes_max, true);
    fits("mqtt.retained_bytes_max", mqtt.retained_bytes_max, mqtt.retained_messages_max > 0);
}

/// Checks the port without TLS.
fn port(config: &Config, listen: SocketAddr, checks: &mut Checks<'_>) {
    let Config { client, admin, .. } = config;
    checks.require(
        &["mqtt.listen", "client.insecure", "auth.required"],
        is_loopback(listen) || client.insecure || config.knows_clients(),
        || {
            format!(
                "{listen} is open to other machines, and nothing authenticates MQTT clients: \
                 require tokens (auth.required = true), let the application decide who connects \
                 (webhook.connect = true), listen on 127.0.0.1, or set --insecure (client.insecure \
                 = true) if a firewall or a proxy guards it"
            )
        },
    );
    if let Some(other) = client.listen {
        checks.require(&["mqtt.listen", "client.listen"], !overlap(other, listen), || {
            format!(
                "the client port ({other}) accepts MQTT as well, but mqtt.listen ({listen}) must \
                 be another port: change one of them"
            )
        });
    }
    checks.require(&["mqtt.listen", "admin.listen"], !overlap(admin.listen, listen), || {
        format!(
            "MQTT clients ({listen}) and applications ({}) need a port each: change one of them",
            admin.listen
        )
    });
}

#[cfg(test)]
mod tests {
    use crate::{Loaded, Sources};

    fn load(file: &str) -> Result<Loaded, String> {
        let sources = Sources { file: Some(("throng.toml", file)), ..Sources::default() };
        Loaded::load(&sources).map_err(|errors| errors.to_string())
    }

    #[test]
    fn mqtt_is_off_until_it_has_an_address() {
        assert_eq!(load("").unwrap().config.mqtt.listen, None);
        assert_eq!(load("[mqtt]\nlisten = \"\"\n").unwrap().config.mqtt.listen, None);
        let listen = load("[mqtt]\nlisten = \"127.0.0.1:1883\"\n").unwrap().config.mqtt.listen;
        assert_eq!(listen, Some("127.0.0.1:1883".parse().unwrap()));
        // Without a port the other settings are not checked.
        assert!(load("[mqtt]\npacket_bytes_max = 1\nsession_bytes_max = 1\n").is_ok());
        let error = load("[mqtt]\nlisten = 1883\n").unwrap_err();
        assert!(error.starts_with("throng.toml:2:10: mqtt.listen: expected an address"), "{error}");
        assert!(error.contains("write 127.0.0.1:1883 to accept"), "{error}");
    }

    #[test]
    fn an_open_port_needs_a_source_of_users() {
        let open = "[mqtt]\nlisten = \"0.0.0.0:1883\"\n";
        let error = load(open).unwrap_err();
        assert!(
            error.starts_with("throng.toml:2:10: mqtt.listen: 0.0.0.0:1883 is open"),
            "{error}"
        );
        assert!(error.contains("auth.required = true") && error.contains("--insecure"), "{error}");
        let key = "hmac_key = \"0123456789abcdef0123456789abcdef\"\n";
        for more in [
            "[client]\ninsecure = true\n".to_string(),
            format!("[auth]\n{key}required = true\n"),
            "[webhook]\nurl = \"http://a/b\"\nconnect = true\n".to_string(),
        ] {
            assert!(load(&format!("{open}{more}")).is_ok(), "{more}");
        }
        assert!(load(&format!("{open}[auth]\n{key}")).is_err());
    }

    #[test]
    fn no_proxy_says_by_a_header_who_an_mqtt_client_is() {
        let named = "[client]\nuser_header = \"X-User\"\nlogin = \"refuse\"\n\
                     trusted_proxies = [\"::1\"]\n";
        assert!(load(named).is_ok());
        let error = load(&format!("[mqtt]\nlisten = \"127.0.0.1:1883\"\n{named}")).unwrap_err();
        assert!(error.contains("mqtt.listen: MQTT has no headers"), "{error}");
    }

    #[test]
    fn clients_of_this_machine_may_publish_everywhere_if_no_others_come() {
        let is_open = |more: &str| {
            let file = format!("[mqtt]\nlisten = \"127.0.0.1:1883\"\n{more}");
            load(&file).unwrap().config.is_open_to_mqtt()
        };
        assert!(is_open(""));
        assert!(is_open("[client]\ncors_origins = [\"https://a.example\"]\n"));
        assert!(!load("").unwrap().config.is_open_to_mqtt(), "there is no MQTT");
        let key = "hmac_key = \"0123456789abcdef0123456789abcdef\"\n";
        for more in [
            &format!("[auth]\n{key}"),
            &format!("[auth]\n{key}required = true\n"),
            "[auth]\njwks_urls = [\"https://a.example/jwks\"]\nissuers = [\"https://a.example\"]\n",
            "[webhook]\nurl = \"http://a/b\"\nconnect = true\n",
            "[webhook]\nurl = \"http://a/b\"\nconnect = true\nsilence = \"allow\"\n",
            "[client]\ntrusted_proxies = [\"127.0.0.1\"]\n",
            "[client]\nproxy_header = \"forwarded\"\n",
            "[client]\nproxy_header = \"proxy-protocol\"\n",
            "[client]\nlisten = \"0.0.0.0:8000\"\ninsecure = true\n",
        ] {
            assert!(!is_open(more), "{more}");
        }
        let elsewhere = "[mqtt]\nlisten = \"0.0.0.0:1883\"\n[client]\ninsecure = true\n";
        assert!(!load(elsewhere).unwrap().config.is_open_to_mqtt());
    }

    #[test]
    fn it_has_a_port_of_its_own() {
        for (port, want) in [
            (8000, "mqtt.listen: the client port (127.0.0.1:8000) accepts MQTT as well"),
            (8001, "mqtt.listen: MQTT clients (127.0.0.1:8001) and applications (127.0.0.1:8001)"),
        ] {
            let error = load(&format!("[mqtt]\nlisten = \"127.0.0.1:{port}\"\n")).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn messages_fit_into_packets_sessions_and_what_is_retained() {
        let load = |more: &str| load(&format!("[mqtt]\nlisten = \"127.0.0.1:1883\"\n{more}"));
        let large = "[limits]\ninput_bytes_max = \"2MiB\"\nmessage_bytes_max = \"1MiB\"\n\
                     outbox_bytes_max = \"4MiB\"\n";
        for (more, want) in [
            (
                "packet_bytes_max = 65537\n",
                "mqtt.packet_bytes_max at least 66048 (it is 65537), or 0",
            ),
            ("session_bytes_max = 65535\n", "mqtt.session_bytes_max (it is 65535) at least"),
            ("retained_bytes_max = 65535\n", "mqtt.retained_bytes_max (it is 65535) at least"),
            (large, "limits.input_bytes_max at least 2105344 (it is 2097152)"),
        ] {
            let error = load(more).unwrap_err();
            assert!(error.contains(want), "{more}{error}");
        }
        for more in [
            "packet_bytes_max = 66048\n",
            "retained_messages_max = 0\nretained_bytes_max = 0\n",
            // The limit of packets grows with that of messages.
            "[limits]\nmessage_bytes_max = \"128KiB\"\n",
        ] {
            assert!(load(more).is_ok(), "{more}");
        }
        assert_eq!(load("").unwrap().config.mqtt_packet_bytes_max(), 69_632);
        let set = load("packet_bytes_max = 70000\n").unwrap();
        assert_eq!(set.config.mqtt_packet_bytes_max(), 70_000);
    }
}
