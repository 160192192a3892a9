use super::*;

fn load(file: &str, variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Loaded, String> {
    let sources = Sources {
        file: Some(("throng.toml", file)),
        variables: variables.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect(),
        flags: flags.iter().map(|(key, text)| (*key, "--flag", text.to_string())).collect(),
        ..Sources::default()
    };
    Loaded::load(&sources).map_err(|errors| errors.to_string())
}

#[test]
fn the_default_file_sets_the_defaults() {
    let plain = load("", &[], &[]).unwrap();
    let file = load(&default_file(), &[], &[]).unwrap();
    assert_eq!(plain.config, file.config);
    assert_eq!(plain.changes(&file), Changes::default());
    assert!(
        matches!(file.origin("client.listen"), Origin::File { line: 8, .. }),
        "{:?}",
        file.origin("client.listen")
    );
    assert_eq!(plain.config.limits.message_bytes_max, 65_536);
    assert_eq!(plain.config.client.listen, Some("127.0.0.1:8000".parse().unwrap()));
}

#[test]
fn later_sources_win_and_each_value_records_its_source() {
    let file = "[limits]\nconnections_max = 5\nmessage_bytes_max = \"2KiB\"\n";
    let variables = [
        ("THRONG_LIMITS_CONNECTIONS_MAX", "6"),
        ("HOME", "x"),
        ("THRONG_CLIENT_CORS_ORIGINS", "http://a, http://b:1"),
    ];
    let loaded = load(file, &variables, &[("client.listen", "127.0.0.1:9")]).unwrap();
    assert_eq!(loaded.config.limits.connections_max, 6);
    assert_eq!(loaded.config.limits.message_bytes_max, 2048);
    assert_eq!(loaded.config.client.cors_origins, ["http://a", "http://b:1"]);
    let text = effective(&loaded);
    for want in [
        "connections_max = 6",
        "# variable THRONG_LIMITS_CONNECTIONS_MAX",
        "# throng.toml:3",
        "# flag --flag",
        "# default",
    ] {
        assert!(text.contains(want), "{want} in\n{text}");
    }
}

#[test]
fn variables_of_a_service_called_throng_are_passed_over_and_mistakes_are_not() {
    let service = [("THRONG_PORT", "tcp://10.96.0.7:8000"), ("THRONG_SERVICE_HOST", "10.96.0.7")];
    let loaded = load("", &service, &[]).unwrap();
    assert_eq!(loaded.platform_variables(), ["THRONG_PORT", "THRONG_SERVICE_HOST"]);
    let reloaded = load("", &[], &[]).unwrap().reloaded(&loaded).unwrap();
    assert_eq!(reloaded.platform_variables(), loaded.platform_variables());
    let mistaken = [service[0], service[1], ("THRONG_CLIENT_PORT", "8000")];
    let errors = load("", &mistaken, &[]).unwrap_err();
    assert!(
        errors.starts_with("variable THRONG_CLIENT_PORT: there is no such setting"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn every_error_says_where_and_what_to_write() {
    let file = "[client]\nlisten = 8000\ncors_origin = []\n[limit]\nx = 1\n[limits]\nframe_bytes_max = \"1 TB\"\nhead_bytes_max = \"8k\"\n[timeouts]\npoll_seconds = 200\n";
    let errors =
        load(file, &[("THRONG_LIMITS_CONNECTION_MAX", "1"), ("THRONG_SHARDS_SENDER", "fast")], &[])
            .unwrap_err();
    for want in [
        "throng.toml:2:10: client.listen: expected an address with a port, like \"127.0.0.1:8000\" or \"localhost:8000\", or \"\", found 8000: write 127.0.0.1:8000 to accept",
        "throng.toml:3:1: client.cors_origin: there is no such setting; did you mean client.cors_origins?",
        "throng.toml:4:2: limit: there is no such setting; did you mean limits?",
        "throng.toml:7:19: limits.frame_bytes_max: expected a size from 125 B to 64 MiB, like 65536, \"64KiB\" or \"10 MB\", found \"1 TB\"",
        "throng.toml:8:18: limits.head_bytes_max: expected a size from 1 KiB to 64 KiB, like 65536, \"64KiB\" or \"10 MB\", found \"8k\": the units are B, kB, MB, GB, TB",
        "variable THRONG_LIMITS_CONNECTION_MAX: there is no such setting; did you mean THRONG_LIMITS_CONNECTIONS_MAX?",
        "variable THRONG_SHARDS_SENDER: shards.sender: expected one of \"auto\", \"io_uring\", \"write\", found \"fast\"",
        "throng.toml:10:16: timeouts.poll_seconds: make timeouts.poll_seconds (it is 200) at most timeouts.poll_seconds_max, which is 120",
    ] {
        assert!(errors.contains(want), "{want}\nin\n{errors}");
    }
    let wrong = "[client]\ntrusted_proxies = [\"10.0.0.0/8\", \"10.0.0.1/8\"]\n";
    let wrong = load(wrong, &[], &[]).unwrap_err();
    assert!(wrong.contains("has bits set after its prefix: write 10.0.0.0/8"), "{wrong}");
    let broken = load("[client\n", &[], &[]).unwrap_err();
    assert!(broken.starts_with("throng.toml:1:") && broken.contains("not TOML"), "{broken}");
    let bare = load("listen = 1", &[], &[]).unwrap_err();
    assert!(bare.contains("did you mean client.listen, admin.listen or mqtt.listen?"), "{bare}");
    assert!(load("client = 1", &[], &[]).unwrap_err().contains("write [client]"));
}

#[test]
fn a_user_header_excludes_the_proxy_protocol() {
    let file =
        "[client]\nuser_header = \"X-User\"\nlogin = \"refuse\"\ntrusted_proxies = [\"::1\"]\n";
    assert!(load(file, &[], &[]).is_ok());
    let with_header = format!("{file}proxy_header = \"proxy-protocol\"\n");
    let errors = load(&with_header, &[], &[]).err().unwrap().to_string();
    assert!(errors.contains("a client could name any user"), "{errors}");
}

#[test]
fn an_open_port_needs_a_key_or_insecure() {
    let open = |variables: &[(&str, &str)]| load("", variables, &[]).map(|_| ());
    assert!(open(&[("THRONG_CLIENT_LISTEN", "0.0.0.0:1")]).unwrap_err().contains("--insecure"));
    assert!(
        open(&[("THRONG_CLIENT_LISTEN", "0.0.0.0:1"), ("THRONG_CLIENT_INSECURE", "true")]).is_ok()
    );
    assert!(open(&[("THRONG_ADMIN_LISTEN", "[::]:1")]).unwrap_err().contains("admin.api_key"));
    let key = ("THRONG_ADMIN_API_KEY", "0123456789abcdef");
    assert!(open(&[("THRONG_ADMIN_LISTEN", "[::]:1"), key]).is_ok());
    assert!(open(&[("THRONG_ADMIN_API_KEY", "short")]).is_err());
    assert!(open(&[("THRONG_ADMIN_LISTEN", "127.0.0.1:8000")]).is_err());
}

#[test]
fn who_proves_who_they_are_may_come_to_an_open_port() {
    let open = |file: &str| load(file, &[], &[("client.listen", "0.0.0.0:1")]).map(|_| ());
    let key = "hmac_key = \"0123456789abcdef0123456789abcdef\"\n";
    let url = "url = \"http://a/b\"\n";
    assert_eq!(open(&format!("[auth]\n{key}required = true\n")), Ok(()));
    assert_eq!(open(&format!("[webhook]\n{url}connect = true\n")), Ok(()));
    // Tokens that are optional, a webhook that never gets a request, and one whose reply may be missing.
    for file in [
        format!("[auth]\n{key}"),
        format!("[webhook]\n{url}"),
        format!("[webhook]\n{url}connect = true\nsilence = \"allow\"\n"),
    ] {
        let errors = open(&file).expect_err(&file);
        assert!(errors.contains("auth.required = true"), "{file}{errors}");
    }
    // Without a key that verifies tokens no client could connect.
    assert!(open("[auth]\nrequired = true\n").is_err());
}

#[test]
fn the_key_is_never_printed() {
    let key = "0123456789abcdef";
    let loaded = load("", &[("THRONG_ADMIN_API_KEY", key)], &[]).unwrap();
    let sources =
        Sources { flags: vec![("admin.api_key", "--flag", key.into())], ..Sources::default() };
    for text in [effective(&loaded), format!("{loaded:?}"), format!("{sources:?}")] {
        assert!(!text.contains(key), "{text}");
    }
    assert!(effective(&loaded).contains("# api_key is set"));
}

#[test]
fn every_setting_reaches_the_typed_configuration_from_file_and_variable() {
    // The file of a key changes the key too: see key_file.rs.
    let is_key_file = |key: &str| {
        ["_key_file", ".password_file", ".credentials_file"].iter().any(|end| key.ends_with(end))
    };
    for setting in SETTINGS.iter().filter(|setting| !is_key_file(setting.key)) {
        let (section, key) = setting.parts();
        // The settings of tokens need a key that verifies them.
        let needs_key = section == "auth" && setting.key != "auth.hmac_key";
        let base = [("THRONG_AUTH_HMAC_KEY", "0123456789abcdef0123456789abcdef")];
        let url = [("THRONG_WEBHOOK_URL", "http://a/b")];
        let proxies = [("THRONG_CLIENT_TRUSTED_PROXIES", "::1"), ("THRONG_CLIENT_LOGIN", "refuse")];
        let password = [("THRONG_CLUSTER_PASSWORD", "0123456789abcdef")];
        let authority =
            [("THRONG_TLS_CLIENT_CA_FILE", "ca.pem"), ("THRONG_CLIENT_LOGIN", "refuse")];
        let certificate =
            [("THRONG_TLS_CERTIFICATE_FILE", "cert.pem"), ("THRONG_TLS_KEY_FILE", "key.pem")];
        let base = match setting.key {
            "client.listen_tls" | "mqtt.listen_tls" | "admin.listen_tls" => &certificate[..],
            // Each is invalid without the other: see check/tls.rs.
            "tls.certificate_file" | "tls.key_file" | "tls.acme_hosts" => continue,
            "tls.client_certificates" | "tls.client_user" => &authority[..],
            "webhook.events" | "webhook.connect" => &url[..],
            "cluster.user" => &password[..],
            "client.user_header" => &proxies[..],
            _ if needs_key => &base[..],
            _ => &[],
        };
        let plain = load("", base, &[]).unwrap();
        let (toml, text): (String, String) = match setting.kind {
            Kind::Bool => match setting.default {
                "true" => ("false".into(), "false".into()),
                _ => ("true".into(), "1".into()),
            },
            // A value next to the default violates no rule between settings.
            Kind::Number(..) | Kind::Bytes(..) => {
                let (_, number) =
                    plain.numbers(setting.key).find(|(k, _)| *k == setting.key).unwrap();
                ((number + 1).to_string(), format!("{}", number + 1))
            }
            Kind::Address | Kind::OptionalAddress => {
                ("\"127.0.0.1:9\"".into(), "127.0.0.1:9".into())
            }
            Kind::Text if setting.secret => {
                let secret = "0123456789abcdefghijklmnopqrstuv";
                (format!("\"{secret}\""), secret.into())
            }
            Kind::Text if ["outbox.url", "history.url"].contains(&setting.key) => {
                ("\"postgres://a@h/d\"".into(), "postgres://a@h/d".into())
            }
            Kind::Text if setting.key.ends_with(".url") || setting.key == "tracing.otlp_url" => {
                ("\"http://a/b\"".into(), "http://a/b".into())
            }
            Kind::Text | Kind::TextBytes(..) => ("\"debug\"".into(), "debug".into()),
            Kind::Choice(words) => (format!("\"{}\"", words[1]), words[1].into()),
            Kind::List if setting.key == "webhook.events" => {
                ("[\"joined\", \"left\"]".into(), "joined,left".into())
            }
            Kind::List if setting.key == "webhook.headers" => {
                ("[\"cookie\", \"x-a\"]".into(), "cookie,x-a".into())
            }
            Kind::List if setting.key == "auth.algorithms" => {
                ("[\"HS256\", \"ES256\"]".into(), "HS256,ES256".into())
            }
            Kind::List if setting.key == "auth.anonymous_grants" => {
                ("[\"subscribe:a\", \"history:b\"]".into(), "subscribe:a,history:b".into())
            }
            Kind::List if setting.key == "admin.hosts" => ("[\"a\", \"b\"]".into(), "a,b".into()),
            Kind::Time | Kind::Hash => ("2031-01-01".into(), "2031-01-01".into()),
            Kind::List if setting.key.ends_with(".trusted_proxies") => {
                ("[\"10.0.0.1\", \"fd00::/8\"]".into(), "10.0.0.1,fd00::/8".into())
            }
            Kind::List if setting.key == "cluster.urls" => {
                ("[\"nats://a\", \"tls://b:1\"]".into(), "nats://a,tls://b:1".into())
            }
            Kind::List => ("[\"http://a\", \"http://b\"]".into(), "http://a,http://b".into()),
        };
        let file = load(&format!("[{section}]\n{key} = {toml}\n"), base, &[]).unwrap();
        let variable = setting.variable();
        let variable = load("", &[base, &[(&*variable, &*text)]].concat(), &[]).unwrap();
        assert_ne!(file.config, plain.config, "{}", setting.key);
        assert_eq!(file.config, variable.config, "{}", setting.key);
        let Changes { applied, restart } = plain.changes(&file);
        assert_eq!([applied, restart].concat(), [setting.key]);
    }
}

#[test]
fn an_invalid_value_is_not_compared_with_others() {
    // With these values the outbox would be too small for the default message, and the listener would be open.
    let file =
        "[limits]\noutbox_bytes_max = 3000\nmessage_bytes_max = \"1k\"\n[client]\ninsecure = 1\n";
    let errors = load(file, &[("THRONG_CLIENT_LISTEN", "0.0.0.0:1")], &[]).unwrap_err();
    assert_eq!(errors.lines().count(), 2, "{errors}");
    let broken =
        load("[client]\ninsecure = true\nx\ny\n", &[("THRONG_CLIENT_LISTEN", "0.0.0.0:1")], &[]);
    let broken = broken.unwrap_err();
    assert!(
        broken.lines().count() == 2 && broken.lines().all(|l| l.contains("not TOML")),
        "{broken}"
    );
    // Variables and flags count even if the file can't be read.
    let sure = [
        ("THRONG_CLIENT_LISTEN", "0.0.0.0:1"),
        ("THRONG_CLIENT_INSECURE", "false"),
        ("THRONG_AUTH_REQUIRED", "false"),
    ];
    assert!(load("x", &sure, &[]).unwrap_err().contains("--insecure"));
}

#[test]
fn unreadable_sources_are_reported_with_all_errors() {
    use std::os::unix::ffi::OsStringExt;
    let error = |key: &str, message: &str| SettingError {
        origin: Origin::Default,
        key: key.into(),
        message: message.into(),
    };
    let sources = Sources {
        unreadable: vec![error("", "gone"), error("admin.api_key", "empty")],
        variables: vec![(
            "THRONG_CLIENT_PUBLISH_PREFIXES".into(),
            std::ffi::OsString::from_vec(vec![0xff]),
        )],
        flags: vec![
            ("admin.listen", "--admin", "0.0.0.0:1".into()),
            ("shards.count", "--shards", "x".into()),
        ],
        ..Sources::default()
    };
    let errors = Loaded::load(&sources).unwrap_err().to_string();
    for want in [
        "gone",
        "admin.api_key: empty",
        "variable THRONG_CLIENT_PUBLISH_PREFIXES: client.publish_prefixes: expected a list of texts, like [\"a\", \"b\"], found text that is not UTF-8",
        "flag --shards: shards.count: expected a whole number from 0 to 1000, found \"x\"",
    ] {
        assert!(errors.lines().any(|line| line.starts_with(want)), "{want}\nin\n{errors}");
    }
    assert_eq!(errors.lines().count(), 4, "{errors}");
}

#[test]
fn an_error_points_to_the_source_that_set_the_value() {
    let file = "[limits]\nmessage_bytes_max = \"1MiB\"\n";
    let errors = load(file, &[], &[]).unwrap_err();
    assert!(errors.starts_with("throng.toml:2:21: limits.message_bytes_max: "), "{errors}");
    assert!(errors.contains("limits.outbox_bytes_max at least 1049600"), "{errors}");
    for level in ["shard=loud", "loud"] {
        let filter = load(&format!("[log]\nlevel = \"{level}\"\n"), &[], &[]).unwrap_err();
        let want = format!("throng.toml:2:9: log.level: \"{level}\" is not a valid filter");
        assert!(filter.starts_with(&want), "{filter}");
        let variable = load("", &[("THRONG_LOG_LEVEL", level)], &[]).unwrap_err();
        assert!(variable.starts_with("variable THRONG_LOG_LEVEL: log.level:"), "{variable}");
    }
    for taken in ["127.0.0.1:8001", "[::ffff:127.0.0.1]:8001"] {
        let errors = load("", &[], &[("client.listen", taken)]).unwrap_err();
        assert!(errors.starts_with("flag --flag: client.listen: clients ("), "{errors}");
    }
}

#[test]
fn times_that_a_shard_can_not_measure_are_rejected() {
    // Shards measure silence in 16 bits of seconds, so longer times would never end.
    for key in ["head_seconds", "idle_seconds", "ws_silence_seconds", "phoenix_silence_seconds"] {
        assert!(load(&format!("[timeouts]\n{key} = 60000\n"), &[], &[]).is_ok(), "{key}");
        for seconds in [60_001, 65_535, 65_536, 86_400] {
            let file = format!("[timeouts]\n{key} = {seconds}\n");
            let error = load(&file, &[], &[]).unwrap_err();
            assert!(error.contains(&format!("to 60000, found {seconds}")), "{error}");
        }
    }
}

#[test]
fn names_and_values_from_outside_stay_on_one_line() {
    let sources = Sources {
        file: Some(("a\nb\x1b[2J.toml", "[log]\nlevel = \"info,a\\nb=debug\"\n")),
        ..Sources::default()
    };
    let text = effective(&Loaded::load(&sources).unwrap());
    assert!(text.contains("level = \"info,a\\u000Ab=debug\""), "{text}");
    assert!(text.contains("# a\\nb\\u{1b}[2J.toml:2\n"), "{text}");
    let errors = load("\"a\\nb\\u001b\" = {}\n", &[], &[]).unwrap_err();
    assert!(!errors.contains(['\n', '\x1b']), "{errors}");
}

#[test]
fn a_reload_never_leaves_a_listener_open_without_its_key() {
    let key = "api_key = \"0123456789abcdef\"\n";
    let old = load(&format!("[admin]\nlisten = \"0.0.0.0:8001\"\n{key}"), &[], &[]).unwrap();
    let errors = old.reloaded(&load("", &[], &[]).unwrap()).unwrap_err().to_string();
    assert!(errors.contains("0.0.0.0:8001 is open to other machines"), "{errors}");
    let new = load(&format!("[admin]\n{key}[limits]\nhead_bytes_max = 9000\n"), &[], &[]).unwrap();
    let now = old.reloaded(&new).unwrap();
    assert_eq!(now.config.admin.listen, old.config.admin.listen);
    assert_eq!(now.config.limits.head_bytes_max, 9000);
    assert!(effective(&now).contains("listen = \"0.0.0.0:8001\""));
    // A change that needs a restart is listed again at the next reload.
    assert_eq!(now.changes(&new).restart, ["admin.listen"]);
}

#[test]
fn a_reload_never_opens_a_listener_to_unknown_clients() {
    let key = "[auth]\nhmac_key = \"0123456789abcdef0123456789abcdef\"\n";
    let hook = "[webhook]\nurl = \"http://a/b\"\nconnect = true\n";
    let open = "[client]\nlisten = \"0.0.0.0:8000\"\n";
    let required = format!("{key}required = true\n");
    for (guard, less) in [
        (&*required, [key, ""]),
        (hook, ["", "[webhook]\nurl = \"http://a/b\"\nconnect = true\nsilence = \"allow\"\n"]),
    ] {
        let old = load(&format!("{open}{guard}"), &[], &[]).unwrap();
        // The new file alone is valid: it closes the port, but only after the restart.
        for less in less {
            let new = load(less, &[], &[]).unwrap();
            let errors = old.reloaded(&new).expect_err(less).to_string();
            assert!(errors.contains("0.0.0.0:8000 is open to other machines"), "{less}{errors}");
        }
        // One may replace the other, but the setting that declares it safe needs a restart too.
        let other = if guard == hook { &*required } else { hook };
        assert!(old.reloaded(&load(other, &[], &[]).unwrap()).is_ok(), "{other}");
        let said = load("[client]\ninsecure = true\n", &[], &[]).unwrap();
        assert!(old.reloaded(&said).is_err());
        let mqtt = load(&format!("[mqtt]\nlisten = \"0.0.0.0:1883\"\n{guard}"), &[], &[]).unwrap();
        let errors = mqtt.reloaded(&load(less[0], &[], &[]).unwrap()).unwrap_err().to_string();
        assert!(errors.contains("mqtt.listen: 0.0.0.0:1883 is open to other machines"), "{errors}");
    }
}

#[test]
fn changes_lists_what_a_reload_applies() {
    let old = load("", &[], &[]).unwrap();
    let new =
        load("[limits]\noutbox_messages_max = 9\n[socket]\nbacklog = 99\n", &[], &[]).unwrap();
    let changes = old.changes(&new);
    assert_eq!(
        (changes.applied, changes.restart),
        (vec!["limits.outbox_messages_max"], vec!["socket.backlog"])
    );
}

proptest::proptest! {
    #[test]
    fn noise_never_panics(text: String, name in "THRONG_[A-Z_]{0,20}", value: String) {
        let _ = load(&text, &[(&name, &value)], &[]);
    }

    #[test]
    fn toml_noise_never_panics(text in "(\\[(client|limits|x)\\]\n|[a-z_]{1,8} = (\\[\\]|[0-9]{1,20}|\"[a-z]{0,9}\"|true|1\\.5|2020-01-01)\n){0,9}") {
        let _ = load(&text, &[], &[]);
    }

    #[test]
    fn the_printed_configuration_loads_again(
        connections in 1u64..100_000_000, count in 0u64..=1000, topics in 1u64..=10_000,
        body in 1024u64..=(1 << 28), memory in 0u64..(1 << 40), pin: bool,
        prefixes in proptest::collection::vec(".{0,12}|[\\x00-\\x7f]{0,12}", 0..4),
        port in 0u16.., sender in 0usize..3, level in "(info|shard=debug|[a-z]{1,9}=trace)",
    ) {
        let quoted: Vec<String> =
            prefixes.iter().map(|p| toml::Value::String(p.clone()).to_string()).collect();
        let file = format!(
            "[limits]\nconnections_max = {connections}\ntopics_per_connection_max = {topics}\n\
             memory_bytes_max = {memory}\n[client]\nlisten = \"127.0.0.2:{port}\"\n\
             publish_prefixes = [{}]\n[admin]\nbody_bytes_max = {body}\n[shards]\ncount = {count}\n\
             pin_cpus = {pin}\nsender = \"{}\"\n[log]\nlevel = \"{level}\"\n",
            quoted.join(", "), Sender::WORDS[sender],
        );
        let loaded = load(&file, &[], &[]).unwrap();
        proptest::prop_assert_eq!(&loaded.config.client.publish_prefixes, &prefixes);
        let text = effective(&loaded);
        let settings = text.lines().filter(|line| !line.is_empty() && !line.starts_with('['));
        proptest::prop_assert!(settings.clone().count() == SETTINGS.len(), "{}", text);
        for line in settings {
            proptest::prop_assert!(line.contains(" # "), "{}", line);
        }
        let again = load(&text, &[], &[]).unwrap();
        proptest::prop_assert_eq!(loaded.config, again.config);
    }
}
