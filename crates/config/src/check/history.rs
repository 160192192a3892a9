//! Checks of history, acknowledgements and the store.

use std::collections::BTreeSet;

use model::name::{BROADCAST, PERSONAL, check_name};
use model::rules::matches;

use super::Checks;
use crate::source::default_value;
use crate::tables::Absent;
use crate::topics::TOPIC_KEYS;
use crate::values::Rule;
use crate::{Config, Value};

/// Keys of a rule that need history.
const HISTORY_KEYS: [&str; 5] =
    ["history_bytes_max", "history_seconds_max", "durable", "compact", "acknowledge"];

/// Keys of a rule that need acknowledgements.
const ACKNOWLEDGE_KEYS: [&str; 4] =
    ["ack_window_messages_max", "ack_redelivery_seconds", "ack_tries_max", "dead_letter"];

const NO_STORE: &str = "a durable message needs a disk or a database: set store.data (--data) or \
                        history.url, or set this to false";

/// The largest message must fit into a topic's history, into all history, and into the store's queue. This does not
/// matter while no topic has history.
pub(super) fn check_sections(config: &Config, checks: &mut Checks<'_>) {
    let Config { limits, store, history, inbox, topics, .. } = config;
    let has_history = inbox.enabled || topics.iter().any(|rule| rule.history_messages_max > 0);
    let mut fits = |key: &'static str, bytes: u64, on: bool| {
        let holds = !on || limits.message_bytes_max <= bytes;
        checks.require(&[key, "limits.message_bytes_max"], holds, || {
            too_small(key, bytes, limits.message_bytes_max)
        });
    };
    let has_database = !history.url.is_empty();
    fits("store.queue_bytes_max", store.queue_bytes_max, has_history && !store.data.is_empty());
    fits("history.queue_bytes_max", history.queue_bytes_max, has_history && has_database);
    fits("history.bytes_max", history.bytes_max, has_history);
    fits("inbox.bytes_max", inbox.bytes_max, inbox.enabled);
    let durable = inbox.enabled && inbox.durable;
    let has_disk = has_database || !store.data.is_empty();
    checks.require(&["inbox.durable", "store.data"], !durable || has_disk, || NO_STORE.into());
    if has_database {
        check_database(config, checks);
    }
    let rules = &checks.read.rules;
    let error = inbox.enabled.then(|| dead_letter_error(&inbox.dead_letter, config, rules, None));
    if let Some(error) = error.flatten() {
        checks.require(&["inbox.dead_letter"], false, || error);
    }
}

/// Checks the settings that conflict with a history in PostgreSQL.
fn check_database(config: &Config, checks: &mut Checks<'_>) {
    checks.require(&["history.url", "store.data"], config.store.data.is_empty(), || {
        "messages can be stored in only one of them: remove history.url or store.data (--data)"
            .into()
    });
    let is_durable = !config.inbox.enabled || config.inbox.durable;
    checks.require(&["inbox.durable", "history.url"], is_durable, || {
        "a message gets its id when PostgreSQL has stored it, so its publisher must wait for that: \
         set inbox.durable = true"
            .into()
    });
}

/// Returns the errors of the rule at `index`, as keys and messages. `invalid` contains the settings whose values are
/// unknown.
pub(super) fn check_rule(
    config: &Config,
    rules: &[Rule],
    index: usize,
    invalid: &BTreeSet<&'static str>,
) -> Vec<(&'static str, String)> {
    let (Some(rule), Some(typed)) = (rules.get(index), config.topics.get(index)) else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    let known = |key: &str| !rule.invalid.contains(key);
    let changed = |keys: &[&'static str]| -> Vec<&'static str> {
        keys.iter().copied().filter(|key| is_changed(rule, key)).collect()
    };
    if typed.history_messages_max == 0 {
        if known("history_messages_max") {
            let message = "it has no effect while the server retains no messages of the topic: set \
                           history_messages_max in this rule, or remove this";
            let keys = [&HISTORY_KEYS[..], &ACKNOWLEDGE_KEYS[..]].concat();
            errors.extend(changed(&keys).into_iter().map(|key| (key, message.into())));
        }
        return errors;
    }
    let has_database = !config.history.url.is_empty() && !invalid.contains("history.url");
    let is_nowhere = config.store.data.is_empty() && config.history.url.is_empty();
    if typed.durable && is_nowhere && !invalid.contains("store.data") {
        errors.push(("durable", NO_STORE.into()));
    }
    if has_database && !typed.durable && known("durable") {
        let message = "a message gets its id when PostgreSQL has stored it, so its publisher must \
                       wait for that: set durable = true in this rule";
        errors.push(("durable", message.into()));
    }
    let (bytes, message) = (typed.history_bytes_max, config.limits.message_bytes_max);
    let sure = known("history_bytes_max") && !invalid.contains("limits.message_bytes_max");
    if sure && bytes < message {
        errors.push(("history_bytes_max", too_small("history_bytes_max", bytes, message)));
    }
    if typed.acknowledge {
        if typed.compact {
            let message = "a compacted topic forgets messages that a newer one replaces, whether \
                           or not they were acknowledged: remove compact or acknowledge";
            errors.push(("compact", message.into()));
        }
        if typed.conflate {
            let message = "a client gets all messages that it has to acknowledge: remove conflate \
                           or acknowledge";
            errors.push(("conflate", message.into()));
        }
        let message = dead_letter_error(&typed.dead_letter, config, rules, Some(index));
        errors.extend(message.map(|message| ("dead_letter", message)));
    } else if known("acknowledge") {
        let message = "it has no effect while users don't acknowledge: set acknowledge = true in \
                       this rule, or remove this";
        errors.extend(changed(&ACKNOWLEDGE_KEYS).into_iter().map(|key| (key, message.into())));
    }
    errors
}

/// Returns true if a key's value differs from its default, whatever set it: a printed configuration contains every
/// key and must be as valid as its file.
fn is_changed(rule: &Rule, key: &str) -> bool {
    let default = TOPIC_KEYS.iter().find(|known| known.key == key).and_then(|known| {
        match known.absent {
            Absent::Default(text) => default_value(known, text),
            // Earlier versions had this default, and printed it for every rule.
            Absent::Unset(text) if key == "history_seconds_max" => default_value(known, text),
            Absent::Unset(_) | Absent::Required(_) => None,
        }
    });
    let value: Option<&Value> = rule.values.get(key).map(|(value, _)| value);
    value.is_some() && value != default.as_ref()
}

fn too_small(key: &str, bytes: u64, message: u64) -> String {
    format!(
        "the largest message must fit: make {key} (it is {bytes}) at least \
         limits.message_bytes_max, which is {message}"
    )
}

/// The reason why dead letters can't go to this topic, if so. `own` is the rule of the messages.
fn dead_letter_error(
    name: &str,
    config: &Config,
    rules: &[Rule],
    own: Option<usize>,
) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    if name.starts_with(PERSONAL) || name == BROADCAST {
        let whose = if name == BROADCAST { "every connection's" } else { "a user's own" };
        return Some(format!(
            "{name:?} is {whose} topic: name one for dead letters alone, like \"dead-letters\""
        ));
    }
    if let Err(reason) = check_name(name) {
        return Some(format!("{name:?} is not a valid topic: {reason}"));
    }
    // After an invalid pattern it is unknown which rule applies to the topic.
    let sure = rules.iter().take_while(|rule| rule.values.contains_key("pattern")).count();
    let patterns = config.topics.iter().take(sure).map(|rule| &rule.pattern);
    let index = patterns.into_iter().position(|pattern| matches(pattern, name))?;
    let pattern = &config.topics[index].pattern;
    if own == Some(index) {
        return Some(format!(
            "{name:?} is one of this rule's own topics, so a message would loop forever: name a \
             topic that {pattern:?} doesn't match, or give it a rule without acknowledge before \
             this one"
        ));
    }
    config.topics[index].acknowledge.then(|| {
        format!(
            "{name:?} has acknowledge = true itself, by topics[{index}] ({pattern:?}): name a \
             topic without it"
        )
    })
}

#[cfg(test)]
mod tests {
    use crate::{Config, Loaded, Sources, effective};

    /// Loads a file, prints the configuration and loads it again: no check may depend on the source of a value.
    fn load(file: &str) -> Result<Config, String> {
        let loaded = |name, text| {
            let sources = Sources { file: Some((name, text)), ..Sources::default() };
            Loaded::load(&sources).map_err(|errors| errors.to_string())
        };
        let first = loaded("throng.toml", file)?;
        let again = loaded("again.toml", &effective(&first)).unwrap();
        assert_eq!(again.config, first.config);
        Ok(first.config)
    }

    /// The errors of a file, without the file's name.
    fn errors_of(file: &str) -> Vec<String> {
        let errors = load(file).err().unwrap_or_default();
        let cut = |line: &str| line.replace("throng.toml:", "");
        errors.lines().map(cut).collect()
    }

    #[track_caller]
    fn only(file: &str, want: &str) {
        let errors = errors_of(file);
        assert!(errors.len() == 1 && errors[0].starts_with(want), "{want}\nin\n{errors:#?}");
    }

    #[test]
    fn a_history_in_a_database_refuses_what_it_does_not_have() {
        let database = "[history]\nurl = \"postgres://h/d\"\n";
        let rule = "[[topics]]\npattern = \"a\"\nhistory_messages_max = 9\n";
        let of = |more: &str| errors_of(&format!("{database}{more}"));
        assert!(of(&format!("{rule}durable = true\n")).is_empty());
        only(
            &format!("{database}{rule}"),
            "4:11: topics[0].durable: a message gets its id when PostgreSQL",
        );
        assert!(of(&format!("{rule}durable = true\ncompact = true\n")).is_empty());
        assert!(of(&format!("{rule}durable = true\nacknowledge = true\n")).is_empty());
        let inbox = "[inbox]\nenabled = true\n";
        let want = "2:7: history.url: a message gets its id when PostgreSQL has stored it";
        only(&format!("{database}{inbox}"), want);
        assert!(of(&format!("{inbox}durable = true\n")).is_empty());
        let store = format!("{database}[store]\ndata = \"d\"\n");
        only(&store, "2:7: history.url: messages can be stored in only one");
        assert!(of("[mqtt]\nlisten = \"127.0.0.1:0\"\n").is_empty());
        let queue = format!("{database}queue_bytes_max = \"1KiB\"\n{rule}durable = true\n");
        only(&queue, "3:19: history.queue_bytes_max: the largest message must fit");
    }

    const WITH_HISTORY: &str = "[[topics]]\npattern = \"a\"\nhistory_messages_max = 9\n";
    const ACKNOWLEDGED: &str =
        "[[topics]]\npattern = \"a\"\nhistory_messages_max = 9\nacknowledge = true\n";

    #[test]
    fn history_keys_without_history_are_errors() {
        for (line, column) in [
            ("history_bytes_max = \"2MiB\"", 21),
            ("history_seconds_max = 5", 23),
            ("durable = true", 11),
            ("compact = true", 11),
            ("acknowledge = true", 15),
            ("ack_window_messages_max = 1", 27),
            ("ack_redelivery_seconds = 1", 26),
            ("ack_tries_max = 1", 17),
            ("dead_letter = \"@a\"", 15),
        ] {
            let key = line.split(' ').next().unwrap();
            for history in ["", "history_messages_max = 0\n"] {
                let file = format!("[[topics]]\npattern = \"a\"\n{line}\n{history}");
                let want = format!("3:{column}: topics[0].{key}: it has no effect while the");
                only(&file, &want);
            }
            // The size of the history is unknown, so this is the only error.
            let file =
                format!("[[topics]]\npattern = \"a\"\nhistory_messages_max = \"x\"\n{line}\n");
            only(
                &file,
                "3:24: topics[0].history_messages_max: expected a whole number from 0 to 10000000, found \"x\"",
            );
        }
        // A rule may repeat a default.
        let file = "[[topics]]\npattern = \"a\"\ndurable = false\nack_tries_max = 0\n\
                    history_seconds_max = 86400\nhistory_bytes_max = 1048576\n";
        assert!(load(file).is_ok());
    }

    #[test]
    fn acknowledgement_keys_without_acknowledge_are_errors() {
        for line in [
            "ack_window_messages_max = 1",
            "ack_redelivery_seconds = 1",
            "ack_tries_max = 1",
            "dead_letter = \"b\"",
        ] {
            let (key, value) = line.split_once(" = ").unwrap();
            let want = format!(
                "4:{}: topics[0].{key}: it has no effect while users don't acknowledge",
                key.len() + 4
            );
            only(&format!("{WITH_HISTORY}{line}\n"), &want);
            let config = load(&format!("{ACKNOWLEDGED}{line}\n")).unwrap();
            assert!(format!("{:?}", config.topics[0]).contains(&format!("{key}: {value}")));
        }
    }

    #[test]
    fn history_works_with_every_pattern() {
        for pattern in ["*", "@*", "a"] {
            let file = format!("[[topics]]\npattern = \"{pattern}\"\nhistory_messages_max = 1\n");
            let rule = load(&file).unwrap().topics.remove(0);
            assert_eq!((rule.history_messages_max, rule.history_bytes_max), (1, 1 << 20));
            assert_eq!(rule.history_seconds_max, None);
        }
        let ten_years = 10 * 365 * 86_400;
        assert!(load(&format!("{WITH_HISTORY}history_seconds_max = {ten_years}\n")).is_ok());
        let long = format!("{WITH_HISTORY}history_seconds_max = {}\n", ten_years + 1);
        only(
            &long,
            "4:23: topics[0].history_seconds_max: expected a whole number from 1 to 315360000, found 315360001",
        );
        let many = "[[topics]]\npattern = \"a\"\nhistory_messages_max = 10000001\n";
        only(
            many,
            "3:24: topics[0].history_messages_max: expected a whole number from 0 to 10000000, found 10000001",
        );
    }

    #[test]
    fn durable_needs_a_store() {
        let durable = format!("{WITH_HISTORY}durable = true\n");
        let want = "4:11: topics[0].durable: a durable message needs a disk or a database: set \
                    store.data";
        only(&durable, want);
        assert!(load(&format!("{durable}[store]\ndata = \"/x\"\n")).is_ok());
        let unknown = format!("{durable}[store]\ndata = 1\n");
        only(&unknown, "6:8: store.data: expected a text, found 1");
        let inbox = "[inbox]\nenabled = true\ndurable = true\n";
        only(inbox, "3:11: inbox.durable: a durable message needs a disk or a database");
        assert!(load(&format!("{inbox}[store]\ndata = \"/x\"\n")).is_ok());
        assert!(load("[inbox]\ndurable = true\n").is_ok());
    }

    #[test]
    fn a_reload_that_lacks_a_store_for_durable_topics_is_rejected() {
        let load = |file: &str| {
            let sources = Sources { file: Some(("throng.toml", file)), ..Sources::default() };
            Loaded::load(&sources).unwrap()
        };
        let (old, store) = (load(""), "[store]\ndata = \"/x\"\n");
        let new = load(&format!("{store}{WITH_HISTORY}durable = true\n"));
        let errors = old.reloaded(&new).unwrap_err().to_string();
        assert!(errors.contains("topics[0].durable: a durable message needs"), "{errors}");
        assert_eq!(load(store).reloaded(&load("")).unwrap().config.store.data, "/x");
    }

    #[test]
    fn compaction_and_acknowledgement_exclude_each_other() {
        only(
            &format!("{ACKNOWLEDGED}compact = true\n"),
            "5:11: topics[0].compact: a compacted topic forgets",
        );
        assert!(load(&format!("{WITH_HISTORY}compact = true\n")).unwrap().topics[0].compact);
    }

    #[test]
    fn the_largest_message_fits_everywhere() {
        let limit = "[limits]\nmessage_bytes_max = 70000\n";
        let small = "_bytes_max = 69999\n";
        only(
            &format!("{limit}{WITH_HISTORY}history{small}"),
            "6:21: topics[0].history_bytes_max: the largest message must fit: make \
             history_bytes_max (it is 69999) at least limits.message_bytes_max, which is 70000",
        );
        let large = "[limits]\nmessage_bytes_max = \"2MiB\"\noutbox_bytes_max = \"4MiB\"\n";
        only(&format!("{large}{WITH_HISTORY}"), "5:11: topics[0].history_bytes_max: the largest");
        let inbox = format!("{limit}[inbox]\nenabled = true\n");
        only(&format!("{inbox}bytes_max = 69999\n"), "5:13: inbox.bytes_max: the largest");
        assert!(load(&format!("{limit}[inbox]\nbytes_max = 69999\n")).is_ok());
        let all = format!("{inbox}[history]\nbytes_max = 69999\n");
        only(&all, "6:13: history.bytes_max: the largest");
        let queue = format!("{inbox}[store]\nqueue_bytes_max = 69999\n");
        assert!(load(&queue).is_ok());
        only(&format!("{queue}data = \"/x\"\n"), "6:19: store.queue_bytes_max: the largest");
        // The largest message is unknown, so this is the only error.
        let unknown = "[limits]\nmessage_bytes_max = \"2m\"\n";
        assert_eq!(errors_of(&format!("{unknown}{WITH_HISTORY}history_bytes_max = 1\n")).len(), 1);
    }

    #[test]
    fn dead_letters_need_a_topic_of_their_own() {
        let rule = |pattern: &str, letter: &str| {
            format!(
                "[[topics]]\npattern = \"{pattern}\"\nhistory_messages_max = 9\nacknowledge = \
                 true\ndead_letter = \"{letter}\"\n"
            )
        };
        let free = "[[topics]]\npattern = \"job:dead\"\n";
        for (file, want) in [
            (rule("a", "*"), "5:15: topics[0].dead_letter: \"*\" is every connection's topic"),
            (rule("a", "@b"), "5:15: topics[0].dead_letter: \"@b\" is a user's own topic"),
            (rule("a", "b\\n"), "5:15: topics[0].dead_letter: \"b\\n\" is not a valid topic"),
            (rule("a", &"b".repeat(255)), "5:15: topics[0].dead_letter: \"bbb"),
            (
                rule("job:*", "job:dead"),
                "5:15: topics[0].dead_letter: \"job:dead\" is one of this rule's own topics, so a \
                 message would loop forever: name a topic that \"job:*\" doesn't match",
            ),
            (
                format!("{}{}", rule("job:*", ""), rule("b", "job:dead")),
                "10:15: topics[1].dead_letter: \"job:dead\" has acknowledge = true itself, by \
                 topics[0] (\"job:*\")",
            ),
            (
                format!("{ACKNOWLEDGED}[inbox]\nenabled = true\ndead_letter = \"a\"\n"),
                "7:15: inbox.dead_letter: \"a\" has acknowledge = true itself, by topics[0]",
            ),
            (
                "[inbox]\nenabled = true\ndead_letter = \"@a\"\n".into(),
                "3:15: inbox.dead_letter: \"@a\" is a user's own topic",
            ),
            // The topic's rule is unknown, so this is the only error.
            (
                format!("[[topics]]\npattern = 1\n{}", rule("*", "x")),
                "2:11: topics[0].pattern: expected a text of 1 to 254 bytes, found 1",
            ),
        ] {
            only(&file, want);
        }
        for valid in [
            rule("a", "b"),
            rule("a", ""),
            format!("{free}{}", rule("job:*", "job:dead")),
            format!("{}{WITH_HISTORY}", rule("b", "a")),
            format!("{}[inbox]\nenabled = true\ndead_letter = \"b\"\n", rule("a", "b")),
        ] {
            assert!(load(&valid).is_ok(), "{valid}");
        }
    }
}
