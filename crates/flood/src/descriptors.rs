//! Private descriptor tables. A thread with a table of its own has the whole `ulimit -n` to itself.

#![expect(unsafe_code, reason = "unshare(2) and close_range(2)")]

use std::io;

/// Gives the calling thread a table of its own that starts with descriptors 0 to 2 only. The other threads'
/// descriptors stay open in their table, and this one has no copies of them: a copy of the pipe to a child would hide
/// the pipe's end from the child.
///
/// # Errors
/// The error of close_range(2).
///
/// # Safety
/// The calling thread must not use a descriptor above 2 that was opened before the call, nor hand
/// one that it opens later to another thread.
pub unsafe fn private_table() -> io::Result<()> {
    // SAFETY: with CLOSE_RANGE_UNSHARE only this thread's new table is closed in; the caller
    // promises that the thread uses nothing of it.
    let outcome =
        unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE as i32) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives the calling thread a table of its own that starts as a copy of the shared one, with the
/// same numbers.
///
/// # Errors
/// The error of unshare(2).
///
/// # Safety
/// No thread may hand a descriptor to another that was opened or closed after the call: to the other
/// side its number means nothing, or another file.
pub unsafe fn private_copy() -> io::Result<()> {
    // SAFETY: the caller's promise is the one that rustix requires.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::sync::mpsc::channel;

    #[test]
    fn a_private_table_does_not_hold_other_descriptors_open() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let (ready, is_ready) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: this thread uses channels only.
            let outcome = unsafe { private_table() };
            ready.send(outcome.is_ok()).expect("main waits");
            let _ = ended.recv();
        });
        assert!(is_ready.recv().expect("thread runs"));
        drop(writer);
        let mut rest = Vec::new();
        assert_eq!(reader.read_to_end(&mut rest).expect("the pipe's end"), 0);
        drop(end);
        thread.join().expect("no panic");
    }

    #[test]
    fn a_private_copy_has_the_same_numbers() {
        let (mut reader, mut writer) = io::pipe().expect("a pipe");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the pipe was opened before and stays open until the thread has ended.
                unsafe { private_copy() }.expect("a table");
                writer.write_all(b"x").expect("the pipe is open here too");
            });
        });
        let mut byte = [0];
        reader.read_exact(&mut byte).expect("a byte");
        assert_eq!(byte, *b"x");
    }
}
