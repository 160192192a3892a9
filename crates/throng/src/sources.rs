//! The configuration from file, environment and flags.

use std::net::ToSocketAddrs;
use std::path::Path;

use config::{Loaded, Origin, SettingError, Sources};

use crate::error::CommandError;
use crate::flags::Flags;

/// The default file, which is read only if it exists.
const FILE: &str = "throng.toml";

/// The largest configuration in bytes: enough for far more rules than any operator writes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The setting that names the file with the key, so that no list of processes shows the key.
const KEY_FILE: (&str, &str) = ("admin.api_key_file", "--api-key-file");

/// The variables of the key and of its file, which the server's clients read, too.
const KEY_VARIABLE: &str = "THRONG_ADMIN_API_KEY";
const KEY_FILE_VARIABLE: &str = "THRONG_ADMIN_API_KEY_FILE";

/// Reads all sources. The server calls this at the start and at every reload.
pub fn load(flags: &Flags) -> Result<Loaded, CommandError> {
    let mut unreadable = Vec::new();
    let mut flag_values = flag_values(flags);
    if let Some(path) = &flags.api_key_file {
        let (key, flag) = KEY_FILE;
        match path.to_str().filter(|path| !path.is_empty()) {
            Some(path) => flag_values.push((key, flag, path.into())),
            None => {
                let message = format!("{path:?} is not a file");
                let origin = Origin::Flag(flag.into());
                unreadable.push(SettingError { origin, key: key.into(), message });
            }
        }
    }
    let path = flags.config.as_deref().or(Some(Path::new(FILE)).filter(|path| path.exists()));
    let file = path.and_then(|path| match files::read_text(path, FILE_BYTES_MAX) {
        Ok(text) => Some((path.display().to_string(), text)),
        Err(error) => {
            let (origin, message) = (Origin::Default, error.to_string());
            unreadable.push(SettingError { origin, key: String::new(), message });
            None
        }
    });
    let sources = Sources {
        file: file.as_ref().map(|(name, text)| (name.as_str(), text.as_str())),
        variables: std::env::vars_os().collect(),
        flags: flag_values,
        unreadable,
        resolve: Some(|text| Ok(text.to_socket_addrs()?.collect())),
        read_secret: Some(key_file),
    };
    Loaded::load(&sources).map_err(|error| CommandError::Usage(error.to_string()))
}

/// Returns the secrets in configuration files that other users can read, each with advice. A configuration is often
/// meant to be readable, so this is only a warning; a file that contains only a secret would be rejected.
pub fn open_secrets(loaded: &Loaded) -> Vec<String> {
    let secrets = config::SETTINGS.iter().filter(|setting| setting.secret);
    let open = secrets.filter_map(|setting| match loaded.origin(setting.key) {
        Origin::File { name, .. } => {
            let reason = files::open_secret(Path::new(name))?;
            Some(format!("{}: {reason}", setting.key))
        }
        _ => None,
    });
    open.collect()
}

/// Returns the key for a server's client: from its file, or else from the variables that the server reads, too. As
/// for `throng serve`, an empty variable means no key.
pub fn api_key(file: Option<&Path>) -> Result<Option<String>, CommandError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
    let (source, file) = match (file, variable(KEY_VARIABLE), variable(KEY_FILE_VARIABLE)) {
        (Some(file), _, _) => (KEY_FILE.1, file.to_owned()),
        (None, Some(_), Some(_)) => {
            return Err(CommandError::Usage(format!(
                "{KEY_VARIABLE} and {KEY_FILE_VARIABLE} are both set, and only one can be the key: \
                 unset one of them"
            )));
        }
        (None, None, Some(file)) => (KEY_FILE_VARIABLE, file.into()),
        (None, key, None) => return Ok(key.map(|key| key.trim().to_owned())),
    };
    let key =
        key_file(&file).map_err(|reason| CommandError::Usage(format!("{source}: {reason}")))?;
    Ok(Some(key).filter(|key| key != config::NO_KEY))
}

/// Reads the key from its file, for servers and for their clients.
fn key_file(path: &Path) -> Result<String, String> {
    files::read_secret(path).map_err(|error| error.to_string())
}

/// The settings that have a flag, and their flags.
pub fn setting_flags() -> Vec<(&'static str, &'static str)> {
    all_flags(&Flags::default()).into_iter().map(|(key, flag, _)| (key, flag)).collect()
}

fn flag_values(flags: &Flags) -> Vec<(&'static str, &'static str, String)> {
    let all = all_flags(flags).into_iter();
    all.filter_map(|(key, flag, text)| Some((key, flag, text?))).collect()
}

fn all_flags(flags: &Flags) -> Vec<(&'static str, &'static str, Option<String>)> {
    // This names every field, so that no flag is forgotten. The code reads the two that name files separately.
    let Flags {
        config: _,
        listen,
        admin,
        mqtt,
        insecure,
        shards,
        max_connections,
        sender,
        pin_cpus,
        api_key_file: _,
        data,
        cluster,
        log,
        log_format,
    } = flags;
    let set = |on: &bool| on.then(|| "true".to_string());
    vec![
        ("client.listen", "--listen", listen.clone()),
        ("admin.listen", "--admin", admin.clone()),
        ("mqtt.listen", "--mqtt", mqtt.clone()),
        ("client.insecure", "--insecure", set(insecure)),
        ("shards.count", "--shards", shards.clone()),
        ("limits.connections_max", "--max-connections", max_connections.clone()),
        ("shards.sender", "--sender", sender.clone()),
        ("shards.pin_cpus", "--pin-cpus", set(pin_cpus)),
        ("store.data", "--data", data.clone()),
        ("cluster.urls", "--cluster", cluster.clone()),
        ("log.level", "--log", log.clone()),
        ("log.format", "--log-format", log_format.clone()),
    ]
}
