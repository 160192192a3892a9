use std::collections::BTreeMap;

use model::filter::{Filter, matches};
use proptest::prelude::*;
use random::Random;

use super::*;

/// Few texts, so that they repeat. One is longer than a node's text, and some sort on either side of '/'.
const LEVELS: [&str; 9] = ["a", "b", "", "a-", "a0", "*", "@a", "$s", "a level of its own length"];

/// A topic of a few levels.
fn topic(random: &mut Random) -> String {
    loop {
        let levels: Vec<_> = (0..=random.below(4)).map(|_| *pick(random, &LEVELS)).collect();
        let topic = levels.join("/");
        if !topic.is_empty() {
            return topic;
        }
    }
}

/// A topic with wildcards in place of some levels.
fn filter(random: &mut Random) -> String {
    let topic = topic(random);
    let mut levels: Vec<_> = topic.split('/').collect();
    let wild = random.below(4);
    for _ in 0..wild {
        let at = random.below(levels.len());
        levels[at] = "+";
    }
    match random.below(5) {
        0 => levels.push("#"),
        1 => levels[topic.split('/').count() - 1] = "#",
        _ => {}
    }
    let filter = levels.join("/");
    Filter::parse(&filter).expect("a valid filter");
    filter
}

fn pick<'a, T>(random: &mut Random, items: &'a [T]) -> &'a T {
    &items[random.below(items.len())]
}

/// Returns what the trie finds, in order.
fn found(trie: &FilterTrie<u64>, topic: &str) -> Vec<u64> {
    let mut found = Vec::new();
    trie.matching(topic, &mut |value| found.push(*value));
    found.sort_unstable();
    found
}

#[test]
fn a_trie_finds_what_a_list_finds_while_filters_come_and_go() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let (mut trie, mut list) = (FilterTrie::default(), BTreeMap::new());
        for step in 0..600 {
            let comes = random.below(600) > step;
            let filter = match list.keys().nth(random.below(list.len())) {
                Some(filter) if !comes => String::clone(filter),
                _ => filter(&mut random),
            };
            if comes {
                assert_eq!(trie.insert(&filter, step), list.insert(filter, step), "{seed}");
            } else {
                assert_eq!(trie.remove(&filter), list.remove(&filter), "{seed}");
            }
            assert_eq!((trie.len(), trie.is_empty()), (list.len(), list.is_empty()));
            for topic in [topic(&mut random), self::filter(&mut random)] {
                let values = list.iter().filter(|(filter, _)| matches(filter, &topic));
                let mut want: Vec<_> = values.map(|(_, value)| *value).collect();
                want.sort_unstable();
                assert_eq!(found(&trie, &topic), want, "seed {seed}: {topic} in {list:?}");
                assert_eq!(trie.get(&topic), list.get(&topic));
                assert_eq!(trie.get_mut(&topic), list.get_mut(&topic));
            }
        }
        list.keys().for_each(|filter| assert!(trie.remove(filter).is_some()));
        assert_eq!((trie.len(), trie.counts()), (0, (0, 0, 0)), "seed {seed}");
    }
}

#[test]
fn a_filter_that_is_not_there_is_not_removed_with_one_that_begins_alike() {
    let mut trie = FilterTrie::default();
    assert!(trie.remove("a").is_none() && found(&trie, "a").is_empty());
    for (value, filter) in ["a/+/c", "a/#", "a"].into_iter().enumerate() {
        assert_eq!(trie.insert(filter, value as u64), None);
    }
    for filter in ["a/+", "a/+/#", "+", "#", "a/b/c", "+/+/c", "a/+/c/d"] {
        assert_eq!((trie.get(filter).is_none(), trie.remove(filter)), (true, None), "{filter}");
    }
    assert_eq!((found(&trie, "a/b/c"), found(&trie, "a")), (vec![0, 1], vec![1, 2]));
    assert_eq!(trie.insert("a/#", 7), Some(1));
    assert_eq!((trie.len(), trie.get("a/#")), (3, Some(&7)));
}

#[test]
fn all_memory_goes_back() {
    let mut trie = FilterTrie::default();
    let empty = trie.bytes();
    for round in 0..3 {
        let filter = |n: u64| match n % 3 {
            0 => format!("site/+/sensor of this round/{n}/temp"),
            1 => format!("site/a name of more than 18 bytes {n}/#"),
            _ => format!("+/{round}/{n}/status"),
        };
        (0..30_000).for_each(|n| assert_eq!(trie.insert(&filter(n), n), None));
        assert_eq!(trie.len(), 30_000);
        let full = trie.bytes();
        assert!((2_000_000..6_000_000).contains(&full), "{full}");
        (0..30_000).for_each(|n| assert_eq!(trie.remove(&filter(n)), Some(n)));
        trie.shrink();
        assert_eq!(trie.counts(), (0, 0, 0));
        assert!(trie.bytes() < empty + 8_192, "{empty} {}", trie.bytes());
    }
}

/// One path leads to each node: with two choices on each of 127 levels, a walk that tried all paths would never
/// end.
#[test]
fn a_deep_topic_is_matched_in_the_time_of_its_nodes() {
    let deep = |level: &dyn Fn(usize) -> &'static str, length: usize| {
        (0..length).map(level).collect::<Vec<_>>().join("/")
    };
    let topic = deep(&|_| "a", 127);
    let mut trie = FilterTrie::default();
    let mut want = Vec::new();
    let mut add = |filter: String, value: u64| {
        if matches(&filter, &topic) {
            want.push(value);
        }
        assert_eq!(trie.insert(&filter, value), None);
    };
    for n in 0..127 {
        add(deep(&|at| if at == n { "+" } else { "a" }, 127), n as u64);
        add(deep(&|at| if at < n { "+" } else { "a" }, 126) + "/b", 1_000 + n as u64);
        add(deep(&|at| if at < n { "a" } else { "+" }, n + 1) + "/#", 2_000 + n as u64);
    }
    add(deep(&|_| "+", 127), 3_000);
    add(deep(&|_| "+", 128), 3_001);
    want.sort_unstable();
    assert_eq!(want.len(), 2 * 127 + 1);
    assert_eq!(found(&trie, &topic), want);
    // Every combination on 12 levels, and no filter ends like the topic.
    let mut trie = FilterTrie::default();
    for bits in 0..1 << 12 {
        let level = |at: usize| if bits >> at & 1 == 0 { "a" } else { "+" };
        trie.insert(&(deep(&level, 12) + "/b"), bits);
    }
    assert_eq!(found(&trie, &topic), []);
    assert_eq!(found(&trie, &(deep(&|_| "a", 12) + "/b")).len(), 1 << 12);
}

#[test]
fn texts_of_any_length_are_levels() {
    let mut trie = FilterTrie::default();
    let filter = |length: usize| format!("+/{}", "é".repeat(length));
    (0..40).for_each(|n| assert_eq!(trie.insert(&filter(n), n as u64), None));
    for n in 0..40 {
        let topic = filter(n).replace('+', "x");
        assert_eq!(found(&trie, &topic), [n as u64]);
    }
    let slashes = "/".repeat(65_000);
    trie.insert(&slashes, 100);
    trie.insert(&format!("{slashes}#"), 101);
    assert_eq!(found(&trie, &slashes), [100, 101]);
    assert_eq!((trie.remove(&slashes), found(&trie, &slashes)), (Some(100), vec![101]));
}

/// Goes through all pages of a filter, and lets `between` change the names after each.
fn pages(
    names: &mut NameMap<u64>,
    filter: &str,
    random: &mut Random,
    mut between: impl FnMut(&mut NameMap<u64>, &mut Random),
) -> Vec<(String, u64)> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let limit = 1 + random.below(4_usize);
        let page = names.matching(filter, after.as_deref(), limit);
        assert!(page.found.len() <= limit);
        all.extend(page.found.iter().map(|(name, value)| (name.to_string(), **value)));
        match page.after {
            Some(name) => after = Some(name.to_string()),
            None => return all,
        }
        between(names, random);
    }
}

#[test]
fn pages_have_what_a_list_finds() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (mut names, mut list) = (NameMap::default(), BTreeMap::new());
        for value in 0..random.below(200_u64) {
            let name = topic(&mut random);
            assert_eq!(names.insert(name.as_str().into(), value), list.insert(name, value));
        }
        for _ in 0..20 {
            let name = topic(&mut random);
            assert_eq!(names.remove(&name), list.remove(&name));
            assert_eq!(names.get(&name), None);
            assert_eq!(names.get_mut(&name), None);
        }
        assert_eq!((names.len(), names.is_empty()), (list.len(), list.is_empty()));
        assert!(names.iter().map(|(name, value)| (name.to_string(), *value)).eq(list.clone()));
        for _ in 0..50 {
            let filter = filter(&mut random);
            let want: Vec<_> =
                list.clone().into_iter().filter(|it| matches(&filter, &it.0)).collect();
            let got = pages(&mut names, &filter, &mut random, |_, _| ());
            assert_eq!(got, want, "seed {seed}: {filter}");
        }
    }
}

#[test]
fn names_that_stay_are_in_one_page_each_while_others_come_and_go() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut names = NameMap::default();
        let stays = |name: &str| name.len().is_multiple_of(2);
        let fill = |names: &mut NameMap<u64>, random: &mut Random| {
            for value in 0..100 {
                names.insert(topic(random).as_str().into(), value);
            }
        };
        fill(&mut names, &mut random);
        let filter = filter(&mut random);
        let stay = |(name, _): &(&str, &u64)| stays(name) && matches(&filter, name);
        let want: Vec<_> = names.iter().filter(stay).map(|(name, _)| name.to_string()).collect();
        let got = pages(&mut names, &filter, &mut random, |names, random| {
            let goes: Vec<_> = names.iter().map(|(name, _)| name.to_string()).collect();
            for name in goes.iter().filter(|name| !stays(name) && random.below(2) == 0) {
                names.remove(name);
            }
            for _ in 0..10 {
                let name = topic(random);
                if !stays(&name) {
                    names.insert(name.as_str().into(), 0);
                }
            }
        });
        let got: Vec<_> = got.into_iter().map(|(name, _)| name).collect();
        assert!(got.is_sorted_by(|a, b| a < b), "seed {seed}: {got:?}");
        let got: Vec<_> = got.into_iter().filter(|name| stays(name)).collect();
        assert_eq!(got, want, "seed {seed}: {filter}");
    }
}

#[test]
fn a_page_ends_before_it_passes_over_too_much() {
    let mut names = NameMap::default();
    for n in 0..10_000 {
        names.insert(format!("a/{n:05}").as_str().into(), n);
    }
    names.insert("a/09999/b".into(), 10_000);
    let (mut after, mut sizes) = (None, Vec::new());
    loop {
        let page = names.matching("+/+/b", after, 10);
        sizes.push(page.found.len());
        after = page.after;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(sizes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    for (after, found) in [("a/00006", vec![("a/00007", &7)]), ("a/00007", vec![])] {
        assert_eq!(names.matching("a/00007", Some(after), 1), Page { found, after: None });
    }
    // One seek skips all that is below a level, however much it is.
    assert_eq!(names.matching("b/+", None, 10), Page { found: vec![], after: None });
    assert_eq!(names.matching("a/09999/+", None, 10).found, [("a/09999/b", &10_000)]);
    let mut names = NameMap::default();
    for n in 0..100 {
        for m in 0..100 {
            names.insert(format!("{n}/{m}/x").as_str().into(), n);
        }
    }
    let page = names.matching("+/50/x", None, 1_000);
    assert_eq!((page.found.len(), page.after), (100, None));
    assert_eq!(names.matching("+/none/+", None, 1), Page { found: vec![], after: None });
}

proptest! {
    #[test]
    fn any_filters_are_found_and_go(
        filters in prop::collection::btree_set("([ab+é]?/){0,3}([ab+]|#)", 0..20),
        topics in prop::collection::vec("[ab+#/é]{1,7}", 1..20),
    ) {
        let filters: Vec<_> = filters.into_iter().filter(|it| Filter::parse(it).is_ok()).collect();
        let (mut trie, mut names) = (FilterTrie::default(), NameMap::default());
        for (value, filter) in filters.iter().enumerate() {
            prop_assert_eq!(trie.insert(filter, value as u64), None);
        }
        for topic in &topics {
            names.insert(topic.as_str().into(), 0);
            let want: Vec<_> =
                (0..filters.len() as u64).filter(|n| matches(&filters[*n as usize], topic)).collect();
            prop_assert_eq!(found(&trie, topic), want);
        }
        for filter in &filters {
            let page = names.matching(filter, None, usize::MAX);
            let want = names.iter().filter(|(name, _)| matches(filter, name));
            prop_assert!(page.found.into_iter().eq(want) && page.after.is_none());
            trie.remove(filter);
        }
        prop_assert_eq!(trie.counts(), (0, 0, 0));
    }
}
