//! The report of a run: one page that opens offline, and the data behind it as CSV and JSON.
//!
//! The page is for people who were not there: what was held, what was lost, how long it took, what
//! it cost. Everything on it that comes from outside is escaped.

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

/// Writes `index.html`, `samples.csv`, `samples.json` and `summary.json` into `folder`, which is
/// made if it is missing; files of these names in it are replaced. Gives the path of `index.html`.
///
/// # Errors
///
/// When the folder cannot be made or a file cannot be written. The data files are written first, so
/// that a run is not lost for want of a page.
pub fn write(folder: &Path, samples: &[Sample], summary: &Summary) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| {
        let folder = folder.display();
        format!("the report's folder {folder} cannot be made; name one that you may write to")
    })?;
    let summary_json = serde_json::to_string_pretty(summary).context("summary.json")?;
    let samples_json = serde_json::to_string(samples).context("samples.json")?;
    write_file(folder, "summary.json", &summary_json)?;
    write_file(folder, "samples.csv", &csv::text(samples))?;
    write_file(folder, "samples.json", &samples_json)?;
    write_file(folder, "index.html", &page::html(samples, summary))
}

fn write_file(folder: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| {
        let path = path.display();
        format!("{path} cannot be written; check that the disk has room and you may write there")
    })?;
    Ok(path)
}

#[cfg(test)]
mod tests;
