//! What is no store, or not ours to use, is refused with the way out, and stays as it is.

use std::path::Path;

use crate::full::Mount;
use crate::place::{Caller, Folder, Random, end};

const KEPT: &str = "[[topics]]\npattern = \"*\"\nhistory_messages_max = 1000\ndurable = true\n";

/// A folder with a store that was closed in order, and has a few messages.
fn stored(name: &str) -> Folder {
    let folder = Folder::new(name, KEPT);
    let server = folder.serve();
    (0..100).for_each(|number| drop(server.publish("a", format!("{number}").into())));
    assert_eq!(end(server), Some(0));
    folder
}

/// It ends with 1, says all of this, and the file stays as it was.
fn is_refused(folder: &Folder, bytes: &[u8], want: &[&str]) {
    std::fs::write(folder.file(), bytes).unwrap();
    let (code, text) = folder.refused(&folder.data());
    assert_eq!(code, Some(1), "{text}");
    for want in want.iter().chain(&[folder.file().to_str().unwrap()]) {
        assert!(text.contains(want), "{want:?} in\n{text}");
    }
    assert!(!text.contains("panicked"), "{text}");
    assert!(std::fs::read(folder.file()).unwrap() == bytes, "the file was changed");
    let others = std::fs::read_dir(folder.data()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut others: Vec<_> = others.map(|name| name.into_string().unwrap()).collect();
    others.sort_unstable();
    assert_eq!(
        others,
        ["throng.lock", "throng.mark", "throng.redb", "throng.reserve"],
        "files came to it"
    );
}

/// What damaged files are answered with.
const DAMAGED: [&str; 2] = ["damaged", "restore the file from a backup, or move it away"];

#[test]
fn garbage_is_refused_and_stays() {
    let folder = stored("garbage");
    let mut random = Random(1);
    let mut garbage =
        |length: usize| -> Vec<u8> { (0..length).map(|_| random.below(256) as u8).collect() };
    for length in [1, 100, 4_096, 1 << 20] {
        is_refused(&folder, &garbage(length), &DAMAGED);
    }
    is_refused(&folder, b"", &DAMAGED);
    is_refused(&folder, &[0; 8_192], &DAMAGED);
    is_refused(&folder, b"SQLite format 3\0 and the like", &DAMAGED);
}

#[test]
fn a_truncated_store_is_refused_and_whole_again_with_its_backup() {
    let folder = stored("truncated");
    let whole = std::fs::read(folder.file()).unwrap();
    for length in [1, 64, 4_095, 4_096, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        is_refused(&folder, &whole[..length], &DAMAGED);
    }
    // The advice helps.
    std::fs::write(folder.file(), &whole).unwrap();
    let server = folder.serve();
    assert_eq!(Caller::new(server.admin).unwrap().history("a", None, 1_000).len(), 100);
}

/// Damage that is found late, or never, is no reason to hang or to die of a signal.
#[test]
fn flipped_bytes_are_refused_or_lived_with() {
    let folder = stored("flipped");
    let whole = std::fs::read(folder.file()).unwrap();
    let (mut random, mut refused) = (Random(3), 0);
    for _ in 0..12 {
        let mut bytes = whole.clone();
        random.flip_bits(&mut bytes, 30);
        std::fs::write(folder.file(), &bytes).unwrap();
        let Some(server) = folder.serve_or_refused() else {
            refused += 1;
            assert!(std::fs::read(folder.file()).unwrap() == bytes, "the file was changed");
            continue;
        };
        // Whatever it says of the topic, it answers, and goes on with others.
        let mut caller = Caller::new(server.admin).unwrap();
        caller.call("GET", "/api/history/a?limit=1000", "", "").unwrap();
        caller.post("/api/publish", &serde_json::json!({"topic": "b", "data": 1})).unwrap();
        assert_eq!(caller.call("GET", "/healthz", "", "").unwrap().status, 200);
        drop(server);
    }
    println!("{refused} of 12 were refused");
}

#[test]
fn a_store_of_a_later_version_is_refused_and_stays() {
    let folder = stored("format");
    let node = redb::TableDefinition::<&str, u64>::new("node");
    let db = redb::Database::open(folder.file()).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(node).unwrap().insert("format", 99).unwrap();
    txn.commit().unwrap();
    drop(db);
    let bytes = std::fs::read(folder.file()).unwrap();
    let want = ["format version 99", "the version of Throng that wrote it", "Nothing was changed"];
    is_refused(&folder, &bytes, &want);
}

#[test]
fn a_database_of_something_else_is_refused_and_stays() {
    let folder = stored("else");
    std::fs::remove_file(folder.file()).unwrap();
    let db = redb::Database::create(folder.file()).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(redb::TableDefinition::<&str, u64>::new("other")).unwrap();
    txn.commit().unwrap();
    drop(db);
    let bytes = std::fs::read(folder.file()).unwrap();
    is_refused(&folder, &bytes, &DAMAGED);
}

fn directory_is_refused(folder: &Folder, data: &Path) {
    let (code, text) = folder.refused(data);
    assert_eq!(code, Some(1), "{text}");
    for want in [data.to_str().unwrap(), "needs a directory that this user may write to"] {
        assert!(text.contains(want), "{want:?} in\n{text}");
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_refused() {
    let folder = Folder::new("directory", KEPT);
    let file = folder.root.join("throng.toml");
    directory_is_refused(&folder, &file);
    directory_is_refused(&folder, &file.join("below"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), KEPT);
    // Permissions don't hold root back; a file system that is read-only does.
    let Some(mount) = Mount::new(&folder.root.join("read-only"), "size=1m,ro") else { return };
    directory_is_refused(&folder, &mount.path);
    directory_is_refused(&folder, &mount.path.join("below"));
}

#[test]
fn a_store_belongs_to_one_process() {
    let folder = Folder::new("two", KEPT);
    let server = folder.serve();
    let first = server.publish("a", "one".into());
    let (code, text) = folder.refused(&folder.data());
    assert_eq!(code, Some(1), "{text}");
    let data = folder.data();
    for want in [data.to_str().unwrap(), "in use by another process", "a directory of its own"] {
        assert!(text.contains(want), "{want:?} in\n{text}");
    }
    // The first one did not notice.
    server.publish("a", "two".into());
    let all = Caller::new(server.admin).unwrap().history("a", None, 10);
    assert_eq!(all.iter().map(|kept| &*kept.data).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(all[0].id, first["id"]);
    drop(server);
    // A kill lets go of it.
    let server = folder.serve();
    assert_eq!(Caller::new(server.admin).unwrap().history("a", None, 10), all);
}
