//! Merges the replies of several nodes.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

/// Numbers of which the largest counts: they can't be added.
const LARGEST: [&str; 10] = [
    "uptime_seconds",
    "p50",
    "p90",
    "p99",
    "bytes_per_connection",
    "commit_ms_last",
    "commit_ms_mean",
    "commit_ms_max",
    "offset",
    "until",
];

/// How to merge the replies of several nodes.
#[derive(Clone, Copy)]
pub(crate) enum Merge {
    /// Numbers are added, or the largest counts; lists are appended; texts are those of the called node.
    Sum,
    /// Pages of topics, in the order of their names.
    Topics,
    /// Only the node with the connection does the call.
    Owner,
    /// Only the called node, or the named one, does the call.
    One,
}

impl Merge {
    /// Reports whether the called node does it alone unless the call names another one.
    pub fn is_by_one(self) -> bool {
        matches!(self, Merge::One)
    }

    /// Merges the replies of other nodes into the own one. Lists of connections and topics get `limit` elements at
    /// most.
    pub fn merge(
        self,
        mut own: Map<String, Value>,
        others: Vec<Map<String, Value>>,
        limit: usize,
    ) -> Map<String, Value> {
        match self {
            Merge::Sum => {
                others.into_iter().for_each(|other| add_all(&mut own, other));
                if let Some(Value::Array(connections)) = own.get_mut("connections") {
                    connections.truncate(limit);
                }
                own
            }
            Merge::Topics => topics(std::iter::once(own).chain(others), limit),
            Merge::Owner | Merge::One => own,
        }
    }
}

fn add_all(own: &mut Map<String, Value>, other: Map<String, Value>) {
    for (key, value) in other {
        match own.get_mut(&key) {
            Some(own) => add(&key, own, value),
            None => drop(own.insert(key, value)),
        }
    }
}

fn add(key: &str, own: &mut Value, other: Value) {
    match (own, other) {
        (Value::Number(own), Value::Number(other)) => *own = sum(key, own, &other),
        (Value::Array(own), Value::Array(other)) => own.extend(other),
        (Value::Object(own), Value::Object(other)) => add_all(own, other),
        (own @ Value::Null, other) => *own = other,
        _ => {}
    }
}

fn sum(key: &str, own: &Number, other: &Number) -> Number {
    let is_largest = LARGEST.contains(&key);
    if let (Some(own), Some(other)) = (own.as_u64(), other.as_u64()) {
        return if is_largest { own.max(other) } else { own.saturating_add(other) }.into();
    }
    let (one, two) = (own.as_f64().unwrap_or_default(), other.as_f64().unwrap_or_default());
    let result = if is_largest { one.max(two) } else { one + two };
    Number::from_f64(result).unwrap_or_else(|| own.clone())
}

/// Makes one page of several, each of which has the first topics of its node. A topic among the first of all is among
/// the first of each node that has it.
fn topics(pages: impl Iterator<Item = Map<String, Value>>, limit: usize) -> Map<String, Value> {
    let (mut members, mut has_next) = (BTreeMap::<String, u64>::new(), false);
    for page in pages {
        has_next |= page.get("next").is_some_and(|next| !next.is_null());
        for topic in page.get("topics").and_then(Value::as_array).into_iter().flatten() {
            let name = topic["topic"].as_str().unwrap_or_default();
            *members.entry(name.into()).or_default() += topic["members"].as_u64().unwrap_or(0);
        }
    }
    has_next |= members.len() > limit;
    let topic = |(name, members)| serde_json::json!({ "topic": name, "members": members });
    let topics: Vec<Value> = members.into_iter().take(limit).map(topic).collect();
    let next = topics.last().filter(|_| has_next).map(|last| last["topic"].clone());
    let mut page = Map::new();
    page.insert("topics".into(), topics.into());
    page.insert("next".into(), next.unwrap_or_default());
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use random::Random;
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(object) = value else { panic!("{value}") };
        object
    }

    fn merge(merge: Merge, own: Value, others: &[Value], limit: usize) -> Value {
        let others = others.iter().cloned().map(object).collect();
        merge.merge(object(own), others, limit).into()
    }

    #[test]
    fn numbers_are_added_and_lists_joined() {
        let own = json!({"user": "al", "count": 2, "connections": ["a", "b"]});
        let others = [
            json!({"user": "al", "count": 0, "connections": []}),
            json!({"user": "al", "count": 3, "connections": ["c", "d", "e"]}),
        ];
        let all = json!({"user": "al", "count": 5, "connections": ["a", "b", "c"]});
        assert_eq!(merge(Merge::Sum, own, &others, 3), all);
        let own = json!({"version": "1", "uptime_seconds": 9, "cpu_seconds": 1.5, "store": null,
            "by": {"ws": 1}, "delivery_ms": {"p99": 2.5}, "connections": 4});
        let other = json!({"version": "2", "uptime_seconds": 7, "cpu_seconds": 1, "store": {"x": 1},
            "by": {"ws": 2, "sse": 3}, "delivery_ms": {"p99": 3.5}, "connections": 5});
        let all = json!({"version": "1", "uptime_seconds": 9, "cpu_seconds": 2.5, "store": {"x": 1},
            "by": {"ws": 3, "sse": 3}, "delivery_ms": {"p99": 3.5}, "connections": 9});
        assert_eq!(merge(Merge::Sum, own, &[other], 1), all);
    }

    /// The page of a node, as its API makes it.
    fn page(topics: &BTreeMap<String, u64>, after: &str, limit: usize) -> Value {
        let mut behind = topics.iter().filter(|(name, _)| &***name > after).peekable();
        let topics: Vec<Value> = behind
            .by_ref()
            .take(limit)
            .map(|(name, members)| json!({"topic": name, "members": members}))
            .collect();
        let next = topics.last().filter(|_| behind.peek().is_some());
        json!({"topics": topics, "next": next.map(|last| last["topic"].clone())})
    }

    #[test]
    fn pages_of_topics_become_pages_of_all() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut all = BTreeMap::<String, u64>::new();
            let nodes: Vec<BTreeMap<String, u64>> = (0..3)
                .map(|_| {
                    let count = random.below(30_usize);
                    let topics = (0..count).map(|_| format!("t{}", random.below(40_u32)));
                    topics.map(|name| (name, 2)).collect()
                })
                .collect();
            for (name, members) in nodes.iter().flatten() {
                *all.entry(name.clone()).or_default() += members;
            }
            let (limit, mut after) = (1 + random.below(9_usize), String::new());
            let mut seen = BTreeMap::new();
            loop {
                let pages: Vec<Value> = nodes.iter().map(|it| page(it, &after, limit)).collect();
                let merged = merge(Merge::Topics, pages[0].clone(), &pages[1..], limit);
                assert_eq!(merged, page(&all, &after, limit), "seed {seed}");
                for topic in merged["topics"].as_array().unwrap() {
                    let name = topic["topic"].as_str().unwrap().to_string();
                    seen.insert(name, topic["members"].as_u64().unwrap());
                }
                match merged["next"].as_str() {
                    Some(next) => after = next.into(),
                    None => break,
                }
            }
            assert_eq!(seen, all, "seed {seed}");
        }
    }
}
