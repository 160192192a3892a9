//! Tests that packets are decoded as they were encoded, and that damaged ones are errors.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn stream() -> impl Strategy<Value = u16> {
    0..=Stream::MQTT.number()
}

fn hello() -> impl Strategy<Value = Hello> {
    let texts = (any::<String>(), any::<String>());
    let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>());
    let heads = vec((stream(), any::<u64>()), 0..20);
    (texts, numbers, heads, any::<[bool; 6]>()).prop_map(
        |((name, version), (node, number, connections, clock), heads, flags)| {
            let [is_goodbye, is_reply_requested, is_draining, has_presence, has_calls, has_groups] =
                flags;
            Hello {
                node,
                name,
                version,
                number,
                heads,
                is_goodbye,
                is_reply_requested,
                connections,
                is_draining,
                has_presence,
                has_calls,
                has_groups,
                clock,
            }
        },
    )
}

fn entry() -> impl Strategy<Value = SharedEntry> {
    (any::<u64>(), any::<[String; 3]>()).prop_map(|(number, [topic, user, meta])| SharedEntry {
        number,
        topic: topic.into(),
        user: user.into(),
        meta: meta.into(),
    })
}

fn diff() -> impl Strategy<Value = PresenceDiff> {
    let change = (any::<Option<u64>>(), prop::option::of(entry()));
    let change = change.prop_map(|(gone, entry)| Change { gone, entry });
    (any::<u64>(), vec(change, 0..20), any::<bool>())
        .prop_map(|(number, changes, is_reset)| PresenceDiff { number, changes, is_reset })
}

fn calls() -> impl Strategy<Value = Packet> {
    let call = (any::<(u32, u64)>(), any::<[String; 2]>(), any::<Vec<u8>>()).prop_map(
        |((node, id), [method, target], body)| {
            Packet::Call(Call { node, id, method, target, body })
        },
    );
    let reply = any::<(u32, u64, u16, Vec<u8>)>().prop_map(|(node, id, status, body)| {
        Packet::CallReply(CallReply { node, id, status, body })
    });
    prop_oneof![call, reply]
}

fn groups() -> impl Strategy<Value = Vec<(String, u32)>> {
    vec(any::<(String, u32)>(), 0..20)
}

fn group_packets() -> impl Strategy<Value = Packet> {
    let request = any::<(u32, u64)>()
        .prop_map(|(node, id)| Packet::GroupsRequest(GroupsRequest { node, id }));
    let page = (any::<(u32, u64, u64, u32, bool)>(), groups()).prop_map(
        |((node, id, number, part, is_last), groups)| {
            Packet::GroupsPage(GroupsPage { node, id, number, part, is_last, groups })
        },
    );
    prop_oneof![request, page]
}

fn mqtt_event() -> impl Strategy<Value = MqttEvent> {
    let diff = (any::<u64>(), groups(), any::<bool>())
        .prop_map(|(number, changes, is_reset)| GroupDiff { number, changes, is_reset });
    let message =
        any::<(u32, String, Vec<u32>, Vec<u8>)>().prop_map(|(to, group, passed, publication)| {
            GroupMessage { to, group, passed, publication }
        });
    let connect = any::<(String, u64, bool)>().prop_map(|(key, number, is_clean)| ClientConnect {
        key,
        number,
        is_clean,
    });
    (prop::option::of(diff), prop::option::of(message), vec(connect, 0..20))
        .prop_map(|(diff, message, connects)| MqttEvent { diff, message, connects })
}

fn pages() -> impl Strategy<Value = Packet> {
    let request = any::<(u32, u64, u64)>()
        .prop_map(|(node, id, from)| Packet::PresenceRequest(PresenceRequest { node, id, from }));
    let entries = vec(entry(), 0..20);
    let page = (any::<(u32, u64, u64)>(), entries, any::<bool>()).prop_map(
        |((node, id, number), mut entries, has_end)| {
            entries.sort_by_key(|entry| entry.number);
            entries.dedup_by_key(|entry| entry.number);
            let from = entries.first().map_or(0, |entry| entry.number);
            let last = entries.last().map_or(0, |entry| entry.number);
            let to = last.checked_add(1).filter(|_| has_end);
            Packet::PresencePage(PresencePage { node, id, number, from, to, entries })
        },
    );
    prop_oneof![request, page]
}

fn message() -> impl Strategy<Value = Message> {
    (any::<u32>(), stream(), any::<u64>(), any::<Vec<u8>>()).prop_map(
        |(node, stream, number, payload)| Message {
            node: NodeId(node),
            stream: Stream::from_number(stream).unwrap(),
            number,
            payload: payload.into(),
        },
    )
}

fn replay() -> impl Strategy<Value = Packet> {
    let requested = (stream(), any::<u64>(), any::<u64>(), any::<u64>())
        .prop_map(|(stream, after, to, since_us)| RequestedRange { stream, after, to, since_us });
    let replayed = (stream(), any::<u64>(), any::<u64>(), any::<bool>())
        .prop_map(|(stream, first, to, is_whole)| ReplayedRange { stream, first, to, is_whole });
    let id = (any::<u32>(), any::<u64>());
    prop_oneof![
        (id, vec(requested, 0..20)).prop_map(|((node, id), ranges)| {
            Packet::ReplayRequest(ReplayRequest { node, id, ranges })
        }),
        (id, vec(replayed, 0..20)).prop_map(|((node, id), ranges)| {
            Packet::ReplayReply(ReplayReply { node, id, ranges })
        }),
    ]
}

fn heads() -> impl Strategy<Value = Packet> {
    let head = (stream(), any::<u64>(), any::<u64>()).prop_map(|(stream, number, at_us)| Head {
        stream,
        number,
        at_us,
    });
    let id = (any::<u32>(), any::<u64>());
    prop_oneof![
        (id, vec(stream(), 0..20)).prop_map(|((node, id), streams)| {
            Packet::HeadsRequest(HeadsRequest { node, id, streams })
        }),
        (id, any::<u64>(), vec(head, 0..20)).prop_map(|((node, id), now_us, heads)| {
            Packet::HeadsReply(HeadsReply { node, id, now_us, heads })
        }),
    ]
}

fn packet() -> impl Strategy<Value = Packet> {
    prop_oneof![
        message().prop_map(Packet::Message),
        hello().prop_map(Packet::Hello),
        replay(),
        heads(),
        pages(),
        calls(),
        group_packets()
    ]
}

proptest! {
    #[test]
    fn a_packet_is_read_as_it_was_written(packet in packet()) {
        prop_assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
    }

    #[test]
    fn a_packet_that_is_cut_off_is_an_error_or_a_shorter_message(packet in packet(), cut in any::<prop::sample::Index>()) {
        let whole = packet.encode();
        let part = whole.slice(..cut.index(whole.len()));
        match Packet::decode(&part) {
            Ok(Packet::Message(_)) => prop_assert!(part.len() >= HEADER_BYTES),
            Ok(other) => prop_assert!(false, "{:?}", other),
            Err(_) => {}
        }
    }

    #[test]
    fn a_diff_of_presence_is_read_as_it_was_written(diff in diff(), cut in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        diff.encode_into(&mut bytes);
        prop_assert!(PresenceDiff::decode(&bytes[..cut.index(bytes.len())]).is_err());
        prop_assert_eq!(PresenceDiff::decode(&bytes), Ok(diff));
    }

    #[test]
    fn any_bytes_are_a_packet_or_an_error(kind in 0_u8..15, bytes in any::<Vec<u8>>()) {
        let bytes = Bytes::from([&[VERSION, kind], &bytes[..]].concat());
        let read = Packet::decode(&bytes);
        if !(MESSAGE..=GROUPS_PAGE).contains(&kind) {
            prop_assert_eq!(read, Err(PacketError::Kind(kind)));
        }
        let _ = MqttEvent::decode(&bytes);
    }

    #[test]
    fn what_is_published_of_groups_is_read_as_it_was_written(event in mqtt_event()) {
        let mut bytes = Vec::new();
        event.encode_into(&mut bytes);
        prop_assert_eq!(MqttEvent::decode(&bytes), Ok(event));
    }
}

#[test]
fn a_field_of_a_later_version_is_passed_over() {
    let hello = Hello { node: 7, number: 9, ..Hello::default() };
    let bytes = Packet::Hello(hello.clone()).encode();
    let mut later = bytes.to_vec();
    // One more pair in the map behind the head: 99 with an array of one text.
    assert_eq!(later[2] & 0xe0, 0xa0, "a short map");
    later[2] += 1;
    later.extend(b"\x18\x63\x81\x61x");
    assert_eq!(Packet::decode(&later.into()), Ok(Packet::Hello(hello)));
    let other = Bytes::from_static(&[2, 1, 0]);
    assert_eq!(Packet::decode(&other), Err(PacketError::Version(2)));
    assert_eq!(Packet::decode(&Bytes::from_static(&[1])), Err(PacketError::Short));
}

#[test]
fn a_page_with_entries_out_of_order_or_range_is_refused() {
    let page = |from, to, numbers: &[u64]| {
        let entry = |number: &u64| SharedEntry { number: *number, ..SharedEntry::default() };
        let entries = numbers.iter().map(entry).collect();
        let page = PresencePage { from, to, entries, ..PresencePage::default() };
        Packet::decode(&Packet::PresencePage(page).encode())
    };
    assert!(page(3, Some(9), &[3, 8]).is_ok() && page(3, None, &[]).is_ok());
    for page in [
        page(3, Some(9), &[4, 3]),
        page(3, Some(9), &[4, 4]),
        page(3, Some(9), &[2, 4]),
        page(3, Some(9), &[4, 9]),
        page(3, Some(3), &[]),
    ] {
        assert!(matches!(page, Err(PacketError::Damaged(_))), "{page:?}");
    }
}

#[test]
fn a_message_of_a_stream_that_does_not_exist_is_refused() {
    let mut bytes = Message::encode(NodeId(7), Stream::EVERYONE, 1, |_| {}).to_vec();
    bytes[6..8].copy_from_slice(&1_027_u16.to_le_bytes());
    assert_eq!(Packet::decode(&bytes.into()), Err(PacketError::Stream(1_027)));
}
