//! Variables with our prefix that the platform sets: Kubernetes describes each Service to every container
//! (<https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>), as container links did
//! before. The variables of a Service called `throng` or `throng-mqtt` begin with `THRONG_`.

/// The schemes of addresses in these variables.
const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// Returns true for a variable that describes a service: `THRONG_SERVICE_HOST`, `THRONG_SERVICE_PORT`,
/// `THRONG_SERVICE_PORT_HTTP`, `THRONG_PORT` with an address such as `tcp://10.96.0.7:8000`, `THRONG_PORT_8000_TCP`
/// and `THRONG_PORT_8000_TCP_ADDR`, and the same with a longer name in place of `THRONG`.
pub(crate) fn is_set_by_platform(name: &str, text: Option<&str>) -> bool {
    name.ends_with("_SERVICE_HOST")
        || has_part(name, "_SERVICE_PORT", |rest| rest.is_empty() || rest.starts_with('_'))
        || has_part(name, "_PORT_", is_port)
        || name.ends_with("_PORT") && text.is_some_and(is_address)
}

/// Checks that a name has this part, with text before it and a valid rest.
fn has_part(name: &str, part: &str, is_right: impl Fn(&str) -> bool) -> bool {
    let mut occurrences = name.match_indices(part);
    occurrences.any(|(at, _)| at > 0 && is_right(&name[at + part.len()..]))
}

/// Checks for `8000_TCP` and `8000_TCP_ADDR`.
fn is_port(rest: &str) -> bool {
    let Some((port, rest)) = rest.split_once('_') else { return false };
    let (protocol, what) = rest.split_once('_').unwrap_or((rest, ""));
    port.parse::<u16>().is_ok()
        && PROTOCOLS.iter().any(|known| known.eq_ignore_ascii_case(protocol))
        && matches!(what, "" | "PROTO" | "PORT" | "ADDR")
}

/// Checks for `tcp://10.96.0.7:8000`.
fn is_address(text: &str) -> bool {
    text.split_once("://").is_some_and(|(protocol, _)| PROTOCOLS.contains(&protocol))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SETTINGS;

    #[test]
    fn what_describes_a_service_is_known_by_its_name_and_its_address() {
        for (name, text) in [
            ("THRONG_SERVICE_HOST", "10.96.0.7"),
            ("THRONG_SERVICE_PORT", "8000"),
            ("THRONG_SERVICE_PORT_HTTP", "8000"),
            ("THRONG_PORT", "tcp://10.96.0.7:8000"),
            ("THRONG_PORT", "udp://[fd00::7]:8000"),
            ("THRONG_PORT_8000_TCP", "tcp://10.96.0.7:8000"),
            ("THRONG_PORT_8000_TCP_PROTO", "tcp"),
            ("THRONG_PORT_8000_TCP_PORT", "8000"),
            ("THRONG_PORT_8000_TCP_ADDR", "10.96.0.7"),
            ("THRONG_PORT_53_UDP", "udp://10.96.0.7:53"),
            ("THRONG_ADMIN_SERVICE_HOST", "10.96.0.7"),
            ("THRONG_MQTT_PORT_1883_TCP_ADDR", "10.96.0.7"),
            ("THRONG_KEYS_PORT", "tcp://10.96.0.7:8000"),
        ] {
            assert!(is_set_by_platform(name, Some(text)), "{name}={text}");
        }
        for (name, text) in [
            ("THRONG_PORT", "8000"),
            ("THRONG_CLIENT_PORT", "8000"),
            ("THRONG_CLIENT_PORTS", "tcp://10.96.0.7:8000"),
            ("THRONG_PORT_8000", "8000"),
            ("THRONG_PORT_HTTP_TCP", "8000"),
            ("THRONG_PORT_8000_TCP_NAME", "a"),
            ("THRONG_PORT_80000_TCP", "tcp://10.96.0.7:80000"),
            ("THRONG_SERVICE_PORTS", "8000"),
            ("THRONG_SERVICE", "a"),
        ] {
            assert!(!is_set_by_platform(name, Some(text)), "{name}={text}");
        }
        assert!(!is_set_by_platform("THRONG_PORT", None), "no text is no address");
    }

    #[test]
    fn no_setting_is_called_so() {
        for setting in SETTINGS {
            assert!(!is_set_by_platform(&setting.variable(), Some("tcp://a:1")), "{}", setting.key);
        }
    }
}
