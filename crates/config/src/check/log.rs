//! Checks filters of the log.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

const WAYS: &str =
    "try info, or info,shard=debug; levels are error, warn, info, debug, trace and off";

/// Checks a filter.
///
/// `EnvFilter` reads a single word that is not a level as a module, and logs everything of that module and nothing
/// else. A level with a typo would silence the server. So every part of a filter must contain its level.
pub(super) fn filter(text: &str) -> Result<(), String> {
    EnvFilter::try_new(text).map_err(|error| format!("{error}: {WAYS}"))?;
    let mut parts = text.split(',').map(str::trim).filter(|part| !part.is_empty()).peekable();
    if parts.peek().is_none() {
        return Err(format!("it is empty: {WAYS}"));
    }
    for part in parts {
        // Brackets contain a span with its fields, which may have equals signs too.
        let outside = part.rfind(']').map_or(0, |end| end + 1);
        let (name, level) = match part[outside..].rsplit_once('=') {
            Some((name, level)) => (&part[..outside + name.len()], level.trim()),
            None => ("", part),
        };
        if outside == 0 && name.contains(' ') {
            return Err(format!("{name:?} is not a name; separate parts with commas: {WAYS}"));
        }
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            let example = if name.is_empty() { part } else { name };
            return Err(format!("{level:?} is not a level: {WAYS}, as in {example}=debug"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_filter_needs_a_level() {
        for valid in [
            "info",
            "WARN",
            "off",
            "3",
            "info,shard=debug",
            "shard=trace",
            "info,shard::sweep=debug,",
            "info,[span{field=1}]=debug",
            "warn,store[commit]=trace,hyper=off",
        ] {
            assert_eq!(filter(valid), Ok(()), "{valid}");
        }
        for (invalid, want) in [
            ("loud", "\"loud\" is not a level: try info, or info,shard=debug; levels are error,"),
            ("shard=loud", "try info"),
            ("info,shard", "\"shard\" is not a level"),
            ("shard", "as in shard=debug"),
            ("info,loud,warn", "\"loud\" is not a level"),
            ("information", "\"information\" is not a level"),
            ("info shard=debug", "separate parts with commas: try info"),
            ("info,shard=", "is not a level"),
            ("", "it is empty"),
            (" , ", "try info"),
            ("info,[span{a=b}]", "is not a level"),
            ("6", "\"6\" is not a level"),
        ] {
            let error = filter(invalid).expect_err(invalid);
            assert!(error.contains(want), "{invalid}: {error}");
        }
    }
}
