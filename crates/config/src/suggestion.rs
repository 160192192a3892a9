//! Suggestions for names that don't exist.

/// Says that the name does not exist, and suggests others: names that end the same in another
/// section (`THRONG_LISTEN`, `client.connections_max`), or the one with the most similar spelling.
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
        return format!("there is no such setting; did you mean {}?", elsewhere.join(" or "));
    }
    match known.iter().map(|known| (distance(name, known), known)).min() {
        Some((far, known)) if far <= 3 + name.len() / 4 => {
            format!("there is no such setting; did you mean {known}?")
        }
        _ => "there is no such setting; throng config --default lists all".into(),
    }
}

/// True for `client.` or `THRONG_CLIENT_`, and false for a part of a key such as
/// `limits.topics_per_`.
fn ends_a_section(front: &str) -> bool {
    let variable = front.strip_prefix("THRONG_").and_then(|front| front.strip_suffix('_'));
    front.ends_with('.') || variable.is_some_and(|section| !section.contains('_'))
}

/// The number of insertions, deletions and replacements between two names (Levenshtein). The cost
/// is the product of both lengths, so a name far longer than any setting is not compared.
fn distance(from: &str, to: &str) -> usize {
    const NAME_BYTES_MAX: usize = 100;
    if from.len() > NAME_BYTES_MAX {
        return usize::MAX;
    }
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = before + usize::from(a != *b);
            before = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_names_in_other_sections_and_similar_spellings() {
        let keys = || ["client.listen", "admin.listen", "limits.head_bytes_max"];
        let suggest = |name| super::suggest(name, keys().into_iter().map(str::to_string));
        for (name, want) in [
            ("listen", "did you mean client.listen or admin.listen?"),
            ("shards.listen", "did you mean client.listen or admin.listen?"),
            ("limits.head_byte_max", "did you mean limits.head_bytes_max?"),
            ("limits.max", "lists all"),
            ("", "lists all"),
        ] {
            assert!(suggest(name).contains(want), "{name}: {}", suggest(name));
        }
        assert!(suggest(&"x".repeat(1_000_000)).contains("lists all"));
    }

    #[test]
    fn the_distance_counts_single_changes() {
        for (from, to, want) in [("", "abc", 3), ("abc", "abc", 0), ("kitten", "sitting", 3)] {
            assert_eq!(distance(from, to), want);
        }
    }
}
