//! The checks, one function each.

mod descriptors;
mod kernel;
mod memory;
mod tcp;

pub(crate) use descriptors::{NOFILE, nofile_wanted};

use crate::finding::Finding;
use crate::host::Host;
use crate::want::Want;

/// Runs all checks. The output has their order.
pub(crate) fn all(host: &Host, want: &Want) -> Vec<Finding> {
    let groups = [
        memory::all(host, want),
        descriptors::all(host, want),
        tcp::all(host, want),
        kernel::all(host, want),
    ];
    groups.into_iter().flatten().collect()
}
