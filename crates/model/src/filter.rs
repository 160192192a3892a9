//! Topic filters of MQTT (OASIS, MQTT 5.0, 4.7 and 4.8.2): `site/+/temp`, `site/#`,
//! `$share/workers/site/#`. Levels lie between slashes, and an empty level is one. `+` stands for one
//! level, `#`, always the last, for any number of them, so `site/#` matches `site` too.
//!
//! A filter with a wildcard matches ordinary topics only: never users' own, which begin with `@`, nor
//! `*`, which is everyone's. As in MQTT, a wildcard at the first level matches none that begins with `$`.

use crate::{TopicKind, rules};

/// The longest topic name and filter in bytes: MQTT says the length in 16 bits.
pub const BYTES_MAX: usize = 65_535;

/// What a filter of a shared subscription begins with.
const SHARE: &str = "$share/";

const WILDCARDS: [char; 2] = ['+', '#'];

/// Why a text is no topic name or no topic filter of MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// It has no character.
    #[error("the topic is empty: write at least one character")]
    Empty,
    /// It is longer than [`BYTES_MAX`].
    #[error("the topic has {0} bytes: at most {BYTES_MAX} are allowed")]
    TooLong(usize),
    /// It has a U+0000.
    #[error("the topic has the character U+0000: leave it out")]
    Null,
    /// The name of one topic has a wildcard.
    #[error(
        "a topic's name may not contain '{0}': name one topic; wildcards are only for subscriptions"
    )]
    WildcardInName(char),
    /// A `+` has something beside it.
    #[error("'+' must be alone between slashes, as in \"site/+/temp\"")]
    Plus,
    /// A `#` has something beside it, or behind it.
    #[error("'#' must be the last level and alone in it, as in \"site/#\"")]
    Hash,
    /// The group of a shared subscription is empty or has a wildcard.
    #[error(
        "the group of a shared subscription must have at least one character, and no '+' or '#': \
         write \"$share/GROUP/FILTER\""
    )]
    Group,
    /// A shared subscription has no filter.
    #[error(
        "a shared subscription must have a topic filter after its group: write \
         \"$share/GROUP/FILTER\""
    )]
    NoFilter,
    /// The filter behind the group is that of a shared subscription.
    #[error("a shared subscription may not contain another one: write \"$share\" once")]
    Nested,
}

/// Checks a topic's name: 1 to [`BYTES_MAX`] bytes, no wildcard and no U+0000. Throng's further rules for names are
/// in [`crate::name::check_topic`].
///
/// # Errors
/// What is wrong with it.
///
/// ```
/// use model::filter::check_name;
///
/// assert!(check_name("/site//temp ").is_ok());
/// assert!(check_name("site/+").is_err() && check_name("").is_err());
/// ```
pub fn check_name(name: &str) -> Result<(), FilterError> {
    check_text(name)?;
    match name.chars().find(|char| WILDCARDS.contains(char)) {
        Some(wildcard) => Err(FilterError::WildcardInName(wildcard)),
        None => Ok(()),
    }
}

/// Checks the rules that names and filters share.
fn check_text(text: &str) -> Result<(), FilterError> {
    if text.is_empty() {
        return Err(FilterError::Empty);
    }
    if text.len() > BYTES_MAX {
        return Err(FilterError::TooLong(text.len()));
    }
    if text.contains('\0') {
        return Err(FilterError::Null);
    }
    Ok(())
}

/// A topic filter that is valid, as a client subscribes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Filter<'a> {
    /// The group whose members share the messages, of `$share/GROUP/FILTER`.
    pub group: Option<&'a str>,
    /// The filter of topics, without `$share` and the group.
    pub filter: &'a str,
}

impl<'a> Filter<'a> {
    /// Parses what a client subscribes to.
    ///
    /// # Errors
    /// What is wrong with it.
    ///
    /// ```
    /// use model::filter::Filter;
    ///
    /// let shared = Filter::parse("$share/workers/site/+/temp")?;
    /// assert_eq!((shared.group, shared.filter), (Some("workers"), "site/+/temp"));
    /// assert!(shared.has_wildcard());
    /// assert!(Filter::parse("site/#/temp").is_err());
    /// # Ok::<(), model::filter::FilterError>(())
    /// ```
    pub fn parse(text: &'a str) -> Result<Self, FilterError> {
        check_text(text)?;
        let Some(shared) = text.strip_prefix(SHARE) else {
            check_levels(text)?;
            return Ok(Filter { group: None, filter: text });
        };
        let (group, filter) = shared.split_once('/').unwrap_or((shared, ""));
        if group.is_empty() || group.contains(WILDCARDS) {
            return Err(FilterError::Group);
        }
        if filter.is_empty() {
            return Err(FilterError::NoFilter);
        }
        if filter.starts_with(SHARE) {
            return Err(FilterError::Nested);
        }
        check_levels(filter)?;
        Ok(Filter { group: Some(group), filter })
    }

    /// True if it is for more than the one topic that it names.
    pub fn has_wildcard(&self) -> bool {
        has_wildcard(self.filter)
    }
}

/// Checks that each wildcard is a level of its own, and `#` the last.
fn check_levels(filter: &str) -> Result<(), FilterError> {
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        if level.contains('#') && (level != "#" || levels.peek().is_some()) {
            return Err(FilterError::Hash);
        }
        if level.contains('+') && level != "+" {
            return Err(FilterError::Plus);
        }
    }
    Ok(())
}

/// Returns true if a valid filter (without `$share`) is for more than the one topic that it names.
pub fn has_wildcard(filter: &str) -> bool {
    filter.contains(WILDCARDS)
}

/// Returns how many levels a filter (without `$share`) or a topic's name has.
///
/// ```
/// assert_eq!(model::filter::levels("site/+/temp"), 3);
/// assert_eq!(model::filter::levels("/"), 2);
/// ```
pub fn levels(filter: &str) -> usize {
    filter.split('/').count()
}

/// Returns whether wildcards may match this topic at all, and whether they may at its first level.
///
/// ```
/// use model::filter::wildcards_reach;
///
/// assert_eq!(wildcards_reach("site/1"), (true, true));
/// assert_eq!(wildcards_reach("$SYS/uptime"), (true, false));
/// assert_eq!(wildcards_reach("@alice"), (false, false));
/// ```
pub fn wildcards_reach(topic: &str) -> (bool, bool) {
    let ordinary = TopicKind::of(topic).is_ordinary();
    (ordinary, ordinary && !topic.starts_with('$'))
}

/// Returns true if a valid filter (without `$share`) matches a topic.
///
/// ```
/// use model::filter::matches;
///
/// assert!(matches("site/+/temp", "site/7/temp") && matches("site/+/temp", "site//temp"));
/// assert!(matches("site/#", "site/7/temp") && matches("site/#", "site"));
/// assert!(!matches("site/+", "site/7/temp") && !matches("site/+", "site"));
/// assert!(matches("$SYS/#", "$SYS/uptime") && !matches("#", "$SYS/uptime"));
/// assert!(matches("@alice", "@alice") && !matches("+", "@alice") && !matches("#", "*"));
/// ```
pub fn matches(filter: &str, topic: &str) -> bool {
    if !has_wildcard(filter) {
        return filter == topic;
    }
    let (anywhere, at_first) = wildcards_reach(topic);
    if !anywhere || !at_first && filter.starts_with(WILDCARDS) {
        return false;
    }
    let mut names = topic.split('/');
    for level in filter.split('/') {
        if level == "#" {
            return true;
        }
        if !names.next().is_some_and(|name| level == "+" || level == name) {
            return false;
        }
    }
    names.next().is_none()
}

/// How much of what a filter matches a pattern covers. Of several patterns the greatest coverage counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coverage {
    /// The pattern may miss some topics of the filter, or all.
    Nothing,
    /// All but the parent of a trailing `/#`: the filter is `site/#`, and the pattern misses `site`.
    Children,
    /// Every topic that the filter matches.
    All,
}

/// Compares one of Throng's patterns ([`rules::matches`]: `*` is any run of characters) with a valid filter
/// (without `$share`). Returns how many of the filter's topics the pattern matches.
///
/// ```
/// use model::filter::{Coverage, covers};
///
/// assert_eq!(covers("site/*", "site/+/temp"), Coverage::All);
/// assert_eq!(covers("site*", "site/#"), Coverage::All);
/// assert_eq!(covers("site/*", "site/#"), Coverage::Children);
/// assert_eq!(covers("site/*/temp", "site/#"), Coverage::Nothing);
/// ```
pub fn covers(pattern: &str, filter: &str) -> Coverage {
    // A wildcard stands for texts that the pattern doesn't name, so only a `*` covers it, and then covers any text
    // in the wildcard's place. A `+` or `#` in the pattern is only that character.
    if pattern.contains(WILDCARDS) || !rules::matches(pattern, filter) {
        return Coverage::Nothing;
    }
    match filter.strip_suffix("/#") {
        // The parent of `/#` would be a topic without a name.
        Some(parent) if !parent.is_empty() && !rules::matches(pattern, parent) => {
            Coverage::Children
        }
        _ => Coverage::All,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_have_no_wildcards() {
        let longest = "x".repeat(BYTES_MAX);
        for name in ["a", "/", "//", "$SYS", "a b/ç", "*", "\u{FEFF}", &longest] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let long = "x".repeat(BYTES_MAX + 1);
        for (name, error) in [
            ("", FilterError::Empty),
            (&long, FilterError::TooLong(BYTES_MAX + 1)),
            ("a\0", FilterError::Null),
            ("a/+", FilterError::WildcardInName('+')),
            ("c#", FilterError::WildcardInName('#')),
        ] {
            assert_eq!(check_name(name), Err(error), "{name}");
        }
    }

    #[test]
    fn filters_have_wildcards_as_levels() {
        for (text, group, wildcard) in [
            ("#", None, true),
            ("+", None, true),
            ("/", None, false),
            ("+/+/#", None, true),
            ("/+//#", None, true),
            ("sport/tennis/player1", None, false),
            ("$SYS/#", None, true),
            ("$share", None, false),
            ("$shared/a/b", None, false),
            ("$share/g/a", Some("g"), false),
            ("$share/g/#", Some("g"), true),
            ("$share/g//", Some("g"), false),
            ("$share/g/$SYS/+", Some("g"), true),
        ] {
            let filter = Filter::parse(text).unwrap();
            assert_eq!((filter.group, filter.has_wildcard()), (group, wildcard), "{text}");
            let plain = text.strip_prefix("$share/g/").unwrap_or(text);
            assert_eq!(filter.filter, plain, "{text}");
        }
        let long = "/".repeat(BYTES_MAX + 1);
        for (text, error) in [
            ("", FilterError::Empty),
            (&long, FilterError::TooLong(BYTES_MAX + 1)),
            ("a/\0", FilterError::Null),
            ("sport/tennis#", FilterError::Hash),
            ("sport/#/ranking", FilterError::Hash),
            ("#/", FilterError::Hash),
            ("##", FilterError::Hash),
            ("+#", FilterError::Hash),
            ("sport+", FilterError::Plus),
            ("++/a", FilterError::Plus),
            ("$share/", FilterError::Group),
            ("$share//a", FilterError::Group),
            ("$share/+/a", FilterError::Group),
            ("$share/g#/a", FilterError::Group),
            ("$share/g", FilterError::NoFilter),
            ("$share/g/", FilterError::NoFilter),
            ("$share/g/a+", FilterError::Plus),
            ("$share/g/$share/h/a", FilterError::Nested),
        ] {
            assert_eq!(Filter::parse(text), Err(error), "{text}");
        }
    }

    /// The examples of MQTT 5.0, 4.7.1 to 4.7.3, and Throng's own names.
    #[test]
    fn filters_match_as_the_standard_says() {
        for (filter, topics) in [
            (
                "sport/tennis/player1/#",
                &[
                    "sport/tennis/player1",
                    "sport/tennis/player1/ranking",
                    "sport/tennis/player1/score/wimbledon",
                ][..],
            ),
            ("sport/#", &["sport", "sport/", "sport//a"]),
            ("sport/tennis/+", &["sport/tennis/player1", "sport/tennis/"]),
            ("+", &["finance", "a b"]),
            ("+/+", &["/finance", "finance/", "/"]),
            ("/+", &["/finance", "/"]),
            ("+/#", &["a", "/", "a/b", "*/a"]),
            ("#", &["a", "/a", "/", "a/$b", "**", "a@"]),
            ("+/tennis/#", &["sport/tennis", "/tennis/x"]),
            ("$SYS/#", &["$SYS", "$SYS/", "$SYS/monitor/Clients"]),
            ("$SYS/monitor/+", &["$SYS/monitor/Clients"]),
            ("@alice", &["@alice"]),
            ("*", &["*"]),
        ] {
            for topic in topics {
                assert!(matches(filter, topic), "{filter} {topic}");
            }
        }
        for (filter, topics) in [
            ("sport/+", &["sport", "sport/a/b", "Sport/a"][..]),
            ("sport/#", &["sports", "sport1/a", "/sport"]),
            ("+", &["/finance", "$SYS", "@alice", "*"]),
            ("#", &["$SYS", "$", "@alice", "@", "@alice/x", "*"]),
            ("+/monitor/Clients", &["$SYS/monitor/Clients"]),
            ("+/#", &["$SYS/a", "@a/b", "*"]),
            ("@alice/#", &["@alice", "@alice/x"]),
            ("*/#", &["*"]),
            ("a", &["A", "a/", "/a"]),
        ] {
            for topic in topics {
                assert!(!matches(filter, topic), "{filter} {topic}");
            }
        }
    }

    #[test]
    fn a_pattern_covers_a_filter_by_its_stars_alone() {
        use Coverage::{All, Children, Nothing};
        for (pattern, filter, coverage) in [
            ("*", "#", All),
            ("*", "+/#", All),
            ("*", "$SYS/#", All),
            ("a", "a", All),
            ("a", "a/#", Nothing),
            ("a/*", "a/#", Children),
            ("a/*", "a/+", All),
            ("a*", "a/#", All),
            ("*/*", "+/#", Children),
            ("*/*", "+/+", All),
            ("*/*", "+", Nothing),
            ("/*", "/#", All),
            ("/*", "#", Nothing),
            ("a/*/c", "a/+/c", All),
            ("a/*/c", "a/+/+", Nothing),
            ("a/+/c", "a/+/c", Nothing),
            ("a/#", "a/#", Nothing),
            ("a*+", "a/+", Nothing),
            ("a/**", "a/#", Children),
            ("", "+", Nothing),
        ] {
            assert_eq!(covers(pattern, filter), coverage, "{pattern} {filter}");
        }
        assert!(Nothing < Children && Children < All);
    }

    /// By definition, level by level.
    fn slow(filter: &[&str], topic: &[&str]) -> bool {
        match (filter, topic) {
            (["#"], _) => true,
            (["+", filter @ ..], [_, topic @ ..]) => slow(filter, topic),
            ([level, filter @ ..], [name, topic @ ..]) => level == name && slow(filter, topic),
            ([], topic) => topic.is_empty(),
            (_, []) => false,
        }
    }

    fn levels(text: &str) -> Vec<&str> {
        text.split('/').collect()
    }

    fn level() -> impl Strategy<Value = String> {
        prop_oneof![2 => Just("+".to_string()), 5 => "[ab*@$]{0,2}"]
    }

    fn filter() -> impl Strategy<Value = String> {
        let levels = prop::collection::vec(level(), 1..5);
        (levels, any::<bool>()).prop_map(|(levels, hash)| {
            let filter = levels.join("/");
            if hash { format!("{filter}/#") } else { filter }
        })
    }

    /// Returns a topic with texts in place of a filter's wildcards. With `parent` it has no level for a `/#` at the
    /// end.
    fn fill(filter: &str, texts: &[String], parent: bool) -> String {
        let mut texts = texts.iter().cycle();
        let filter = if parent { filter.strip_suffix("/#").unwrap_or(filter) } else { filter };
        let levels = filter.split('/').map(|level| match level {
            "+" => texts.next().map_or("", |text| text.split('/').next().unwrap_or_default()),
            "#" => texts.next().map_or("", |text| text),
            level => level,
        });
        levels.collect::<Vec<_>>().join("/")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn parse_and_check_are_never_wrong_about_wildcards(text in "[a+#/\0]{0,8}|\\$share/[a+#/]{0,6}") {
            let well = |text: &str| {
                let levels = levels(text);
                !text.is_empty() && !text.contains('\0') && levels.iter().enumerate().all(|(at, level)| {
                    !level.contains(['+', '#']) || *level == "+" || *level == "#" && at + 1 == levels.len()
                })
            };
            let want = match text.strip_prefix("$share/") {
                None => well(&text),
                Some(rest) => rest.split_once('/').is_some_and(|(group, filter)| {
                    !group.is_empty() && !group.contains(['+', '#']) && well(filter)
                }),
            };
            prop_assert_eq!(Filter::parse(&text).is_ok(), want);
            let plain = !text.is_empty() && !text.contains(['+', '#', '\0']);
            prop_assert_eq!(check_name(&text).is_ok(), plain);
        }

        #[test]
        fn filters_match_by_their_definition(
            filter in filter(), texts in prop::collection::vec("[ab/@*$]{0,3}", 1..4),
            parent: bool, other in "[ab/@*$]{1,6}",
        ) {
            for topic in [fill(&filter, &texts, parent), other] {
                prop_assume!(!topic.is_empty());
                let own = topic.starts_with('@') || topic == "*";
                let dollar = topic.starts_with('$') && filter.starts_with(['+', '#']);
                let want = match has_wildcard(&filter) {
                    true => !own && !dollar && slow(&levels(&filter), &levels(&topic)),
                    false => filter == topic,
                };
                prop_assert_eq!(matches(&filter, &topic), want, "{} {}", filter, topic);
            }
        }

        /// Nothing that the filter matches escapes the pattern.
        #[test]
        fn what_is_covered_never_escapes(
            filter in filter(), cut in prop::collection::vec((0_usize..12, 0_usize..4), 0..3),
            other in "[ab*/+#]{0,6}", texts in prop::collection::vec("[abc+/]{0,3}", 1..4), parent: bool,
        ) {
            // The filter with stars in place of some of it is a pattern that has a chance.
            let mut altered = filter.clone();
            for (at, length) in cut {
                let (at, end) = (at.min(altered.len()), (at + length).min(altered.len()));
                altered.replace_range(at..end, "*");
            }
            for pattern in [altered, other] {
                let topic = fill(&filter, &texts, parent);
                let is_parent = parent && filter.ends_with("/#");
                let coverage = covers(&pattern, &filter);
                if coverage == Coverage::All && !topic.is_empty()
                    || coverage == Coverage::Children && !is_parent
                {
                    prop_assert!(rules::matches(&pattern, &topic), "{pattern} {filter} {topic}");
                }
                // A topic that the pattern may miss is missed: its text is one that no pattern names.
                let unnamed = ["é".to_string()];
                if coverage != Coverage::All && (coverage == Coverage::Nothing || filter != "/#") {
                    let topic = fill(&filter, &unnamed, coverage == Coverage::Children);
                    prop_assert!(!rules::matches(&pattern, &topic), "{pattern} {filter} {topic}");
                }
            }
        }
    }
}
