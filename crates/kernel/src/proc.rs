//! Parsers for files of /proc. A text of another form gives `None`.

use serde::{Deserialize, Serialize};

/// A table with a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Usage {
    /// Entries in use.
    pub used: u64,
    /// The limit on entries.
    pub max: u64,
}

/// The share of the last 10 s in which tasks waited for a resource (PSI), in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Pressure {
    /// At least one task waited.
    pub some_percent: f32,
    /// All tasks that had work waited.
    pub full_percent: f32,
}

/// The value of a line like `Slab:   123 kB` of /proc/meminfo or /proc/self/status, in bytes.
pub fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A counter of /proc/net/snmp or /proc/net/netstat, where a line of names is followed by one of values,
/// and both begin with the protocol: `Tcp: … RetransSegs …`, `Tcp: … 12 …`.
pub(crate) fn counter(text: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'));
    let at = lines.next()?.split_whitespace().position(|word| word == name)?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

/// Packets that the kernel dropped because a core's backlog was full: the second column of
/// /proc/net/softnet_stat, which is hexadecimal and has a line for each core. `None` if no line has a number there.
pub fn softnet_dropped(text: &str) -> Option<u64> {
    let columns = text.lines().filter_map(|line| line.split_whitespace().nth(1));
    let counts = columns.filter_map(|column| u64::from_str_radix(column, 16).ok());
    counts.reduce(u64::saturating_add)
}

/// The number behind a word in the line that begins with `line`: 3 for `mem` in `TCP: inuse 5 orphan 0 mem 3`.
pub(crate) fn number_after(text: &str, line: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().find_map(|text| text.strip_prefix(line))?.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}

/// Pages of the buffers of all TCP sockets, of IPv4 and IPv6, from /proc/net/sockstat.
pub fn tcp_memory_pages(sockstat: &str) -> Option<u64> {
    number_after(sockstat, "TCP:", "mem")
}

/// The numbers of a text that has exactly `N` and nothing else.
pub(crate) fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let numbers: Vec<u64> =
        text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

/// The open files of /proc/sys/fs/file-nr: in use, unused (always 0), the limit.
pub(crate) fn files(text: &str) -> Option<Usage> {
    let [used, _, max] = numbers(text)?;
    Some(Usage { used, max })
}

/// A file below /proc/pressure (kernel.org, accounting/psi.rst): `some avg10=0.12 avg60=… total=…` and
/// mostly the same with `full`.
pub(crate) fn pressure(text: &str) -> Option<Pressure> {
    let percent = |tasks: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(tasks)?.strip_prefix(' '))?;
        let value = line.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
        value.parse::<f32>().ok().filter(|percent| (0.0..=100.0).contains(percent))
    };
    Some(Pressure { some_percent: percent("some")?, full_percent: percent("full").unwrap_or(0.0) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NETSTAT: &str = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 7 312 400\n\
                           IpExt: InNoRoutes InOctets\nIpExt: 0 99\n";

    #[test]
    fn counters_stand_below_their_names() {
        assert_eq!(counter(NETSTAT, "TcpExt", "ListenOverflows"), Some(312));
        assert_eq!(counter(NETSTAT, "TcpExt", "ListenDrops"), Some(400));
        assert_eq!(counter(NETSTAT, "IpExt", "InOctets"), Some(99));
        assert_eq!(counter(NETSTAT, "IpExt", "ListenDrops"), None);
        assert_eq!(counter(NETSTAT, "Tcp", "ListenDrops"), None);
        // /proc/net/snmp has a number below 0.
        let snmp = "Tcp: MaxConn OutSegs\nTcp: -1 5\n";
        assert_eq!(
            (counter(snmp, "Tcp", "MaxConn"), counter(snmp, "Tcp", "OutSegs")),
            (None, Some(5))
        );
        assert_eq!(counter("Tcp: OutSegs RetransSegs\nTcp: 5\n", "Tcp", "RetransSegs"), None);
        assert_eq!(counter("Tcp: OutSegs\n", "Tcp", "OutSegs"), None);
    }

    #[test]
    fn lines_of_names_and_values_are_parsed() {
        assert_eq!(softnet_dropped("00000010 0000000a 0\n00000001 00000001 0\nx\n"), Some(11));
        assert_eq!(softnet_dropped("nothing\n"), None);
        let sockstat = "sockets: used 9\nTCP: inuse 3 orphan 0 tw 1 alloc 5 mem 12\nUDP: mem 4\n";
        assert_eq!(
            (tcp_memory_pages(sockstat), tcp_memory_pages("UDP: mem 4\n")),
            (Some(12), None)
        );
        let status = "VmRSS:\t 10 kB\nRssAnon:\t     724 kB\n";
        assert_eq!(
            (kilobytes(status, "RssAnon:"), kilobytes(status, "X:")),
            (Some(724 << 10), None)
        );
        assert_eq!(
            files("1216\t0\t9223372036854775807\n"),
            Some(Usage { used: 1_216, max: i64::MAX as u64 })
        );
        assert_eq!(files("1216 0\n"), None);
    }

    #[test]
    fn pressure_is_that_of_the_last_ten_seconds() {
        let text =
            "some avg10=12.50 avg60=3.00 avg300=1.00 total=1\nfull avg10=2.25 avg60=0.00 total=0\n";
        assert_eq!(pressure(text), Some(Pressure { some_percent: 12.5, full_percent: 2.25 }));
        // Kernels before 5.13 have no line `full` for processors.
        let some = text.lines().next().unwrap();
        assert_eq!(pressure(some), Some(Pressure { some_percent: 12.5, full_percent: 0.0 }));
        for strange in ["", "some avg10=nan", "some avg10=101", "some avg10=-1", "full avg10=1.00"]
        {
            assert_eq!(pressure(strange), None, "{strange}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in any::<String>(), line in "(Tcp|TCP|some|full):? ?[a-z0-9=. -]*") {
            for text in [text.clone(), line.clone(), format!("{line}\n{line}\n{text}")] {
                let _ = (counter(&text, "Tcp", "a"), softnet_dropped(&text), files(&text));
                let _ = (tcp_memory_pages(&text), pressure(&text), kilobytes(&text, "a"));
            }
        }

        #[test]
        fn each_counter_is_found_whatever_stands_around_it(
            values in proptest::collection::vec(any::<u64>(), 1..40),
            at in any::<proptest::sample::Index>(),
        ) {
            let names: String = (0..values.len()).map(|at| format!(" N{at}")).collect();
            let numbers: String = values.iter().map(|value| format!(" {value}")).collect();
            let text = format!("Other: N0\nOther: 1\nTcpExt:{names}\nTcpExt:{numbers}\n");
            let at = at.index(values.len());
            prop_assert_eq!(counter(&text, "TcpExt", &format!("N{at}")), Some(values[at]));
        }

        #[test]
        fn drops_of_all_cores_are_added_up(drops in proptest::collection::vec(any::<u32>(), 1..20)) {
            let text: String = drops.iter().map(|count| format!("00ff {count:08x} 0\n")).collect();
            let sum = drops.iter().map(|count| u64::from(*count)).sum();
            prop_assert_eq!(softnet_dropped(&text), Some(sum));
        }
    }
}
