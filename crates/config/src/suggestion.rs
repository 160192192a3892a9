//! Suggestions for unknown names.

use strsim::osa_distance;

/// Bytes of a name that is compared with others, at most: the time grows with its length.
const NAME_BYTES_MAX: usize = 100;

/// Letters that differ in a name with a typo, at most.
const MISTYPED: usize = 2;

/// Returns an error for an unknown name, with suggestions: names with the same ending in another section
/// (`THRONG_LISTEN`, `client.connections_max`), or the most similar name.
pub(crate) fn suggest(name: &str, known: impl Iterator<Item = String>) -> String {
    let known: Vec<String> = known.collect();
    let tail = name.strip_prefix("THRONG_").or(name.split_once('.').map(|(_, key)| key));
    let tail = tail.unwrap_or(name);
    let elsewhere: Vec<&str> = known
        .iter()
        .filter_map(|known| {
            known.strip_suffix(tail).is_some_and(ends_a_section).then_some(&**known)
        })
        .collect();
    if !tail.is_empty() && !elsewhere.is_empty() {
        let (last, others) = elsewhere.split_last().unwrap_or((&"", &[]));
        let others = if others.is_empty() { String::new() } else { others.join(", ") + " or " };
        return format!("there is no such setting; did you mean {others}{last}?");
    }
    let compared = known.iter().filter(|_| name.len() <= NAME_BYTES_MAX);
    let nearest = compared.map(|known| (osa_distance(name, known), known)).min();
    let longer = known.iter().find(|known| has_all_words(known, name));
    match (nearest, longer) {
        (Some((far, _)), Some(longer)) if far > MISTYPED => {
            format!("there is no such setting; did you mean {longer}?")
        }
        (Some((far, known)), _) if far <= 3 + name.len() / 4 => {
            format!("there is no such setting; did you mean {known}?")
        }
        _ => "there is no such setting; throng config --default lists all".into(),
    }
}

/// Returns true for a setting of the same section with all words of a name of two or more words, in their order and
/// with the same first word: `history_messages_max` for `history_max`.
fn has_all_words(known: &str, name: &str) -> bool {
    let (Some((section, known)), Some((of, name))) =
        (known.rsplit_once('.'), name.rsplit_once('.'))
    else {
        return false;
    };
    let mut words = known.split('_');
    section == of
        && name.contains('_')
        && known.split('_').next() == name.split('_').next()
        && name.split('_').all(|word| words.any(|it| it == word))
}

/// Returns true for `client.` or `THRONG_CLIENT_`, and false for a part of a key such as `limits.topics_per_`.
fn ends_a_section(front: &str) -> bool {
    let variable = front.strip_prefix("THRONG_").and_then(|front| front.strip_suffix('_'));
    front.ends_with('.') || variable.is_some_and(|section| !section.contains('_'))
}

#[cfg(test)]
mod tests {
    #[test]
    fn suggests_names_in_other_sections_and_similar_spellings() {
        let keys = || {
            [
                "a.most",
                "b.most",
                "c.most",
                "client.listen",
                "admin.listen",
                "limits.head_bytes_max",
                "limits.connection_tries_max",
                "limits.connections_max",
                "topics[0].history_messages_max",
                "topics[0].history_bytes_max",
            ]
        };
        let suggest = |name| super::suggest(name, keys().into_iter().map(str::to_string));
        for (name, want) in [
            ("listen", "did you mean client.listen or admin.listen?"),
            ("shards.listen", "did you mean client.listen or admin.listen?"),
            ("shards.most", "did you mean a.most, b.most or c.most?"),
            ("limits.head_byte_max", "did you mean limits.head_bytes_max?"),
            ("client.lsiten", "did you mean client.listen?"),
            ("topics[0].history_max", "did you mean topics[0].history_messages_max?"),
            ("topics[0].history_byte_max", "did you mean topics[0].history_bytes_max?"),
            ("topics[0].max_history", "lists all"),
            ("limits.bytes_max", "did you mean limits.head_bytes_max?"),
            ("limits.connection_max", "did you mean limits.connections_max?"),
            ("limits.max", "lists all"),
            ("", "lists all"),
        ] {
            assert!(suggest(name).contains(want), "{name}: {}", suggest(name));
        }
        assert!(suggest(&"x".repeat(1_000_000)).contains("lists all"));
    }
}
