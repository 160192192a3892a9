//! Tests each point with a good configuration and with one mistake.

use super::*;
use crate::{SETTINGS, Sources};

/// The recommendation of docs/security.md, in short.
const GOOD: &str = "\
[client]
cors_origins = [\"https://www.example.com\"]
trusted_proxies = [\"127.0.0.1\"]
[auth]
hmac_key = \"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"
required = true
issuers = [\"https://www.example.com\"]
audience = \"push\"
[limits]
connections_per_address_max = 500
connections_per_user_max = 20
topics_per_user_max = 1000
commands_per_second_per_address_max = 50000
bytes_per_second_per_address_max = \"64MiB\"
publishes_per_second_per_address_max = 5000
joins_per_second_per_address_max = 20000
accept_per_second_max = 2000
memory_bytes_max = \"4GiB\"
[store]
data = \"/var/lib/throng\"
";

const KEY: &str = "[[keys]]\nname = \"billing\"\n\
    hash = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"\n\
    scopes = [\"publish:*\"]\n";

fn judged(file: &str, variables: &[(&str, &str)]) -> Vec<Finding> {
    let variables = variables.iter().map(|(name, text)| ((*name).into(), (*text).into()));
    let sources = Sources {
        file: Some(("throng.toml", file)),
        variables: variables.collect(),
        ..Sources::default()
    };
    Loaded::load(&sources).unwrap().judge(2_000_000_000)
}

#[test]
fn a_good_configuration_has_no_findings() {
    for finding in judged(&format!("{GOOD}{KEY}"), &[]) {
        assert_eq!(finding.severity, Severity::Ok, "{}: {}", finding.point.name, finding.text);
    }
}

#[test]
fn the_defaults_are_not_for_the_public() {
    let errors: Vec<&str> = judged("", &[])
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .map(|finding| finding.point.name)
        .collect();
    assert_eq!(errors, ["tokens", "origins", "addresses"]);
}

#[test]
fn each_mistake_is_found_at_its_point() {
    use Severity::{Error, Warning};
    let words = "correct-horse-battery-staple-and-more";
    for (variables, more, name, want) in [
        (&[("THRONG_AUTH_REQUIRED", "false")][..], "", "tokens", Warning),
        (
            &[
                ("THRONG_AUTH_REQUIRED", "false"),
                ("THRONG_AUTH_ANONYMOUS_GRANTS", "publish:room:*"),
            ],
            "",
            "tokens",
            Error,
        ),
        (&[("THRONG_CLIENT_INSECURE", "true")], "", "tokens", Warning),
        (&[("THRONG_AUTH_HMAC_KEY", words)], "", "token keys", Error),
        (
            &[("THRONG_AUTH_HMAC_KEY", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")],
            "",
            "token keys",
            Error,
        ),
        (&[("THRONG_AUTH_JWKS_URLS", "http://keys.example/jwks")], "", "token keys", Error),
        (
            &[
                ("THRONG_AUTH_JWKS_URLS", "https://keys.example/a,https://b.example/jwks"),
                ("THRONG_AUTH_ISSUERS", "https://a.example,https://b.example,https://c.example"),
            ],
            "",
            "issuers",
            Warning,
        ),
        (
            &[("THRONG_AUTH_JWKS_URLS", "https://a.example/k"), ("THRONG_AUTH_ISSUERS", "")],
            "",
            "issuers",
            Error,
        ),
        (&[("THRONG_AUTH_AUDIENCE", "")], "", "issuers", Warning),
        (&[("THRONG_CLIENT_CORS_ORIGINS", "*")], "", "origins", Warning),
        (&[("THRONG_CLIENT_CORS_ORIGINS", "http://www.example.com")], "", "origins", Warning),
        (&[("THRONG_CLIENT_PUBLISH_PREFIXES", "*")], "", "publishing", Warning),
        (&[], "[[topics]]\npattern = \"*\"\npublish = \"allow\"\n", "publishing", Warning),
        (&[("THRONG_CLIENT_LISTEN", "0.0.0.0:8000")], "", "TLS", Error),
        (&[("THRONG_CLIENT_LISTEN", "203.0.113.7:8000")], "", "TLS", Error),
        (&[("THRONG_CLIENT_LISTEN", "10.0.0.7:8000")], "", "TLS", Warning),
        (&[("THRONG_MQTT_LISTEN", "0.0.0.0:1883")], "", "MQTT", Error),
        (&[("THRONG_MQTT_LISTEN", "10.0.0.7:1883")], "", "MQTT", Warning),
        (&[("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "0")], "", "addresses", Error),
        (&[("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "60000")], "", "addresses", Warning),
        (&[("THRONG_LIMITS_ACCEPT_PER_SECOND_MAX", "0")], "", "addresses", Warning),
        (&[("THRONG_LIMITS_JOINS_PER_SECOND_MAX", "0")], "", "rates", Error),
        (&[("THRONG_LIMITS_PUBLISHES_PER_SECOND_MAX", "0")], "", "rates", Error),
        (&[("THRONG_CLIENT_TRUSTED_PROXIES", "")], "", "proxies", Warning),
        (&[("THRONG_CLIENT_TRUSTED_PROXIES", "10.0.0.1,0.0.0.0/0")], "", "proxies", Error),
        (&[("THRONG_CLIENT_TRUSTED_PROXIES", "::/1")], "", "proxies", Error),
        (&[("THRONG_LIMITS_COMMANDS_PER_SECOND_PER_USER_MAX", "0")], "", "users", Error),
        (&[("THRONG_LIMITS_JOINS_PER_SECOND_PER_USER_MAX", "0")], "", "users", Error),
        (&[("THRONG_LIMITS_CONNECTIONS_PER_USER_MAX", "0")], "", "users", Warning),
        (&[("THRONG_LIMITS_TOPICS_PER_USER_MAX", "0")], "", "users", Warning),
        (&[("THRONG_LIMITS_COMMANDS_PER_SECOND_PER_ADDRESS_MAX", "0")], "", "hosts", Warning),
        (&[("THRONG_LIMITS_BYTES_PER_SECOND_PER_ADDRESS_MAX", "0")], "", "hosts", Warning),
        (&[("THRONG_LIMITS_PUBLISHES_PER_SECOND_PER_ADDRESS_MAX", "0")], "", "hosts", Warning),
        (&[("THRONG_LIMITS_JOINS_PER_SECOND_PER_ADDRESS_MAX", "0")], "", "hosts", Warning),
        (&[("THRONG_TIMEOUTS_HEAD_SECONDS", "600")], "", "times", Warning),
        (&[("THRONG_TIMEOUTS_TCP_KEEPALIVE_SECONDS", "0")], "", "times", Warning),
        (&[("THRONG_LIMITS_MEMORY_BYTES_MAX", "0")], "", "memory", Warning),
        (&[("THRONG_ADMIN_LISTEN", "[::]:8001")], "", "admin port", Error),
        (&[("THRONG_ADMIN_LISTEN", "192.168.1.2:8001")], "", "admin port", Warning),
        (&[("THRONG_ADMIN_API_KEY", words)], "", "API keys", Error),
        (&[("THRONG_ADMIN_API_KEY", "0123456789abcdef")], "", "API keys", Warning),
        (
            &[],
            "[[keys]]\nname = \"old\"\nscopes = [\"read\"]\nexpires = 2001-01-01\nhash = \"sha256:\
               0086d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"\n",
            "API keys",
            Warning,
        ),
        (
            &[
                ("THRONG_WEBHOOK_CONNECT", "true"),
                ("THRONG_WEBHOOK_URL", "https://app.example/throng"),
                ("THRONG_WEBHOOK_SIGNING_KEY", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"),
                ("THRONG_WEBHOOK_SILENCE", "allow"),
                ("THRONG_AUTH_REQUIRED", "false"),
            ],
            "",
            "tokens",
            Error,
        ),
        (&[("THRONG_WEBHOOK_URL", "http://app.example/throng")], "", "webhooks", Error),
        (&[("THRONG_WEBHOOK_URL", "https://app.example/throng")], "", "webhooks", Warning),
        (&[("THRONG_WEBHOOK_SIGNING_KEY", words)], "", "webhooks", Error),
        (&[("THRONG_WEBHOOK_SECRET", words)], "", "webhooks", Error),
        (&[("THRONG_STORE_DATA", "")], "", "store", Warning),
        (&[("THRONG_CLIENT_STATUS_PAGE", "true")], "", "status page", Warning),
    ] {
        let findings = judged(&format!("{GOOD}{KEY}{more}"), variables);
        let bad: Vec<_> =
            findings.iter().filter(|finding| finding.severity != Severity::Ok).collect();
        assert_eq!(bad.len(), 1, "{variables:?} {more}");
        assert_eq!((bad[0].point.name, bad[0].severity), (name, want), "{}", bad[0].text);
        assert!(!bad[0].text.contains(words), "no secret is shown");
    }
    for (rule, bad) in [
        ("join = \"webhook\"", true),
        ("publish = \"ask\"", true),
        ("publish = \"webhook\"", false),
        ("join = \"refuse\"", false),
    ] {
        let table = format!("[[topics]]\npattern = \"asked:*\"\n{rule}\n");
        let judge = |required: &str| {
            let variables = [
                ("THRONG_WEBHOOK_URL", "https://app.example/throng"),
                ("THRONG_WEBHOOK_SILENCE", "allow"),
                ("THRONG_AUTH_REQUIRED", required),
            ];
            let findings = judged(&format!("{GOOD}{KEY}{table}"), &variables);
            findings.iter().find(|finding| finding.point.name == "silence").unwrap().severity
        };
        let want = if bad { (Warning, Error) } else { (Severity::Ok, Severity::Ok) };
        assert_eq!((judge("true"), judge("false")), want, "{rule}");
    }
    let alone =
        judged(GOOD, &[("THRONG_ADMIN_API_KEY", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b")]);
    let bad: Vec<_> = alone.iter().filter(|it| it.severity != Severity::Ok).collect();
    assert!(bad.len() == 1 && bad[0].text.contains("give each program a key"), "{}", bad[0].text);
}

#[test]
fn mqtt_that_is_open_to_this_host_is_not_for_a_proxy_on_it() {
    let judged = |more: &str| {
        let file = format!("[mqtt]\nlisten = \"127.0.0.1:1883\"\n{more}");
        let findings = judged(&file, &[]);
        ["publishing", "MQTT"].map(|name| {
            findings.iter().find(|finding| finding.point.name == name).unwrap().severity
        })
    };
    assert_eq!(judged(""), [Severity::Error, Severity::Error]);
    assert_eq!(
        judged("[client]\ntrusted_proxies = [\"127.0.0.1\"]\n"),
        [Severity::Ok, Severity::Ok]
    );
    let key = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let tokens = format!("[auth]\nhmac_key = \"{key}\"\nrequired = true\n");
    assert_eq!(judged(&tokens), [Severity::Ok, Severity::Ok]);
}

#[test]
fn a_proxy_that_says_who_is_there_has_the_port_for_itself() {
    let (_, no_tokens) = GOOD.split_once("[auth]").unwrap();
    let (_, rest) = no_tokens.split_once("[limits]").unwrap();
    for (listen, want) in
        [("127.0.0.1:8000", Severity::Warning), ("10.0.0.7:8000", Severity::Error)]
    {
        let file = format!(
            "[client]\ncors_origins = [\"https://www.example.com\"]\ninsecure = true\nlogin = \"refuse\"\n\
             trusted_proxies = [\"127.0.0.1\"]\nuser_header = \"X-User\"\nlisten = \"{listen}\"\n\
             [limits]{rest}"
        );
        let findings = judged(&file, &[]);
        let tokens = findings.iter().find(|it| it.point.name == "tokens").unwrap();
        assert_eq!(tokens.severity, want, "{listen}: {}", tokens.text);
    }
}

#[test]
fn the_checklist_names_settings_that_there_are() {
    for point in CHECKLIST {
        for key in point.settings {
            let is_table = ["topics", "forward", "keys"].contains(key);
            assert!(is_table || SETTINGS.iter().any(|it| it.key == *key), "{}: {key}", point.name);
        }
    }
}
