//! Texts for people.

/// Formats a whole number with thousands separators.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Replaces the characters of a text from outside that control a terminal or change its writing
/// direction.
pub fn plain(text: &str) -> String {
    let is_control = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_control(c) { '\u{fffd}' } else { c }).collect()
}

/// Cuts a text to this many characters, with … at the end if it leaves something out.
pub fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some(_) if chars_max == 0 => String::new(),
        Some(_) => text.chars().take(chars_max - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_thousands_apart() {
        let texts = [0, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn texts_from_outside_lose_control_characters_and_are_cut() {
        assert_eq!(plain("a\x1b[2Jb\n\u{202e}c"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c");
        assert_eq!((cut("room", 4), cut("rooms", 4)), ("room".into(), "roo…".into()));
        assert_eq!((cut("日本語", 2), cut("ab", 0)), ("日…".into(), String::new()));
    }
}
