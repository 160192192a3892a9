//! Compares what a command printed with what a page shows.
//!
//! In a page `…` stands for any text within a line, and a line that is only `…` for any lines. Eight hexadecimal
//! digits with a letter among them are a random name of the server: each stands for one of the server's names, the
//! same one everywhere in the page.

use std::collections::HashMap;

use regex::Regex;
use serde_json::Value;

/// How strictly a block is compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Numbers and their units may differ.
    pub numbers_vary: bool,
    /// The lines may come in any order.
    pub any_order: bool,
}

/// The server's names for the names in the page.
#[derive(Clone, Default)]
pub struct Names(HashMap<String, String>);

impl Names {
    /// Binds the page's name `shown` to the server's name `real`. Returns false if either is bound to another name.
    fn bind(&mut self, shown: &str, real: &str) -> bool {
        match self.0.get(shown) {
            Some(known) => known == real,
            None if self.0.values().any(|known| known == real) => false,
            None => self.0.insert(shown.into(), real.into()).is_none(),
        }
    }

    /// Returns a text of the page with the server's names, as far as they are known.
    pub fn real(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (shown, real) in &self.0 {
            text = text.replace(&format!("{shown}:"), &format!("{real}:"));
        }
        text
    }
}

const NUMBER: &str =
    r"\b[0-9][0-9,]*(?:\.[0-9]+)?(?: ?(?:ns|µs|ms|s|B|kB|KB|KiB|MB|MiB|GB|GiB|k|M)\b)?";

/// Returns a pattern for a text of a page, and the names that it captures, in order.
fn pattern(shown: &str, rules: Rules) -> (String, Vec<String>) {
    let tokens = Regex::new(&format!(
        r"(?P<dots>…)|(?P<connection>\b[0-9a-f]{{8}}-[0-9]+-[0-9]+-[0-9]+\b)|(?P<name>\b[0-9a-f]{{8}}\b)|(?P<hex>\b[0-9a-f]{{9,}}\b)|(?P<version>\b[0-9]+\.[0-9]+\.[0-9]+\b)|(?P<number>{NUMBER})|(?P<space>[ \t]+)"
    ));
    let tokens = tokens.expect("the pattern compiles");
    let (mut out, mut names, mut at) = (String::new(), Vec::new(), 0);
    for found in tokens.captures_iter(shown) {
        let whole = found.get(0).expect("a match");
        let text = whole.as_str();
        let is_name = |text: &str| text[..8].bytes().any(|b| b.is_ascii_alphabetic());
        out.push_str(&regex::escape(&shown[at..whole.start()]));
        at = whole.end();
        if found.name("dots").is_some() {
            out.push_str(".*");
        } else if found.name("connection").is_some() {
            out.push_str("([0-9a-f]{8})-[0-9]+-[0-9]+-[0-9]+");
            names.push(text[..8].to_owned());
        } else if found.name("name").is_some() && is_name(text) {
            out.push_str("([0-9a-f]{8})");
            names.push(text.to_owned());
        } else if found.name("hex").is_some() && is_name(text) {
            out.push_str("[0-9a-f]+");
        } else if found.name("version").is_some() {
            // A page shows its own version.
            out.push_str(&regex::escape(text));
        } else if rules.numbers_vary && text.starts_with(|c: char| c.is_ascii_digit()) {
            out.push_str(NUMBER);
        } else if rules.numbers_vary && found.name("space").is_some() {
            out.push_str("[ \t]+");
        } else {
            out.push_str(&regex::escape(text));
        }
    }
    out.push_str(&regex::escape(&shown[at..]));
    (out, names)
}

/// Finds the lines `shown` in `real`: as the whole text, or anywhere. Returns the bytes of `real` up to the end of
/// the match.
fn find(shown: &str, real: &str, whole: bool, rules: Rules, names: &mut Names) -> Option<usize> {
    let (mut all, mut captured) =
        (String::from(if whole { r"(?m)\A" } else { "(?m)" }), Vec::new());
    for line in shown.lines() {
        if line.trim() == "…" {
            all.push_str(r"(?:.*\n)*?");
            continue;
        }
        let (line, of) = pattern(line.trim_end(), rules);
        let begin = if rules.numbers_vary { "[ \t]*" } else { "" };
        all.push_str(&format!("^{begin}{}[ \t]*\n", line.trim_start_matches("[ \t]+")));
        captured.extend(of);
    }
    all.push_str(if whole { r"\z" } else { "" });
    let regex = Regex::new(&all).expect("a pattern that was escaped compiles");
    regex.captures_iter(real).find_map(|found| {
        let mut bound = names.clone();
        let mut real = found.iter().skip(1).flatten();
        let fits = captured.iter().all(|name| bound.bind(name, real.next().unwrap().as_str()));
        fits.then(|| *names = bound).map(|()| found.get(0).unwrap().end())
    })
}

/// Returns true if the page's text describes this text.
fn text_fits(shown: &str, real: &str, rules: Rules, names: &mut Names) -> bool {
    let (pattern, captured) = pattern(shown, rules);
    let regex = Regex::new(&format!("^(?s:{pattern})$")).expect("an escaped pattern compiles");
    let Some(found) = regex.captures(real) else { return false };
    let mut real = found.iter().skip(1).flatten();
    captured.iter().all(|name| names.bind(name, real.next().unwrap().as_str()))
}

fn value_fits(shown: &Value, real: &Value, rules: Rules, names: &mut Names) -> bool {
    match (shown, real) {
        (Value::String(dots), _) if dots == "…" => true,
        (Value::String(shown), Value::String(real)) => text_fits(shown, real, rules, names),
        (Value::Number(_), Value::Number(_)) if rules.numbers_vary => true,
        (Value::Array(shown), Value::Array(real)) => {
            let more = shown.last().is_some_and(|last| last == "…");
            let shown = if more { &shown[..shown.len() - 1] } else { shown };
            (more || shown.len() == real.len())
                && shown.len() <= real.len()
                && shown.iter().zip(real).all(|(a, b)| value_fits(a, b, rules, names))
        }
        (Value::Object(shown), Value::Object(real)) => {
            let more = shown.contains_key("…");
            (more || shown.len() == real.len())
                && shown.iter().filter(|(key, _)| *key != "…").all(|(key, value)| {
                    real.get(key).is_some_and(|real| value_fits(value, real, rules, names))
                })
        }
        _ => shown == real,
    }
}

/// Returns the JSON values of a text, or `None` if it has anything else.
fn values(text: &str) -> Option<Vec<Value>> {
    serde_json::Deserializer::from_str(text).into_iter().collect::<Result<_, _>>().ok()
}

/// Finds a page's text in the text that a command printed. With `whole` nothing else may be there. Returns the bytes
/// of `real` up to the end of the match.
pub fn fits(
    shown: &str,
    real: &str,
    whole: bool,
    rules: Rules,
    names: &mut Names,
) -> Option<usize> {
    if let (Some(shown), Some(all)) = (values(shown), values(real)) {
        let (count, mut bound) = (shown.len(), names.clone());
        if whole && count != all.len() || count > all.len() {
            return None;
        }
        if whole && rules.any_order {
            let mut left = all;
            for shown in &shown {
                let at = left.iter().position(|real| {
                    let mut tried = bound.clone();
                    let fits = value_fits(shown, real, rules, &mut tried);
                    fits.then(|| bound = tried).is_some()
                })?;
                left.remove(at);
            }
            *names = bound;
            return Some(real.len());
        }
        let fit = |real: &[Value], bound: &mut Names| {
            shown.iter().zip(real).all(|(shown, real)| value_fits(shown, real, rules, bound))
        };
        let at = (0..=all.len() - count).find(|at| {
            bound = names.clone();
            fit(&all[*at..*at + count], &mut bound)
        })?;
        *names = bound;
        let mut stream = serde_json::Deserializer::from_str(real).into_iter::<Value>();
        (0..at + count).for_each(|_| drop(stream.next()));
        return Some(stream.byte_offset());
    }
    let mut real = real.to_owned();
    if !real.ends_with('\n') {
        real.push('\n');
    }
    if rules.any_order {
        let end = shown.lines().try_fold(0, |end, line| {
            find(line, &real, false, rules, names).map(|found| found.max(end))
        });
        return end;
    }
    if whole {
        // Some programs end their output with an empty line.
        return find(shown.trim(), &(real.trim().to_owned() + "\n"), true, rules, names);
    }
    find(shown, &real, false, rules, names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(shown: &str, real: &str) -> bool {
        fits(shown, real, true, Rules::default(), &mut Names::default()).is_some()
    }

    #[test]
    fn names_of_the_page_stand_for_those_of_the_server() {
        let shown = "{\"id\":\"5f3a91c2:1\"}\n{\"id\":\"7be0c415:2\",\"of\":\"5f3a91c2-0-12-1\"}";
        assert!(whole(
            shown,
            "{\"id\":\"aabbccdd:1\"}{\"id\":\"00112233:2\",\"of\":\"aabbccdd-1-0-9\"}"
        ));
        // A wrong offset, two names for one, and one name for two.
        assert!(!whole("{\"id\":\"5f3a91c2:1\"}", "{\"id\":\"aabbccdd:2\"}"));
        assert!(!whole(
            shown,
            "{\"id\":\"aabbccdd:1\"}{\"id\":\"aabbccdd:2\",\"of\":\"aabbccdd-1-0-9\"}"
        ));
        assert!(!whole("id: 5f3a91c2:1\nid: 5f3a91c2:2", "id: aabbccdd:1\nid: 00112233:2"));
    }

    #[test]
    fn values_may_come_in_any_order_where_the_page_says_so() {
        let rules = Rules { any_order: true, ..Rules::default() };
        let any = |shown: &str, real: &str| {
            fits(shown, real, true, rules, &mut Names::default()).is_some()
        };
        let shown = "{\"a\":\"5f3a91c2:1\"}\n{\"b\":\"5f3a91c2:1\"}";
        assert!(any(shown, "{\"b\":\"aabbccdd:1\"}{\"a\":\"aabbccdd:1\"}"));
        assert!(!any(shown, "{\"b\":\"aabbccdd:1\"}{\"a\":\"00aabbcc:1\"}"));
        assert!(!any(shown, "{\"a\":\"aabbccdd:1\"}{\"a\":\"aabbccdd:1\"}"));
        assert!(!any("1 2", "2 1 3"));
    }

    #[test]
    fn dots_stand_for_anything_and_all_else_for_itself() {
        assert!(whole("a … d\n…\nz", "a b c d\nx\ny\nz\n"));
        assert!(
            !whole("a … d\nz", "a b c d\nx\nz\n") && !whole("a", "a\nb") && !whole("b", "a\nb")
        );
        assert!(whole(r#"{"a":"…","…":"…"}"#, r#"{"a":[1],"b":2}"#));
        assert!(whole(r#"{"m":"no: …"}"#, r#"{"m":"no: why"}"#));
        assert!(!whole(r#"{"a":1}"#, r#"{"a":1,"b":2}"#) && !whole(r#"{"a":1}"#, r#"{"a":2}"#));
        let (rules, mut names) =
            (Rules { numbers_vary: true, ..Rules::default() }, Names::default());
        let mut fit =
            |shown: &str, real: &str| fits(shown, real, true, rules, &mut names).is_some();
        assert!(fit("  0.7 s  p50 290 ms, 1,000 open", "12 s p50 1.19 s, 7 open"));
        assert!(!fit("0 lost", "0 lost, 1 twice") && !fit("p50 3 ms", "p99 3 ms"));
        assert!(fit("Throng 0.2.0: 2 shards", "Throng 0.2.0: 4 shards"));
        assert!(!fit("Throng 0.1.0: 2 shards", "Throng 0.2.0: 4 shards"));
    }

    #[test]
    fn a_listener_is_searched_from_where_the_last_match_ended() {
        let (rules, mut names) = (Rules::default(), Names::default());
        let real = "retry: 1\n\nid: aabbccdd:1\ndata: a\n\nid: aabbccdd:2\ndata: b\n\n";
        let end = fits("id: 5f3a91c2:1\ndata: a", real, false, rules, &mut names).unwrap();
        assert!(fits("data: a", &real[end..], false, rules, &mut names).is_none());
        assert!(fits("id: 5f3a91c2:2\ndata: b", &real[end..], false, rules, &mut names).is_some());
        let any = Rules { any_order: true, ..rules };
        assert!(fits("b\na", "a\nb\n", false, any, &mut names).is_some());
        assert!(fits("b\nc", "a\nb\n", false, any, &mut names).is_none());
    }
}
