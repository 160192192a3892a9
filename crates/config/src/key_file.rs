//! Keys in their own files instead of in settings: `admin.api_key_file`, `auth.hmac_key_file`,
//! `cluster.password_file`, `cluster.credentials_file`, `history.password_file`, `outbox.password_file`,
//! `tls.acme_eab_key_file`.

use std::path::{Path, PathBuf};

use crate::source::{Read, ReadSecret};
use crate::{Origin, SettingError, Value};

/// The contents of a file for no key. (It is too short for a key.) An empty file is an error instead, because it may
/// be a mistake.
pub const NO_KEY: &str = "none";

/// Keys that a file may contain, with the settings for their files.
const KEYS: [(&str, &str); 7] = [
    ("admin.api_key", "admin.api_key_file"),
    ("auth.hmac_key", "auth.hmac_key_file"),
    ("cluster.password", "cluster.password_file"),
    ("cluster.credentials", "cluster.credentials_file"),
    ("history.password", "history.password_file"),
    ("outbox.password", "outbox.password_file"),
    ("tls.acme_eab_key", "tls.acme_eab_key_file"),
];

/// The setting with a list of files that other crates read.
const PATHS: &str = "auth.public_key_files";

/// The settings with one file each that other crates read.
const FILES: [&str; 11] = [
    "tls.certificate_file",
    "tls.key_file",
    "tls.client_ca_file",
    "tls.acme_ca_file",
    "tls.acme_dir",
    "cluster.ca_file",
    "auth.jwks_ca_file",
    "webhook.ca_file",
    "outbox.ca_file",
    "tracing.ca_file",
    "history.ca_file",
];

/// Sets keys from their files, and replaces paths by full paths. Of a key and a file, the later source wins; in one
/// source, both are an error. An empty text is no key.
pub(crate) fn read(read: &mut Read, read_secret: Option<ReadSecret>) {
    for (key, file) in KEYS {
        read_key(read, read_secret, key, file);
    }
    for setting in FILES {
        if let Some((value, origin)) = read.values.get_mut(setting) {
            make_whole(value, origin);
        }
    }
    for rule in &mut read.certificates {
        rule.values.values_mut().for_each(|(value, origin)| make_whole(value, origin));
    }
    let Some((Value::List(paths), origin)) = read.values.get(PATHS).cloned() else { return };
    let paths = paths.iter().map(|path| whole(path, &origin).display().to_string()).collect();
    read.values.insert(PATHS, (Value::List(paths), origin));
}

fn read_key(
    read: &mut Read,
    read_secret: Option<ReadSecret>,
    key_setting: &'static str,
    file_setting: &'static str,
) {
    let text = |key: &str| match read.values.get(key) {
        Some((Value::Text(text), origin)) if !text.is_empty() => {
            Some((text.clone(), origin.clone()))
        }
        _ => None,
    };
    // After an error it is unknown whether a key is set.
    let error = |read: &mut Read, origin: Origin, message: String| {
        read.invalid.insert(key_setting);
        read.errors.push(SettingError { origin, key: file_setting.into(), message });
    };
    let Some((written, origin)) = text(file_setting) else { return };
    let path = whole(&written, &origin);
    if let Some((_, key)) = text(key_setting) {
        if rank(&key) > rank(&origin) {
            return;
        }
        if rank(&key) == rank(&origin) {
            let message = format!(
                "{key} sets {key_setting}, too, but only one can be the key: remove {file_setting} \
                 or {key_setting}"
            );
            return error(read, origin, message);
        }
    }
    let Some(read_secret) = read_secret else {
        return error(read, origin, "no file can be read here".into());
    };
    match read_secret(&path) {
        Ok(key) => {
            let key = if key == NO_KEY { String::new() } else { key };
            let shown = path.display().to_string();
            read.values.insert(key_setting, (Value::Text(key), Origin::KeyFile(shown.clone())));
            read.values.insert(file_setting, (Value::Text(shown), origin));
        }
        Err(message) => error(read, origin, message),
    }
}

/// Replaces a written path by the full path. An empty text is no path.
fn make_whole(value: &mut Value, origin: &Origin) {
    if let Value::Text(path) = value
        && !path.is_empty()
    {
        *path = whole(path, origin).display().to_string();
    }
}

/// Resolves a path: in a file it is relative to that file's folder, elsewhere to the process's.
fn whole(written: &str, origin: &Origin) -> PathBuf {
    let folder = match origin {
        Origin::File { name, .. } => Path::new(name).parent(),
        _ => None,
    };
    folder.unwrap_or(Path::new("")).join(written)
}

/// The rank of a source: later sources win.
fn rank(origin: &Origin) -> u8 {
    match origin {
        Origin::Default => 0,
        Origin::File { .. } | Origin::KeyFile(_) => 1,
        Origin::Variable(_) => 2,
        Origin::Flag(_) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Loaded, Sources, effective};

    const SECRET: &str = "0123456789abcdef";

    /// Every file exists, and contains its path twice; `short` contains a short key.
    fn read_secret(path: &Path) -> Result<String, String> {
        match path.to_str() {
            Some("none") => Err("none: can't be read: gone".into()),
            Some("short") => Ok("short!".into()),
            Some("no-key") => Ok("none".into()),
            Some(path) => Ok(format!("{path}{SECRET}")),
            None => Err("no text".into()),
        }
    }

    fn load(
        name: &str,
        file: &str,
        variables: &[(&str, &str)],
        flag: Option<&str>,
    ) -> Result<Loaded, String> {
        let variables = variables.iter().map(|(name, text)| ((*name).into(), (*text).into()));
        let sources = Sources {
            file: Some((name, file)),
            variables: variables.collect(),
            flags: flag
                .iter()
                .map(|path| ("admin.api_key_file", "--api-key-file", path.to_string()))
                .collect(),
            read_secret: Some(read_secret),
            ..Sources::default()
        };
        Loaded::load(&sources).map_err(|errors| errors.to_string())
    }

    fn key(loaded: &Loaded) -> String {
        let key = loaded.config.admin.api_key.clone();
        key.strip_suffix(SECRET).map(str::to_string).unwrap_or(key)
    }

    #[test]
    fn the_key_is_in_the_file_that_is_named() {
        let file = "[admin]\napi_key_file = \"api.key\"\n";
        for (name, want) in [
            ("throng.toml", "api.key"),
            ("/etc/throng/throng.toml", "/etc/throng/api.key"),
            ("../throng.toml", "../api.key"),
        ] {
            let loaded = load(name, file, &[], None).unwrap();
            assert_eq!(key(&loaded), want);
            let text = effective(&loaded);
            assert!(text.contains(&format!("api_key_file = \"{want}\"")), "{text}");
            assert!(text.contains(&format!("# file {want}\n")) && !text.contains(SECRET), "{text}");
        }
        let whole = "[admin]\napi_key_file = \"/run/api.key\"\n";
        assert_eq!(key(&load("/etc/throng.toml", whole, &[], None).unwrap()), "/run/api.key");
        // The paths of variables and flags are relative to the process's folder.
        let variable = [("THRONG_ADMIN_API_KEY_FILE", "b")];
        assert_eq!(key(&load("/etc/throng.toml", "", &variable, None).unwrap()), "b");
        assert_eq!(key(&load("/etc/throng.toml", "", &[], Some("c")).unwrap()), "c");
    }

    #[test]
    fn of_a_key_and_a_file_the_later_source_wins() {
        let (in_file, named) =
            (format!("[admin]\napi_key = \"{SECRET}x\"\n"), "[admin]\napi_key_file = \"a\"\n");
        let variable = format!("{SECRET}y");
        let (variable, file) =
            (("THRONG_ADMIN_API_KEY", &*variable), ("THRONG_ADMIN_API_KEY_FILE", "b"));
        let key = |file: &str, variables: &[(&str, &str)], flag| {
            load("throng.toml", file, variables, flag).map(|loaded| key(&loaded))
        };
        assert_eq!(key(&in_file, &[], Some("c")).unwrap(), "c");
        assert_eq!(key(&in_file, &[file], None).unwrap(), "b");
        assert_eq!(key(named, &[file], Some("c")).unwrap(), "c");
        assert_eq!(key("", &[variable], Some("c")).unwrap(), "c");
        assert_eq!(key(named, &[variable], None).unwrap(), variable.1);
        // An empty variable does not remove the key in a file.
        assert_eq!(key(named, &[("THRONG_ADMIN_API_KEY", "")], None).unwrap(), "a");
        assert_eq!(key(named, &[("THRONG_ADMIN_API_KEY_FILE", "")], None).unwrap(), "");
        let both = format!("{named}api_key = \"{SECRET}\"\n");
        assert_eq!(
            key(&both, &[], None).unwrap_err(),
            "throng.toml:2:16: admin.api_key_file: throng.toml:3 sets admin.api_key, too, but only \
             one can be the key: remove admin.api_key_file or admin.api_key"
        );
        assert!(key("", &[variable, file], None).unwrap_err().contains("only one can be the key"));
    }

    #[test]
    fn a_file_without_a_good_key_is_an_error() {
        let open = "[admin]\nlisten = \"0.0.0.0:1\"\napi_key_file = ";
        // It is unknown whether a key is set, so this is the only error.
        assert_eq!(
            load("throng.toml", &format!("{open}\"none\"\n"), &[], None).unwrap_err(),
            "throng.toml:3:16: admin.api_key_file: none: can't be read: gone"
        );
        let short = load("throng.toml", &format!("{open}\"short\"\n"), &[], None).unwrap_err();
        let want = "file short: admin.api_key: a key must have at least 16";
        assert!(short.starts_with(want), "{short}");
        assert_eq!(
            load("throng.toml", &format!("{open}1\n"), &[], None).unwrap_err().lines().count(),
            2
        );
        assert!(load("throng.toml", &format!("{open}\"a\"\n"), &[], None).is_ok());
        // Without a key only this machine may reach the port.
        let without = load("throng.toml", &format!("{open}\"no-key\"\n"), &[], None).unwrap_err();
        assert!(without.contains("admin.listen: 0.0.0.0:1 is open to other machines"), "{without}");
        let closed = load("throng.toml", "", &[("THRONG_ADMIN_API_KEY", "")], Some("no-key"));
        assert_eq!(closed.unwrap().config.admin.api_key, "");
    }

    #[test]
    fn a_reload_takes_the_key_that_the_file_holds_then() {
        let file = |name: &str| format!("[admin]\napi_key_file = \"{name}\"\n");
        let old = load("throng.toml", &file("a"), &[], None).unwrap();
        let new = load("throng.toml", &file("b"), &[], None).unwrap();
        let now = old.reloaded(&new).unwrap();
        assert_eq!(key(&now), "b");
        assert_eq!(old.changes(&now).applied, ["admin.api_key", "admin.api_key_file"]);
        assert_eq!(old.changes(&old.reloaded(&old).unwrap()), crate::Changes::default());
    }
}
