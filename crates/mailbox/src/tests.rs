//! Tests of the filter that need no other thread.

use super::Filter;

#[test]
fn a_member_is_never_denied_and_a_rebuild_forgets() {
    let filter = Filter::new(1000);
    let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..1000).for_each(|n| filter.insert(hash(n)));
    assert!((0..1000).all(|n| filter.holds(hash(n))));
    let strangers = (10_000..20_000).filter(|n| filter.holds(hash(*n))).count();
    assert!(strangers < 2_000, "{strangers}");
    filter.rebuild((0..10).map(hash));
    assert!((0..10).all(|n| filter.holds(hash(n))));
    assert!((10..1000).filter(|n| filter.holds(hash(*n))).count() < 50);
}
