//! Finds the program of this process, so that it can be started again after its file has changed.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

/// Bits of a file's mode: others may write; the group may; some user may execute; only owners delete from this
/// folder.
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const EXECUTE: u32 = 0o111;
const STICKY: u32 = 0o1000;

static OWN: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Remembers the path of this process's binary. The caller calls this at the start: later the working directory may
/// be another.
pub fn remember() {
    own();
}

/// The path of this process's binary, as it was called. A symbolic link stays in the path, so that a later start
/// follows it again when it points elsewhere. `/proc/self/exe` would be the file that is running, even if it is
/// deleted.
fn own() -> Option<&'static Path> {
    let find = || {
        let called = std::env::args_os().next()?;
        let folder = std::env::current_dir().ok()?;
        let found = find(&called, std::env::var_os("PATH").as_deref(), &folder);
        // A program may be started with any name.
        found.or_else(|| std::env::current_exe().ok())
    };
    OWN.get_or_init(find).as_deref()
}

/// Returns the path of this process's binary. It is empty if unknown; then the binary can't be started.
pub fn path() -> PathBuf {
    own().map(Path::to_owned).unwrap_or_default()
}

/// Finds a program as a shell would, by a path or in the folders of PATH.
fn find(called: &OsStr, path: Option<&OsStr>, folder: &Path) -> Option<PathBuf> {
    let name = Path::new(called);
    if name.components().count() > 1 || name.is_absolute() {
        let found = plain(&folder.join(name));
        return is_program(&found).then_some(found);
    }
    let folders = std::env::split_paths(path?);
    let candidates = folders.map(|below| plain(&folder.join(below).join(name)));
    candidates.into_iter().find(|candidate| is_program(candidate))
}

/// The path without `.` and `..`. Links are not followed.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & EXECUTE != 0)
}

/// Checks that the server may start this binary on request: it is a program, and only root and the server's own user
/// can have written it. Otherwise any caller of the API could make the server run a program of its own.
///
/// # Errors
/// The reason, and what to do.
pub fn check(path: &Path) -> Result<(), String> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(format!("{shown}: write an absolute path, which begins with /"));
    }
    if !is_program(path) {
        return Err(format!("{shown} is not an executable file"));
    }
    // A link's target is what runs, and any user who can change the link chooses the target.
    let real = path.canonicalize().map_err(|error| format!("{shown}: {error}"))?;
    for path in [path, &real] {
        for part in path.ancestors() {
            check_owner(part)?;
        }
    }
    Ok(())
}

fn check_owner(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let is = path.metadata().map_err(|error| format!("{shown}: {error}"))?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let is_ours = is.uid() == 0 || is.uid() == user.as_raw();
    // Many systems give each user a group of their own, which may write by default.
    let is_shared = is.mode() & GROUP_WRITES != 0 && ![0, group.as_raw()].contains(&is.gid());
    let is_open = is.mode() & OTHERS_WRITE != 0 || is_shared;
    let is_safe = is_ours && (!is_open || (is.is_dir() && is.mode() & STICKY != 0));
    match is_safe {
        true => Ok(()),
        false => Err(format!(
            "{shown} can be written by users other than root and the server's user, so the server \
             does not start it: install the binary where only they can write, as in /usr/local/bin"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("throng-binary-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().canonicalize().unwrap().join(name);
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(folder.join("bin")).unwrap();
            let folder = Folder(folder);
            folder.mode("bin", 0o755);
            folder.program("bin/throng");
            folder
        }

        fn program(&self, name: &str) {
            fs::write(self.0.join(name), "").unwrap();
            self.mode(name, 0o755);
        }

        fn mode(&self, name: &str, mode: u32) {
            fs::set_permissions(self.0.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_program_is_found_as_it_was_called() {
        let folder = Folder::new("find");
        let (root, program) = (&folder.0, folder.0.join("bin/throng"));
        let with = |called: &str, path: &str| {
            let path = path.replace("ROOT", root.to_str().unwrap());
            find(OsStr::new(called), Some(OsStr::new(&path)), root)
        };
        for (called, path) in [
            ("bin/throng", ""),
            ("./bin/../bin/./throng", "/nowhere"),
            ("throng", "/nowhere:ROOT/bin"),
            ("throng", "bin:ROOT/other"),
            (program.to_str().unwrap(), ""),
        ] {
            assert_eq!(with(called, path), Some(program.clone()), "{called} {path}");
        }
        for (called, path) in [("throng", "/nowhere"), ("throng", ""), ("bin/other", "ROOT/bin")] {
            assert_eq!(with(called, path), None, "{called} {path}");
        }
        folder.mode("bin/throng", 0o644);
        assert_eq!(with("throng", "ROOT/bin"), None);
        assert!(own().is_some_and(Path::is_absolute));
    }

    #[test]
    fn a_link_stays() {
        let folder = Folder::new("link");
        symlink("throng", folder.0.join("bin/current")).unwrap();
        let found = find(OsStr::new("bin/current"), None, &folder.0);
        assert_eq!(found, Some(folder.0.join("bin/current")));
        assert_eq!(check(&found.unwrap()), Ok(()));
    }

    #[test]
    fn what_others_can_write_is_not_started() {
        let folder = Folder::new("check");
        let program = folder.0.join("bin/throng");
        assert_eq!(check(&program), Ok(()));
        assert!(check(Path::new("bin/throng")).unwrap_err().contains("absolute path"));
        assert!(check(&folder.0.join("bin")).unwrap_err().contains("not an executable"));
        folder.mode("bin/throng", 0o757);
        assert!(check(&program).unwrap_err().contains("written by users other"));
        folder.mode("bin/throng", 0o755);
        folder.mode("bin", 0o777);
        symlink("bin/throng", folder.0.join("link")).unwrap();
        for path in ["bin/throng", "link"] {
            assert!(check(&folder.0.join(path)).unwrap_err().contains("/bin can be written"));
        }
        folder.mode("bin", 0o1777);
        assert_eq!(check(&program), Ok(()));
    }
}
