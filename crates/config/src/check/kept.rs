//! What must hold of what is kept: history, acknowledgements, the store.

use std::collections::BTreeSet;

use wire::message::{BROADCAST, PERSONAL, check_name};
use wire::rules::matches;

use super::Checks;
use crate::source::{Rule, default_value};
use crate::topics::{Absent, TOPIC_KEYS};
use crate::{Config, Value};

/// Keys of a rule that say something about its history.
const OF_HISTORY: [&str; 5] =
    ["history_bytes_max", "history_seconds_max", "durable", "compact", "acknowledge"];

/// Keys of a rule that say something about its acknowledgements.
const OF_ACKNOWLEDGE: [&str; 4] =
    ["ack_window_messages_max", "ack_redelivery_seconds", "ack_tries_max", "dead_letter"];

const NO_STORE: &str = "a durable message needs a disk to be on: set store.data (--data), or make \
                        this false";

/// Message ≤ what is kept of a topic, of all topics, and ≤ what waits to be written. Of no concern
/// while nothing is kept.
pub(super) fn sections(config: &Config, checks: &mut Checks<'_>) {
    let Config { limits, store, history, offline, topics, .. } = config;
    let keeps = offline.enabled || topics.iter().any(|rule| rule.history_messages_max > 0);
    let mut fits = |key: &'static str, bytes: u64, on: bool| {
        let holds = !on || limits.message_bytes_max <= bytes;
        checks.must(&[key, "limits.message_bytes_max"], holds, || {
            one_must_fit(key, bytes, limits.message_bytes_max)
        });
    };
    fits("store.queue_bytes_max", store.queue_bytes_max, keeps && !store.data.is_empty());
    fits("history.bytes_max", history.bytes_max, keeps);
    fits("offline.bytes_max", offline.bytes_max, offline.enabled);
    let durable = offline.enabled && offline.durable;
    checks.must(&["offline.durable", "store.data"], !durable || !store.data.is_empty(), || {
        NO_STORE.into()
    });
    let rules = &checks.read.rules;
    let wrong = offline.enabled.then(|| dead_letter(&offline.dead_letter, config, rules, None));
    if let Some(wrong) = wrong.flatten() {
        checks.must(&["offline.dead_letter"], false, || wrong);
    }
}

/// What is wrong with the rule at `index`: keys, and what to do. `unsound` are the settings whose
/// values are not known.
pub(super) fn rule(
    config: &Config,
    rules: &[Rule],
    index: usize,
    unsound: &BTreeSet<&'static str>,
) -> Vec<(&'static str, String)> {
    let (Some(rule), Some(typed)) = (rules.get(index), config.topics.get(index)) else {
        return Vec::new();
    };
    let mut wrong = Vec::new();
    let known = |key: &str| !rule.unsound.contains(key);
    let changed = |keys: &[&'static str]| -> Vec<&'static str> {
        keys.iter().copied().filter(|key| is_changed(rule, key)).collect()
    };
    if typed.history_messages_max == 0 {
        if known("history_messages_max") {
            let message = "it does nothing while none of the topic's messages are kept: set \
                           history_messages_max in this rule, or take this away";
            let keys = [&OF_HISTORY[..], &OF_ACKNOWLEDGE[..]].concat();
            wrong.extend(changed(&keys).into_iter().map(|key| (key, message.into())));
        }
        return wrong;
    }
    if typed.durable && config.store.data.is_empty() && !unsound.contains("store.data") {
        wrong.push(("durable", NO_STORE.into()));
    }
    let (bytes, message) = (typed.history_bytes_max, config.limits.message_bytes_max);
    let sure = known("history_bytes_max") && !unsound.contains("limits.message_bytes_max");
    if sure && bytes < message {
        wrong.push(("history_bytes_max", one_must_fit("history_bytes_max", bytes, message)));
    }
    if typed.acknowledge {
        if typed.compact {
            let message = "a compacted topic forgets messages that a newer one replaces, whether \
                           or not they were acknowledged: take compact or acknowledge away";
            wrong.push(("compact", message.into()));
        }
        let message = dead_letter(&typed.dead_letter, config, rules, Some(index));
        wrong.extend(message.map(|message| ("dead_letter", message)));
    } else if known("acknowledge") {
        let message = "it does nothing while users don't acknowledge: set acknowledge = true in \
                       this rule, or take this away";
        wrong.extend(changed(&OF_ACKNOWLEDGE).into_iter().map(|key| (key, message.into())));
    }
    wrong
}

/// Whether a key has another value than if it were left out. Who wrote it does not count: the
/// configuration in force, which has every key, is as good as the file it came from.
fn is_changed(rule: &Rule, key: &str) -> bool {
    let default = TOPIC_KEYS.iter().find(|known| known.key == key).and_then(|known| {
        let Absent::Default(text) = known.absent else {
            return None;
        };
        default_value(known, text)
    });
    let value: Option<&Value> = rule.values.get(key).map(|(value, _)| value);
    value.is_some() && value != default.as_ref()
}

fn one_must_fit(key: &str, bytes: u64, message: u64) -> String {
    format!(
        "the largest message must fit: make {key} (it is {bytes}) at least \
         limits.message_bytes_max, which is {message}"
    )
}

/// Why messages that nobody acknowledges can't go to this topic, if so; `own` is the rule they come
/// from.
fn dead_letter(name: &str, config: &Config, rules: &[Rule], own: Option<usize>) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    if name.starts_with(PERSONAL) || name == BROADCAST {
        let whose = if name == BROADCAST { "every connection's" } else { "a user's own" };
        return Some(format!(
            "{name:?} is {whose} topic: name one for dead letters alone, like \"dead-letters\""
        ));
    }
    if let Err(wrong) = check_name(name) {
        return Some(format!("{name:?} is no topic: {wrong}"));
    }
    // After a pattern that is wrong nobody knows which rule is the topic's.
    let sure = rules.iter().take_while(|rule| rule.values.contains_key("pattern")).count();
    let patterns = config.topics.iter().take(sure).map(|rule| &rule.pattern);
    let index = patterns.into_iter().position(|pattern| matches(pattern, name))?;
    let pattern = &config.topics[index].pattern;
    if own == Some(index) {
        return Some(format!(
            "{name:?} is one of this rule's own topics, so a message would go round for ever: \
             name a topic that {pattern:?} doesn't match, or give it a rule without acknowledge \
             before this one"
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

    /// What is loaded can be loaded again from what is in force: no check may ask who set a value.
    fn load(file: &str) -> Result<Config, String> {
        let loaded = |name, text| {
            let sources = Sources { file: Some((name, text)), ..Sources::default() };
            Loaded::load(&sources).map_err(|problems| problems.to_string())
        };
        let first = loaded("throng.toml", file)?;
        let again = loaded("again.toml", &effective(&first)).unwrap();
        assert_eq!(again.config, first.config);
        Ok(first.config)
    }

    /// The problems of a file, with the place cut off that all share.
    fn problems(file: &str) -> Vec<String> {
        let problems = load(file).err().unwrap_or_default();
        let cut = |line: &str| line.replace("throng.toml:", "");
        problems.lines().map(cut).collect()
    }

    #[track_caller]
    fn only(file: &str, want: &str) {
        let problems = problems(file);
        assert!(problems.len() == 1 && problems[0].starts_with(want), "{want}\nin\n{problems:#?}");
    }

    const KEPT: &str = "[[topics]]\npattern = \"a\"\nhistory_messages_max = 9\n";
    const ACKNOWLEDGED: &str =
        "[[topics]]\npattern = \"a\"\nhistory_messages_max = 9\nacknowledge = true\n";

    #[test]
    fn what_says_something_about_no_history_is_a_problem() {
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
                let want = format!("3:{column}: topics[0].{key}: it does nothing while none of");
                only(&file, &want);
            }
            // Nobody knows yet how much will be kept.
            let file =
                format!("[[topics]]\npattern = \"a\"\nhistory_messages_max = \"x\"\n{line}\n");
            only(&file, "3:24: topics[0].history_messages_max: string is not right here");
        }
        // What says what holds anyway is none.
        let file = "[[topics]]\npattern = \"a\"\ndurable = false\nack_tries_max = 0\n\
                    history_seconds_max = 86400\nhistory_bytes_max = 1048576\n";
        assert!(load(file).is_ok());
    }

    #[test]
    fn what_says_something_about_no_acknowledgement_is_a_problem() {
        for line in [
            "ack_window_messages_max = 1",
            "ack_redelivery_seconds = 1",
            "ack_tries_max = 1",
            "dead_letter = \"b\"",
        ] {
            let (key, value) = line.split_once(" = ").unwrap();
            let want = format!(
                "4:{}: topics[0].{key}: it does nothing while users don't acknowledge",
                key.len() + 4
            );
            only(&format!("{KEPT}{line}\n"), &want);
            let config = load(&format!("{ACKNOWLEDGED}{line}\n")).unwrap();
            assert!(format!("{:?}", config.topics[0]).contains(&format!("{key}: {value}")));
        }
    }

    #[test]
    fn history_works_on_every_pattern() {
        for pattern in ["*", "@*", "a"] {
            let file = format!("[[topics]]\npattern = \"{pattern}\"\nhistory_messages_max = 1\n");
            let rule = load(&file).unwrap().topics.remove(0);
            assert_eq!((rule.history_messages_max, rule.history_bytes_max), (1, 1 << 20));
            assert_eq!(rule.history_seconds_max, 86_400);
        }
        let ten_years = 10 * 365 * 86_400;
        assert!(load(&format!("{KEPT}history_seconds_max = {ten_years}\n")).is_ok());
        let long = format!("{KEPT}history_seconds_max = {}\n", ten_years + 1);
        only(&long, "4:23: topics[0].history_seconds_max: 315360001 is out of bounds");
        let many = "[[topics]]\npattern = \"a\"\nhistory_messages_max = 10000001\n";
        only(many, "3:24: topics[0].history_messages_max: 10000001 is out of bounds");
    }

    #[test]
    fn durable_needs_a_store() {
        let durable = format!("{KEPT}durable = true\n");
        only(&durable, "4:11: topics[0].durable: a durable message needs a disk to be on: set st");
        assert!(load(&format!("{durable}[store]\ndata = \"/x\"\n")).is_ok());
        let unknown = format!("{durable}[store]\ndata = 1\n");
        only(&unknown, "6:8: store.data: integer is not right here");
        let offline = "[offline]\nenabled = true\ndurable = true\n";
        only(offline, "3:11: offline.durable: a durable message needs a disk to be on");
        assert!(load(&format!("{offline}[store]\ndata = \"/x\"\n")).is_ok());
        assert!(load("[offline]\ndurable = true\n").is_ok());
    }

    #[test]
    fn a_store_is_not_taken_away_from_durable_topics_by_a_reload() {
        let load = |file: &str| {
            let sources = Sources { file: Some(("throng.toml", file)), ..Sources::default() };
            Loaded::load(&sources).unwrap()
        };
        let (old, store) = (load(""), "[store]\ndata = \"/x\"\n");
        let new = load(&format!("{store}{KEPT}durable = true\n"));
        let problems = old.reloaded(&new).unwrap_err().to_string();
        assert!(problems.contains("topics[0].durable: a durable message needs"), "{problems}");
        assert_eq!(load(store).reloaded(&load("")).unwrap().config.store.data, "/x");
    }

    #[test]
    fn compaction_and_acknowledgement_exclude_each_other() {
        only(
            &format!("{ACKNOWLEDGED}compact = true\n"),
            "5:11: topics[0].compact: a compacted topic forgets",
        );
        assert!(load(&format!("{KEPT}compact = true\n")).unwrap().topics[0].compact);
    }

    #[test]
    fn the_largest_message_fits_everywhere() {
        let limit = "[limits]\nmessage_bytes_max = 70000\n";
        let small = "_bytes_max = 69999\n";
        only(
            &format!("{limit}{KEPT}history{small}"),
            "6:21: topics[0].history_bytes_max: the largest message must fit: make \
             history_bytes_max (it is 69999) at least limits.message_bytes_max, which is 70000",
        );
        let large = "[limits]\nmessage_bytes_max = \"2MiB\"\noutbox_bytes_max = \"4MiB\"\n";
        only(&format!("{large}{KEPT}"), "5:11: topics[0].history_bytes_max: the largest");
        let offline = format!("{limit}[offline]\nenabled = true\n");
        only(&format!("{offline}bytes_max = 69999\n"), "5:13: offline.bytes_max: the largest");
        assert!(load(&format!("{limit}[offline]\nbytes_max = 69999\n")).is_ok());
        let all = format!("{offline}[history]\nbytes_max = 69999\n");
        only(&all, "6:13: history.bytes_max: the largest");
        let queue = format!("{offline}[store]\nqueue_bytes_max = 69999\n");
        assert!(load(&queue).is_ok());
        only(&format!("{queue}data = \"/x\"\n"), "6:19: store.queue_bytes_max: the largest");
        // Nobody knows yet how large messages may be.
        let unknown = "[limits]\nmessage_bytes_max = \"2mb\"\n";
        assert_eq!(problems(&format!("{unknown}{KEPT}history_bytes_max = 1\n")).len(), 1);
    }

    #[test]
    fn dead_letters_go_to_a_topic_of_their_own() {
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
            (rule("a", "b\\n"), "5:15: topics[0].dead_letter: \"b\\n\" is no topic"),
            (rule("a", &"b".repeat(255)), "5:15: topics[0].dead_letter: \"bbb"),
            (
                rule("job:*", "job:dead"),
                "5:15: topics[0].dead_letter: \"job:dead\" is one of this rule's own topics, so a \
                 message would go round for ever: name a topic that \"job:*\" doesn't match",
            ),
            (
                format!("{}{}", rule("job:*", ""), rule("b", "job:dead")),
                "10:15: topics[1].dead_letter: \"job:dead\" has acknowledge = true itself, by \
                 topics[0] (\"job:*\")",
            ),
            (
                format!("{ACKNOWLEDGED}[offline]\nenabled = true\ndead_letter = \"a\"\n"),
                "7:15: offline.dead_letter: \"a\" has acknowledge = true itself, by topics[0]",
            ),
            (
                "[offline]\nenabled = true\ndead_letter = \"@a\"\n".into(),
                "3:15: offline.dead_letter: \"@a\" is a user's own topic",
            ),
            // Nobody knows yet whose topic it is.
            (
                format!("[[topics]]\npattern = 1\n{}", rule("*", "x")),
                "2:11: topics[0].pattern: int",
            ),
        ] {
            only(&file, want);
        }
        for good in [
            rule("a", "b"),
            rule("a", ""),
            format!("{free}{}", rule("job:*", "job:dead")),
            format!("{}{KEPT}", rule("b", "a")),
            format!("{}[offline]\nenabled = true\ndead_letter = \"b\"\n", rule("a", "b")),
        ] {
            assert!(load(&good).is_ok(), "{good}");
        }
    }
}
