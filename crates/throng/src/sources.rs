//! The configuration from file, environment and flags.

use std::fs;
use std::path::Path;

use config::{Loaded, Origin, Problem, Sources};

use crate::cli::{Failure, Flags};

/// The file that is read when none is named, if it is there.
const FILE: &str = "throng.toml";

/// The setting that a file of its own can hold, so that the key shows in no list of processes.
const API_KEY: &str = "admin.api_key";
const API_KEY_FILE: &str = "--api-key-file";

/// Reads all sources anew: at the start, and at every reload.
pub fn load(flags: &Flags) -> Result<Loaded, Failure> {
    let mut unreadable = Vec::new();
    let mut flag_values = flag_values(flags);
    if let Some(path) = &flags.api_key_file {
        match key_file(path) {
            Ok(key) => flag_values.push((API_KEY, API_KEY_FILE, key)),
            Err(message) => {
                let origin = Origin::Flag(API_KEY_FILE.into());
                unreadable.push(Problem { origin, key: API_KEY.into(), message });
            }
        }
    }
    let path = flags.config.as_deref().or(Some(Path::new(FILE)).filter(|path| path.exists()));
    let file = path.and_then(|path| match read(path) {
        Ok(text) => Some((path.display().to_string(), text)),
        Err(message) => {
            unreadable.push(Problem { origin: Origin::Default, key: String::new(), message });
            None
        }
    });
    let sources = Sources {
        file: file.as_ref().map(|(name, text)| (name.as_str(), text.as_str())),
        variables: std::env::vars_os().collect(),
        flags: flag_values,
        unreadable,
    };
    Loaded::load(&sources).map_err(|problems| Failure::Usage(problems.to_string()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: can't be read: {error}", path.display()))
}

/// The key in a file, without the newline that editors and shells put after it. A file without one
/// is refused: whoever names a file means to be protected, or to be let in.
pub(crate) fn key_file(path: &Path) -> Result<String, String> {
    match read(path)?.trim() {
        "" => Err(format!(
            "{}: the file is empty: it must hold the API key (openssl rand -hex 24 makes a new one)",
            path.display()
        )),
        key => Ok(key.to_string()),
    }
}

fn flag_values(flags: &Flags) -> Vec<(&'static str, &'static str, String)> {
    let set = |on: bool| on.then(|| "true".to_string());
    let all = [
        ("client.listen", "--listen", flags.listen.clone()),
        ("admin.listen", "--admin", flags.admin.clone()),
        ("client.insecure", "--insecure", set(flags.insecure)),
        ("shards.count", "--shards", flags.shards.clone()),
        ("limits.connections_max", "--max-connections", flags.max_connections.clone()),
        ("shards.sender", "--sender", flags.sender.clone()),
        ("shards.pin_cpus", "--pin-cpus", set(flags.pin_cpus)),
        ("store.data", "--data", flags.data.clone()),
        ("log.level", "--log", flags.log.clone()),
        ("log.format", "--log-format", flags.log_format.clone()),
    ];
    all.into_iter().filter_map(|(key, flag, text)| Some((key, flag, text?))).collect()
}
