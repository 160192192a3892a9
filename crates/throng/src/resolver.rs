//! Lookup of host names in a statically linked binary.
//!
//! `/etc/nsswitch.conf` names the sources of host names, and glibc loads a library of the host for each source that
//! is not `files` or `dns`. Another version of glibc may have built that library, and a static binary can crash in
//! it. The sources `files` (`/etc/hosts`) and `dns` (`/etc/resolv.conf`) are part of glibc since 2.34.

#![expect(unsafe_code, reason = "__nss_configure_lookup(3)")]

use std::ffi::{CStr, c_char, c_int};

/// The database of host names.
const DATABASE: &CStr = c"hosts";
/// Its sources, as `/etc/nsswitch.conf` would name them.
const SOURCES: &CStr = c"files dns";

/// Restricts host names to the sources that are in this binary. The caller has started no thread yet.
pub fn restrict() {
    // SAFETY: the strings end with a zero byte and live as long as the process; no other thread looks a name up.
    let status = unsafe { __nss_configure_lookup(DATABASE.as_ptr(), SOURCES.as_ptr()) };
    // The call fails for lack of memory or for a database that does not exist.
    assert_eq!(status, 0, "glibc refuses the sources of host names");
}

// SAFETY: this is the declaration of nss.h, and the function is in every glibc.
unsafe extern "C" {
    /// Sets the sources of a database for this process (`nss.h`). Returns 0, or -1 with errno.
    fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
}
