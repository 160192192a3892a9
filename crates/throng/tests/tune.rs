//! `throng tune` on this host. These tests change no setting.

use std::process::Command;

use serde_json::Value;

use crate::support::Scratch;

/// More connections than any test host can have: they would need 400 GiB.
const TOO_MANY: &str = "100000000";

/// Runs the command. Returns the exit status and the output. Standard error must be empty.
fn tune(arguments: &str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    let output = command.arg("tune").args(arguments.split_whitespace()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments}");
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

/// Returns the advice for connections that fit on any host that can build this.
fn good(arguments: &str) -> String {
    let (code, text) = tune(&format!("--connections 1000 {arguments}"));
    assert_eq!(code, 0, "{arguments}: {text}");
    text
}

#[test]
fn connections_that_fit_are_reported() {
    let text = good("");
    assert!(text.starts_with("1,000 connections fit: this host holds "), "{text}");
    for want in ["Nothing has to be done", "This host: Linux ", "Requested: 1,000 connections\n"] {
        assert!(text.contains(want), "{want} in\n{text}");
    }
    for name in ["memory", "open files of a process", "fs.file-max", "net.core.somaxconn"] {
        let line = |line: &str| {
            let level = line.split(' ').next().unwrap();
            ["good", "advise", "unknown"].contains(&level)
                && line[level.len()..].trim_start().starts_with(&format!("{name}: "))
        };
        assert!(text.lines().any(line), "{name} in\n{text}");
    }
    assert!(!text.lines().any(|line| line.starts_with("must")), "{text}");
    // The output is no terminal, so it has no colours. Its lines fit a terminal.
    assert!(!text.contains('\x1b') && text.lines().all(|line| line.chars().count() <= 100));
    assert_eq!(good("--both-ends").matches("both ends on this host").count(), 1);
}

#[test]
fn connections_that_do_not_fit_are_reported_with_their_bound() {
    let (code, text) = tune(&format!("--connections {TOO_MANY}"));
    assert_eq!(code, 3);
    assert!(text.lines().any(|line| line.starts_with("must     memory: ")), "{text}");
    let mut lines = text.lines();
    let first_line = lines.next().unwrap();
    assert!(
        first_line.starts_with("100,000,000 connections do not fit: this host holds "),
        "{first_line}"
    );
    let todo = lines.next().unwrap();
    assert!(todo.starts_with("To do: more ") && todo.contains("memory"), "{todo}");
    let (code, json) = tune(&format!("--connections {TOO_MANY} --json"));
    let advice: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &advice["fits"]), (3, &Value::Bool(false)));
    let holds = &advice["holds"];
    assert!(holds["connections"].as_u64() < Some(100_000_000), "{holds}");
    let bound = |finding: &&Value| finding["name"] == holds["set_by"];
    let finding = advice["findings"].as_array().unwrap().iter().find(bound);
    let finding = finding.unwrap_or_else(|| panic!("no finding of {holds}"));
    assert_eq!((&finding["level"], &finding["bound"]), (&"must".into(), &holds["connections"]));
}

#[test]
fn the_advice_is_printed_as_json() {
    let advice: Value = serde_json::from_str(&good("--json")).unwrap();
    assert_eq!(advice["fits"], true);
    assert_eq!(advice["want"]["connections"], 1000);
    assert!(advice["holds"]["connections"].as_u64() >= Some(1000), "{advice:#}");
    assert!(advice["estimate"]["total"].as_u64() > Some(0), "{advice:#}");
    for finding in advice["findings"].as_array().unwrap() {
        for key in ["name", "fact", "meaning", "level"] {
            assert!(finding[key].as_str().is_some_and(|text| !text.is_empty()), "{finding:#}");
        }
        assert_ne!(finding["level"], "must", "{finding:#}");
    }
}

/// Returns whether the line is a key that sysctl(8) accepts, and a value.
fn is_setting(line: &str) -> bool {
    let Some((key, value)) = line.split_once(" = ") else { return false };
    let key_byte = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    key.contains('.') && key.bytes().all(key_byte) && !value.trim().is_empty()
}

#[test]
fn the_file_for_sysctl_has_only_comments_and_settings() {
    for connections in ["1000", "1000000", TOO_MANY] {
        let (code, text) = tune(&format!("--connections {connections} --sysctl"));
        assert_eq!(code, tune(&format!("--connections {connections}")).0);
        assert!(text.starts_with("# Settings for ") && text.ends_with('\n'), "{text}");
        let settings: Vec<&str> =
            text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        assert!(settings.iter().all(|line| is_setting(line)), "{text}");
        // Settings that the user should only consider are comments.
        assert!(settings.is_empty() || !text.contains("# Nothing to change."), "{text}");
        // All other settings exist on this host.
        for line in settings {
            let path = format!("/proc/sys/{}", line.split(' ').next().unwrap().replace('.', "/"));
            assert!(std::path::Path::new(&path).exists(), "{path}");
        }
    }
}

#[test]
fn the_unit_runs_this_binary_with_sufficient_limits() {
    let text = good("--systemd");
    let mut sections = Vec::new();
    let mut keys = std::collections::BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(section) = line.strip_prefix('[') {
            sections.push(section.strip_suffix(']').unwrap());
        } else {
            let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
            let known = keys.insert(key, value);
            assert!(known.is_none(), "{key} twice");
        }
    }
    assert_eq!(sections, ["Unit", "Service", "Install"]);
    let run = format!("{} serve --max-connections 1000 ", env!("CARGO_BIN_EXE_throng"));
    assert!(keys["ExecStart"].starts_with(&run), "{}", keys["ExecStart"]);
    assert_eq!(keys["WantedBy"], "multi-user.target");
    for key in ["LimitNOFILE", "TasksMax", "TimeoutStopSec"] {
        assert!(keys[key].parse::<u64>().unwrap() > 0, "{key}");
    }
    assert!(keys["LimitNOFILE"].parse::<u64>().unwrap() >= 1000);
}

/// The unit must name the link, so that an upgrade follows a changed link.
#[test]
fn the_unit_names_the_link_that_the_command_was_called_by() {
    let folder = Scratch::new("tune");
    let link = folder.path().join("throng");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_throng"), &link).unwrap();
    let mut command = Command::new(&link);
    let output = command.args(["tune", "--connections", "1000", "--systemd"]).output().unwrap();
    let unit = String::from_utf8(output.stdout).unwrap();
    assert!(unit.contains(&format!("\nExecStart={} serve ", link.display())), "{unit}");
}

/// The recorded facts of a host give the same advice on another host.
#[test]
fn a_recorded_host_gives_the_same_advice() {
    let host: tune::Host = serde_json::from_str(&good("--host")).unwrap();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(host.kernel.as_deref(), Some(release.trim()));
    assert!(host.memory_total_bytes > Some(0) && host.cpus > Some(0) && host.nofile_hard > Some(0));
    let setting = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    assert_eq!(host.sysctl("net.core.somaxconn"), Some(setting.trim()));
    let advice = tune::advise(&host, &tune::Want::new(1000));
    assert!(advice.fits);
    let many: Value = serde_json::from_str(&tune::json(&advice)).unwrap();
    let now: Value = serde_json::from_str(&good("--json")).unwrap();
    let names = |advice: &Value| -> Vec<String> {
        let findings = advice["findings"].as_array().unwrap();
        findings.iter().map(|finding| finding["name"].to_string()).collect()
    };
    assert_eq!(names(&many), names(&now));
}

#[test]
fn an_invalid_command_line_is_rejected() {
    for arguments in ["--connections 0", "--connections many", "--json --host", "--sysctl --json"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        let output = command.arg("tune").args(arguments.split(' ')).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
        assert!(text.starts_with("error: ") && !text.contains("panicked"), "{text}");
    }
}
