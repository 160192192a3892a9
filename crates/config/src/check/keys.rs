//! Checks of the keys of the API.

use auth::Scope;

use crate::source::Read;
use crate::{Config, SettingError};

/// Tables of `[[keys]]`, at most. Each has a row in the metrics, and each request is compared with all.
const KEYS_MAX: usize = 1_000;

/// The name of `admin.api_key` among the names of keys.
const API_KEY: &str = "admin.api_key";

/// Checks each key by itself, and against those before it.
pub(super) fn check(config: &Config, read: &mut Read) {
    let Read { keys, errors, .. } = read;
    for (index, (values, key)) in keys.iter().zip(&config.keys).enumerate() {
        let before = &config.keys[..index];
        let mut add_error = |at: &str, message: String| {
            // A key that is invalid or missing has an error already.
            if let Some((_, origin)) = values.values.get(at) {
                let key = format!("keys[{index}].{at}");
                errors.push(SettingError { origin: origin.clone(), key, message });
            }
        };
        if index == KEYS_MAX {
            add_error("name", format!("at most {KEYS_MAX} keys are allowed, and this is one more"));
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !key.name.chars().all(is_plain) {
            let message = "a name may have only letters, digits, '-', '_' and '.': it appears in \
                           logs and metrics";
            add_error("name", message.into());
        }
        if key.name == API_KEY {
            add_error("name", format!("{API_KEY} has this name already: choose another name"));
        }
        if before.iter().any(|other| other.name == key.name) {
            add_error("name", format!("another key has the name {:?} already", key.name));
        }
        let is_read = values.values.contains_key("hash");
        if is_read && let Some(other) = before.iter().find(|other| other.hash == key.hash) {
            add_error("hash", format!("the key {:?} has this hash already", other.name));
        }
        if key.scopes.is_empty() {
            add_error("scopes", "a key without a scope permits nothing: add a scope".into());
        }
        for scope in &key.scopes {
            if let Err(error) = scope.parse::<Scope>() {
                add_error("scopes", format!("{scope:?}: {error}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{KeyHash, Loaded, Sources, effective};

    const HASH: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn load(file: &str) -> Result<Loaded, String> {
        let sources = Sources { file: Some(("throng.toml", file)), ..Sources::default() };
        Loaded::load(&sources).map_err(|errors| errors.to_string())
    }

    fn table(name: &str, hash: &str, more: &str) -> String {
        format!("[[keys]]\nname = \"{name}\"\nhash = \"{hash}\"\n{more}\n")
    }

    #[test]
    fn keys_are_read_in_file_order() {
        let other = HASH.replace("9f", "A0");
        let file = table("billing", HASH, "scopes = [\"publish:invoice:*\", \"publish:@*\"]")
            + &table("ops", &other, "scopes = [\"read\"]\nexpires = 2031-01-01");
        let loaded = load(&file).unwrap();
        let keys = &loaded.config.keys;
        assert_eq!(keys[0].name, "billing");
        assert_eq!((keys[0].hash.to_string(), keys[0].expires), (HASH.into(), None));
        assert_eq!(keys[0].scopes, ["publish:invoice:*", "publish:@*"]);
        assert_eq!(keys[1].hash, KeyHash::parse(&other).unwrap());
        assert_eq!(keys[1].expires, Some(1_924_992_000));
        let text = effective(&loaded);
        assert!(text.contains("\n[[keys]]\nname = \"billing\""), "{text}");
        assert!(
            text.contains("# hash is set") && text.contains("expires = \"2031-01-01\""),
            "{text}"
        );
        assert!(!text.contains("9f86d0") && !format!("{loaded:?}").contains("9f"), "{loaded:?}");
        // With a key, other machines may reach the port.
        assert!(load(&format!("[admin]\nlisten = \"0.0.0.0:1\"\n{file}")).is_ok());
        let error = load("[admin]\nlisten = \"0.0.0.0:1\"\n").unwrap_err();
        assert!(error.contains("make a [[keys]] table (throng key new)"), "{error}");
        let changes = load("").unwrap().changes(&loaded);
        assert_eq!(changes.applied, ["keys"]);
        assert_eq!(load("").unwrap().reloaded(&loaded).unwrap().config.keys, *keys);
    }

    #[test]
    fn mistakes_in_keys_are_found_and_no_key_is_shown() {
        let good = "scopes = [\"read\"]";
        for (file, want) in [
            (table("a b", HASH, good), "2:8: keys[0].name: a name may have only letters, digits,"),
            (
                table("admin.api_key", HASH, good),
                "keys[0].name: admin.api_key has this name already",
            ),
            (table("", HASH, good), "keys[0].name: expected a text of 1 to 64 bytes"),
            (table("a", HASH, "scopes = []"), "4:10: keys[0].scopes: a key without a scope"),
            (table("a", HASH, "scopes = [\"write\"]"), "scopes: \"write\": a scope is \"admin\","),
            (table("a", HASH, "scopes = [\"publish:\"]"), "must have 1 to 254 bytes"),
            (table("a", HASH, "scopes = [\"publish:{sub}\"]"), "has no user"),
            (table("a", HASH, ""), "keys[0].scopes: it is missing: write a list"),
            (table("a", HASH, &format!("{good}\nexpires = \"soon\"")), "expected a date or a time"),
            (
                table("a", HASH, &format!("{good}\nexpires = 2031-01-01T00:00:00")),
                "write Z after it",
            ),
            (
                table("a", HASH, good) + &table("a", &HASH.replace("9f", "aa"), good),
                "keys[1].name: another key has the name \"a\" already",
            ),
            (
                table("a", HASH, good)
                    + &table("b", &HASH.to_uppercase().replace("SHA", "sha"), good),
                "keys[1].hash: the key \"a\" has this hash already",
            ),
        ] {
            let error = load(&file).unwrap_err();
            assert!(error.contains(want) && error.lines().count() == 1, "{file}: {error}");
        }
        for wrong in
            ["my-secret-key", "sha256:my-secret-key", &HASH[..70], &HASH.replace("9f", "+f")]
        {
            let error = load(&table("a", wrong, good)).unwrap_err();
            assert!(
                error.contains("keys[0].hash: expected the line that \"throng key new\""),
                "{error}"
            );
            assert!(!error.contains("my-secret") && !error.contains("86d081"), "{error}");
        }
        let variables = vec![("THRONG_KEYS_NAME".into(), "a".into())];
        let error = Loaded::load(&Sources { variables, ..Sources::default() }).unwrap_err();
        assert!(error.to_string().contains("write [[keys]] there"), "{error}");
        let many: String = (0..1_001)
            .map(|n| table(&format!("k{n}"), &format!("sha256:{n:064x}"), good))
            .collect();
        let error = load(&many).unwrap_err();
        assert!(error.contains("keys[1000].name: at most 1000 keys are allowed"), "{error}");
    }
}
