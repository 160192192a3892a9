//! Checks of databases: no URL may contain a secret. The crates that use a URL parse it.

use super::Checks;
use crate::Config;

/// Bytes of a schema's name, at most, as in PostgreSQL.
const NAME_BYTES_MAX: usize = 63;

pub(super) fn check(config: &Config, checks: &mut Checks<'_>) {
    let (outbox, history) = (&config.outbox, &config.history);
    for (key, url, password_file) in [
        ("outbox.url", &outbox.url, "outbox.password_file"),
        ("history.url", &history.url, "history.password_file"),
    ] {
        if let Some(reason) =
            check_database_url(url, password_file).err().filter(|_| !url.is_empty())
        {
            checks.require(&[key], false, || reason);
        }
    }
    for (key, schema) in [("outbox.schema", &outbox.schema), ("history.schema", &history.schema)] {
        checks.require(&[key], is_schema(schema), || {
            format!(
                "{schema:?} is not a valid schema name: write up to {NAME_BYTES_MAX} lower-case \
                 letters, digits and _, with a letter first, and without the prefix pg_"
            )
        });
    }
}

/// Checks the URL of a database; `password_file` is the setting for its password.
///
/// # Errors
/// If it is no URL of a database, or has a password. The text does not repeat what may contain one.
pub fn check_database_url(url: &str, password_file: &str) -> Result<(), String> {
    let Some(rest) = ["postgres://", "postgresql://"].iter().find_map(|it| url.strip_prefix(it))
    else {
        return Err(
            "this is not the URL of a database: write postgres://user@host:5432/database".into()
        );
    };
    let (without_query, query) = rest.split_once('?').unwrap_or((rest, ""));
    // The last @ ends the user.
    let user = without_query.rsplit_once('@').map_or("", |(user, _)| user);
    let has_password = query.split('&').any(|pair| pair.starts_with("password"));
    match user.contains(':') || has_password {
        false => Ok(()),
        true => Err(format!(
            "a URL is printed and logged, so it must contain no password: use {password_file}"
        )),
    }
}

fn is_schema(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(is_plain)
        && !name.starts_with("pg_")
}

#[cfg(test)]
mod tests {
    use crate::{Loaded, Sources};

    fn error(text: &str) -> String {
        let [outbox, history] = ["outbox", "history"].map(|section| error_in(section, text));
        assert_eq!(outbox.replace("outbox.", "history."), history);
        outbox
    }

    fn error_in(section: &str, text: &str) -> String {
        let text = format!("[{section}]\n{text}\n");
        let sources = Sources { file: Some(("throng.toml", &text)), ..Sources::default() };
        Loaded::load(&sources).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn the_url_is_of_a_database_and_holds_no_password() {
        let of = |url: &str| error(&format!("url = {url:?}"));
        for good in
            ["postgres://a@h/d", "postgresql://h:1/d?sslmode=require", "postgres:///d?host=/run"]
        {
            assert_eq!(of(good), "", "{good}");
        }
        let want = "this is not the URL of a database: write postgres://user@host:5432/database";
        assert!(of("http://h/d").contains(want));
        for bad in
            ["postgres://a:hush@h/d", "postgres://a:hu@sh@h/d", "postgres://h/d?password=hush"]
        {
            let error = of(bad);
            assert!(error.contains("outbox.password_file") && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn a_schema_is_a_plain_name() {
        let of = |name: &str| error(&format!("schema = {name:?}"));
        assert_eq!(of("push_2"), "");
        for bad in ["", "Push", "2a", "a-b", "a.b", "a b", "pg_a", "a\"b", &"a".repeat(64)] {
            assert!(of(bad).contains("is not a valid schema name"), "{bad:?}");
        }
    }
}
