//! Reads a file of the host.

use std::fs;
use std::path::Path;

pub(crate) fn read(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok()
}
