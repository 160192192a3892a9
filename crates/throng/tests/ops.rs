//! The dashboard and the alerts of `ops/`: they name metrics that a server has, and Prometheus reads them.

mod prometheus;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::support::{Scratch, Server, text};

const FILES: [&str; 2] = ["grafana/throng.json", "prometheus/alerts.yml"];

fn ops() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops")
}

/// Returns the metrics that a text names, without the endings of a family's name.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("throng_"));
    let endings = ["_total", "_bucket", "_sum", "_count"];
    let family = |name: &str| {
        let family = endings.iter().find_map(|ending| name.strip_suffix(ending));
        family.unwrap_or(name).to_owned()
    };
    metrics.map(family).collect()
}

/// Returns the names of limits that a text selects: `throng_limit{name="limits.connections_max"}`.
fn limits(text: &str) -> Vec<&str> {
    let rest = text.split("throng_limit{name=\"").skip(1);
    rest.map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn the_dashboard_and_the_alerts_name_metrics_that_are_there() {
    let scratch = Scratch::new("ops-data");
    let settings = [
        ("THRONG_STORE_DATA", scratch.path().to_str().unwrap()),
        ("THRONG_WEBHOOK_URL", "http://127.0.0.1:9/"),
    ];
    let server = Server::with(&["--shards", "1"], &settings);
    let (status, metrics) = text(server.admin, "GET", "/metrics", None, "");
    assert_eq!(status, 200);
    for file in FILES {
        let content = std::fs::read_to_string(ops().join(file)).unwrap();
        let named = named(&content);
        assert!(named.len() > 15, "{file}: {named:?}");
        let is_missing = |name: &&String| !metrics.contains(&format!("# TYPE {name} "));
        let missing: Vec<_> = named.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "{file} names metrics that no server has: {missing:?}");
        for limit in limits(&content) {
            assert!(metrics.contains(&format!("throng_limit{{name=\"{limit}\"}} ")), "{limit}");
        }
    }
}

#[test]
fn the_dashboard_is_whole() {
    let content = std::fs::read_to_string(ops().join(FILES[0])).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&content).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert!(ids.len() == panels.len() && panels.len() > 20, "{ids:?}");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            assert!(expression.contains("instance=~\"$instance\""), "{expression}");
        }
    }
}
