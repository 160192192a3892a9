//! The page of the report: one HTML file that loads nothing else.

use super::chart::Chart;
use super::html::Escaped;
use super::number::{date_utc, grouped, run_time};
use super::{charts, tables, verdict};
use crate::record::{Sample, Summary};

/// Prevents the page from loading anything, whatever its texts contain.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Returns the whole report as HTML.
pub fn html(samples: &[Sample], summary: &Summary) -> String {
    let scenario = if summary.scenario.is_empty() { "Load run" } else { &summary.scenario };
    let tls = summary.tls.map_or(String::new(), |tls| format!(" {}", tls.phrase()));
    let of = format!("{scenario}, {} connections{tls}", grouped(summary.connections));
    let (style, script) = (include_str!("style.css"), include_str!("hover.js"));
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n\
         <header><p class=\"over\">Load report</p><h1>{title}</h1>\n\
         <p class=\"when\">{date} · {length}</p></header>\n",
        title = Escaped(&of),
        date = date_utc(summary.started_unix_seconds),
        length = run_time(summary.seconds),
    );
    out.push_str(&verdict::html(summary));
    out.push_str(&tables::tiles(samples, summary));
    out.push_str(&sections(samples, summary));
    out.push_str(&facts(summary));
    out.push_str(NOTES);
    out.push_str(&format!("</main>\n<script>\n{script}</script>\n</body>\n</html>\n"));
    out
}

fn sections(samples: &[Sample], summary: &Summary) -> String {
    let times = samples.iter().map(|sample| sample.at_seconds).filter(|at| at.is_finite());
    let seconds = times.fold(0.0, f64::max);
    let grid = |charts: Vec<Chart>| {
        let all: String = charts.iter().map(|chart| chart.html(seconds)).collect();
        format!("<div class=\"charts\">\n{all}</div>\n")
    };
    let connections =
        vec![charts::open(samples), charts::opened(samples), charts::connect(samples)];
    let mut work = vec![charts::processor(samples)];
    work.extend(charts::probes(samples));
    let mut out = String::new();
    out.push_str("<h2>Connections</h2>\n");
    out.push_str(&grid(connections));
    out.push_str("<h2>Memory</h2>\n");
    out.push_str(&grid(charts::memory(samples)));
    out.push_str("<h2>Delivery</h2>\n");
    out.push_str(&grid(vec![charts::delivery(samples)]));
    out.push_str(&grid(charts::messages(samples)));
    out.push_str("<h2>Processor and probes</h2>\n");
    out.push_str(&grid(work));
    out.push_str("<h2>Failures and closes</h2>\n<div class=\"charts\">\n");
    out.push_str(&tables::bars("Attempts that failed, by reason", &summary.failures));
    out.push_str(&tables::bars("Connections closed by the server, by reason", &summary.closes));
    for chart in [charts::endings(samples), charts::anomalies(samples)].into_iter().flatten() {
        out.push_str(&chart.html(seconds));
    }
    out.push_str("</div>\n");
    out
}

fn facts(summary: &Summary) -> String {
    let mut out = String::from("<h2>Details</h2>\n<div class=\"charts\">\n");
    out.push_str(&tables::pairs("Host", &summary.host));
    out.push_str(&tables::pairs("Kernel settings", &summary.settings));
    out.push_str(&tables::percentiles(summary));
    out.push_str(&tables::shares(summary));
    out.push_str("</div>\n");
    if !summary.command.is_empty() {
        let arguments = summary.command.split(' ');
        let spans = arguments.map(|text| format!("<span>{}</span>", Escaped(text)));
        let spans = spans.collect::<Vec<_>>().join(" ");
        out.push_str(&format!(
            "<div class=\"charts\"><section class=\"card\"><h3>Command</h3><pre>{spans}</pre>\
             </section></div>\n"
        ));
    }
    out
}

const NOTES: &str = "<footer><p>Latencies count from the moment that the schedule intended, not \
    from the moment that the load generator came to it: its own delay is part of them. A gap in a \
    line means that nothing was recorded. In long runs a point stands for several samples, of which \
    the largest value is shown. KB, MB and GB are powers of 1,000.</p>\n\
    <p>Every sample is in <code>samples.csv</code> and <code>samples.json</code>, the end result in \
    <code>summary.json</code>, in the same folder as this page.</p></footer>\n";
