//! Files that are no store, or that this process can't use: the server rejects them with a remedy and does not change
//! them.

use std::path::Path;

use random::Random;

use crate::store::folder::{Caller, Folder, end, flip_bits};
use crate::store::full::Mount;

const DURABLE: &str = "[[topics]]\npattern = \"*\"\nhistory_messages_max = 1000\ndurable = true\n";

/// Returns a folder with a store of a few messages that was closed properly.
fn stored(name: &str) -> Folder {
    let folder = Folder::new(name, DURABLE);
    let server = folder.serve();
    (0..100).for_each(|number| drop(server.publish("a", format!("{number}").into())));
    assert_eq!(end(server), Some(0));
    folder
}

/// Checks that the server exits with 1, prints all of this, and does not change the file.
fn is_rejected(folder: &Folder, bytes: &[u8], want: &[&str]) {
    std::fs::write(folder.file(), bytes).unwrap();
    let (code, text) = folder.serve_rejected(&folder.data());
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

/// The texts in the error for a damaged file.
const DAMAGED: [&str; 2] = ["damaged", "restore the file from a backup, or move it away"];

#[test]
fn garbage_is_rejected_unchanged() {
    let folder = stored("garbage");
    let mut random = Random::new(1);
    let mut garbage = |length: usize| random.bytes(length);
    for length in [1, 100, 4_096, 1 << 20] {
        is_rejected(&folder, &garbage(length), &DAMAGED);
    }
    is_rejected(&folder, b"", &DAMAGED);
    is_rejected(&folder, &[0; 8_192], &DAMAGED);
    is_rejected(&folder, b"SQLite format 3\0 and the like", &DAMAGED);
}

#[test]
fn a_truncated_store_is_rejected_and_its_backup_works() {
    let folder = stored("truncated");
    let whole = std::fs::read(folder.file()).unwrap();
    for length in [1, 64, 4_095, 4_096, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        is_rejected(&folder, &whole[..length], &DAMAGED);
    }
    // The remedy works.
    std::fs::write(folder.file(), &whole).unwrap();
    let server = folder.serve();
    assert_eq!(Caller::new(server.admin).unwrap().history("a", None, 1_000).len(), 100);
}

/// The server neither hangs nor crashes if it finds damage late or never.
#[test]
fn flipped_bytes_cause_neither_hangs_nor_crashes() {
    let folder = stored("flipped");
    let whole = std::fs::read(folder.file()).unwrap();
    let (mut random, mut refused) = (Random::new(3), 0);
    for _ in 0..12 {
        let mut bytes = whole.clone();
        flip_bits(&mut random, &mut bytes, 30);
        std::fs::write(folder.file(), &bytes).unwrap();
        let Some(server) = folder.try_serve() else {
            refused += 1;
            assert!(std::fs::read(folder.file()).unwrap() == bytes, "the file was changed");
            continue;
        };
        // The server responds to requests about the topic, and serves other topics.
        let mut caller = Caller::new(server.admin).unwrap();
        caller.call("GET", "/api/history/a?limit=1000", "", "").unwrap();
        caller.post("/api/publish", &serde_json::json!({"topic": "b", "data": 1})).unwrap();
        assert_eq!(caller.call("GET", "/healthz", "", "").unwrap().status, 200);
        drop(server);
    }
    println!("{refused} of 12 were refused");
}

#[test]
fn a_store_of_a_later_version_is_rejected_unchanged() {
    let folder = stored("format");
    let node = redb::TableDefinition::<&str, u64>::new("node");
    let db = redb::Database::open(folder.file()).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(node).unwrap().insert("format", 99).unwrap();
    txn.commit().unwrap();
    drop(db);
    let bytes = std::fs::read(folder.file()).unwrap();
    let want = ["format version 99", "the version of Throng that wrote it", "Nothing was changed"];
    is_rejected(&folder, &bytes, &want);
}

#[test]
fn a_foreign_database_is_rejected_unchanged() {
    let folder = stored("else");
    std::fs::remove_file(folder.file()).unwrap();
    let db = redb::Database::create(folder.file()).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(redb::TableDefinition::<&str, u64>::new("other")).unwrap();
    txn.commit().unwrap();
    drop(db);
    let bytes = std::fs::read(folder.file()).unwrap();
    is_rejected(&folder, &bytes, &DAMAGED);
}

fn directory_is_rejected(folder: &Folder, data: &Path) {
    let (code, text) = folder.serve_rejected(data);
    assert_eq!(code, Some(1), "{text}");
    for want in [data.to_str().unwrap(), "needs a directory that this user may write to"] {
        assert!(text.contains(want), "{want:?} in\n{text}");
    }
}

#[test]
fn an_unusable_directory_is_rejected() {
    let folder = Folder::new("directory", DURABLE);
    let file = folder.root.join("throng.toml");
    directory_is_rejected(&folder, &file);
    directory_is_rejected(&folder, &file.join("below"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), DURABLE);
    // Permissions don't stop root, but a read-only file system does.
    let Some(mount) = Mount::new(&folder.root.join("read-only"), "size=1m,ro") else { return };
    directory_is_rejected(&folder, &mount.path);
    directory_is_rejected(&folder, &mount.path.join("below"));
}

#[test]
fn a_store_belongs_to_one_process() {
    let folder = Folder::new("two", DURABLE);
    let server = folder.serve();
    let first = server.publish("a", "one".into());
    let (code, text) = folder.serve_rejected(&folder.data());
    assert_eq!(code, Some(1), "{text}");
    let data = folder.data();
    for want in [data.to_str().unwrap(), "in use by another process", "a directory of its own"] {
        assert!(text.contains(want), "{want:?} in\n{text}");
    }
    // The first server is not affected.
    server.publish("a", "two".into());
    let all = Caller::new(server.admin).unwrap().history("a", None, 10);
    assert_eq!(all.iter().map(|message| &*message.data).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(all[0].id, first["id"]);
    drop(server);
    // A kill releases the store.
    let server = folder.serve();
    assert_eq!(Caller::new(server.admin).unwrap().history("a", None, 10), all);
}
