use super::*;
use crate::typed::{JOIN_WORDS, PUBLISH_WORDS};
use model::{JoinRule, PublishRule};

fn load(file: &str) -> Result<Loaded, String> {
    with(file, &[])
}

fn with(file: &str, variables: &[(&str, &str)]) -> Result<Loaded, String> {
    let sources = Sources {
        file: Some(("throng.toml", file)),
        variables: variables.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect(),
        ..Sources::default()
    };
    Loaded::load(&sources).map_err(|errors| errors.to_string())
}

#[test]
fn rules_have_keys_and_defaults_in_file_order() {
    let file = "[[topics]]\npattern = \"room:*\"\njoin = \"webhook\"\npublish = \"others\"\n\
                presence = true\nwebhook_url = \"http://a/b\"\n[[topics]]\npattern = \"*\"\n";
    let rules = load(file).unwrap().config.topics;
    let all = TopicRule {
        pattern: "*".into(),
        join: JoinRule::Allow,
        publish: None,
        presence: false,
        events: false,
        conflate: false,
        webhook_url: None,
        history_messages_max: 0,
        history_bytes_max: 1 << 20,
        history_seconds_max: None,
        durable: false,
        compact: false,
        acknowledge: false,
        ack_window_messages_max: 100,
        ack_redelivery_seconds: 0,
        ack_tries_max: 0,
        dead_letter: String::new(),
    };
    let chat = TopicRule {
        pattern: "room:*".into(),
        join: JoinRule::Webhook,
        publish: Some(PublishRule::Others),
        presence: true,
        webhook_url: Some("http://a/b".into()),
        ..all.clone()
    };
    assert_eq!(rules, [chat, all.clone()]);
    assert_eq!(load("").unwrap().config.topics, []);
    assert_eq!(load("topics = []").unwrap().config.topics, []);
    assert_eq!(load("topics = [{ pattern = \"*\" }]").unwrap().config.topics, [all]);
    for (at, word) in JOIN_WORDS.iter().enumerate() {
        let file = format!(
            "[webhook]\nurl = \"https://a\"\n[[topics]]\npattern = \"a\"\njoin = \"{word}\"\n"
        );
        let want = [JoinRule::Allow, JoinRule::Refuse, JoinRule::Webhook][at];
        assert_eq!(load(&file).unwrap().config.topics[0].join, want);
    }
}

#[test]
fn the_default_file_documents_rules_with_a_valid_example() {
    let default = default_file();
    assert_eq!(load(&default).unwrap().config, load("").unwrap().config);
    for key in TOPIC_KEYS {
        assert!(
            default.contains(&format!("# {}\n# Takes {}", key.doc, key.valid_values())),
            "{default}"
        );
    }
    for key in KEY_KEYS {
        assert!(
            default.contains(&format!("# {}\n# Takes {}", key.doc, key.valid_values())),
            "{default}"
        );
    }
    for key in FORWARD_KEYS {
        assert!(
            default.contains(&format!("# {}\n# Takes {}", key.doc, key.valid_values())),
            "{default}"
        );
    }
    let (rules, keys) = default.split_once("\n# Keys of the API").unwrap();
    let (rules, forwards) = rules.split_once("\n# Rules that send").unwrap();
    let (keys, certificates) = keys.split_once("\n# Certificates for further").unwrap();
    let example: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| !line.starts_with(' '))
        .collect();
    assert_eq!(example.len(), TOPIC_KEYS.len() + 1, "{example:?}");
    let rules = load(&example.join("\n")).unwrap().config.topics;
    assert_eq!(rules[0].pattern, "room:*");
    assert!(rules[0].publish.is_some() && rules[0].webhook_url.is_some());
    let example: Vec<&str> = forwards
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| !line.starts_with(' '))
        .collect();
    assert_eq!(example.len(), FORWARD_KEYS.len() + 1, "{example:?}");
    let forwards = load(&example.join("\n")).unwrap().config.forwards;
    assert_eq!(forwards[0].filter, "requests/#");
    let example: Vec<&str> = keys
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| !line.starts_with(' '))
        .collect();
    assert_eq!(example.len(), KEY_KEYS.len() + 1, "{example:?}");
    let keys = load(&example.join("\n")).unwrap().config.keys;
    assert!(keys[0].name == "billing" && keys[0].expires.is_some());
    let example: Vec<&str> = certificates
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| !line.starts_with(' '))
        .collect();
    let certificates = load(&example.join("\n")).unwrap().config.certificates;
    assert!(certificates[0].key_file.ends_with("privkey.pem"));
}

#[test]
fn every_default_of_a_rule_parses() {
    let rule = &load("[[topics]]\npattern = \"a\"\n").unwrap().rules[0];
    for key in TOPIC_KEYS {
        let has = rule.values.contains_key(key.key);
        let expected = !matches!(key.absent, Absent::Unset(_));
        assert_eq!(has, expected, "{}", key.key);
    }
}

#[test]
fn errors_in_rules_say_where_and_what_to_write() {
    let long = "x".repeat(255);
    let file = format!(
        "[[topics]]\npattern = \"a\"\njoin = \"maybe\"\npublis = \"refuse\"\n\
         [[topics]]\n  presence = 1\n\
         [[topics]]\npattern = \"\"\nwebhook_url = true\n\
         [[topics]]\npattern = \"{long}\"\npublish = \"all\"\n"
    );
    let errors = load(&file).unwrap_err();
    let want = [
        "throng.toml:3:8: topics[0].join: expected one of \"allow\", \"refuse\", \"webhook\", found \"maybe\"",
        "throng.toml:4:1: topics[0].publis: there is no such setting; did you mean topics[0].publish?",
        "throng.toml:6:14: topics[1].presence: expected true or false, found 1",
        "throng.toml:5:1: topics[1].pattern: it is missing: write a text of 1 to 254 bytes",
        "throng.toml:8:11: topics[2].pattern: expected a text of 1 to 254 bytes, found \"\": it has 0 bytes",
        "throng.toml:9:15: topics[2].webhook_url: expected a text, found true",
        &format!(
            "throng.toml:11:11: topics[3].pattern: expected a text of 1 to 254 bytes, found \"{}…: it has 255 bytes",
            &long[..59]
        ),
        "throng.toml:12:11: topics[3].publish: expected one of \"allow\", \"others\", \"refuse\", \"webhook\", \"ask\", found \"all\"",
    ];
    for want in want {
        assert!(errors.lines().any(|line| line == want), "{want}\nin\n{errors}");
    }
    assert_eq!(errors.lines().count(), want.len(), "{errors}");
    assert!(load(&format!("[[topics]]\npattern = \"{}\"\n", &long[1..])).is_ok());
}

#[test]
fn rules_of_another_form_are_rejected() {
    for (file, want) in [
        ("[topics]\npattern = \"a\"\n", "throng.toml:1:2: topics: each rule is a table: write [["),
        ("topics = 1\n", "throng.toml:1:1: topics: each rule is a table: write [[topics]]"),
        ("topics = [1]\n", "throng.toml:1:11: topics[0]: expected a table, found 1: each rule is"),
        ("[[topic]]\npattern = \"a\"\n", "throng.toml:1:3: topic: there is no such setting; did"),
        ("[topic]\npattern = \"a\"\n", "did you mean topics?"),
        (
            "[[topics]]\npattern = \"a\"\nhistory_max = 5\n",
            "topics[0].history_max: there is no such setting; did you mean \
             topics[0].history_messages_max?",
        ),
        ("[[limits]]\n", "throng.toml:1:3: limits: this is a section: write [limits]"),
    ] {
        let errors = load(file).unwrap_err();
        assert!(errors.starts_with(want) || errors.ends_with(want), "{want}\nin\n{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    for name in ["THRONG_TOPICS", "THRONG_TOPICS_JOIN", "THRONG_TOPICS_WEBHOOK_URL"] {
        let errors = with("", &[(name, "x")]).unwrap_err();
        assert!(errors.contains("in the file only: write [[topics]]"), "{errors}");
    }
    let misspelled = with("", &[("THRONG_TOPICS_PER_CONNECTION_MAX", "1")]).unwrap_err();
    assert!(misspelled.contains("THRONG_LIMITS_TOPICS_PER_CONNECTION_MAX"), "{misspelled}");
}

#[test]
fn a_rule_that_can_never_match_is_an_error() {
    let file = |patterns: &[&str]| {
        patterns.iter().map(|p| format!("[[topics]]\npattern = \"{p}\"\n")).collect::<String>()
    };
    for (patterns, want) in [
        (
            ["a", "b", "a"],
            "throng.toml:6:11: topics[2].pattern: \"a\" can never match: the first rule for it, in line 2, wins",
        ),
        (
            ["a", "*", "b:*"],
            "throng.toml:6:11: topics[2].pattern: \"b:*\" can never match: \"*\", in line 4, comes first",
        ),
        (
            ["c:*", "b", "c:d"],
            "throng.toml:6:11: topics[2].pattern: \"c:d\" can never match: \"c:*\", in line 2, comes first",
        ),
    ] {
        let errors = load(&file(&patterns)).unwrap_err();
        assert!(errors.starts_with(want), "{want}\nin\n{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    assert!(load(&file(&["a:b", "a:*", "a*", "*b*", "*"])).is_ok());
}

#[test]
fn a_webhook_needs_a_url() {
    let load_webhook_rule = |key: &str, more: &str| {
        load(&format!("[[topics]]\npattern = \"a\"\n{key} = \"webhook\"\n{more}"))
    };
    for (key, position) in [("join", "3:8"), ("publish", "3:11")] {
        let errors = load_webhook_rule(key, "").unwrap_err();
        let want = format!(
            "throng.toml:{position}: topics[0].{key}: a webhook needs a URL: set webhook.url"
        );
        assert!(errors.starts_with(&want), "{want}\nin\n{errors}");
        assert!(load_webhook_rule(key, "webhook_url = \"http://a\"\n").is_ok());
        assert!(load_webhook_rule(key, "[webhook]\nurl = \"http://a\"\n").is_ok());
        // The URL is unknown until its value is valid, so this is the only error.
        for more in ["webhook_url = 1\n", "[webhook]\nurl = 1\n"] {
            assert_eq!(load_webhook_rule(key, more).unwrap_err().lines().count(), 1);
        }
    }
    let errors = load_webhook_rule("join", "webhook_url = \"a.b/c\"\n").unwrap_err();
    let want = "throng.toml:4:15: topics[0].webhook_url: \"a.b/c\" is not a valid URL of a";
    assert!(errors.starts_with(want) && errors.lines().count() == 1, "{errors}");
}

#[test]
fn the_webhook_url_is_checked_and_its_secret_hidden() {
    let errors = with("[webhook]\nsecret = \"short\"\n", &[("THRONG_WEBHOOK_URL", "a")]);
    let errors = errors.unwrap_err();
    for want in [
        "throng.toml:2:10: webhook.secret: a secret must have at least 16 characters",
        "variable THRONG_WEBHOOK_URL: webhook.url: \"a\" is not a valid URL of a webhook",
    ] {
        assert!(errors.contains(want), "{want}\nin\n{errors}");
    }
    assert!(!errors.contains("short"), "{errors}");
    assert!(load("[webhook]\nsecret = \"sixteen letters or more\"\n").is_err());
    for url in ["https://u:hunter2@a/", "https://a/?key=hunter2"] {
        let error = load(&format!("[webhook]\nurl = \"{url}\"\n")).unwrap_err();
        assert!(error.contains("use webhook.secret") && !error.contains("hunter2"), "{error}");
        let rule = format!("[[topics]]\npattern = \"a\"\nwebhook_url = \"{url}\"\n");
        let error = load(&rule).unwrap_err();
        assert!(error.contains("topics[0].webhook_url: a URL is printed"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    for (key, wrong) in [
        ("31 bytes are one too few, too few", None),
        ("only thirty bytes, two too few", Some("must have at least 32 bytes")),
        ("whsec_no base64, but more than thirty-two bytes", Some("not base64")),
        ("whsec_c2hvcnQ=", Some("must have at least 32 bytes")),
        ("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", None),
    ] {
        let loaded = load(&format!("[webhook]\nsigning_key = \"{key}\"\n"));
        match (loaded, wrong) {
            (Ok(_), None) => {}
            (Err(error), Some(wrong)) => {
                assert!(error.contains(wrong) && !error.contains(key), "{error}");
            }
            (loaded, _) => panic!("{key}: {:?}", loaded.err()),
        }
    }
    let secret = "0123456789abcdef";
    let loaded = with("", &[("THRONG_WEBHOOK_SECRET", secret)]).unwrap();
    assert_eq!(loaded.config.webhook.secret, secret);
    for text in [effective(&loaded), format!("{loaded:?}")] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[test]
fn rules_change_with_a_reload() {
    let rules = |text: &str| load(text).unwrap();
    let old = rules("[[topics]]\npattern = \"a\"\n[[topics]]\npattern = \"b\"\n");
    for other in [
        "",
        "[[topics]]\npattern = \"a\"\n",
        "[[topics]]\npattern = \"b\"\n[[topics]]\npattern = \"a\"\n",
        "[[topics]]\npattern = \"a\"\n[[topics]]\npattern = \"b\"\npresence = true\n",
    ] {
        let new = rules(other);
        let Changes { applied, restart } = old.changes(&new);
        assert_eq!((applied, restart), (vec!["topics"], vec![]), "{other}");
        let now = old.reloaded(&new).unwrap();
        assert_eq!(now.config.topics, new.config.topics);
        assert_eq!(now.changes(&new), Changes::default());
        assert_eq!(effective(&now), effective(&new));
    }
    // An explicit default, or another place in the file, changes nothing.
    let same = rules(
        "# Moved.\n[[topics]]\npattern = \"a\"\njoin = \"allow\"\n[[topics]]\npattern = \"b\"\n",
    );
    assert_eq!(old.changes(&same), Changes::default());
}

#[test]
fn effective_prints_rules_with_their_source() {
    let loaded = load("[[topics]]\npresence = true\npattern = \"a\"\n").unwrap();
    let text = effective(&loaded);
    let rule: Vec<String> = text
        .lines()
        .skip_while(|line| *line != "[[topics]]")
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let (start, defaults) = rule.split_at(4);
    assert_eq!(
        start,
        [
            "[[topics]]",
            "pattern = \"a\" # throng.toml:3",
            "join = \"allow\" # default",
            "presence = true # throng.toml:2",
        ]
    );
    assert_eq!(defaults[0], "events = false # default");
    assert!(defaults.iter().all(|line| line.ends_with(" # default")), "{defaults:?}");
}

proptest::proptest! {
    #[test]
    fn noise_in_rules_never_panics(text in "((\\[\\[topics\\]\\]|\\[topics\\]|topics = \\[\\{\\}\\])\n|(pattern|join|presence|webhook_url|history_messages_max|acknowledge|durable|dead_letter|x) = (\\[\\]|[0-9]{1,20}|\"[a-z*]{0,9}\"|\"webhook\"|true|\\{\\})\n){0,9}") {
        let _ = load(&text);
    }

    #[test]
    fn printed_rules_load_again(
        rules in proptest::collection::vec(
            (
                ".{0,12}|[\\x00-\\x7f*]{0,12}", 0usize..3, 0usize..5,
                proptest::prelude::any::<bool>(), 0u64..3,
            ),
            0..5,
        ),
    ) {
        let mut file = String::from("[webhook]\nurl = \"http://a\"\n");
        for (at, (pattern, join, events, presence, messages)) in rules.iter().enumerate() {
            // The number prevents one pattern from covering another.
            let pattern = toml::Value::String(format!("{at}{pattern}"));
            file.push_str(&format!(
                "[[topics]]\npattern = {pattern}\njoin = \"{}\"\npresence = {presence}\n",
                JOIN_WORDS[*join]
            ));
            if *messages > 0 {
                file.push_str(&format!(
                    "history_messages_max = {messages}\nacknowledge = {presence}\n"
                ));
            }
            if let Some(word) = PUBLISH_WORDS.get(*events) {
                file.push_str(&format!("publish = \"{word}\"\nwebhook_url = \"http://b/{at}\"\n"));
            }
        }
        let loaded = load(&file).unwrap();
        proptest::prop_assert_eq!(loaded.config.topics.len(), rules.len());
        let again = load(&effective(&loaded)).unwrap();
        proptest::prop_assert_eq!(loaded.config, again.config);
    }
}
