//! Tests the advice for recorded hosts. `firecracker-24gib` was recorded on a real machine. The
//! others are written by hand after such machines, with the kernel's defaults for their memory.

use std::path::{Path, PathBuf};

use tune::{Advice, Host, Level, Want, advise, json, sysctl_drop_in, systemd_unit, text};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn host(name: &str) -> Host {
    let path = folder("hosts").join(format!("{name}.json"));
    let text = std::fs::read_to_string(path).expect("a recorded host");
    serde_json::from_str(&text).expect("a host as JSON")
}

const HOSTS: [&str; 7] = [
    "conntrack-full",
    "conntrack-low",
    "debian-64gib",
    "docker",
    "firecracker-24gib",
    "old-articles",
    "vps-1gib",
];

const COUNTS: [u64; 3] = [10_000, 1_000_000, 3_000_000];

fn of(name: &str, connections: u64, both_ends: bool) -> Advice {
    advise(&host(name), &Want { both_ends, ..Want::new(connections) })
}

fn level(advice: &Advice, name: &str) -> Option<Level> {
    advice.findings.iter().find(|finding| finding.name == name).map(|finding| finding.level)
}

fn musts(advice: &Advice) -> Vec<&str> {
    let musts = advice.findings.iter().filter(|finding| finding.level == Level::Must);
    musts.map(|finding| finding.name.as_str()).collect()
}

fn value<'a>(advice: &'a Advice, key: &str) -> Option<&'a str> {
    let mut sysctls = advice.sysctls();
    sysctls.find(|(_, sysctl)| sysctl.key == key).map(|(_, sysctl)| sysctl.value.as_str())
}

fn command<'a>(advice: &'a Advice, name: &str) -> &'a str {
    let finding = advice.findings.iter().find(|finding| finding.name == name).expect("a finding");
    &finding.remedy.as_ref().expect("a remedy").command
}

/// Host, wanted connections, whether they fit, how many it can serve, and the finding that sets the bound.
type Expected = (&'static str, u64, bool, u64, &'static str);

const CONNTRACK: &str = "net.netfilter.nf_conntrack_max";
const TCP_MEM: &str = "net.ipv4.tcp_mem";

const SERVER: [Expected; 21] = [
    ("conntrack-full", 10_000, false, 0, CONNTRACK),
    ("conntrack-full", 1_000_000, false, 0, CONNTRACK),
    ("conntrack-full", 3_000_000, false, 0, CONNTRACK),
    ("conntrack-low", 10_000, true, 256_848, CONNTRACK),
    ("conntrack-low", 1_000_000, false, 256_848, CONNTRACK),
    ("conntrack-low", 3_000_000, false, 256_848, CONNTRACK),
    ("debian-64gib", 10_000, true, 5_974_584, TCP_MEM),
    ("debian-64gib", 1_000_000, true, 5_974_584, TCP_MEM),
    ("debian-64gib", 3_000_000, true, 5_974_584, TCP_MEM),
    ("docker", 10_000, true, 464_212, "cgroup memory limit"),
    ("docker", 1_000_000, false, 464_212, "cgroup memory limit"),
    ("docker", 3_000_000, false, 464_212, "cgroup memory limit"),
    ("firecracker-24gib", 10_000, true, 2_302_656, TCP_MEM),
    ("firecracker-24gib", 1_000_000, true, 2_302_656, TCP_MEM),
    ("firecracker-24gib", 3_000_000, false, 2_302_656, TCP_MEM),
    // The kernel rejects clients behind NAT, however few connect.
    ("old-articles", 10_000, false, 370_800, TCP_MEM),
    ("old-articles", 1_000_000, false, 370_800, TCP_MEM),
    ("old-articles", 3_000_000, false, 370_800, TCP_MEM),
    ("vps-1gib", 10_000, true, 80_554, "fs.file-max"),
    ("vps-1gib", 1_000_000, false, 80_554, "fs.file-max"),
    ("vps-1gib", 3_000_000, false, 80_554, "fs.file-max"),
];

#[test]
fn recorded_hosts_have_the_expected_bounds() {
    for (name, connections, fits, holds, set_by) in SERVER {
        let advice = of(name, connections, false);
        let bound = advice.holds.as_ref().expect("a bound");
        let found = (name, connections, advice.fits, bound.connections, bound.set_by.as_str());
        assert_eq!(found, (name, connections, fits, holds, set_by));
    }
}

#[test]
fn both_ends_double_the_kernel_memory_files_and_watches() {
    let advice = of("firecracker-24gib", 3_000_000, true);
    assert_eq!(musts(&advice), ["memory", TCP_MEM, "fs.file-max", "fs.epoll.max_user_watches"]);
    assert_eq!(value(&advice, "fs.file-max"), Some("6100000"));
    assert_eq!(value(&advice, "fs.epoll.max_user_watches"), Some("6100000"));
    assert_eq!(advice.estimate.kernel, 2 * 3_000_000 * 4_170);
    assert_eq!(advice.estimate.generator, 3_000_000 * 64);
    // All pages would be 24 GB, but the advice is at most 60 % of the memory.
    let cap = host("firecracker-24gib").memory_total_bytes.unwrap() / 10 * 6 / 4_096;
    let pages = value(&advice, TCP_MEM).and_then(|v| v.split(' ').nth(2)?.parse().ok());
    assert_eq!(pages, Some(cap));

    assert!(of("firecracker-24gib", 1_000_000, true).fits);
    assert!(!of("debian-64gib", 3_000_000, true).fits);
    let more = of("debian-64gib", 3_600_000, true);
    assert_eq!(musts(&more), [TCP_MEM, "net.ipv4.ip_local_port_range"]);
    let narrow = of("old-articles", 3_000_000, true);
    assert_eq!(value(&narrow, "net.ipv4.ip_local_port_range"), Some("32768 60999"));
}

#[test]
fn a_bare_server_holds_millions_without_changes() {
    let advice = of("debian-64gib", 3_000_000, false);
    assert!(musts(&advice).is_empty());
    assert_eq!(level(&advice, "transparent huge pages"), Some(Level::Advise));
    assert_eq!(value(&advice, TCP_MEM), Some("1500000 2000000 3000000"));
    assert_eq!(advice.sysctls().count(), 1);
    assert_eq!(advice.shards, 16);
    let few = sysctl_drop_in(&of("debian-64gib", 1_000_000, false));
    assert!(few.ends_with("# Nothing to change.\n"), "{few}");
}

#[test]
fn a_low_limit_on_files_means_more_shards_up_to_a_bound() {
    let ten_thousand = of("vps-1gib", 10_000, false);
    assert_eq!(ten_thousand.shards, 14);
    assert_eq!(level(&ten_thousand, "open files of a process"), Some(Level::Advise));
    let million = of("vps-1gib", 1_000_000, false);
    assert_eq!(level(&million, "open files of a process"), Some(Level::Must));
    assert_eq!(
        command(&million, "open files of a process"),
        "LimitNOFILE=1048576 in the server's systemd unit, or ulimit -n 1048576"
    );
    assert_eq!(of("firecracker-24gib", 1_000_000, false).shards, 58);
}

#[test]
fn remedies_in_a_container_name_its_start_command_or_its_machine() {
    let advice = of("docker", 1_000_000, false);
    assert_eq!(musts(&advice), ["cgroup memory limit"]);
    assert_eq!(command(&advice, "cgroup memory limit"), "docker run --memory=4700m …");
    assert_eq!(
        command(&advice, "net.core.somaxconn"),
        "docker run --sysctl net.core.somaxconn=4096 …"
    );
    assert!(command(&advice, "io_uring").starts_with("docker run --security-opt seccomp="));
    assert_eq!(level(&advice, TCP_MEM), Some(Level::Unknown));
    // All shards share one table, so the limit on open files counts all their descriptors.
    let more = of("docker", 3_000_000, false);
    assert_eq!(level(&more, "open files of a process"), Some(Level::Must));
    assert_eq!(
        command(&more, "open files of a process"),
        "docker run --ulimit nofile=4194304:4194304 …"
    );
    let both = of("docker", 3_000_000, true);
    let watches = both.findings.iter().find(|f| f.name == "fs.epoll.max_user_watches").unwrap();
    let remedy = watches.remedy.as_ref().unwrap();
    assert_eq!(remedy.command, "sysctl -w fs.epoll.max_user_watches=6100000");
    assert_eq!(remedy.place.as_deref(), Some("on the machine that runs this container"));
}

#[test]
fn connection_tracking_is_a_bound_only_where_it_is_in_use() {
    let low = of("conntrack-low", 1_000_000, false);
    assert_eq!(musts(&low), [CONNTRACK]);
    assert_eq!(value(&low, CONNTRACK), Some("1100000"));
    assert_eq!(value(&low, "net.netfilter.nf_conntrack_buckets"), Some("500000"));
    assert_eq!(low.estimate.conntrack, 384_000_000);
    let full = of("conntrack-full", 10_000, false);
    assert_eq!(value(&full, CONNTRACK), Some("81000"));
    // The same limit, with nothing tracked.
    let idle = of("firecracker-24gib", 1_000_000, false);
    assert_eq!(level(&idle, CONNTRACK), Some(Level::Unknown));
    assert_eq!(idle.estimate.conntrack, 0);
    assert!(sysctl_drop_in(&idle).contains("\n#net.netfilter.nf_conntrack_max = 1100000\n"));
}

#[test]
fn settings_of_old_articles_are_found_and_reverted() {
    let advice = of("old-articles", 1_000_000, false);
    assert_eq!(musts(&advice), [TCP_MEM, "fs.file-max", "net.ipv4.tcp_tw_recycle"]);
    for (key, expected) in [
        ("net.ipv4.tcp_tw_recycle", "0"),
        ("net.ipv4.tcp_timestamps", "1"),
        ("net.ipv4.tcp_sack", "1"),
        ("net.ipv4.tcp_window_scaling", "1"),
        ("net.ipv4.tcp_syncookies", "1"),
        ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
        ("net.ipv4.tcp_max_tw_buckets", "65536"),
        ("net.ipv4.tcp_mem", "500000 666666 1000000"),
        ("net.core.wmem_max", "212992"),
        ("fs.file-max", "1100000"),
        ("vm.min_free_kbytes", "1640000"),
    ] {
        assert_eq!(value(&advice, key), Some(expected), "{key}");
    }
    let followed = advice.useless.iter().filter(|line| line.here.is_some()).count();
    assert_eq!(followed, 17);
    // Hosts with the kernel's defaults follow no article.
    for name in ["debian-64gib", "vps-1gib", "docker", "firecracker-24gib"] {
        let advice = of(name, 1_000_000, false);
        let followed: Vec<_> = advice.useless.iter().filter(|line| line.here.is_some()).collect();
        assert!(followed.is_empty(), "{name}: {followed:?}");
    }
}

#[test]
fn applied_settings_need_no_further_change() {
    for name in HOSTS {
        for (connections, both_ends) in COUNTS.into_iter().flat_map(|n| [(n, false), (n, true)]) {
            let want = Want { both_ends, ..Want::new(connections) };
            let first = advise(&host(name), &want);
            let second = advise(&host(name).after(&first), &want);
            let left: Vec<_> = second.sysctls().map(|(finding, _)| &finding.name).collect();
            assert!(left.is_empty(), "{name}, {connections}: {left:?}");
            assert_eq!(first.holds_after, second.holds, "{name}, {connections}");
        }
    }
}

/// Compares with a golden file. TUNE_BLESS=1 writes the file first.
fn golden(name: &str, found: &str) {
    let path = folder("golden").join(name);
    if std::env::var_os("TUNE_BLESS").is_some() {
        std::fs::create_dir_all(folder("golden")).expect("a folder");
        std::fs::write(&path, found).expect("a file written");
    }
    let expected = std::fs::read_to_string(&path).expect("a golden file");
    assert_eq!(found, expected, "{} differs; TUNE_BLESS=1 writes it anew", path.display());
}

#[test]
fn texts_equal_the_golden_files() {
    let advice = of("old-articles", 1_000_000, false);
    golden("old-articles.txt", &text(&advice, false));
    golden("99-throng.conf", &sysctl_drop_in(&advice));
    golden("throng.service", &systemd_unit(&advice, Path::new("/usr/local/bin/throng")));
}

#[test]
fn lines_are_short_and_colour_adds_only_colour_codes() {
    for name in HOSTS {
        let advice = of(name, 3_000_000, true);
        let plain = text(&advice, false);
        let mut colored = text(&advice, true);
        for code in ["31;1", "33", "36", "32", "0"] {
            colored = colored.replace(&format!("\x1b[{code}m"), "");
        }
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&colored), words(&plain));
        let commands = advice.findings.iter().filter_map(|finding| finding.remedy.as_ref());
        let commands: Vec<_> = commands.map(|remedy| remedy.command.as_str()).collect();
        for line in plain.lines().filter(|line| line.chars().count() > 96) {
            assert!(commands.contains(&line.trim()), "{name}: {line}");
        }
    }
}

#[test]
fn json_round_trips() {
    for name in HOSTS {
        let advice = of(name, 1_000_000, false);
        let copy: Advice = serde_json::from_str(&json(&advice)).expect("advice as JSON");
        assert_eq!(copy, advice);
    }
}

/// Shows the text as a user sees it with: cargo test -p tune --test hosts this_host -- --nocapture
#[test]
fn this_host_gets_advice() {
    let host = Host::read();
    let advice = advise(&host, &Want::new(1_000_000));
    println!("{}", text(&advice, false));
    assert!(advice.holds.is_some());
}
