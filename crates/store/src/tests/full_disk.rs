//! A full disk: a real one of 12 MiB, if the user may mount it, and a limit on the size of files.

#![expect(unsafe_code, reason = "mount(2) and setrlimit(2)")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use super::*;

/// Appends until the disk is full. Returns the stored offsets and the next offset.
fn fill(store: &Store) -> (Vec<u64>, u64) {
    let big = publication("t", &"x".repeat(50_000));
    let mut stored = Vec::new();
    for offset in 1..10_000 {
        match append(store, &big, offset).unwrap().recv_timeout(WAIT).unwrap() {
            Ok(()) => stored.push(offset),
            Err(error) => {
                assert!(error.to_string().contains("nothing that was acknowledged is lost"));
                return (stored, offset + 1);
            }
        }
    }
    panic!("the disk is never full");
}

/// Runs a store on a full disk until space is free again.
fn check_recovery(dir: &Path, says: &str, free_space: impl FnOnce(&Store, &[u64])) {
    let (store, _, _) = Store::open(options(dir)).unwrap();
    let (mut stored, mut next) = fill(&store);
    assert!(!stored.is_empty());
    let reason = match append(&store, &publication("t", "x"), next) {
        Err(QueueError::Unavailable(reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason.contains(says) && reason.contains(&*dir.to_string_lossy()), "{reason}");
    assert!(store.stats().failed.is_some() && store.stats().failures > 0);
    assert_eq!(offsets(&store, "t", 0), stored, "what is there is read while the disk is full");
    free_space(&store, &stored);
    let started = Instant::now();
    while store.write_error().is_some() {
        assert!(started.elapsed() < WAIT, "the store does not recover: {:?}", store.write_error());
        std::thread::sleep(Duration::from_millis(20));
    }
    for _ in 0..20 {
        appended(&store, &publication("t", &"y".repeat(50_000)), next);
        stored.push(next);
        next += 1;
    }
    assert_eq!(offsets(&store, "t", 0), stored);
    store.close().unwrap();
    let (store, _, found) = Store::open(options(dir)).unwrap();
    assert!(found.clean && found.last_offset == next - 1);
    assert_eq!(offsets(&store, "t", 0), stored);
    store.close().unwrap();
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Mounts a disk of 12 MiB in a mount namespace of this thread. The store's threads inherit the namespace, which
/// vanishes at the end. Returns false if the user may not mount.
pub(super) fn mount(dir: &Path) -> bool {
    // SAFETY: the calls take null or C strings that live longer than the call.
    unsafe {
        let root = c"/".as_ptr();
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let nothing = std::ptr::null();
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(nothing, root, nothing, private, nothing.cast()) == 0
            && libc::mount(
                c"tmpfs".as_ptr(),
                text(dir).as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                c"size=12m".as_ptr().cast(),
            ) == 0
    }
}

pub(super) fn unmount(dir: &Path) {
    // SAFETY: the call takes a C string that lives longer than the call.
    unsafe { libc::umount2(text(dir).as_ptr(), libc::MNT_DETACH) };
}

#[test]
fn a_full_disk_rejects_writes_until_space_is_free() {
    let dir = Dir::new();
    if !mount(&dir.0) {
        eprintln!("this user may not mount a disk: left out");
        return;
    }
    let data = dir.0.join("data");
    let ballast = dir.0.join("ballast");
    std::fs::write(&ballast, vec![1; 8 << 20]).unwrap();
    check_recovery(&data, "the disk is full", |store, stored| {
        // The store still works after a probe that failed.
        std::thread::sleep(Duration::from_millis(2_500));
        assert!(store.write_error().is_some());
        assert_eq!(offsets(store, "t", 0), stored);
        std::fs::remove_file(&ballast).unwrap();
    });
    unmount(&dir.0);
}

#[test]
fn a_deletion_frees_space_on_a_full_disk() {
    let dir = Dir::new();
    if !mount(&dir.0) {
        eprintln!("this user may not mount a disk: left out");
        return;
    }
    let data = dir.0.join("data");
    let (store, reader, _) = Store::open(options(&data)).unwrap();
    (1..=100).for_each(|offset| appended(&store, &publication("other", "small"), offset));
    let big = publication("t", &"x".repeat(50_000));
    let ballast = dir.0.join("ballast");
    std::fs::write(&ballast, vec![1; 3 << 20]).unwrap();
    for round in 1..=2 {
        let mut offset = round * 10_000;
        let rejected = loop {
            offset += 1;
            match append(&store, &big, offset) {
                Err(rejected) => break rejected.to_string(),
                Ok(reply) => {
                    if let Err(error) = reply.recv_timeout(WAIT).unwrap() {
                        break error.to_string();
                    }
                }
            }
        };
        assert!(rejected.contains("the disk is full"), "{rejected}");
        // This file fills the rest of the disk.
        let mut rest = std::fs::File::create(dir.0.join("rest")).unwrap();
        while std::io::Write::write(&mut rest, &[1; 512]).is_ok() {}
        assert!(store.write_error().is_some() && read(&reader, "t", 0).len() > 20);
        let (send, receive) = mpsc::channel();
        let done = Box::new(move |result| drop(send.send(result)));
        store.delete_history(&"t".into(), offset, done).unwrap();
        assert_eq!(receive.recv_timeout(WAIT).unwrap(), Ok(()), "round {round}");
        assert_eq!((read(&reader, "t", 0), store.write_error()), (vec![], None));
        for more in 1..=20 {
            appended(&store, &big, offset + more);
        }
        assert_eq!(read(&reader, "t", 0).len(), 20);
        std::fs::remove_file(dir.0.join("rest")).unwrap();
        if round == 2 {
            break;
        }
        std::fs::remove_file(&ballast).unwrap();
        // The store creates the reserve file again once there is space.
        assert!(!data.join("throng.reserve").exists());
        let begun = Instant::now();
        while !data.join("throng.reserve").exists() {
            store.request_reserve();
            assert!(begun.elapsed() < WAIT, "there is no reserve");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    assert_eq!(read(&reader, "other", 0).len(), 100);
    store.close().unwrap();
    let (store, reader, _) = Store::open(options(&data)).unwrap();
    assert_eq!((read(&reader, "t", 0).len(), read(&reader, "other", 0).len()), (20, 100));
    store.close().unwrap();
    unmount(&dir.0);
}

#[test]
fn a_reserve_file_that_could_not_be_created_at_the_start_is_created_later() {
    let dir = Dir::new();
    let reserve = dir.0.join("throng.reserve");
    std::fs::create_dir_all(reserve.join("in the way")).unwrap();
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    std::fs::remove_dir_all(&reserve).unwrap();
    let begun = Instant::now();
    while !reserve.exists() {
        store.request_reserve();
        assert!(begun.elapsed() < WAIT, "there is no reserve");
        std::thread::sleep(Duration::from_millis(100));
    }
    store.close().unwrap();
}

const LIMITED: &str = "THRONG_STORE_LIMITED";

#[test]
fn a_file_size_limit_rejects_writes_until_it_is_raised() {
    let Some(dir) = std::env::var_os(LIMITED) else {
        let dir = Dir::new();
        let test = "tests::full_disk::a_file_size_limit_rejects_writes_until_it_is_raised";
        let output = child(test, LIMITED, &dir.0).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(output.status.success() && text.contains("recovered"), "{text}");
        return;
    };
    let limit = |bytes: libc::rlim_t| {
        // SAFETY: the struct lives longer than the call; ignoring a signal installs no handler.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        }
    };
    limit(5 << 20);
    check_recovery(Path::new(&dir), "raise the limit on file sizes", |_, _| {
        limit(libc::RLIM_INFINITY);
    });
    println!("recovered");
}
