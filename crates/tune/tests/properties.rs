//! Properties that hold for every host, however strange its facts.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::collection::btree_map;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tune::{Cgroup, Host, IoUring, Level, Want, advise, json, sysctl_drop_in, systemd_unit, text};

/// Returns the names of all settings that the checks read. The recorded host has them all.
fn keys() -> Vec<String> {
    let host = include_str!("hosts/old-articles.json");
    let host: Host = serde_json::from_str(host).expect("a recorded host");
    let mut keys: Vec<_> = host.sysctls.into_keys().collect();
    keys.push("kernel.io_uring_disabled".to_owned());
    keys
}

/// Generates small and enormous numbers.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..5_u64, 0..10_000_000_u64, any::<u64>(), Just(u64::MAX), Just(i64::MAX as u64)]
}

fn setting() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => number().prop_map(|n| n.to_string()),
        2 => (number(), number(), number()).prop_map(|(a, b, c)| format!("{a} {b} {c}")),
        2 => (any::<u16>(), any::<u16>()).prop_map(|(a, b)| format!("{a} {b}")),
        1 => any::<String>(),
    ]
}

fn sysctls() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map(proptest::sample::select(keys()), setting(), 0..40)
}

fn group() -> impl Strategy<Value = Option<Cgroup>> {
    option::of((number(), number()).prop_map(|(limit, used)| Cgroup { limit, used }))
}

prop_compose! {
    fn hosts()(
        kernel in option::of(prop_oneof![any::<String>(), "[0-9]{1,2}\\.[0-9]{1,2}.{0,5}"]),
        container in option::of(prop_oneof!["docker", "podman", "kubernetes", "lxc", ".*"]),
        (cpus, total, available, swap) in (
            option::of(number()), option::of(number()), option::of(number()), option::of(number()),
        ),
        (cgroup_memory, cgroup_pids) in (group(), group()),
        (soft, hard) in (option::of(number()), option::of(number())),
        (sysctl_read_only, private_tables) in (any::<Option<bool>>(), any::<Option<bool>>()),
        io_uring in option::of(prop_oneof![
            Just(IoUring::Allowed), any::<i32>().prop_map(IoUring::Refused), Just(IoUring::Refused(1)),
        ]),
        transparent_hugepage in option::of(".*"),
        softnet_dropped in option::of(number()),
        sysctls in sysctls(),
    ) -> Host {
        Host {
            kernel, cpus, container, sysctl_read_only,
            memory_total_bytes: total, memory_available_bytes: available, swap_total_bytes: swap,
            cgroup_memory, cgroup_pids, nofile_soft: soft, nofile_hard: hard, private_tables,
            io_uring, transparent_hugepage, softnet_dropped, sysctls,
        }
    }
}

prop_compose! {
    fn wants(most: u64)(
        connections in prop_oneof![Just(0), 0..=most, 0..=most.min(10_000_000)],
        both_ends in any::<bool>(),
        backlog in any::<u32>(),
        send_buffer_bytes in number(),
    ) -> Want {
        Want { connections, both_ends, backlog, send_buffer_bytes }
    }
}

/// Proptest stores a failing input beside this file, to be committed.
fn config(cases: u32) -> ProptestConfig {
    let file = FileFailurePersistence::Direct("tests/properties.regressions");
    ProptestConfig {
        failure_persistence: Some(Box::new(file)),
        ..ProptestConfig::with_cases(cases)
    }
}

proptest! {
    #![proptest_config(config(250))]

    #[test]
    fn advice_for_any_host_renders_safely(host in hosts(), want in wants(u64::MAX)) {
        let advice = advise(&host, &want);
        prop_assert!(text(&advice, false).chars().all(|c| c == '\n' || !c.is_control()));
        text(&advice, true);
        json(&advice);
        for line in sysctl_drop_in(&advice).lines() {
            let comment = line.is_empty() || line.starts_with('#');
            prop_assert!(comment || line.contains(" = "), "{line}");
        }
        systemd_unit(&advice, Path::new("/x"));
    }

    #[test]
    fn a_host_fits_if_and_only_if_no_finding_is_a_must(host in hosts(), want in wants(1 << 40)) {
        let advice = advise(&host, &want);
        let musts = advice.findings.iter().any(|finding| finding.level == Level::Must);
        prop_assert_eq!(advice.fits, !musts);
        if let Some(holds) = advice.holds {
            prop_assert!(!advice.fits || holds.connections >= want.connections);
        }
    }

    #[test]
    fn more_memory_never_lowers_the_bound(
        host in hosts(), want in wants(1 << 40), a in number(), b in number(),
    ) {
        let with = |bytes| {
            let (memory_total_bytes, memory_available_bytes) = (Some(bytes), Some(bytes));
            let host = Host { memory_total_bytes, memory_available_bytes, ..host.clone() };
            advise(&host, &want).holds.map(|bound| bound.connections)
        };
        prop_assert!(with(a.min(b)) <= with(a.max(b)));
    }

    #[test]
    fn applied_settings_leave_no_setting_that_must_change(host in hosts(), want in wants(1 << 40)) {
        let after = host.after(&advise(&host, &want));
        let advice = advise(&after, &want);
        let left: Vec<_> =
            advice.sysctls().filter(|(finding, _)| finding.level == Level::Must).collect();
        prop_assert!(left.is_empty(), "{left:?}");
    }
}
