//! The report of a run: one page that opens offline, and the data behind it as CSV and JSON.
//!
//! The page is for readers that did not watch the run. It shows how many connections the server had, which messages
//! were lost, how long deliveries took, and what they cost. It escapes all text that comes from outside.

mod axis;
mod chart;
mod charts;
mod csv;
mod html;
pub mod number;
mod page;
mod series;
mod tables;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::record::{Sample, Summary};

/// Writes `index.html`, `samples.csv`, `samples.json` and `summary.json` into `folder`. Creates the
/// folder if it is missing, and replaces files with these names. Returns the path of `index.html`.
///
/// # Errors
///
/// If the folder can't be created or a file can't be written. The data files come first, so that an
/// error with the page loses no data.
pub fn write(folder: &Path, samples: &[Sample], summary: &Summary) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| {
        let folder = folder.display();
        format!("the report's folder {folder} cannot be made; name one that you may write to")
    })?;
    let summary_json = serde_json::to_string_pretty(summary).context("summary.json")?;
    let samples_json = serde_json::to_string(samples).context("samples.json")?;
    let samples_csv = csv::text(samples).context("samples.csv")?;
    write_file(folder, "summary.json", &summary_json)?;
    write_file(folder, "samples.csv", &samples_csv)?;
    write_file(folder, "samples.json", &samples_json)?;
    write_file(folder, "index.html", page::html(samples, summary))
}

fn write_file(folder: &Path, name: &str, text: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| {
        let path = path.display();
        format!("{path} cannot be written; check that the disk has room and you may write there")
    })?;
    Ok(path)
}

#[cfg(test)]
mod tests;
