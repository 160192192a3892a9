//! Runs the tests of the dashboard's JavaScript. The tests of serving its files are beside the code that serves them.

use std::path::Path;
use std::process::Command;

#[test]
fn the_pages_logic_passes_its_tests() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard.mjs");
    let output = Command::new("node")
        .arg("--test")
        .arg(tests)
        .output()
        .expect("node 20 or later runs these tests: apt-get install nodejs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
}

/// Checks the syntax of modules that the tests above do not load.
#[test]
fn every_module_is_read_by_node() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/page");
    let mut modules = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "js") {
            continue;
        }
        let text = std::fs::File::open(&path).unwrap();
        let output = Command::new("node")
            .args(["--input-type=module", "--check", "-"])
            .stdin(text)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", path.display());
        modules += 1;
    }
    assert!(modules > 10, "{modules}");
}
