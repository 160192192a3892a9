//! Writes advised settings to /proc/sys. No other part of this crate changes a host.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::Serialize;

use crate::advice::Advice;
use crate::finding::{Level, Sysctl};

/// The result for one setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// The setting.
    pub sysctl: Sysctl,
    /// Its value before; absent if it could not be read.
    pub before: Option<String>,
    /// The reason why it was not set, with advice; absent if it was set.
    pub error: Option<String>,
}

/// Applies every setting that must or should be changed, until the next boot. `root` is `/` outside
/// of tests. An error with one setting doesn't stop the others.
pub fn apply(advice: &Advice, root: &Path) -> Vec<Applied> {
    let sure = advice.sysctls().filter(|(finding, _)| finding.level < Level::Unknown);
    let set = sure.map(|(_, sysctl)| {
        let path = root.join("proc/sys").join(sysctl.key.replace('.', "/"));
        let before = fs::read_to_string(&path).ok().map(|text| text.trim().replace('\t', " "));
        let outcome = write(&path, &sysctl.value);
        let error = outcome.err().map(|error| explain(advice, sysctl, &error));
        Applied { sysctl: sysctl.clone(), before, error }
    });
    set.collect()
}

/// Writes a setting. Never creates a file, so a setting that doesn't exist is an error.
fn write(path: &Path, value: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(path)?;
    io::Write::write_all(&mut file, format!("{value}\n").as_bytes())
}

fn explain(advice: &Advice, Sysctl { key, value }: &Sysctl, error: &io::Error) -> String {
    let container = advice.container.is_some();
    match error.kind() {
        ErrorKind::ReadOnlyFilesystem => {
            let remedies = advice.findings.iter().filter_map(|finding| finding.remedy.as_ref());
            let mut own =
                remedies.filter(|remedy| remedy.sysctl.as_ref().is_some_and(|s| s.key == *key));
            let instead = own
                .next()
                .and_then(|remedy| Some(format!("{}: {}", remedy.place.as_ref()?, remedy.command)));
            let instead =
                instead.unwrap_or_else(|| format!("outside of it: sysctl -w {key}='{value}'"));
            format!(
                "{key} is not set: /proc/sys is read-only, as the container or sandbox has it, \
                 and nothing inside can change that. Set it {instead}"
            )
        }
        ErrorKind::PermissionDenied if container => format!(
            "{key} is not set: this container may not change the machine's settings. Set it on \
             the machine that runs the container: sysctl -w {key}='{value}'"
        ),
        ErrorKind::PermissionDenied => format!(
            "{key} is not set: only root may. Run this command again with sudo, or: sudo sysctl -w \
             {key}='{value}'"
        ),
        ErrorKind::NotFound => format!(
            "{key} is not set: it doesn't exist here. A container doesn't see all settings of its \
             machine; otherwise the kernel is built without it, or its module is not loaded"
        ),
        ErrorKind::InvalidInput => {
            format!("{key} is not set: the kernel rejects {value} (a bug of this advice)")
        }
        _ => format!("{key} is not set to {value}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, Want, advise};

    fn host() -> Host {
        let mut host = Host::default();
        for (key, value) in [("fs.file-max", "1000"), ("net.core.somaxconn", "128")] {
            host.sysctls.insert(key.to_owned(), value.to_owned());
        }
        host
    }

    #[test]
    fn settings_are_written_and_errors_are_reported() {
        let root = std::env::temp_dir().join(format!("tune-apply-{}", std::process::id()));
        fs::create_dir_all(root.join("proc/sys/net/core")).unwrap();
        fs::write(root.join("proc/sys/net/core/somaxconn"), "128\n").unwrap();
        let applied = apply(&advise(&host(), &Want::new(10_000)), &root);
        assert_eq!(applied.len(), 2);
        let of = |key: &str| applied.iter().find(|one| one.sysctl.key == key).unwrap();
        assert_eq!(of("net.core.somaxconn").error, None);
        assert_eq!(of("net.core.somaxconn").before.as_deref(), Some("128"));
        let text = fs::read_to_string(root.join("proc/sys/net/core/somaxconn")).unwrap();
        assert_eq!(text, "4096\n");
        assert!(of("fs.file-max").error.as_ref().unwrap().contains("doesn't exist here"));
        assert!(!root.join("proc/sys/fs").exists());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn errors_name_the_cause_and_the_remedy() {
        let mut host = host();
        host.container = Some("docker".to_owned());
        host.sysctl_read_only = Some(true);
        let advice = advise(&host, &Want::new(10_000));
        let message = |key: &str, kind: ErrorKind| {
            let (_, sysctl) = advice.sysctls().find(|(_, sysctl)| sysctl.key == key).unwrap();
            explain(&advice, sysctl, &kind.into())
        };
        let text = message("net.core.somaxconn", ErrorKind::ReadOnlyFilesystem);
        assert!(text.contains("docker run --sysctl net.core.somaxconn=4096"), "{text}");
        let text = message("fs.file-max", ErrorKind::ReadOnlyFilesystem);
        assert!(text.contains("on the machine that runs this container: sysctl -w fs"), "{text}");
        let text = message("fs.file-max", ErrorKind::PermissionDenied);
        assert!(text.contains("on the machine"), "{text}");
    }
}
