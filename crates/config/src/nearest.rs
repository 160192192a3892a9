//! What someone may have meant who wrote a name that doesn't exist.

/// Says that there is no such name, and which there is instead: those that end the same in other
/// sections (`THRONG_LISTEN`, `client.connections_max`), or the one that is spelled most alike.
pub(crate) fn advice(name: &str, known: impl Iterator<Item = String>) -> String {
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

/// `client.` or `THRONG_CLIENT_`, and not a part of a key such as `limits.topics_per_`.
fn ends_a_section(front: &str) -> bool {
    let variable = front.strip_prefix("THRONG_").and_then(|front| front.strip_suffix('_'));
    front.ends_with('.') || variable.is_some_and(|section| !section.contains('_'))
}

/// Insertions, deletions and replacements from one to the other (Levenshtein). A name far longer
/// than any setting is not compared: the cost is the product of both lengths.
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
    fn names_in_the_wrong_section_and_misspelled_ones_are_found() {
        let keys = || ["client.listen", "admin.listen", "limits.head_bytes_max"];
        let advice = |name| advice(name, keys().into_iter().map(str::to_string));
        for (name, want) in [
            ("listen", "did you mean client.listen or admin.listen?"),
            ("shards.listen", "did you mean client.listen or admin.listen?"),
            ("limits.head_byte_max", "did you mean limits.head_bytes_max?"),
            ("limits.max", "lists all"),
            ("", "lists all"),
        ] {
            assert!(advice(name).contains(want), "{name}: {}", advice(name));
        }
        assert!(advice(&"x".repeat(1_000_000)).contains("lists all"));
    }

    #[test]
    fn the_distance_counts_single_changes() {
        for (from, to, want) in [("", "abc", 3), ("abc", "abc", 0), ("kitten", "sitting", 3)] {
            assert_eq!(distance(from, to), want);
        }
    }
}
