//! Connections that an operator closes, some at a time.

use super::*;

/// Opens clients of one engine, each an event stream.
fn listening(count: u32) -> (Scene, Vec<ClientEnd>) {
    let mut scene = Scene::new(false);
    let open = |_| {
        let (ours, theirs) = testing::pair();
        ours.send(get("/sse?topic=plain").as_bytes());
        scene.drivers[0].connect_as(theirs, false);
        ours
    };
    let clients = (0..count).map(open).collect();
    (0..12).for_each(|_| scene.turn());
    (scene, clients)
}

/// Closes so many connections, and returns how many were closed.
fn evict(scene: &mut Scene, connections: u32, seed: u64) -> u32 {
    let closed = scene.drivers[0].engine.evict(connections, seed);
    (0..12).for_each(|_| scene.turn());
    closed
}

/// Returns which clients got the notice to leave.
fn are_to_go(clients: &[ClientEnd]) -> Vec<bool> {
    let text = |client: &ClientEnd| client.read(1 << 20).unwrap_or_default();
    clients.iter().map(|it| text(it).ends_with(b": closing, use_another_server\n\n")).collect()
}

#[test]
fn as_many_are_closed_as_are_to_be_and_none_twice() {
    let (mut scene, clients) = listening(100);
    assert_eq!(evict(&mut scene, 10, 1), 10);
    let first = are_to_go(&clients);
    assert_eq!(first.iter().filter(|goes| **goes).count(), 10);
    // The connections exist until their clients have closed them.
    let gauges = |scene: &Scene| {
        let metrics = scene.drivers[0].engine.metrics();
        (metrics.open_connections.get(), metrics.closing_connections.get())
    };
    assert_eq!(gauges(&scene), (100, 10));
    assert_eq!(evict(&mut scene, 85, 2), 85);
    let second = are_to_go(&clients);
    assert!(first.iter().zip(&second).all(|(first, second)| !(*first && *second)));
    assert_eq!(evict(&mut scene, 1_000, 3), 5);
    assert_eq!(evict(&mut scene, 1_000, 4), 0);
    assert_eq!(gauges(&scene), (100, 100));
    drop(clients);
    (0..12).for_each(|_| scene.turn());
    assert_eq!(gauges(&scene), (0, 0));
    assert_eq!(evict(&mut scene, 1, 5), 0);
}

#[test]
fn each_connection_is_as_likely_as_another() {
    let mut hits = [0; 20];
    for seed in 0..100 {
        let (mut scene, clients) = listening(20);
        assert_eq!(evict(&mut scene, 5, seed), 5);
        for (hits, goes) in hits.iter_mut().zip(are_to_go(&clients)) {
            *hits += u32::from(goes);
        }
    }
    // A quarter of the clients goes each time.
    assert!(hits.iter().all(|hits| (10..45).contains(hits)), "{hits:?}");
}
