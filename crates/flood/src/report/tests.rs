use super::*;
use crate::record::{Counts, Percentiles, Server};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("flood-report-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn sample(second: u32) -> Sample {
    let open = u64::from(second) * 10;
    let counts = Counts { open, opened: open, messages: open * 3, ..Counts::default() };
    let of = u64::from(second % 7) * 100;
    let delivery = Percentiles { count: of, p50_us: of, max_us: of * 9, ..Percentiles::default() };
    let server =
        (!second.is_multiple_of(5)).then(|| Server { connections: open, ..Server::default() });
    Sample { at_seconds: f64::from(second), counts, delivery, server, ..Sample::default() }
}

fn page(samples: &[Sample], summary: &Summary) -> String {
    let html = page::html(samples, summary);
    for never in ["NaN", "inf%", "inf\"", "src=", "href=", "url(", "@import"] {
        assert!(!html.contains(never), "the page has {never}");
    }
    html
}

#[test]
fn the_report_writes_and_replaces_all_its_files() {
    let folder = folder("files").join("deep");
    let samples = [sample(1), sample(2)];
    for _ in 0..2 {
        let path = write(&folder, &samples, &Summary::default()).unwrap();
        assert_eq!(path, folder.join("index.html"));
    }
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    assert!(read("index.html").starts_with("<!DOCTYPE html>"));
    assert_eq!(read("samples.csv").lines().count(), 3);
    let json: serde_json::Value = serde_json::from_str(&read("samples.json")).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 2);
    let json: serde_json::Value = serde_json::from_str(&read("summary.json")).unwrap();
    assert_eq!(json["connections"], 0);
    fs::remove_dir_all(folder.parent().unwrap()).unwrap();
}

#[test]
fn an_error_names_the_file() {
    let folder = folder("error");
    fs::create_dir_all(folder.join("samples.csv")).unwrap();
    let error = write(&folder, &[], &Summary::default()).unwrap_err().to_string();
    assert!(error.contains("samples.csv") && error.contains("check"), "{error}");
    let error = write(&folder.join("summary.json"), &[], &Summary::default()).unwrap_err();
    assert!(error.to_string().contains("name one that you may write to"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_empty_run_and_a_run_of_one_sample_have_a_page() {
    let html = page(&[], &Summary::default());
    assert!(html.contains("Nothing recorded") && html.ends_with("</html>\n"));
    assert!(page(&[sample(1)], &Summary::default()).contains("<circle"));
    assert!(page(&[sample(0)], &Summary::default()).ends_with("</html>\n"));
}

#[test]
fn a_long_run_is_a_small_page() {
    let samples: Vec<Sample> = (0..7_200).map(sample).collect();
    let html = page(&samples, &Summary::default());
    assert!(html.len() < 1_500_000, "{} bytes", html.len());
}

#[test]
fn huge_values_are_drawn() {
    let mut samples: Vec<Sample> = (0..30).map(sample).collect();
    samples[20].delivery.max_us = u64::MAX;
    samples[20].memory_bytes = u64::MAX;
    samples[20].counts.messages = u64::MAX;
    samples[21].at_seconds = f64::INFINITY;
    let seconds = f64::INFINITY;
    page(&samples, &Summary { seconds, cpu_per_message_us: f64::NAN, ..Summary::default() });
}

#[test]
fn texts_from_outside_cannot_become_markup() {
    let hostile = "\"'></script><script>alert(1)</script><img/onerror=x>".to_owned();
    let pair = || vec![(hostile.clone(), hostile.clone())];
    let summary = Summary {
        command: hostile.clone(),
        scenario: hostile.clone(),
        failures: vec![(hostile.clone(), 2)],
        closes: vec![(hostile.clone(), 3)],
        host: pair(),
        settings: pair(),
        ..Summary::default()
    };
    let html = page(&[sample(1)], &summary);
    assert!(!html.contains("<img") && !html.contains("<script>alert"));
    assert_eq!(html.matches("&lt;img/onerror=x&gt;").count(), 9);
}
