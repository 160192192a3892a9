//! The limits of control groups. Any ancestor of the process's group may have a limit. If a container hides the
//! ancestors, the root that it sees has the limit.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::read::read;

/// Limits from this value on mean "no limit", since version 1 has no word for it.
const NO_LIMIT: u64 = 1 << 60;

/// The limit of a control group and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// The limit.
    pub limit: u64,
    /// The amount in use. For memory, it excludes file cache that the kernel can drop.
    pub used: u64,
}

impl Cgroup {
    /// Returns the amount that is left.
    pub fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

pub(crate) fn memory(root: &Path, groups: &str) -> Option<Cgroup> {
    tightest(root, groups, "memory", |folder, v2| {
        let (limit, used, cache) = match v2 {
            true => ("memory.max", "memory.current", "inactive_file "),
            false => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
        };
        let stat = read(folder, "memory.stat").unwrap_or_default();
        let cache = stat.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse().ok());
        let used = number(folder, used).unwrap_or(0).saturating_sub(cache.unwrap_or(0));
        Some(Cgroup { limit: number(folder, limit)?, used })
    })
}

pub(crate) fn pids(root: &Path, groups: &str) -> Option<Cgroup> {
    tightest(root, groups, "pids", |folder, _| {
        let used = number(folder, "pids.current").unwrap_or(0);
        Some(Cgroup { limit: number(folder, "pids.max")?, used })
    })
}

/// Returns the group that leaves the least, in the hierarchies of both versions.
fn tightest(
    root: &Path,
    groups: &str,
    controller: &str,
    limit: impl Fn(&Path, bool) -> Option<Cgroup>,
) -> Option<Cgroup> {
    let mut tightest: Option<Cgroup> = None;
    for line in groups.lines() {
        let Some((_, rest)) = line.split_once(':') else { continue };
        let Some((controllers, path)) = rest.split_once(':') else { continue };
        let v2 = controllers.is_empty();
        let mounts = match v2 {
            true => ["sys/fs/cgroup".to_owned(), "sys/fs/cgroup/unified".to_owned()],
            false if controllers.split(',').any(|name| name == controller) => {
                [format!("sys/fs/cgroup/{controller}"), format!("sys/fs/cgroup/{controllers}")]
            }
            false => continue,
        };
        for mount in mounts.map(|mount| root.join(mount)) {
            // A path with ".." names a group outside of this namespace, so it leaves the mount.
            let path = Path::new(path.trim_matches('/'));
            let inside = path.components().all(|c| matches!(c, std::path::Component::Normal(_)));
            let ancestors = if inside { path } else { Path::new("") }.ancestors();
            for group in ancestors.filter_map(|path| limit(&mount.join(path), v2)) {
                let less = tightest.is_none_or(|least| group.free() < least.free());
                if group.limit < NO_LIMIT && less {
                    tightest = Some(group);
                }
            }
        }
    }
    tightest
}

/// Returns `None` also for the word `max`.
fn number(folder: &Path, file: &str) -> Option<u64> {
    read(folder, file)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn folder(name: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("tune-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn version_2_uses_the_tightest_ancestor() {
        let root = folder(
            "v2",
            &[
                ("sys/fs/cgroup/a/memory.max", "4000"),
                ("sys/fs/cgroup/a/memory.current", "3500"),
                ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 500\n"),
                ("sys/fs/cgroup/a/b/memory.max", "max"),
                ("sys/fs/cgroup/a/b/c/memory.max", "2000"),
                ("sys/fs/cgroup/a/b/pids.max", "100"),
                ("sys/fs/cgroup/a/b/pids.current", "7"),
            ],
        );
        let groups = "0::/a/b/c\n";
        assert_eq!(memory(&root, groups), Some(Cgroup { limit: 4000, used: 3000 }));
        assert_eq!(pids(&root, groups), Some(Cgroup { limit: 100, used: 7 }));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn version_1_uses_the_root_where_a_container_hides_the_ancestors() {
        let root = folder(
            "v1",
            &[
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000"),
                ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712"),
            ],
        );
        let expected = Some(Cgroup { limit: 5000, used: 1000 });
        assert_eq!(memory(&root, "4:memory:/docker/0123\n0::/\n"), expected);
        assert_eq!(memory(&root, "4:memory:/x\n"), expected);
        assert_eq!(memory(&root, "4:memory:/../../x\n"), expected);
        assert_eq!(memory(&root, "3:cpu:/\nnonsense\n"), None);
        assert_eq!(pids(&root, "8:pids:/\n"), None);
        fs::remove_dir_all(root).unwrap();
    }
}
