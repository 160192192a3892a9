//! Tests of the whole table: against a plain map, over a restart, and with saves that fail.

use std::collections::{BTreeMap, BTreeSet};

use model::Name;
use proptest::prelude::*;

use crate::{Change, EditError, LoadRowError, Page, Subscriptions};

/// Returns all of a topic's subscribers after a name, read in pages.
fn subscribers(
    table: &Subscriptions,
    topic: &str,
    after: &str,
    limit: usize,
) -> (u64, Vec<String>) {
    let (mut all, mut after) = (Vec::new(), after.to_string());
    loop {
        let mut search = table.search(topic, &after, limit).unwrap();
        while search.step() {}
        let Page { count, users, more } = search.page();
        assert!(users.len() <= limit && users.is_sorted());
        all.extend(users.into_iter().map(String::from));
        match all.last().filter(|_| more) {
            Some(last) => after.clone_from(last),
            None => return (count, all),
        }
    }
}

fn sorted(mut names: Vec<Name>) -> Vec<String> {
    names.sort_unstable();
    names.into_iter().map(String::from).collect()
}

fn load(changes: &[Change]) -> Subscriptions {
    let table = Subscriptions::default();
    for change in changes {
        for (number, name) in &change.names {
            table.load_name(*number, name).unwrap();
        }
        for (user, packed) in &change.puts {
            table.load_row(user, packed).unwrap();
        }
    }
    table
}

#[test]
fn topics_are_added_removed_and_listed() {
    let table = Subscriptions::default();
    assert_eq!(table.of("alice"), [""; 0]);
    let edited = table.edit("alice", &["feed:bob", "news", "news"], &["none"], 10).unwrap();
    assert_eq!(sorted(edited.added), ["feed:bob", "news"]);
    assert_eq!((edited.removed.len(), edited.count), (0, 2));
    let edited = table.edit("alice", &["news", "feed:eve"], &["feed:bob", "news"], 10).unwrap();
    assert_eq!(
        (sorted(edited.added), sorted(edited.removed)),
        (vec!["feed:eve".into()], vec!["feed:bob".into()])
    );
    assert_eq!(sorted(table.of("alice")), ["feed:eve", "news"]);
    assert_eq!((table.users(), table.edges(), table.topics()), (1, 2, 3));
    let edited = table.set("alice", &["a"], 10).unwrap();
    assert_eq!((edited.added.len(), edited.removed.len(), edited.count), (1, 2, 1));
    assert_eq!(table.set("alice", &[], 10).unwrap().removed.len(), 1);
    assert_eq!((table.users(), table.edges(), table.topics()), (0, 0, 4));
    assert!(table.of("alice").is_empty() && table.memory_bytes() > 0);
}

#[test]
fn a_rejected_edit_changes_nothing() {
    let table = Subscriptions::default();
    table.edit("alice", &["a", "b", "c"], &[], 3).unwrap();
    let too_many = table.edit("alice", &["d"], &[], 3).unwrap_err();
    assert_eq!(too_many, EditError::TooMany { user: "alice".into(), count: 4, max: 3 });
    assert!(table.edit("alice", &["d"], &["a"], 3).is_ok());
    // A user over a lowered limit may still leave topics and replace them.
    assert_eq!(table.edit("alice", &[], &["b"], 1).unwrap().count, 2);
    assert_eq!(table.edit("alice", &["e"], &["c"], 1).unwrap().count, 2);
    assert!(matches!(table.edit("", &["d"], &[], 9), Err(EditError::User(_))));
    for topic in ["", "@alice", "*", "a\nb"] {
        assert!(matches!(table.edit("a", &[topic], &[], 9), Err(EditError::Topic(..))));
        assert!(matches!(table.edit("a", &[], &[topic], 9), Err(EditError::Topic(..))));
    }
    assert_eq!((table.users(), sorted(table.of("alice"))), (1, vec!["d".into(), "e".into()]));
    assert_eq!(table.topics(), 5);
}

#[test]
fn a_plan_changes_nothing_until_it_is_applied() {
    let table = Subscriptions::default();
    let mut plan = table.plan(3);
    assert_eq!(plan.edit("alice", &["a", "b"], &[]).unwrap().count, 2);
    assert_eq!(plan.edit("bob", &["b"], &[]).unwrap().count, 1);
    // The plan includes its own changes.
    assert!(plan.edit("alice", &["c", "d"], &[]).is_err());
    let edited = plan.edit("alice", &["c"], &["a"]).unwrap();
    assert_eq!(
        (sorted(edited.added), sorted(edited.removed), edited.count),
        (vec!["c".into()], vec!["a".into()], 2)
    );
    assert!(table.of("alice").is_empty());
    let change = plan.change();
    assert_eq!((change.puts.len(), change.names.len()), (2, 3));
    table.apply(&change);
    assert_eq!(sorted(table.of("alice")), ["b", "c"]);
    let mut plan = table.plan(3);
    plan.edit("alice", &["b"], &["none"]).unwrap();
    assert!(plan.change().is_empty());
}

#[test]
fn every_change_carries_a_name_until_one_is_saved() {
    let table = Subscriptions::default();
    let planned = |user: &str| {
        let mut plan = table.plan(9);
        plan.edit(user, &["news"], &[]).unwrap();
        plan.change()
    };
    let failed = planned("alice");
    let saved = planned("bob");
    assert_eq!((&failed.names, failed.names.len()), (&saved.names, 1));
    table.apply(&saved);
    assert_eq!(planned("carl").names, []);
    assert_eq!(sorted(load(&[saved]).of("bob")), ["news"]);
    assert!(table.of("alice").is_empty());
}

#[test]
fn load_rejects_damaged_rows() {
    let table = Subscriptions::default();
    table.load_name(5, "five").unwrap();
    assert_eq!(table.load_row("alice", &[5]), Ok(()));
    assert_eq!(table.load_row("alice", &[5, 0]), Err(LoadRowError::Unnamed(6)));
    assert_eq!(table.load_row("alice", &[4]), Err(LoadRowError::Unnamed(4)));
    assert_eq!(table.load_row("", &[5]), Err(LoadRowError::User));
    assert_eq!(sorted(table.of("alice")), ["five"]);
}

#[test]
fn who_follows_a_topic_is_known_in_pages_by_name() {
    let table = Subscriptions::default();
    for n in 0..5_000 {
        let topics: &[&str] = if n % 2 == 0 { &["all", "even"] } else { &["all"] };
        table.edit(&format!("u{n}"), topics, &[], 9).unwrap();
    }
    let mut all: Vec<String> = (0..5_000).map(|n| format!("u{n}")).collect();
    all.sort_unstable();
    assert_eq!(subscribers(&table, "all", "", 700), (5_000, all.clone()));
    let late = ["u4996", "u4998", "u50", "u500", "u502"];
    assert_eq!(subscribers(&table, "even", "u4995", 2).1[..5], late);
    assert_eq!(subscribers(&table, "none", "", 10), (0, Vec::new()));
    // Numbers are reused: no user is mistaken for another one.
    for n in 0..5_000 {
        table.set(&format!("u{n}"), &[], 9).unwrap();
    }
    let empty = table.memory_bytes();
    table.edit("new", &["even"], &[], 9).unwrap();
    assert_eq!(subscribers(&table, "all", "", 10), (0, Vec::new()));
    assert_eq!(subscribers(&table, "even", "", 10), (1, vec!["new".into()]));
    assert!(empty < 100_000, "{empty}");
    let forward = Subscriptions::new(false);
    forward.edit("alice", &["a"], &[], 9).unwrap();
    assert!(forward.search("a", "", 9).is_none());
}

#[test]
fn loading_in_any_order_gives_the_same_followers() {
    let table = Subscriptions::default();
    for number in 0..50 {
        table.load_name(number, &format!("t{number}")).unwrap();
    }
    for user in 0..500_u32 {
        let row = crate::row::pack(&[user % 50]);
        table.load_row(&format!("u{user}"), &row).unwrap();
    }
    // A row that is loaded again replaces the one before.
    table.load_row("u0", &crate::row::pack(&[1, 2])).unwrap();
    assert_eq!(subscribers(&table, "t0", "", 100).0, 9);
    assert_eq!(subscribers(&table, "t1", "", 100).0, 11);
    table.loaded();
    assert_eq!(subscribers(&table, "t2", "", 3).1.len(), 11);
}

#[test]
fn readers_and_writers_share_the_table() {
    let table = Subscriptions::default();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let table = &table;
            scope.spawn(move || {
                for n in 0..500 {
                    let topic = format!("t{}", n % 50);
                    table.edit(&format!("u{writer}-{}", n % 10), &[&topic], &[], 99).unwrap();
                }
            });
        }
        for _ in 0..500 {
            assert!(table.of("u0-3").len() <= 50);
            assert!(subscribers(&table, "t3", "", 7).0 <= 20);
        }
    });
    assert_eq!((table.users(), table.topics(), table.edges()), (20, 50, 100));
    assert_eq!(subscribers(&table, "t3", "", 7).1, ["u0-3", "u1-3"]);
}

proptest! {
    #[test]
    fn the_table_matches_a_map_of_sets_and_reloads_from_its_changes(
        edits in proptest::collection::vec(
            (0..6u8, any::<bool>(), any::<bool>(),
             proptest::collection::vec(0..40u8, 0..8), proptest::collection::vec(0..40u8, 0..8)),
            0..60),
    ) {
        let table = Subscriptions::default();
        let mut model: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut changes = Vec::new();
        for (user, is_saved, is_set, add, remove) in edits {
            let user = format!("user{user}");
            let names = |list: &[u8]| list.iter().map(|n| format!("topic:{n}")).collect::<Vec<_>>();
            let (add, remove) = (names(&add), names(&remove));
            let refs = |list: &'_ [String]| -> Vec<&'static str> {
                list.iter().map(|name| &*name.clone().leak()).collect()
            };
            let old = model.get(&user).cloned().unwrap_or_default();
            let mut new = if is_set { BTreeSet::new() } else { old.clone() };
            remove.iter().for_each(|name| { new.remove(name); });
            new.extend(add.iter().cloned());
            let mut plan = table.plan(20);
            let edited = match is_set {
                true => plan.set(&user, &refs(&add)),
                false => plan.edit(&user, &refs(&add), &refs(&remove)),
            };
            if new.len() > 20 && new.len() > old.len() {
                prop_assert!(edited.is_err());
                continue;
            }
            let edited = edited.unwrap();
            prop_assert_eq!(edited.count, new.len());
            prop_assert_eq!(sorted(edited.added), new.difference(&old).cloned().collect::<Vec<_>>());
            prop_assert_eq!(sorted(edited.removed), old.difference(&new).cloned().collect::<Vec<_>>());
            if is_saved {
                let change = plan.change();
                table.apply(&change);
                changes.push(change);
                model.insert(user, new);
            }
        }
        let loaded = load(&changes);
        for (user, topics) in &model {
            let topics: Vec<String> = topics.iter().cloned().collect();
            prop_assert_eq!(&sorted(table.of(user)), &topics);
            prop_assert_eq!(&sorted(loaded.of(user)), &topics);
        }
        for topic in (0..41).map(|n| format!("topic:{n}")) {
            let follows = |(_, topics): &(&String, &BTreeSet<String>)| topics.contains(&topic);
            let want: Vec<String> =
                model.iter().filter(follows).map(|(user, _)| user.clone()).collect();
            for table in [&table, &loaded] {
                let all = subscribers(table, &topic, "", 2);
                prop_assert_eq!((all.0, &all.1), (want.len() as u64, &want));
                let later: Vec<String> =
                    want.iter().filter(|user| user.as_str() > "user2").cloned().collect();
                prop_assert_eq!(subscribers(table, &topic, "user2", 3).1, later);
            }
        }
        let edges: usize = model.values().map(BTreeSet::len).sum();
        prop_assert_eq!((table.edges(), loaded.edges()), (edges as u64, edges as u64));
        prop_assert_eq!(table.users(), model.values().filter(|topics| !topics.is_empty()).count());
    }

    #[test]
    fn load_accepts_or_rejects_any_row(
        user in "\\PC{0,10}", packed in proptest::collection::vec(any::<u8>(), 0..30),
    ) {
        let table = Subscriptions::default();
        for number in 0..300 {
            table.load_name(number, &format!("t{number}")).unwrap();
        }
        if table.load_row(&user, &packed).is_ok() {
            prop_assert_eq!(table.of(&user).len() as u64, table.edges());
        } else {
            prop_assert_eq!(table.users(), 0);
        }
    }
}
