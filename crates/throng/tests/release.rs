//! The Debian package and the image that `scripts/release` makes. `scripts/try-release` installs and runs those of a
//! release.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::*;

const THRONG: &str = env!("CARGO_BIN_EXE_throng");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs a command that must succeed. Returns what it prints.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = output_within(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Makes a part of a release from the binary under test. Returns its path.
fn release(part: &str, folder: &Scratch, out: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut release = Command::new(root.join("scripts/release"));
    // Low compression, since the binary is large.
    release.arg(part).env("THRONG_BIN", THRONG).env("OUT", folder.path().join(out));
    release.env("DEB_COMPRESSION", "none").env("GZIP_LEVEL", "-1");
    let made = run(&mut release);
    PathBuf::from(made.trim())
}

fn serves(binary: &Path) {
    let mut serve = Command::new(binary);
    serve.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let server = Server::run(serve, &[]);
    let mut stream = server.listen("/sse?topic=news");
    server.until_members("news", 1);
    server.publish("news", "from a release".into());
    assert_eq!(stream.data(), "from a release");
    let admin = server.admin.to_string();
    let health = run(Command::new(binary).args(["health", "--admin", &admin]));
    assert_eq!(health, "ok\n");
}

#[test]
fn the_package_of_debian_has_all_that_a_service_needs() {
    let folder = Scratch::new("deb");
    let package = release("deb", &folder, "out");
    let field = |name: &str| {
        run(Command::new("dpkg-deb").arg("--field").arg(&package).arg(name)).trim().to_owned()
    };
    assert_eq!((field("Package"), field("Version")), ("throng".into(), VERSION.into()));
    let machine = run(Command::new("dpkg").arg("--print-architecture"));
    assert_eq!(field("Architecture"), machine.trim());
    assert!(field("Installed-Size").parse::<u64>().unwrap() > 1_000);
    let root = folder.path().join("root");
    run(Command::new("dpkg-deb").arg("--raw-extract").arg(&package).arg(&root));
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(read("DEBIAN/conffiles"), "/etc/throng/throng.toml\n");
    for script in ["postinst", "prerm", "postrm"] {
        run(Command::new("sh").arg("-n").arg(root.join("DEBIAN").join(script)));
    }
    run(Command::new("md5sum").args(["--check", "--quiet", "DEBIAN/md5sums"]).current_dir(&root));
    for file in [
        "usr/share/man/man1/throng-serve.1.gz",
        "usr/share/bash-completion/completions/throng",
        "usr/share/zsh/vendor-completions/_throng",
        "usr/share/fish/vendor_completions.d/throng.fish",
        "usr/share/doc/throng/copyright",
        "usr/share/doc/throng/changelog.gz",
    ] {
        assert!(root.join(file).exists(), "{file}");
    }
    let binary = root.join("usr/bin/throng");
    let settings = root.join("etc/throng/throng.toml");
    run(Command::new(&binary).args(["config", "--check", "--config"]).arg(&settings));
    let unit = read("usr/lib/systemd/system/throng.service");
    assert!(unit.contains("ExecStart=/usr/bin/throng serve ") && unit.contains("\nUser=throng\n"));
    // The build is reproducible.
    let again = release("deb", &folder, "again");
    assert!(fs::read(&package).unwrap() == fs::read(&again).unwrap(), "two packages differ");
    serves(&binary);
}

/// Returns the path of an image's blob, and checks its size and checksum against the descriptor.
fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let path = layout.join("blobs/sha256").join(digest);
    assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
    assert_eq!(sum(&path), digest);
    path
}

fn sum(path: &Path) -> String {
    run(Command::new("sha256sum").arg(path)).split(' ').next().unwrap().to_owned()
}

fn parse(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_image_is_a_layout_of_oci_and_its_binary_serves() {
    let folder = Scratch::new("image");
    let image = release("image", &folder, "out");
    let layout = folder.path().join("layout");
    fs::create_dir(&layout).unwrap();
    run(Command::new("tar").arg("-xf").arg(&image).arg("-C").arg(&layout));
    assert_eq!(parse(&layout.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
    let index = parse(&layout.join("index.json"));
    let manifest = parse(&blob(&layout, &index["manifests"][0]));
    let config = parse(&blob(&layout, &manifest["config"]));
    let layer = blob(&layout, &manifest["layers"][0]);
    let tar = folder.path().join("layer.tar");
    fs::write(&tar, run_bytes(Command::new("gzip").arg("-dc").arg(&layer))).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", sum(&tar)));
    let inside = &config["config"];
    assert_eq!(
        (&inside["User"], &inside["StopSignal"]),
        (&"65532:65532".into(), &"SIGTERM".into())
    );
    assert_eq!(inside["Labels"]["org.opencontainers.image.version"], VERSION);
    assert_eq!(inside["Healthcheck"]["Test"][1], inside["Entrypoint"][0]);
    // The file for docker load names existing blobs.
    let for_docker = &parse(&layout.join("manifest.json"))[0];
    for path in [&for_docker["Config"], &for_docker["Layers"][0]] {
        assert!(layout.join(path.as_str().unwrap()).exists(), "{path}");
    }
    // Only the store's folder belongs to the user.
    let list = run(Command::new("tar").args(["--numeric-owner", "-tvf"]).arg(&tar));
    let owned: Vec<&str> = list.lines().filter(|line| line.contains("65532/65532")).collect();
    assert!(owned.len() == 1 && owned[0].ends_with(" var/lib/throng/"), "{list}");
    let root = folder.path().join("root");
    fs::create_dir(&root).unwrap();
    run(Command::new("tar").args(["--no-same-owner", "-xf"]).arg(&tar).arg("-C").arg(&root));
    let binary = root.join("usr/bin/throng");
    assert_eq!(fs::metadata(&binary).unwrap().permissions().mode() & 0o777, 0o755);
    serves(&binary);
}

/// Collects all files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

/// The variables in the chart and in the examples are settings of this server.
#[test]
fn each_variable_in_ops_is_a_setting() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = vec![root.join("docs/install.md")];
    files(&root.join("ops"), &mut paths);
    let variable = regex::Regex::new(r"\bTHRONG_([A-Z]+)_([A-Z_]+)\b").unwrap();
    let mut seen = 0;
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        for found in variable.captures_iter(&text) {
            let key = format!("{}.{}", &found[1], &found[2]).to_lowercase();
            let is_setting = config::SETTINGS.iter().any(|setting| setting.key == key);
            assert!(is_setting, "{}: {}", path.display(), &found[0]);
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

fn run_bytes(command: &mut Command) -> Vec<u8> {
    let output = output_within(command);
    assert!(output.status.success(), "{command:?}");
    output.stdout
}
