//! Old names of settings. The server reads them until [`UNTIL`], each with a warning, and prints only the new names.

use std::fmt;

use crate::Origin;

/// The version that no longer reads these names.
const UNTIL: &str = "0.4";

/// Settings: the prefix of old keys, and the prefix of new ones.
const SETTINGS: &[(&str, &str)] = &[("offline.", "inbox.")];

/// Keys of rules.
const TOPIC_KEYS: &[RenamedKey] =
    &[RenamedKey { old: "client_events", new: "publish", words: &[("broadcast", "allow")] }];

/// A renamed key of a rule.
pub(crate) struct RenamedKey {
    pub old: &'static str,
    pub new: &'static str,
    /// Renamed values: the old one, and the new one.
    words: &'static [(&'static str, &'static str)],
}

impl RenamedKey {
    /// The new name of a value.
    pub fn word<'a>(&self, old: &'a str) -> &'a str {
        self.words.iter().find(|(word, _)| *word == old).map_or(old, |(_, new)| new)
    }
}

/// The new name of a section.
pub(crate) fn section(old: &str) -> Option<&'static str> {
    let mut names = SETTINGS
        .iter()
        .filter_map(|(from, to)| Some((from.strip_suffix('.')?, to.strip_suffix('.')?)));
    names.find_map(|(from, to)| (from == old).then_some(to))
}

/// The new key of a setting.
pub(crate) fn setting(old: &str) -> Option<String> {
    SETTINGS.iter().find_map(|(from, to)| Some(format!("{to}{}", old.strip_prefix(from)?)))
}

/// The new name of a setting's variable.
pub(crate) fn variable(old: &str) -> Option<String> {
    let upper = |key: &str| format!("THRONG_{}", key.replace('.', "_").to_uppercase());
    SETTINGS
        .iter()
        .find_map(|(from, to)| Some(format!("{}{}", upper(to), old.strip_prefix(&upper(from))?)))
}

/// The new name of a rule's key.
pub(crate) fn topic_key(old: &str) -> Option<&'static RenamedKey> {
    TOPIC_KEYS.iter().find(|renamed| renamed.old == old)
}

/// An old name in a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OldName {
    pub origin: Origin,
    /// The old name, as written.
    pub old: String,
    /// The new name to write instead.
    pub new: String,
}

/// Returns a text for each old name, with its first origins and the new name.
pub(crate) fn warnings(names: &[OldName]) -> Vec<String> {
    let mut firsts: Vec<&OldName> = Vec::new();
    for name in names {
        if !firsts.iter().any(|first| is_same(first, name)) {
            firsts.push(name);
        }
    }
    let text = |first: &OldName| {
        let others = names.iter().filter(|name| is_same(first, name)).skip(1);
        let others: Vec<String> = others.map(|name| name.origin.to_string()).collect();
        let OldName { origin, old, new } = first;
        let also = Also(&others);
        format!(
            "{origin}: write {new} instead of {old}, which the server reads only until version \
             {UNTIL}{also}"
        )
    };
    firsts.into_iter().map(text).collect()
}

fn is_same(a: &OldName, b: &OldName) -> bool {
    (&a.old, &a.new) == (&b.old, &b.new)
}

/// Origins other than the first.
struct Also<'a>(&'a [String]);

/// Other origins in a warning, at most.
const ORIGINS_MAX: usize = 10;

impl fmt::Display for Also<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Also(origins) = self;
        if origins.is_empty() {
            return Ok(());
        }
        let (named, rest) = origins.split_at(origins.len().min(ORIGINS_MAX));
        write!(f, "; also in {}", named.join(", "))?;
        if rest.is_empty() { Ok(()) } else { write!(f, " and {} more", rest.len()) }
    }
}

#[cfg(test)]
mod tests {
    use model::PublishRule;

    use crate::{Loaded, Sources, effective};

    fn load(file: &str, variables: &[(&str, &str)]) -> Result<Loaded, String> {
        let variables = variables.iter().map(|(name, text)| ((*name).into(), (*text).into()));
        let sources = Sources {
            file: Some(("throng.toml", file)),
            variables: variables.collect(),
            ..Sources::default()
        };
        Loaded::load(&sources).map_err(|errors| errors.to_string())
    }

    #[test]
    fn old_names_are_read_as_the_new_ones_with_a_warning_each() {
        let old = load(
            "[[topics]]\npattern = \"a\"\nclient_events = \"broadcast\"\n[[topics]]\npattern = \
             \"b\"\nclient_events = \"refuse\"\n[offline]\nenabled = true\nmessages_max = 7\n",
            &[("THRONG_OFFLINE_BYTES_MAX", "1MiB")],
        );
        let new = load(
            "[[topics]]\npattern = \"a\"\npublish = \"allow\"\n[[topics]]\npattern = \
             \"b\"\npublish = \"refuse\"\n[inbox]\nenabled = true\nmessages_max = 7\n",
            &[("THRONG_INBOX_BYTES_MAX", "1MiB")],
        );
        let (old, new) = (old.unwrap(), new.unwrap());
        assert_eq!(old.config, new.config);
        assert_eq!(old.config.topics[0].publish, Some(PublishRule::Allow));
        assert_eq!((old.config.inbox.messages_max, old.config.inbox.bytes_max), (7, 1 << 20));
        assert_eq!(
            old.warnings(),
            [
                "throng.toml:3: write publish = \"allow\" instead of client_events = \
                 \"broadcast\", which the server reads only until version 0.4",
                "throng.toml:6: write publish = \"refuse\" instead of client_events = \
                 \"refuse\", which the server reads only until version 0.4",
                "throng.toml:7: write [inbox] instead of [offline], which the server reads only until \
                 version 0.4",
                "variable THRONG_OFFLINE_BYTES_MAX: write THRONG_INBOX_BYTES_MAX instead of \
                 THRONG_OFFLINE_BYTES_MAX, which the server reads only until version 0.4",
            ]
        );
        assert!(new.warnings().is_empty());
        // Only the new names are printed, with their origins.
        let text = effective(&old);
        for want in ["[inbox]", "publish = \"allow\"", "# throng.toml:8", "# throng.toml:3"] {
            assert!(text.contains(want), "{want}\nin\n{text}");
        }
        assert!(!text.contains("offline.") && !text.contains("client_events ="), "{text}");
        assert!(load(&text, &[]).unwrap().warnings().is_empty());
        // Values that a reload leaves in force cause the warnings of the new file.
        assert_eq!(new.reloaded(&old).unwrap().warnings(), old.warnings());
        assert!(old.reloaded(&new).unwrap().warnings().is_empty());
    }

    #[test]
    fn many_origins_are_one_warning() {
        let rule = |n: u32| format!("[[topics]]\npattern = \"{n}\"\nclient_events = \"others\"\n");
        let file = |rules: u32| (0..rules).map(rule).collect::<String>();
        let warnings = |rules| load(&file(rules), &[]).unwrap().warnings();
        let few = warnings(3);
        assert!(few[0].ends_with("; also in throng.toml:6, throng.toml:9"), "{few:?}");
        let many = warnings(1_000);
        assert!(many[0].ends_with("throng.toml:33 and 989 more"), "{many:?}");
        assert_eq!((few.len(), many.len()), (1, 1));
    }

    #[test]
    fn an_old_name_and_a_new_one_are_not_both_read_from_one_source() {
        for (file, want) in [
            (
                "[offline]\nbytes_max = 1\n[inbox]\nbytes_max = 2\n",
                "throng.toml:2:13: offline.bytes_max: it is called inbox.bytes_max now, which \
                 throng.toml:4 sets, too: remove offline.bytes_max",
            ),
            (
                "[[topics]]\npattern = \"a\"\npublish = \"allow\"\nclient_events = \"refuse\"\n",
                "throng.toml:4:17: topics[0].client_events: it is called publish now, which \
                 throng.toml:3 sets, too: remove client_events",
            ),
        ] {
            assert_eq!(load(file, &[]).unwrap_err(), want);
        }
        let (old, new) = (("THRONG_OFFLINE_ENABLED", "true"), ("THRONG_INBOX_ENABLED", "false"));
        for variables in [[old, new], [new, old]] {
            assert_eq!(
                load("", &variables).unwrap_err(),
                "variable THRONG_OFFLINE_ENABLED: inbox.enabled: it is called \
                 THRONG_INBOX_ENABLED now, which variable THRONG_INBOX_ENABLED sets, too: \
                 remove THRONG_OFFLINE_ENABLED"
            );
        }
        // Different keys in both sections, and a later source with either name, are valid.
        let both = "[offline]\nenabled = true\n[inbox]\nbytes_max = \"1MiB\"\n";
        let loaded = load(both, &[("THRONG_INBOX_ENABLED", "false")]).unwrap();
        assert_eq!((loaded.config.inbox.enabled, loaded.config.inbox.bytes_max), (false, 1 << 20));
        let loaded = load("[inbox]\nenabled = true\n", &[("THRONG_OFFLINE_ENABLED", "false")]);
        assert!(!loaded.unwrap().config.inbox.enabled);
    }

    #[test]
    fn errors_with_an_old_name_say_the_new_one() {
        for (file, variables, want) in [
            (
                "[offline]\nenabled = 1\n",
                &[][..],
                "throng.toml:2:11: offline.enabled: expected true or false, found 1; it \
                 is called inbox.enabled now",
            ),
            (
                "[offline]\nenable = true\n",
                &[],
                "throng.toml:2:1: offline.enable: there is no such setting; did you mean \
                 inbox.enabled?",
            ),
            (
                "offline = 1\n",
                &[],
                "throng.toml:1:1: offline: this is a section: write [inbox], and below it its \
                 settings",
            ),
            (
                "[[topics]]\npattern = \"a\"\nclient_events = \"all\"\n",
                &[],
                "throng.toml:3:17: topics[0].client_events: expected one of \"allow\", \
                 \"others\", \"refuse\", \"webhook\", \"ask\", found \"all\"; it is called publish now",
            ),
            (
                "",
                &[("THRONG_OFFLINE_TRIES_MAX", "many")],
                "variable THRONG_OFFLINE_TRIES_MAX: inbox.tries_max: expected a whole \
                 number from 0 to 60000, found \"many\"; it is called THRONG_INBOX_TRIES_MAX now",
            ),
        ] {
            assert_eq!(load(file, variables).unwrap_err(), want);
        }
    }

    proptest::proptest! {
        #[test]
        fn noise_in_old_names_never_panics(
            text in "((\\[offline\\]|\\[inbox\\]|\\[\\[topics\\]\\]|offline = (1|\\{\\}))\n|(enabled|bytes_max|pattern|client_events|publish) = ([0-9]{1,20}|\"broadcast\"|\"a\"|true|\\{\\})\n){0,9}",
            name in "THRONG_(OFFLINE|INBOX)_?[A-Z_]{0,9}",
        ) {
            let _ = load(&text, &[(&name, "1")]).map(|loaded| loaded.warnings());
        }
    }
}
