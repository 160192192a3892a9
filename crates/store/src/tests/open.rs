use std::path::Path;

use random::Random;
use redb::{Database, TableDefinition};

use super::*;
use crate::tables::{FORMAT_KEY, FORMAT_TABLE};
use crate::{FILE, FORMAT, OpenError};

/// Opens a store that must be rejected, and returns the error. The file must stay unchanged.
fn open_error(dir: &Path) -> String {
    let file = dir.join(FILE);
    let before = std::fs::read(&file).unwrap();
    let error = match Store::open(options(dir)) {
        Ok(_) => panic!("it opened"),
        Err(error) => error,
    };
    assert!(std::fs::read(&file).unwrap() == before, "the file was changed: {error}");
    error.to_string()
}

fn change(file: &Path, change: impl FnOnce(&redb::WriteTransaction)) {
    let db = Database::create(file).unwrap();
    let txn = db.begin_write().unwrap();
    change(&txn);
    txn.commit().unwrap();
}

#[test]
fn open_rejects_a_later_format() {
    let dir = Dir::new();
    Store::open(options(&dir.0)).unwrap().0.close().unwrap();
    let file = dir.0.join(FILE);
    change(&file, |txn| {
        txn.open_table(FORMAT_TABLE).unwrap().insert(FORMAT_KEY, FORMAT + 1).unwrap();
    });
    let text = open_error(&dir.0);
    let want = format!(
        "{} has format version {}, and this version of Throng supports {FORMAT}",
        file.display(),
        FORMAT + 1
    );
    assert!(text.starts_with(&want), "{text}");
}

#[test]
fn open_rejects_a_redb_file_of_another_program() {
    let dir = Dir::new();
    change(&dir.0.join(FILE), |txn| {
        let other = TableDefinition::<&str, &str>::new("other");
        txn.open_table(other).unwrap().insert("a", "b").unwrap();
    });
    assert!(open_error(&dir.0).contains("is not a store of Throng"));
    let dir = Dir::new();
    change(&dir.0.join(FILE), |txn| {
        let other = TableDefinition::<u64, &str>::new("node");
        txn.open_table(other).unwrap().insert(1, "b").unwrap();
    });
    assert!(open_error(&dir.0).contains("is not a store of Throng"));
}

#[test]
fn open_rejects_a_file_that_is_not_redb() {
    let noise = Random::new(1).bytes(40_000);
    for bytes in [&b""[..], b"x", b"this is a text, and not a store", &[0; 8192], &noise] {
        let dir = Dir::new();
        std::fs::write(dir.0.join(FILE), bytes).unwrap();
        let text = open_error(&dir.0);
        assert!(text.contains("restore the file from a backup, or move it away"), "{text}");
        assert!(text.contains("Nothing was changed"), "{text}");
    }
}

#[test]
fn a_damaged_store_is_rejected_or_returns_errors() {
    let intact = Dir::new();
    let (store, _, _) = Store::open(options(&intact.0)).unwrap();
    for offset in 1..2_000 {
        append(&store, &publication("t", &"x".repeat(300)), offset).unwrap();
    }
    // Each append has a commit of its own, so that both commits which redb can choose contain most
    // pages.
    (2_000..=2_002).for_each(|offset| appended(&store, &publication("t", ""), offset));
    let killed = std::fs::read(intact.0.join(FILE)).unwrap();
    store.close().unwrap();
    let closed = std::fs::read(intact.0.join(FILE)).unwrap();
    let dir = Dir::new();
    let file = dir.0.join(FILE);
    for bytes in [&killed, &closed] {
        std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        assert!(open_error(&dir.0).contains("move it away"));
    }
    // redb reads a file that was not closed completely. Damage in the last commit looks like an
    // incomplete commit, and redb goes back to the previous one. redb rejects any other damage.
    let mut seen = 0;
    for at in (4096..killed.len()).step_by(4096 * 7) {
        let mut bytes = killed.clone();
        bytes[at..(at + 4096).min(killed.len())].fill(0xa5);
        std::fs::write(&file, &bytes).unwrap();
        match Store::open(options(&dir.0)) {
            Ok((store, ..)) => {
                let offsets = offsets(&store, "t", 0);
                assert!(offsets.iter().copied().eq(1..=offsets.len() as u64));
                store.close().unwrap();
            }
            Err(error) => {
                assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
                seen += 1;
            }
        }
    }
    assert!(seen > 0);
}

#[test]
fn open_rejects_a_directory_that_it_cannot_write_to() {
    let dir = Dir::new();
    let file = dir.0.join("file");
    std::fs::write(&file, "x").unwrap();
    for dir in [&*file, &file.join("below"), Path::new("/proc/throng"), Path::new("/sys/kernel")] {
        let error = Store::open(options(dir)).err().unwrap();
        assert!(matches!(error, OpenError::Directory { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&dir.display().to_string()), "{text}");
        assert!(text.ends_with("needs a directory that this user may write to"), "{text}");
    }
}

#[test]
fn open_rejects_a_store_in_use_and_replaces_a_partial_new_file() {
    let dir = Dir::new();
    std::fs::write(dir.0.join("throng.redb.new"), "what a kill at the first start leaves").unwrap();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    let error = Store::open(options(&dir.0)).err().unwrap();
    assert!(error.to_string().contains("is in use by another process"), "{error}");
    assert!(!dir.0.join("throng.redb.new").exists());
    store.close().unwrap();
    Store::open(options(&dir.0)).unwrap().0.close().unwrap();
}

const IN_USE: &str = "THRONG_STORE_IN_USE";

#[test]
fn open_rejects_a_store_in_use_by_another_process() {
    if let Some(dir) = std::env::var_os(IN_USE) {
        let error = Store::open(options(Path::new(&dir))).err().unwrap();
        assert!(matches!(error, OpenError::InUse { .. }), "{error}");
        println!("refused");
        return;
    }
    let dir = Dir::new();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    let test = "tests::open::open_rejects_a_store_in_use_by_another_process";
    let output = child(test, IN_USE, &dir.0).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("refused"));
    store.close().unwrap();
}
