//! Checks of the rules that send messages to a back end.

use model::filter::Filter;

use crate::source::Read;
use crate::url::webhook;
use crate::{Config, SettingError};

/// Tables of `[[forward]]`, at most. Each has rows in the metrics, and each message is compared with all.
const FORWARDS_MAX: usize = 100;

/// Checks each rule by itself, and against those before it.
pub(super) fn check(config: &Config, read: &mut Read) {
    let Read { forwards, errors, .. } = read;
    for (index, (values, rule)) in forwards.iter().zip(&config.forwards).enumerate() {
        let mut add_error = |at: &str, message: String| {
            // A key that is invalid or missing has an error already.
            if let Some((_, origin)) = values.values.get(at) {
                let key = format!("forward[{index}].{at}");
                errors.push(SettingError { origin: origin.clone(), key, message });
            }
        };
        if index == FORWARDS_MAX {
            let message = format!("at most {FORWARDS_MAX} rules are allowed, and this is one more");
            add_error("filter", message);
        }
        let replies = rule.answer_filters.iter().map(|filter| ("answer_filters", filter));
        for (at, filter) in replies.chain([("filter", &rule.filter)]) {
            match Filter::parse(filter) {
                Ok(Filter { group: None, .. }) => {}
                Ok(_) => {
                    let message =
                        "$share is only for clients that subscribe: write the filter after it";
                    add_error(at, message.into());
                }
                Err(error) => {
                    add_error(at, format!("{filter:?} is not a valid topic filter: {error}"));
                }
            }
        }
        if rule.filter.starts_with(['@', '*']) {
            let message =
                "clients publish neither to users nor to everyone, so no message would match";
            add_error("filter", message.into());
        }
        if config.forwards[..index].iter().any(|before| before.filter == rule.filter) {
            let message = "a rule before this one has the same filter, and the first wins";
            add_error("filter", message.into());
        }
        if let Err(reason) = webhook(&rule.url) {
            add_error("url", reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Loaded, Sources, effective};

    fn load(file: &str) -> Result<Loaded, String> {
        let sources = Sources { file: Some(("throng.toml", file)), ..Sources::default() };
        Loaded::load(&sources).map_err(|errors| errors.to_string())
    }

    fn table(filter: &str, more: &str) -> String {
        format!("[[forward]]\nfilter = \"{filter}\"\nurl = \"http://127.0.0.1:9000/a\"\n{more}\n")
    }

    #[test]
    fn rules_are_read_in_file_order() {
        let file =
            table("requests/#", "") + &table("+/alarm", "deliver = false\nretry_seconds = 5");
        let loaded = load(&file).unwrap();
        let [requests, alarms] = &loaded.config.forwards[..] else { panic!("{loaded:?}") };
        assert_eq!((&*requests.filter, requests.deliver), ("requests/#", true));
        assert_eq!((requests.batch_messages_max, requests.retry_seconds), (100, 30));
        assert_eq!((&*alarms.filter, alarms.deliver, alarms.retry_seconds), ("+/alarm", false, 5));
        let text = effective(&loaded);
        assert!(text.contains("\n[[forward]]\nfilter = \"requests/#\""), "{text}");
        let changes = load("").unwrap().changes(&loaded);
        assert_eq!(changes.applied, ["forward"]);
        let reloaded = load("").unwrap().reloaded(&loaded).unwrap();
        assert_eq!(reloaded.config.forwards, loaded.config.forwards);
    }

    #[test]
    fn mistakes_in_rules_are_found() {
        for (file, want) in [
            (
                table("a/#/b", ""),
                "throng.toml:2:10: forward[0].filter: \"a/#/b\" is not a valid topic filter: ",
            ),
            (
                table("a", "answer_filters = [\"b/#\", \"b+\"]"),
                "4:18: forward[0].answer_filters: \"b+\" is no",
            ),
            (table("$share/g/a", ""), "$share is only for clients"),
            (table("@alice", ""), "neither to users nor to everyone"),
            (table("a", "") + &table("a", ""), "forward[1].filter: a rule before this one"),
            ("[[forward]]\nfilter = \"a\"\n".into(), "forward[0].url: it is missing"),
            ("[[forward]]\nurl = \"x\"\nfilter = \"a\"\n".into(), "2:7: forward[0].url: "),
            (table("a", "batch_messages_max = 0"), "a whole number from 1 to 10000"),
            (table("a", "retries = 1"), "forward[0].retries: "),
            (
                (0..101).map(|n| table(&n.to_string(), "")).collect(),
                "at most 100 rules are allowed",
            ),
        ] {
            let error = load(&file).unwrap_err();
            assert!(error.contains(want), "{file}: {error}");
        }
    }
}
