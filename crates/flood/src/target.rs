//! The targets of a crowd: servers, and the path that each connection requests.

use admin::Url;
use admin::url;
use anyhow::{Context, Result, bail, ensure};

use crate::template::Template;

/// The path of each connection.
#[derive(Clone, Debug)]
pub enum Paths {
    /// One template for each transport in turn.
    Templates(Vec<Template>),
    /// A list of paths, one for each connection in turn. The paths stand back to back in one text,
    /// since a list may have millions.
    List {
        /// The index of the server that each path belongs to.
        targets: Vec<u16>,
        /// All paths.
        text: String,
        /// The end of each path in the text.
        ends: Vec<u32>,
    },
}

/// Replaces `{user}` and `{topic}` in a path with the templates of users and topics. Removes the parameter if its
/// template is empty.
///
/// # Errors
/// If a template contains a character that a URL can't have, or an unknown word in braces.
pub fn path_template(path: &str, user: &str, topic: &str) -> Result<Template> {
    let mut text = path.to_string();
    for (hole, name, value) in
        [("{user}", "--user-template", user), ("{topic}", "--topic-template", topic)]
    {
        let safe = |b: u8| b.is_ascii_alphanumeric() || b"-._~:@{}/".contains(&b);
        ensure!(
            value.bytes().all(safe),
            "{name} {value}: use letters, digits and - . _ ~ : @ / around {{n}} and {{room}}"
        );
        if value.is_empty() {
            text = without_parameter(&text, hole);
        }
        text = text.replace(hole, value);
    }
    Template::new(&text).map_err(anyhow::Error::msg)
}

/// The schemes of targets: each without TLS, and the same with it.
const SCHEMES: [(&str, &str); 3] =
    [("http://", "https://"), ("ws://", "wss://"), ("mqtt://", "mqtts://")];

/// Parses a target. With `tls` it is reached by TLS whatever its scheme is.
///
/// # Errors
/// If it is no URL, or its host can't be resolved.
pub fn parse(text: &str, tls: bool) -> Result<Url> {
    parse_by(text, tls, Url::parse_any)
}

fn parse_by(text: &str, tls: bool, parse: impl Fn(&str) -> Result<Url>) -> Result<Url> {
    if !tls {
        return parse(text);
    }
    let with_tls = SCHEMES.iter().find_map(|(plain, with_tls)| {
        text.strip_prefix(plain).map(|rest| format!("{with_tls}{rest}"))
    });
    let url = parse(with_tls.as_deref().unwrap_or(text))?;
    Ok(Url { is_tls: true, ..url })
}

/// Splits targets that are separated by commas. A comma in a path or a query is part of it, unless a scheme follows,
/// as `http://`.
pub fn split(texts: &[String]) -> Vec<&str> {
    texts.iter().flat_map(|text| split_one(text)).collect()
}

fn split_one(text: &str) -> Vec<&str> {
    let (mut targets, mut from) = (Vec::new(), 0);
    for (at, _) in text.match_indices(',') {
        let (target, rest) = (&text[from..at], &text[at + 1..]);
        let has_path = url::base_end(target) < target.len();
        let mut schemes = SCHEMES.iter().flat_map(|(plain, with_tls)| [plain, with_tls]);
        if !has_path || schemes.any(|scheme| rest.starts_with(scheme)) {
            targets.push(target);
            from = at + 1;
        }
    }
    targets.push(&text[from..]);
    targets
}

/// Returns the path without the parameter whose value is this placeholder.
fn without_parameter(path: &str, hole: &str) -> String {
    let Some((base, query)) = path.split_once('?') else {
        return path.to_string();
    };
    let others: Vec<&str> = query
        .split('&')
        .filter(|pair| pair.split_once('=').is_none_or(|(_, v)| v != hole))
        .collect();
    if others.is_empty() { base.to_string() } else { format!("{base}?{}", others.join("&")) }
}

/// Parses a list of URLs, one per line. Skips empty lines and lines that begin with `#`. With `tls` all are reached
/// by TLS.
///
/// # Errors
/// If a line is no URL; the error has its number. If the list has no URL, or over 65,535 different
/// servers.
pub fn url_list(text: &str, tls: bool) -> Result<(Vec<Url>, Paths)> {
    let mut servers: Vec<Url> = Vec::new();
    let mut known = std::collections::HashMap::new();
    let (mut targets, mut texts, mut ends) = (Vec::new(), String::new(), Vec::new());
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (base, path) = line.split_at(url::base_end(line));
        // Each host is resolved once, not once for each of a million lines.
        let index = match known.get(base) {
            Some(index) => *index,
            None => {
                let url = parse_by(base, tls, Url::parse_any_base)
                    .with_context(|| format!("line {}", at + 1))?;
                let index = u16::try_from(servers.len()).context("more than 65,535 servers")?;
                servers.push(url);
                known.insert(base.to_string(), index);
                index
            }
        };
        if let Err(reason) = url::check_path(path) {
            bail!("line {}: {reason}", at + 1);
        }
        if !path.starts_with('/') {
            texts.push('/');
        }
        texts.push_str(path);
        targets.push(index);
        ends.push(u32::try_from(texts.len()).context("the list is larger than 4 GiB")?);
    }
    ensure!(!targets.is_empty(), "the list has no URL");
    Ok((servers, Paths::List { targets, text: texts, ends }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_topics_go_into_the_path() {
        let text = |user, topic| {
            path_template("/sse?user={user}&topic={topic}", user, topic).unwrap().text(5, 2)
        };
        assert_eq!(text("u{n}", "room-{room}"), "/sse?user=u5&topic=room-2");
        assert_eq!(text("", "all"), "/sse?topic=all");
        assert_eq!(text("u{n}", ""), "/sse?user=u5");
        assert_eq!(text("", ""), "/sse");
        assert!(path_template("/{user}", "a b", "").is_err());
        assert!(path_template("/{x}", "", "").is_err());
    }

    #[test]
    fn targets_are_split_at_commas_that_are_in_no_path() {
        let texts = ["a:1,b:2".to_string(), "http://c:3/x?y=1,2,http://d:4/,5".to_string()];
        assert_eq!(split(&texts), ["a:1", "b:2", "http://c:3/x?y=1,2", "http://d:4/,5"]);
        assert_eq!(split(&["a:1,".to_string()]), ["a:1", ""]);
        let texts = ["https://c:3/x?y=1,wss://d:4/,mqtts://e:5".to_string()];
        assert_eq!(split(&texts), ["https://c:3/x?y=1", "wss://d:4/", "mqtts://e:5"]);
    }

    #[test]
    fn targets_are_reached_by_tls_by_their_scheme_or_the_flag() {
        for (text, flag, host, port, is_tls) in [
            ("127.0.0.1:8000", false, "127.0.0.1:8000", 8_000, false),
            ("127.0.0.1:8000", true, "127.0.0.1:8000", 8_000, true),
            ("http://127.0.0.1:8000/x", true, "127.0.0.1:8000", 8_000, true),
            ("http://127.0.0.1", true, "127.0.0.1", 443, true),
            ("mqtt://127.0.0.1", true, "127.0.0.1", 8_883, true),
            ("wss://127.0.0.1:8443", false, "127.0.0.1:8443", 8_443, true),
        ] {
            let url = parse(text, flag).unwrap();
            let parts = (url.host.as_str(), url.address.port(), url.is_tls);
            assert_eq!(parts, (host, port, is_tls), "{text}");
        }
        let error = parse("8000", true).unwrap_err().to_string();
        assert!(error.contains("localhost:8000"), "{error}");
    }

    #[test]
    fn a_list_of_urls_is_parsed() {
        let list = "# crowd\nhttp://127.0.0.1:1/a\n\n127.0.0.1:2?b\nhttp://127.0.0.1:1/c\n";
        let (servers, paths) = url_list(list, false).unwrap();
        assert_eq!(servers.len(), 2);
        let Paths::List { targets, text, ends } = paths else { panic!("a list") };
        assert_eq!((targets, text.as_str(), ends), (vec![0, 1, 0], "/a/?b/c", vec![2, 5, 7]));
        let (servers, _) = url_list("https://127.0.0.1/\nhttp://127.0.0.1:2/\n", false).unwrap();
        assert_eq!(servers.iter().map(|url| url.is_tls).collect::<Vec<_>>(), [true, false]);
        assert!(url_list(list, true).unwrap().0.iter().all(|url| url.is_tls));
        assert!(url_list("\n", false).is_err());
        let list = "http://127.0.0.1:1/\nftp://x/\n";
        let error = format!("{:#}", url_list(list, false).unwrap_err());
        assert!(error.starts_with("line 2: "), "{error}");
    }
}
