//! Tests that only the owner may read the files, whatever the umask.

#![expect(unsafe_code, reason = "umask(2)")]

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::FILE;

const MASK: &str = "THRONG_STORE_UMASK";

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Opens, closes and copies a store, in a process with another umask.
fn open_close_and_copy(dir: &Path) {
    let options = options(&dir.join("new/data"));
    let (store, ..) = Store::open(options.clone()).unwrap();
    appended(&store, &publication("t", "private"), 1);
    store.close().unwrap();
    let (store, ..) = Store::open(options).unwrap();
    store.close().unwrap();
    crate::salvage(&dir.join("new/data"), &dir.join("salvaged"), 1).unwrap();
    crate::back_up(&dir.join("new/data"), &dir.join("backups/one"), 1).unwrap();
    crate::compact(&dir.join("new/data")).unwrap();
}

#[test]
fn only_the_owner_can_read_the_files() {
    if let Some(dir) = std::env::var_os(MASK) {
        let dir = Path::new(&dir);
        let mask = if dir.ends_with("000") { 0o000 } else { 0o022 };
        // SAFETY: the call takes a number.
        unsafe { libc::umask(mask) };
        return open_close_and_copy(dir);
    }
    for mask in ["000", "022"] {
        let dir = Dir::new();
        let root = dir.0.join(mask);
        std::fs::create_dir(&root).unwrap();
        let test = "tests::permissions::only_the_owner_can_read_the_files";
        let output = child(test, MASK, &root).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        for made in ["new", "new/data", "salvaged", "backups", "backups/one"] {
            assert_eq!(mode(&root.join(made)), 0o700, "{made}, umask {mask}");
        }
        for made in ["new/data", "salvaged", "backups/one"] {
            let files: Vec<_> = std::fs::read_dir(root.join(made)).unwrap().collect();
            assert!(files.len() >= 2);
            for file in files {
                let path = file.unwrap().path();
                assert_eq!(mode(&path), 0o600, "{path:?}, umask {mask}");
            }
        }
    }
}

#[test]
fn open_restricts_the_file_to_its_owner_and_leaves_the_directory_alone() {
    let dir = Dir::new();
    Store::open(options(&dir.0)).unwrap().0.close().unwrap();
    let file = dir.0.join(FILE);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::set_permissions(&dir.0, PermissionsExt::from_mode(0o755)).unwrap();
    Store::open(options(&dir.0)).unwrap().0.close().unwrap();
    assert_eq!((mode(&file), mode(&dir.0)), (0o600, 0o755));
}
