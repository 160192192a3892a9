//! The records themselves: damaged ones, those of others, and those of a version.

use super::*;
use crate::handover::value::Text;

/// Returns records of connections of many kinds, and a scene to import them into.
fn records() -> (Scene, Vec<u8>, Vec<Vec<u8>>) {
    let mut scene = Scene::new(true);
    let join = r#"["1","1","seen/1","phx_join",{"meta":{"x":1}}]"#;
    let ask = r#"["odd","2","asked/1","phx_join",{}]"#;
    let poll = "/poll?topic=big/1&topic=ack/1&user=u1&since=fffffff8:0&timeout=9";
    for step in [
        Publish("big/1", "one".into()),
        Open(0, 0, socket("/socket/websocket?vsn=2.0.0&user=u0", "")),
        text(0, join),
        text(0, ask),
        Open(1, 0, get(poll)),
        Open(2, 0, get("/sse?user=u0&topic=big/1&topic=big/2&tag=a&since:big/1=fffffff8:0")),
        Open(3, 0, socket("/ws?user=u0&topic=ack/1&topic=stored&topic=plain", "")),
        Publish("ack/1", "two".into()),
        Send(3, vec![0x01, 0x85, 1, 2, 3, 4, b'h' ^ 1]),
        Beyond(4, "GET /heal".into()),
        Open(5, 0, get("/socket/longpoll?vsn=2.0.0&user=u0")),
        Publish("@u0", "three".into()),
    ] {
        scene.step(&step);
    }
    testing::quiet(&mut scene.drivers);
    let engine = &scene.drivers[0].engine;
    let records = engine.slots().filter_map(|slot| engine.export(slot)).collect();
    let own = engine.export_engine();
    (scene, own, records)
}

/// Creates an engine that shares nothing with the others.
fn apart(scene: &Scene) -> Engine {
    let before = &scene.drivers[0].engine;
    let limits = presence::Limits {
        users_max: 9,
        list_bytes_max: 1_000,
        interval_us: 1_000,
        members_per_ms: 0,
    };
    let shared = Services::new(NodeId(1), limits).shared();
    testing::another(before, [testing::handle(200)].into(), Arc::new(shared))
}

#[test]
fn a_damaged_record_is_refused_and_leaves_nothing_or_harms_no_client() {
    let (scene, own, records) = records();
    let (mut refused, mut taken) = (0, 0);
    for record in &records {
        for at in 0..record.len() {
            let mut flipped = record.clone();
            flipped[at] ^= 1 << (at % 8);
            for damaged in [&record[..at], &flipped] {
                let mut engine = apart(&scene);
                engine.import_engine(&own).unwrap();
                match engine.import(damaged) {
                    Err(_) => {
                        refused += 1;
                        assert_eq!(engine.slots().count(), 0);
                        engine.import(record).unwrap();
                    }
                    Ok(_) => taken += 1,
                }
                engine.restart();
                while engine.has_outputs() {
                    for output in engine.poll_outputs(Default::default()).list {
                        if let crate::Output::Address { slot } = output {
                            engine.on_address(slot, None);
                        }
                    }
                }
                engine.set_now(scene.now_us + 90_000_000);
                engine.sweep();
                engine.end_all();
                assert_eq!(engine.metrics().open_connections.get(), 0);
                assert_eq!(engine.metrics().closing_connections.get(), 0);
            }
        }
    }
    assert!(refused > 1_000 && taken > 100, "{refused} refused, {taken} taken");
}

#[test]
fn a_connection_that_ends_leaves_nothing_in_any_part() {
    let per_address = quotas::Limits::NONE.with(quotas::Unit::Commands, 1_000);
    let settings = Settings { topics_per_user_max: 9, per_address, ..settings() };
    let mut scene = Scene::with(false, settings, Arc::default());
    scene.step(&Open(0, 0, socket("/ws?user=u0&topic=plain", "")));
    let slot = scene.connections[0].1;
    let engine = &mut scene.drivers[0].engine;
    engine.leave_topics(slot);
    // The usage of a connection outlives its topics.
    engine.rates.quota.forget(slot);
    assert!(engine.is_forgotten(slot), "the table alone has the connection");
    engine.explicit.insert(slot, 7);
    assert!(!engine.is_forgotten(slot), "a topic has no name any more");
    engine.core.hub.insert(slot);
    assert!(engine.join(slot, "@u0", false) && engine.rates.quota.counts(slot));
    engine.charge_command(slot, &mut Vec::new());
    assert!(engine.core.enter_filter(slot, &model::name::filter(None, "a/+")));
    let proxy = std::net::Ipv4Addr::LOCALHOST.into();
    engine.core.peers.open(slot, proxy, proxies::ProxyHeader::ProxyProtocol);
    engine.end(slot, CloseReason::Drain);
    assert!(engine.slots().all(|it| it != slot) && !engine.core.dedup.holds(slot));
    assert!(engine.core.peers.proxied(slot).is_none() && !engine.explicit.holds(slot, 7));
}

#[test]
fn records_are_refused_where_they_can_not_go_on() {
    let (scene, own, records) = records();
    let mut engine = apart(&scene);
    let record = &records[0];
    let damaged = |result: Result<u32, ImportError>| matches!(result, Err(ImportError::Damaged(_)));
    assert!(damaged(engine.import(record)), "before the engine's own record");
    engine.import_engine(&own).unwrap();
    assert!(damaged(engine.import(&[])) && damaged(engine.import(&record[..3])));
    assert!(damaged(engine.import(&[&record[..], b"x"].concat())));
    let mut newer = record.clone();
    newer[0] = 2;
    assert_eq!(engine.import(&newer), Err(ImportError::Version(2)));
    let slot = engine.import(record).unwrap();
    assert_eq!(engine.import(record), Err(ImportError::SlotTaken(slot)));
    let mut unknown: Record = unframe(&records[1]).unwrap();
    unknown.protocol = Text("gopher".into());
    let (protocol, encoding) = ("gopher".into(), unknown.encoding);
    let error = ImportError::UnknownProtocol { protocol, encoding };
    let mut bytes = b"of before".to_vec();
    frame(&unknown, &mut bytes);
    assert_eq!(engine.import(&bytes), Err(error));
    let other = scene.drivers[1].engine.export_engine();
    let error = ImportError::OtherEngine { node: NodeId(1), number: 1 };
    assert_eq!(engine.import_engine(&other), Err(error));
}

/// Version 1 of the format: records that a server wrote, in hexadecimal, a line each, the engine's own first. Servers
/// of this version, and of all that read it, must read them as they are.
const VERSION_1: &str = include_str!("version_1.txt");

/// The records of `VERSION_1` as a server writes them now: with fields that the first servers did not write.
const VERSION_1_NOW: &str = include_str!("version_1_now.txt");

fn lines(text: &str) -> Vec<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    text.lines().map(|line| line.as_bytes().chunks(2).map(byte).collect()).collect()
}

#[test]
fn records_of_version_1_are_read_and_written_as_they_were() {
    let (scene, own, records) = records();
    if std::env::var_os("HANDOVER_RECORDS").is_some() {
        // Prints the file anew, when the version has changed.
        for record in std::iter::once(&own).chain(&records) {
            let hex: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("record {hex}");
        }
    }
    let now = lines(VERSION_1_NOW);
    assert_eq!(now[0], own);
    assert_eq!(now[1..], records);
    let exports = |lines: &[Vec<u8>]| {
        let mut engine = apart(&scene);
        engine.import_engine(&lines[0]).unwrap();
        lines[1..].iter().for_each(|line| assert!(engine.import(line).is_ok()));
        engine.slots().map(|slot| engine.export(slot).unwrap()).collect::<Vec<_>>()
    };
    // The first servers did not write the payloads of presence.
    let written = |record: &Vec<u8>| unframe::<Record>(record).unwrap().presence.is_empty();
    let (before, now) = (exports(&lines(VERSION_1)), exports(&now));
    assert_eq!(before.len(), now.len());
    let same = before.iter().zip(&now).filter(|(_, now)| written(now));
    assert!(same.clone().count() > 3 && same.clone().all(|(before, now)| before == now));
}
