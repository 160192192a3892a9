//! Finds typos: words that differ by a letter.

/// A name in lower case without `-` and `_`.
pub(crate) fn plain(name: &str) -> String {
    let letters = name.chars().filter(|letter| !matches!(letter, '-' | '_'));
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Returns true if two words differ by one letter that is replaced, added, missing, or swapped with the next.
pub(crate) fn is_one_edit_away(a: &[u8], b: &[u8]) -> bool {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[same..], &b[same..]);
    match (a, b) {
        ([x, a @ ..], [y, b @ ..]) if a == b => x != y,
        ([_, rest @ ..], _) if rest == b => true,
        (_, [_, rest @ ..]) if rest == a => true,
        ([x, y, a @ ..], [v, w, b @ ..]) => a == b && (x, y) == (w, v),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distance by the definition (optimal string alignment).
    fn distance(a: &[u8], b: &[u8]) -> usize {
        let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 0..=a.len() {
            for j in 0..=b.len() {
                table[i][j] = match (i, j) {
                    (0, _) | (_, 0) => i + j,
                    _ => {
                        let change = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                        let least = change.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
                        let swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                        if swap { least.min(table[i - 2][j - 2] + 1) } else { least }
                    }
                };
            }
        }
        table[a.len()][b.len()]
    }

    proptest::proptest! {
        #[test]
        fn one_edit_is_a_distance_of_one(a in "[abc]{0,6}", b in "[abc]{0,6}") {
            let (a, b) = (a.as_bytes(), b.as_bytes());
            proptest::prop_assert_eq!(is_one_edit_away(a, b), distance(a, b) == 1);
        }
    }
}
