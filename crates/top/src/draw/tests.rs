//! Draws recorded samples on small and wide terminals.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::sample::{
    Connection, Finding, History, KernelReport, Noisy, Sample, Slowest, TopTopic, Tops,
};
use crate::watch::{Details, Subject, Update};
use admin::AdminError;

/// The history of a node with 271 connections in 6 shards.
const HISTORY: &str = include_str!("../recorded/history.json");
const SAMPLE: &str = include_str!("../recorded/sample.json");
const MEMBERS: &str = include_str!("../recorded/members.json");
const MESSAGES: &str = include_str!("../recorded/messages.json");

const SMALL: (u16, u16) = (80, 24);
const WIDE: (u16, u16) = (160, 50);

fn sample() -> Sample {
    serde_json::from_str(SAMPLE).expect("a sample")
}

fn recorded() -> State {
    let mut state = State::new("127.0.0.1:8001");
    let history = serde_json::from_str::<History>(HISTORY).expect("a history");
    let topic = |at: u32| TopTopic {
        topic: format!("room-{at}"),
        members: f64::from(5_000 - at),
        messages_per_minute: 7.5,
        deliveries_per_minute: f64::from(5_000 - at) * 7.5,
        bytes_per_minute: f64::from(5_000 - at) * 1_000.0,
    };
    let rooms: Vec<TopTopic> = (0..40).map(topic).collect();
    let noisy = |kind: &str, name: &str, commands_per_second: f64| Noisy {
        kind: kind.into(),
        name: name.into(),
        commands_per_second,
        refusals_per_second: 12.0,
    };
    let noisiest = vec![noisy("user", "loud", 900.0), noisy("address", "192.0.2.1", 40.0)];
    for update in [
        Update::History(Box::new(history)),
        Update::Sample(Box::new(sample())),
        Update::Tops(Ok(Tops {
            biggest: rooms.clone(),
            busiest: rooms.clone(),
            by_deliveries: rooms.clone(),
            by_bytes: rooms,
            slowest: Some(Slowest::default()),
            noisiest,
            kernel: None,
        })),
    ] {
        state.apply(update, sample().at).expect("no error");
    }
    state
}

#[test]
fn an_upgrade_is_shown_while_it_is_under_way_and_when_it_is_over() {
    let mut state = recorded();
    for (json, want) in [
        (r#"{"text":"shard 1 of 2\u001b"}"#, "upgrade: shard 1 of 2\u{fffd}"),
        (r#"{"result":"done","text":"upgraded"}"#, "? help   upgraded"),
        (r#"{"result":"nothing_moved","text":"nothing moved"}"#, "! nothing moved"),
    ] {
        let upgrade = serde_json::from_str(json).expect("an upgrade");
        let sample = Sample { upgrade: Some(upgrade), ..sample() };
        state.apply(Update::Sample(Box::new(sample)), 0).expect("no error");
        assert_shows(&picture(&state, SMALL), &[want]);
    }
}

fn press(state: &mut State, keys: &[KeyCode]) {
    for code in keys {
        state.key(KeyEvent::new(*code, KeyModifiers::NONE));
    }
}

fn inspect(state: &mut State, name: &str) {
    press(state, &[KeyCode::Char('t')]);
    name.chars().for_each(|c| press(state, &[KeyCode::Char(c)]));
    press(state, &[KeyCode::Enter]);
}

/// Returns the picture as lines of text, at a moment 1 s after the newest sample.
fn picture(state: &State, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(frame, state, sample().at + 1_000)).expect("drawn");
    let buffer = terminal.backend().buffer();
    let cells: Vec<_> = buffer.content().iter().map(ratatui::buffer::Cell::symbol).collect();
    cells.chunks(width.into()).map(|line| line.concat().trim_end().to_owned()).collect()
}

#[track_caller]
fn assert_shows(lines: &[String], wanted: &[&str]) {
    for want in wanted {
        assert!(lines.iter().any(|line| line.contains(want)), "{want} in\n{}", lines.join("\n"));
    }
}

#[test]
fn the_overview_has_all_tiles_at_any_size() {
    let state = recorded();
    let tiles = [
        "Connections",
        "Connects",
        "Disconnects",
        "Messages in",
        "Delivered",
        "Latency p99",
        "Bytes out",
        "CPU",
        "User mem/conn",
        "Kernel mem/conn",
        "Slow consumers",
        "Outboxes",
    ];
    for size in [SMALL, WIDE, (60, 16), (200, 80)] {
        let lines = picture(&state, size);
        assert_shows(&lines, &tiles);
        assert_shows(&lines, &["[Overview]", "Throng 0.1.0", "q quit", " UTC"]);
    }
    let small = picture(&state, SMALL);
    assert_shows(&small, &["0.3 % of 100 k", "p50 1.02 ms · p90 2.05 ms", "none refused", "█"]);
    assert!(!small.iter().any(|line| line.contains("Biggest")), "{}", small.join("\n"));
    let wide = picture(&state, WIDE);
    assert_shows(&wide, &["Biggest topics", "Busiest topics", "6 shards: ", "room-0", "phoenix"]);
}

#[test]
fn any_terminal_size_is_drawn() {
    let mut state = recorded();
    press(&mut state, &[KeyCode::Char('?')]);
    let mut inspected = recorded();
    inspect(&mut inspected, "room-0");
    for _ in View::ALWAYS {
        for size in [(1, 1), (5, 2), (20, 4), (79, 3), (24, 80), (300, 5)] {
            picture(&state, size);
            picture(&inspected, size);
        }
        press(&mut state, &[KeyCode::Esc, KeyCode::Tab, KeyCode::Char('?')]);
        press(&mut inspected, &[KeyCode::Tab]);
    }
}

#[test]
fn the_other_views_show_their_lists() {
    let mut state = recorded();
    press(&mut state, &[KeyCode::Tab]);
    let held = sample().transports["sse"];
    let share = crate::format::percent(held, sample().connections);
    let row = format!("{:<18}{held:>9}{share:>9}  █", "sse");
    assert_shows(&picture(&state, SMALL), &["[Transports]", &row, "phoenix longpoll", "all  "]);
    press(&mut state, &[KeyCode::Tab]);
    assert_shows(&picture(&state, SMALL), &["[Shards]", "6 shards: ", " 5  "]);
    press(&mut state, &[KeyCode::Tab]);
    assert_shows(&picture(&state, SMALL), &["[Topics]", "room-0 ", "5 k", "7.5"]);
    assert_shows(&picture(&state, (50, 24)), &["Biggest topics", "Busiest topics"]);
    // Scrolling stops at the end of the list.
    press(&mut state, &[KeyCode::PageDown; 9]);
    let lines = picture(&state, SMALL);
    assert_shows(&lines, &["room-20 ", "room-39 "]);
    press(&mut state, &[KeyCode::Char('?')]);
    assert_shows(&picture(&state, SMALL), &["any key closes it", "needs attention"]);
}

#[test]
fn the_costs_name_topics_and_slow_connections() {
    let mut state = recorded();
    press(&mut state, &[KeyCode::Char('c')]);
    let none = "No connection has unsent bytes.";
    let mut tops = state.data().tops.clone().expect("tops").expect("no error");
    let slow = |number: u32| Connection {
        id: format!("5f3a91c2-0-{number}-9"),
        transport: "ws".into(),
        address: Some("192.0.2.7:5000".into()),
        users: vec![format!("user{number}")],
        outbox_bytes: 1_200_000.0,
        outbox_age_ms: 65_400.0,
        ..Connection::default()
    };
    for (slowest, wanted) in [
        (None, vec!["This node does not report them."]),
        (Some(Slowest::default()), vec![none]),
        (
            Some(Slowest { count: 4_000.0, connections: (0..40).map(slow).collect() }),
            vec!["bytes wait for 4,000", "1.2 MB", "1 min 5 s", "user0 ", "5f3a91c2-0-0-9"],
        ),
    ] {
        tops.slowest = slowest;
        state.apply(Update::Tops(Ok(tops.clone())), 0).expect("no error");
        for size in [SMALL, WIDE] {
            let lines = picture(&state, size);
            assert_shows(&lines, &wanted);
            assert_shows(&lines, &["[Costs]", "By deliveries", "By bytes", "A minute"]);
            assert_shows(&lines, &["37.5 k", "5 MB", "Slowest connections"]);
        }
    }
    press(&mut state, &[KeyCode::PageDown; 9]);
    assert_shows(&picture(&state, SMALL), &["user39 ", "room-39 "]);
}

#[test]
fn what_mqtt_clients_have_is_below_the_transports() {
    let mut state = recorded();
    press(&mut state, &[KeyCode::Tab]);
    assert!(!picture(&state, SMALL).concat().contains("MQTT"));
    let mut sample = sample();
    (sample.figures.mqtt_away, sample.figures.mqtt_retained) = (1_200.0, 7.0);
    state.apply(Update::Sample(Box::new(sample)), 0).expect("no error");
    assert_shows(&picture(&state, SMALL), &["MQTT: 0 here · 1.2 k away · 7 retained, 0 B"]);
    assert_shows(&picture(&state, WIDE), &["MQTT: 0 here"]);
}

#[test]
fn many_shards_are_drawn_in_columns_and_scroll() {
    let mut state = recorded();
    let sample = Sample { shards: (0..200).map(f64::from).collect(), ..sample() };
    state.apply(Update::Sample(Box::new(sample)), 0).expect("no error");
    press(&mut state, &[KeyCode::Tab, KeyCode::Tab]);
    let lines = picture(&state, SMALL);
    assert_shows(&lines, &["200 shards: 0 to 199", "  0         0", " 39        39"]);
    assert!(!lines.iter().any(|line| line.contains("199        199")));
    press(&mut state, &[KeyCode::PageDown; 30]);
    assert_shows(&picture(&state, SMALL), &["199       199"]);
}

#[test]
fn shards_are_a_table_that_is_sorted_by_any_column() {
    let mut state = recorded();
    let columns = serde_json::json!({
        "delivered": [120, 3, 0, 0, 0, 7], "turns": [90, 3, 1, 1, 1, 1],
        "turn_p50_ms": [0.064, 0.064, null, null, null, null],
        "turn_p99_ms": [4.096, 262.144, null, null, null, null],
        "asleep": [0.4, 0.98, 1, 1, 1, 1], "bulk": [0.25, 0, 0, 0, 0, 0],
        "cpu": [0.5, 0.01, 0, 0, 0, null], "system": [0.33, 0.01, 0, 0, 0, null],
        "cpu_wait": [0.08, 0, 0, 0, 0, null], "mailbox": [12, 0, 0, 0, 31_000, 0],
        "listen_queue": [0, 5, 0, 0, 0, 0], "outboxes": [1, 0, 0, 0, 0, 0],
        "outbox_bytes": [1_200_000, 0, 0, 0, 0, 0],
    });
    let by_shard = Some(serde_json::from_value(columns).expect("columns"));
    state.apply(Update::Sample(Box::new(Sample { by_shard, ..sample() })), 0).expect("no error");
    press(&mut state, &[KeyCode::Tab, KeyCode::Tab]);
    let lines = picture(&state, SMALL);
    assert_shows(&lines, &["6 shards: 33 to 54 conns · by number · s S r: sort"]);
    let table = [
        "Shard   Conns   Msg/s Turn p99 Asleep System  Bulk  Wait Mailbox Listen Unsent",
        "    0      46     120   4.1 ms   40 %   33 %  25 %   8 %      12      0 1.2 MB",
        "    1      33       3   262 ms   98 %    1 %   0 %   0 %       0      5    0 B",
        "    5      48       7        –  100 %      –   0 %     –       0      0    0 B",
    ];
    assert_shows(&lines, &table);
    assert_shows(&picture(&state, WIDE), &["Outboxes   CPU Turn p50 Turns/s"]);
    let first = |state: &State| {
        let lines = picture(state, SMALL);
        let head = lines.iter().position(|line| line.contains("Turn p99 Asleep")).expect("a head");
        lines[head + 1].trim_start().split(' ').next().map(str::to_owned)
    };
    let sorted = [
        ("connections, most", "4"),
        ("messages, most", "0"),
        ("turn p99, most", "1"),
        ("time asleep, least", "0"),
        ("time in system calls, most", "0"),
        ("time in bulk, most", "0"),
        ("wait for a CPU, most", "0"),
        ("mailbox, most", "4"),
        ("listen queue, most", "1"),
    ];
    for (by, number) in sorted {
        press(&mut state, &[KeyCode::Char('s')]);
        assert_shows(&picture(&state, SMALL), &[&format!("by {by} first")]);
        assert_eq!(first(&state).as_deref(), Some(number), "{by}");
    }
    press(&mut state, &[KeyCode::Char('r')]);
    assert_eq!(first(&state).as_deref(), Some("0"));
}

#[test]
fn the_details_of_a_topic_hide_control_characters() {
    let mut state = recorded();
    inspect(&mut state, "room-0");
    assert_shows(&picture(&state, SMALL), &["[room-0]", "Loading…"]);
    let details = Details {
        members: serde_json::from_str(MEMBERS).expect("members"),
        messages: serde_json::from_str(MESSAGES).expect("messages"),
    };
    let update = Update::Details(Subject("room-0".into()), Ok(details));
    state.apply(update, 0).expect("no error");
    let lines = picture(&state, SMALL);
    assert_shows(&lines, &["19 connections in room-0, 3 of them listed", "Transport", "u15"]);
    assert_shows(&lines, &["Last messages (UTC)", "12:34:56 message", "{\"text\":\"hello\"}"]);
    assert!(!lines.concat().contains('\u{1b}'));
    let error = Err(AdminError::Rejected("a shard is busy".into()));
    state.apply(Update::Details(Subject("room-0".into()), error), 0).expect("no error");
    assert_shows(&picture(&state, SMALL), &["! a shard is busy"]);
    press(&mut state, &[KeyCode::Char('t'), KeyCode::Char('@')]);
    assert_shows(&picture(&state, SMALL), &["topic or @user: @█"]);
}

#[test]
fn errors_and_alarms_are_shown_in_words() {
    let mut state = recorded();
    press(&mut state, &[KeyCode::Char('p')]);
    assert_shows(&picture(&state, SMALL), &["PAUSED"]);
    press(&mut state, &[KeyCode::Char('p')]);
    let error = AdminError::Unreachable("nothing answers".into());
    state.apply(Update::Away(error), sample().at - 4_000).expect("no error");
    let clock = clock_utc(sample().at - 4_000);
    let since = format!("! away since {clock} UTC (5 s): nothing answers");
    assert_shows(&picture(&state, SMALL), &["! AWAY for 5 s", &since]);
    let mut full = sample();
    full.connections = 95_000.0;
    full.figures.refused = 3.0;
    state.apply(Update::Sample(Box::new(full)), 0).expect("no error");
    assert_shows(&picture(&state, SMALL), &["! 95 k", "3/s refused"]);
    assert_shows(&picture(&State::new("n"), SMALL), &["Waiting for the first sample of n…"]);
}

#[test]
fn the_noisiest_are_named_beside_the_topics() {
    let mut state = recorded();
    press(&mut state, &[KeyCode::Tab, KeyCode::Tab, KeyCode::Tab]);
    let text = picture(&state, (160, 30)).join("\n");
    for want in ["Noisiest", "Refused", "loud", "address 192.0.2.1", "900"] {
        assert!(text.contains(want), "{want} in\n{text}");
    }
}

/// Returns the recorded state with these findings about the kernel.
fn with_findings(findings: &[(&str, Option<u64>)]) -> State {
    let mut state = recorded();
    let finding = |(what, seconds_ago): &(&str, Option<u64>)| Finding {
        what: (*what).into(),
        advice: "raise\u{1b}it".into(),
        seconds_ago: *seconds_ago,
    };
    let stats = serde_json::from_value(serde_json::json!({
        "listen_overflows": 312, "tcp_segments_out": 1000, "tcp_segments_retransmitted": 15,
        "conntrack": {"used": 62_000, "max": 65_536}, "files": {"used": 1216, "max": u64::MAX},
        "cpu": {"some_percent": 12.6, "full_percent": 0.0},
    }));
    let report = KernelReport {
        seconds: 61,
        findings: findings.iter().map(finding).collect(),
        stats: stats.expect("stats"),
    };
    let tops = Tops { kernel: Some(report.into()), ..Tops::default() };
    state.apply(Update::Tops(Ok(tops)), 0).expect("no error");
    state
}

#[test]
fn a_healthy_kernel_takes_no_line_of_other_views() {
    let mut state = with_findings(&[]);
    assert!(!picture(&state, SMALL).concat().contains("! "), "{:?}", picture(&state, SMALL));
    press(&mut state, &[KeyCode::BackTab]);
    let lines = picture(&state, SMALL);
    assert_shows(&lines, &["[Kernel]", "nothing dropped and no shortage in the last 1 min 1 s"]);
    assert_shows(&lines, &["listener overflows   312 attempts to connect", "15 segments (1.5 %)"]);
    assert_shows(&lines, &["62,000 of 65,536 (94.6 %)", "open files           1,216"]);
    assert_shows(&lines, &["wait for CPU         some tasks 13 %, all 0 % of the last 10 s"]);
    assert!(!lines.concat().contains("TCP memory"), "{lines:?}");
    // A node of an older version.
    let mut state = recorded();
    press(&mut state, &[KeyCode::BackTab]);
    assert_shows(&picture(&state, SMALL), &["The node does not report them."]);
}

#[test]
fn findings_about_the_kernel_are_an_alarm_in_every_view() {
    let mut state =
        with_findings(&[("the kernel dropped 312 attempts", Some(12)), ("tasks wait", None)]);
    for size in [SMALL, WIDE] {
        assert_shows(
            &picture(&state, size),
            &["! the kernel dropped 312 attempts (12 s ago) (+1)"],
        );
    }
    press(&mut state, &[KeyCode::BackTab]);
    let lines = picture(&state, SMALL);
    assert_shows(&lines, &["! the kernel dropped 312 attempts (12 s ago)", "! tasks wait"]);
    assert_shows(&lines, &["raise\u{fffd}it"]);
    press(&mut state, &[KeyCode::PageDown]);
    assert!(!picture(&state, SMALL).concat().contains("dropped 312"));
}
