use super::*;

const SECOND_US: u64 = 1_000_000;

const COMMAND: Cost = Cost::NOTHING.with(Unit::Commands, 1);

/// A limit below 8: nothing is free, and an account is made at once.
const EXACT: Limits = Limits::NONE.with(Unit::Commands, 7);

/// Charges a cost as a server does. Returns true if it passes.
fn charge(quotas: &Quotas, who: Who<'_>, cost: &Cost, limits: &Limits, now_us: u64) -> bool {
    let Some(account) = quotas.account(who, cost, limits, now_us) else {
        return true;
    };
    let is_rejected = account.rejecting_unit(cost, limits, now_us).is_some();
    if is_rejected {
        account.refused(now_us);
    } else {
        account.spend(cost, limits, now_us);
    }
    !is_rejected
}

/// Makes an account in any case.
fn account(quotas: &Quotas, name: &str, now_us: u64) -> Option<Arc<Account>> {
    quotas.account(Who::User(name), &COMMAND, &EXACT, now_us)
}

#[test]
fn an_account_lets_a_second_pass_at_once_and_then_its_share() {
    let (quotas, limits) = (Quotas::default(), Limits::NONE.with(Unit::Commands, 100));
    let free = usize::from(limits.free(&COMMAND));
    assert_eq!(free, 12);
    let mut passed = 0;
    for ms in 5_000..7_000 {
        let alice = Who::User("alice");
        passed += (0..10).filter(|_| charge(&quotas, alice, &COMMAND, &limits, ms * 1_000)).count();
    }
    assert!((295 + free..=305 + free).contains(&passed), "{passed}");
    assert!(charge(&quotas, Who::User("bob"), &COMMAND, &limits, 7_000_000));
}

/// For any limit, speed and pauses, no more passes in any period than the limit allows, a second's worth ahead of it,
/// and the free use.
#[test]
fn a_limit_lets_pass_what_it_says_and_what_is_free() {
    for seed in 0..300 {
        let mut random = random::Random::new(seed);
        let (unit, each) = match random.below(4_u32) {
            0 => (Unit::Commands, 1),
            1 => (Unit::Publishes, 1),
            2 => (Unit::Joins, 1 + random.below(5_u64)),
            _ => (Unit::Bytes, 1 + random.below(9_000_u64)),
        };
        let limit = (1 + random.below(1_000_u64)) * each;
        let limits = Limits::NONE.with(unit, limit);
        let cost = Cost::NOTHING.with(Unit::Commands, 1).with(unit, each);
        let quotas = Quotas::default();
        // The requests of one round, and the pause behind it.
        let (times, gap_us) = (1 + random.below(20_u32), 1 + random.below(300_000_u64));
        let began_us = random.below(10_000_000_u64);
        let (mut now_us, mut passed, mut requested) = (began_us, 0, 0);
        for _ in 0..100 {
            for _ in 0..times {
                requested += each;
                if charge(&quotas, Who::Key("app"), &cost, &limits, now_us) {
                    passed += each;
                }
            }
            now_us += gap_us;
        }
        let seconds = (now_us - gap_us - began_us) as f64 / SECOND_US as f64;
        let allowed = limit as f64 * (seconds + 1.0);
        // Free use is a number of requests of up to 4 KiB.
        let free = match unit {
            Unit::Bytes => 2 * u64::from(limits.free(&cost)) * FREE_BYTES,
            Unit::Commands | Unit::Publishes | Unit::Joins => 2 * u64::from(limits.free(&cost)),
        };
        // One request passes as long as the limit isn't reached.
        let most = allowed + (free + each) as f64;
        assert!(passed as f64 <= most, "seed {seed}: {passed} of {requested} passed, {most} may");
        let least = (requested as f64).min(allowed) * 0.99 - each as f64;
        assert!(passed as f64 >= least, "seed {seed}: {passed} of {requested} passed, not {least}");
    }
}

#[test]
fn a_crowd_of_which_each_does_a_little_has_no_accounts() {
    let (quotas, limits) = (Quotas::default(), Limits::NONE.with(Unit::Joins, 10_000));
    let cost = COMMAND.with(Unit::Bytes, 300).with(Unit::Joins, 1);
    for second in 0..10 {
        for at in 0..10_000 {
            let (name, now_us) = (format!("user-{second}-{at}"), second * SECOND_US + at * 100);
            (0..2).for_each(|_| assert!(charge(&quotas, Who::User(&name), &cost, &limits, now_us)));
        }
    }
    assert_eq!(quotas.accounts(), 0);
    // A user that does more gets an account.
    for _ in 0..=limits.free(&cost) {
        charge(&quotas, Who::User("busy"), &cost, &limits, 10 * SECOND_US);
    }
    assert_eq!(quotas.accounts(), 1);
}

#[test]
fn what_is_free_is_a_part_of_the_lowest_limit_of_what_is_used() {
    let all = Unit::ALL.into_iter().fold(Cost::NOTHING, |cost, unit| cost.with(unit, 1));
    assert_eq!(Limits::NONE.free(&all), 16);
    let of = |unit, limit| Limits::NONE.with(Unit::Commands, 10_000).with(unit, limit).free(&all);
    assert_eq!(
        [1, 7, 8, 100, 128, 1_000].map(|limit| of(Unit::Joins, limit)),
        [0, 0, 1, 12, 16, 16]
    );
    assert_eq!([1, 32 << 10, 1 << 20].map(|limit| of(Unit::Bytes, limit)), [0, 1, 16]);
    let raised = Limits::NONE.with(Unit::Joins, 1).with(Unit::Joins, 1_000);
    assert_eq!((raised.free(&all), raised.any(), Limits::NONE.any()), (16, true, false));
    // A low limit of one unit makes no accounts for the use of others.
    let publishes = Limits::NONE.with(Unit::Publishes, 5).with(Unit::Joins, 80);
    assert_eq!(
        [Unit::Publishes, Unit::Joins, Unit::Commands].map(|unit| publishes.free(&one(unit))),
        [0, 10, 16]
    );
    let quotas = Quotas::default();
    for name in 0..1_000 {
        let name = name.to_string();
        assert!(quotas.account(Who::User(&name), &one(Unit::Joins), &publishes, 1).is_none());
    }
    assert_eq!(quotas.accounts(), 0);
}

fn one(unit: Unit) -> Cost {
    Cost::NOTHING.with(unit, 1)
}

#[test]
fn who_has_an_account_is_charged_for_everything() {
    let (quotas, limits) = (Quotas::default(), Limits::NONE.with(Unit::Commands, 100));
    let mut passed = 0;
    // After the first second, the key does less than is free.
    for second in 0..4 {
        let times = if second == 0 { 200 } else { 10 };
        for _ in 0..times {
            let now_us = second * SECOND_US;
            passed += usize::from(charge(&quotas, Who::Key("app"), &COMMAND, &limits, now_us));
        }
        quotas.tick(second * SECOND_US);
    }
    let account = quotas.account(Who::Key("app"), &COMMAND, &limits, 3 * SECOND_US).unwrap();
    let spent = account.spent[Unit::Commands as usize].load(Ordering::Relaxed);
    assert_eq!(spent as usize, passed - usize::from(limits.free(&COMMAND)));
}

#[test]
fn only_what_is_limited_and_requested_for_counts() {
    let account = Account::default();
    let limits = Limits::NONE.with(Unit::Joins, 1);
    let joins = Cost::NOTHING.with(Unit::Joins, 1_000_000).with(Unit::Bytes, u64::MAX);
    account.spend(&joins, &limits, 1);
    assert_eq!(account.rejecting_unit(&joins, &limits, 1), Some(Unit::Joins));
    assert_eq!(account.rejecting_unit(&COMMAND, &limits, 1), None);
    assert_eq!(account.rejecting_unit(&joins, &Limits::NONE, 1), None, "0 is no limit");
    let wait = account.wait(Unit::Joins, 1);
    assert_eq!((wait, account.wait(Unit::Commands, 1)), (Duration::from_secs(9), Duration::ZERO));
    // However much the use was, the account is open again within `AHEAD_NS`.
    assert_eq!(account.rejecting_unit(&joins, &limits, AHEAD_NS / 1_000), None);
}

#[test]
fn quiet_users_are_forgotten_and_accounts_are_limited() {
    let quotas = Quotas::new(100);
    let exact = Limits::NONE.with(Unit::Commands, 1);
    let make = |name: &str, now_us| quotas.account(Who::User(name), &COMMAND, &exact, now_us);
    let account = make("held", 0).unwrap();
    for at in 0..200 {
        make(&format!("u{at}"), 0);
    }
    assert_eq!((quotas.accounts(), quotas.without_account()), (100, 101));
    quotas.tick(QUIET_US - 1);
    assert_eq!(quotas.accounts(), 100);
    quotas.tick(QUIET_US);
    assert_eq!(quotas.accounts(), 1);
    let again = quotas.account(Who::User("held"), &COMMAND, &Limits::NONE, QUIET_US).unwrap();
    assert!(Arc::ptr_eq(&account, &again));
    // A forgotten user begins anew.
    assert!(quotas.account(Who::User("u1"), &COMMAND, &Limits::NONE, QUIET_US).is_none());
    assert!(make("u150", QUIET_US).is_some());
}

#[test]
fn the_noisiest_are_named() {
    let quotas = Quotas::default();
    for second in 1..=10 {
        for (name, commands, refused) in [("loud", 500, 9), ("quiet", 1, 0), ("half", 250, 20)] {
            let account = account(&quotas, name, second * SECOND_US).unwrap();
            let cost = COMMAND.with(Unit::Commands, commands).with(Unit::Bytes, 7);
            account.spend(&cost, &Limits::NONE, second * SECOND_US);
            (0..refused).for_each(|_| account.refused(second * SECOND_US));
        }
        let address = Who::Address("192.0.2.1".parse().unwrap());
        quotas.account(address, &COMMAND, &EXACT, second * SECOND_US).unwrap();
        quotas.tick(second * SECOND_US);
    }
    let names = |by, limit| -> Vec<String> {
        quotas.noisiest(by, limit).into_iter().map(|it| it.subject.name()).collect()
    };
    assert_eq!(names(By::Unit(Unit::Commands), 10), ["loud", "half", "quiet"]);
    assert_eq!(names(By::Unit(Unit::Commands), 1), ["loud"]);
    assert_eq!(names(By::Refusals, 10), ["half", "loud"]);
    let loud = &quotas.noisiest(By::Unit(Unit::Commands), 1)[0];
    assert!((450.0..=500.0).contains(&loud.per_second[Unit::Commands as usize]), "{loud:?}");
    assert!((8.0..=9.0).contains(&loud.refusals_per_second), "{loud:?}");
}

#[test]
fn many_threads_spend_from_one_account() {
    let (quotas, limits) = (Quotas::default(), Limits::NONE.with(Unit::Publishes, 1_000_000));
    let cost = Cost::NOTHING.with(Unit::Publishes, 1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let account = account(&quotas, "alice", 0).unwrap();
                (0..10_000).for_each(|_| account.spend(&cost, &limits, 0));
            });
        }
    });
    let account = account(&quotas, "alice", 0).unwrap();
    assert_eq!(account.spent[Unit::Publishes as usize].load(Ordering::Relaxed), 40_000);
    assert_eq!(account.until_ns[Unit::Publishes as usize].load(Ordering::Relaxed), 40_000_000);
}
