use super::*;

fn load(file: &str, variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Loaded, String> {
    let sources = Sources {
        file: Some(("throng.toml", file)),
        variables: variables
            .iter()
            .map(|(name, text)| (name.to_string(), text.to_string()))
            .collect(),
        flags: flags.iter().map(|(key, text)| (*key, "--flag", text.to_string())).collect(),
    };
    Loaded::load(&sources).map_err(|problems| problems.to_string())
}

#[test]
fn the_default_file_sets_the_defaults() {
    let plain = load("", &[], &[]).unwrap();
    let file = load(&default_file(), &[], &[]).unwrap();
    assert_eq!(plain.config, file.config);
    assert_eq!(plain.changes(&file), Changes::default());
    assert!(
        matches!(file.origin("client.listen"), Origin::File { line: 7, .. }),
        "{:?}",
        file.origin("client.listen")
    );
    assert_eq!(plain.config.limits.message_bytes_max, 65_536);
    assert_eq!(plain.config.client.listen.to_string(), "127.0.0.1:8000");
}

#[test]
fn later_sources_win_and_each_value_knows_its_own() {
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
fn every_problem_is_named_with_its_place_and_the_way_out() {
    let file = "[client]\nlisten = 8000\ncors_origin = []\n[limit]\nx = 1\n[limits]\nframe_bytes_max = \"1 TB\"\n[timeouts]\npoll_seconds = 200\n";
    let problems =
        load(file, &[("THRONG_LIMITS_CONNECTION_MAX", "1"), ("THRONG_SHARDS_SENDER", "fast")], &[])
            .unwrap_err();
    for want in [
        "throng.toml:2:10: client.listen: integer is not right here; it takes an address",
        "throng.toml:3:1: client.cors_origin: there is no such setting; did you mean client.cors_origins?",
        "throng.toml:4:2: limit: there is no such setting; did you mean limits?",
        "throng.toml:7:19: limits.frame_bytes_max: 1 TB is out of bounds",
        "variable THRONG_LIMITS_CONNECTION_MAX: there is no such setting; did you mean THRONG_LIMITS_CONNECTIONS_MAX?",
        "variable THRONG_SHARDS_SENDER: shards.sender: \"fast\" is not known; it takes one of auto, io_uring, write",
        "throng.toml:9:16: timeouts.poll_seconds: at most timeouts.poll_seconds_max, which is 120",
    ] {
        assert!(problems.contains(want), "{want}\nin\n{problems}");
    }
    let broken = load("[client\n", &[], &[]).unwrap_err();
    assert!(broken.starts_with("throng.toml:1:") && broken.contains("not TOML"), "{broken}");
    assert!(load("listen = 1", &[], &[]).unwrap_err().contains("sections"));
}

#[test]
fn an_open_port_needs_a_key_or_a_word() {
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
fn the_key_is_never_printed() {
    let loaded = load("", &[("THRONG_ADMIN_API_KEY", "0123456789abcdef")], &[]).unwrap();
    for text in [effective(&loaded), format!("{:?}", loaded.config)] {
        assert!(!text.contains("0123456789abcdef"), "{text}");
    }
    assert!(effective(&loaded).contains("# api_key is set"));
}

#[test]
fn a_reload_says_what_takes_effect() {
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
    fn what_is_in_force_can_be_loaded_again(
        connections in 1u64..1_000_000, prefixes in proptest::collection::vec("[ -~]{1,12}", 0..4), level in "[a-z=,\"\\\\]{1,12}",
    ) {
        let quoted: Vec<String> = prefixes.iter().map(|p| toml::Value::String(p.clone()).to_string()).collect();
        let file = format!(
            "[limits]\nconnections_max = {connections}\n[client]\npublish_prefixes = [{}]\n[log]\nlevel = {}\n",
            quoted.join(", "), toml::Value::String(level)
        );
        let loaded = load(&file, &[], &[]).unwrap();
        let again = load(&effective(&loaded), &[], &[]).unwrap();
        proptest::prop_assert_eq!(loaded.config, again.config);
    }
}
