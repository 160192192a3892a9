//! The configuration from file, environment and flags.

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use config::{Loaded, Sources};

use crate::cli::{Failure, Flags};

/// The file that is read when none is named, if it is there.
const FILE: &str = "throng.toml";

/// Reads all sources anew: at the start, and at every reload.
pub fn load(flags: &Flags) -> Result<Loaded, Failure> {
    let file = file(flags)?;
    let sources = Sources {
        file: file.as_ref().map(|(name, text)| (name.as_str(), text.as_str())),
        variables: std::env::vars_os()
            .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)))
            .collect(),
        flags: values(flags)?,
    };
    Loaded::load(&sources).map_err(|problems| Failure::Usage(problems.to_string()))
}

fn file(flags: &Flags) -> Result<Option<(String, String)>, Failure> {
    let path = match &flags.config {
        Some(path) => path.as_path(),
        None if Path::new(FILE).exists() => Path::new(FILE),
        None => return Ok(None),
    };
    read(path).map(|text| Some((path.display().to_string(), text)))
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("{}: can't be read: {error}", path.display())))
}

fn values(flags: &Flags) -> Result<Vec<(&'static str, &'static str, String)>, Failure> {
    let mut all = Vec::new();
    let mut put = |key, flag, value: Option<String>| {
        if let Some(value) = value {
            all.push((key, flag, value));
        }
    };
    let word = |value: Option<clap::builder::PossibleValue>| {
        value.map(|value| value.get_name().to_string())
    };
    let set = |on: bool| on.then(|| "true".to_string());
    put("client.listen", "--listen", flags.listen.map(|address| address.to_string()));
    put("admin.listen", "--admin", flags.admin.map(|address| address.to_string()));
    put("client.insecure", "--insecure", set(flags.insecure));
    put("shards.count", "--shards", flags.shards.map(|shards| shards.to_string()));
    let connections = flags.max_connections.map(|connections| connections.to_string());
    put("limits.connections_max", "--max-connections", connections);
    let sender = word(flags.sender.and_then(|sender| sender.to_possible_value()));
    put("shards.sender", "--sender", sender);
    put("shards.pin_cpus", "--pin-cpus", set(flags.pin_cpus));
    put("log.level", "--log", flags.log.clone());
    let format = word(flags.log_format.and_then(|format| format.to_possible_value()));
    put("log.format", "--log-format", format);
    if let Some(path) = &flags.api_key_file {
        put("admin.api_key", "--api-key-file", Some(read(path)?.trim().to_string()));
    }
    Ok(all)
}
