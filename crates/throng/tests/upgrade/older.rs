//! From an older version to this one, and back. scripts/upgrade-from-older builds the older one, and sets `OLDER_BIN`
//! to its path.

use std::path::PathBuf;

use crate::upgrade::node::{BOTH, Node, Options, throng};
use crate::upgrade::transports::receive_through;

#[test]
#[ignore = "long: scripts/upgrade-from-older builds another version"]
fn an_older_version_is_replaced_by_this_one_and_comes_back() {
    let older = std::env::var_os("OLDER_BIN").expect("OLDER_BIN is the binary of an older version");
    let older = PathBuf::from(older);
    let (old, new) = (older.to_str().unwrap(), throng());
    for storage in BOTH {
        let node = Node::with(Options { storage, binary: older.clone(), ..Options::default() });
        let epoch = node.epoch();
        receive_through(&node, |publisher| {
            for binary in [new, old, new] {
                let outcome = node.try_upgrade(&["--binary", binary]);
                assert_eq!(outcome.code, Some(0), "to {binary}: {outcome:?}");
                let exe = std::fs::read_link(format!("/proc/{}/exe", node.only())).unwrap();
                assert_eq!(exe, std::fs::canonicalize(binary).unwrap());
                publisher.until_more();
            }
        });
        assert_eq!(node.epoch(), epoch, "{storage:?}");
    }
}
