//! The decisions as a table, and what holds for all of them.

use std::sync::Arc;

use model::{HistoryRule, JoinRule, Name, PublishRule, Rule, Rules};
use proptest::prelude::*;

use super::*;

fn rule(pattern: &str, join: JoinRule, publish: Option<PublishRule>) -> Rule {
    Rule { pattern: pattern.into(), join, publish, ..Rule::default() }
}

fn policy() -> Policy {
    let history = HistoryRule {
        messages_max: 1,
        bytes_max: 1,
        seconds_max: 1,
        durable: true,
        compact: false,
        acknowledge: None,
    };
    let rules = vec![
        rule("closed:*", JoinRule::Refuse, Some(PublishRule::Refuse)),
        rule("asks:*", JoinRule::Webhook, Some(PublishRule::Webhook)),
        Rule { presence: true, ..rule("room:*", JoinRule::Allow, Some(PublishRule::Others)) },
        Rule {
            history: Some(Arc::new(history)),
            ..rule("log:*", JoinRule::Allow, Some(PublishRule::Allow))
        },
        Rule { presence: true, ..rule("@eve", JoinRule::Refuse, Some(PublishRule::Allow)) },
    ];
    let publish_prefixes = vec!["open:".into(), "closed:".into()];
    Policy::new(Rules { rules, publish_prefixes, inbox: None }, LoginRule::Allow)
}

fn users(names: &[&str]) -> Vec<Name> {
    names.iter().map(|name| Name::from(*name)).collect()
}

fn patterns(list: &[&str]) -> Vec<Box<str>> {
    list.iter().map(|pattern| Box::from(*pattern)).collect()
}

/// A principal that may do everything with topics that end with its name, and join `news`.
fn token(user: &str) -> Principal {
    let all = || patterns(&["*:{sub}"]);
    let grants = Patterns {
        subscribe: patterns(&["*:{sub}", "news"]),
        publish: all(),
        presence: all(),
        history: all(),
    };
    Principal::token(users(&[user]), Arc::new(Grants::Patterns(grants)), Some(100))
}

#[test]
fn what_the_anonymous_may_do() {
    use Action::*;
    let anonymous = Principal::anonymous(users(&["al", "bo"]));
    let policy = policy();
    for (action, name, want) in [
        (Subscribe, "other", Ok(())),
        (Subscribe, "room:1", Ok(())),
        (Subscribe, "closed:1", Err(Deny::JoinRefused)),
        (Subscribe, "asks:1", Err(Deny::JoinUndecided)),
        (Subscribe, "@al", Ok(())),
        (Subscribe, "@bo", Ok(())),
        (Subscribe, "@cy", Err(Deny::AnotherUser)),
        (Subscribe, "@eve", Err(Deny::AnotherUser)),
        (Subscribe, "*", Ok(())),
        (Publish, "other", Err(Deny::PublishRefused)),
        (Publish, "open:1", Ok(())),
        (Publish, "room:1", Ok(())),
        (Publish, "log:1", Ok(())),
        // The rule decides: the prefix does not count.
        (Publish, "closed:1", Err(Deny::PublishRefused)),
        (Publish, "asks:1", Err(Deny::PublishUndecided)),
        (Publish, "@al", Err(Deny::PublishOwn)),
        (Publish, "@eve", Err(Deny::PublishOwn)),
        (Publish, "*", Err(Deny::PublishOwn)),
        (Presence, "room:1", Ok(())),
        (Presence, "other", Err(Deny::NoPresence)),
        (Presence, "@eve", Err(Deny::NoPresence)),
        (History, "other", Ok(())),
        (History, "closed:1", Err(Deny::JoinRefused)),
        (History, "asks:1", Err(Deny::JoinUndecided)),
        (History, "@al", Ok(())),
        (History, "@cy", Err(Deny::AnotherUser)),
        (Acknowledge("al"), "log:1", Ok(())),
        (Acknowledge("bo"), "@bo", Ok(())),
        (Acknowledge("al"), "@bo", Err(Deny::AnotherUser)),
        (Acknowledge("cy"), "log:1", Err(Deny::NotItsUser)),
        (Acknowledge("cy"), "@cy", Err(Deny::NotItsUser)),
        (Login("cy"), "@cy", Ok(())),
        (Logout("al"), "@al", Ok(())),
    ] {
        let decision = policy.decide(&anonymous, action, &policy.topic(name));
        assert_eq!(decision.without_webhook().map(|_| ()), want, "{action:?} {name}");
        // The application may do all of it.
        let decision = policy.decide(&Principal::application(), action, &policy.topic(name));
        assert!(decision.is_allowed(), "{action:?} {name}");
    }
    // Only the server publishes reports about itself, whatever the rules and the grants are.
    let all = Rules { publish_prefixes: vec![String::new()], ..Rules::default() };
    let all = Policy::new(all, LoginRule::Allow);
    for principal in [&anonymous, &Principal::application()] {
        for (name, is_refused) in [("$SYS", true), ("$SYS/a", true), ("$SYSTEM", false)] {
            let decision = all.decide(principal, Publish, &all.topic(name));
            let refused = decision == Decision::Deny(Deny::PublishSystem);
            assert_eq!(refused, is_refused, "{name}");
            assert!(all.decide(principal, Subscribe, &all.topic(name)).is_allowed());
        }
    }
    let refuse = Policy::new(policy.rules().clone(), LoginRule::Refuse);
    for action in [Login("cy"), Logout("al")] {
        let decision = refuse.decide(&anonymous, action, &refuse.topic("@cy"));
        assert_eq!(decision, Decision::Deny(Deny::LoginRefused));
        let decision = refuse.decide(&Principal::application(), action, &refuse.topic("@cy"));
        assert!(decision.is_allowed());
    }
}

#[test]
fn a_token_may_do_what_both_rules_and_grants_allow() {
    use Action::*;
    let (policy, token) = (policy(), token("al"));
    for (action, name, want) in [
        (Subscribe, "news", Ok(())),
        (Subscribe, "room:al", Ok(())),
        (Subscribe, "room:bo", Err(Deny::NotGranted)),
        (Subscribe, "other", Err(Deny::NotGranted)),
        (Subscribe, "closed:al", Err(Deny::JoinRefused)),
        (Subscribe, "asks:al", Err(Deny::JoinUndecided)),
        (Subscribe, "asks:bo", Err(Deny::NotGranted)),
        (Subscribe, "@al", Ok(())),
        (Subscribe, "@bo", Err(Deny::NotGranted)),
        (Subscribe, "*", Ok(())),
        (Publish, "room:al", Ok(())),
        (Publish, "room:bo", Err(Deny::NotGranted)),
        (Publish, "news", Err(Deny::NotGranted)),
        (Publish, "other:al", Err(Deny::PublishRefused)),
        (Presence, "room:al", Ok(())),
        (Presence, "room:bo", Err(Deny::NotGranted)),
        (Presence, "x:al", Err(Deny::NoPresence)),
        (History, "log:al", Ok(())),
        (History, "news", Err(Deny::NotGranted)),
        (History, "closed:al", Err(Deny::JoinRefused)),
        (History, "asks:al", Err(Deny::JoinUndecided)),
        (History, "@al", Ok(())),
        (Acknowledge("al"), "news", Ok(())),
        (Acknowledge("bo"), "news", Err(Deny::NotGranted)),
        (Login("al"), "@al", Ok(())),
        (Login("bo"), "@bo", Err(Deny::NotGranted)),
        (Logout("al"), "@al", Ok(())),
        (Logout("bo"), "@bo", Err(Deny::NotGranted)),
    ] {
        let decision = policy.decide(&token, action, &policy.topic(name));
        assert_eq!(decision.without_webhook().map(|_| ()), want, "{action:?} {name}");
    }
    assert!(!token.is_expired(99) && token.is_expired(100));
    assert!(!Principal::anonymous(Vec::new()).is_expired(u64::MAX));
}

#[test]
fn a_client_named_by_the_application_stays_that_user() {
    let policy = policy();
    let al = Principal { source: Source::Hook, ..Principal::anonymous(users(&["al"])) };
    for (action, name, want) in [
        (Action::Login("al"), "@al", Ok(())),
        (Action::Login("cy"), "@cy", Err(Deny::NotGranted)),
        (Action::Logout("al"), "@al", Ok(())),
        (Action::Logout("cy"), "@cy", Err(Deny::NotGranted)),
        (Action::Subscribe, "other", Ok(())),
        (Action::Subscribe, "closed:1", Err(Deny::JoinRefused)),
        (Action::Subscribe, "@cy", Err(Deny::AnotherUser)),
        (Action::Publish, "room:1", Ok(())),
    ] {
        let decision = policy.decide(&al, action, &policy.topic(name));
        assert_eq!(decision.without_webhook().map(|_| ()), want, "{action:?} {name}");
    }
}

#[test]
fn a_token_for_a_topic_grants_that_to_its_user_and_no_more() {
    let (policy, al) = (policy(), token("al"));
    let of = |user: &str, topic: &str| TopicToken { users: users(&[user]), topic: topic.into() };
    let decide = |action, topic: &str, tokens: &[TopicToken]| {
        policy.decide_with(&al, action, &policy.topic(topic), tokens).without_webhook().map(|_| ())
    };
    let [own, other, closed] = [of("al", "room:bo"), of("bo", "room:bo"), of("al", "closed:1")];
    for action in [Action::Subscribe, Action::Presence, Action::History] {
        assert_eq!(decide(action, "room:bo", &[]), Err(Deny::NotGranted));
        assert_eq!(decide(action, "room:bo", std::slice::from_ref(&other)), Err(Deny::NotGranted));
        assert_eq!(decide(action, "room:bo", &[other.clone(), own.clone()]), Ok(()));
        assert_eq!(decide(action, "room:cy", std::slice::from_ref(&own)), Err(Deny::NotGranted));
    }
    // What the rules deny, no token grants.
    assert_eq!(decide(Action::Subscribe, "closed:1", &[closed]), Err(Deny::JoinRefused));
    assert_eq!(decide(Action::Publish, "room:bo", &[own]), Err(Deny::NotGranted));
}

#[test]
fn a_key_may_do_what_its_scopes_say_whatever_the_rules_say() {
    use Action::*;
    let policy = policy();
    let key = |scopes: &[&str]| {
        let scopes: Vec<Scope> = scopes.iter().map(|scope| scope.parse().unwrap()).collect();
        Principal::application_with(&scopes)
    };
    assert_eq!(key(&["read", "publish:a", "admin"]), Principal::application());
    for (scopes, topic, want) in [
        (&["publish:closed:*"][..], "closed:1", true),
        (&["publish:closed:*"], "asks:1", false),
        (&["publish:asks:1", "publish:closed:1"], "closed:1", true),
        (&["read"], "room:1", false),
        (&[], "room:1", false),
        (&["publish:*"], "room:1", true),
        (&["publish:*"], "@al", true),
        (&["publish:*"], "*", true),
        (&["publish:@al"], "@al", true),
        (&["publish:@al"], "@alice", false),
        (&["publish:@*"], "@alice", true),
        (&["publish:@*"], "room:1", false),
        (&["publish:@*"], "*", false),
        // A user may be called like a topic.
        (&["publish:*:1"], "room:1", true),
        (&["publish:*:1"], "@room:1", false),
        (&["publish:**"], "*", false),
    ] {
        let decision = policy.decide(&key(scopes), Publish, &policy.topic(topic));
        let want = if want { Ok(()) } else { Err(Deny::OutOfScope) };
        assert_eq!(decision.without_webhook().map(|_| ()), want, "{scopes:?} {topic}");
    }
    let publishes = key(&["publish:*", "read"]);
    for action in [Subscribe, Presence, History, Acknowledge("al"), Login("al"), Logout("al")] {
        let decision = policy.decide(&publishes, action, &policy.topic("room:1"));
        assert_eq!(decision, Decision::Deny(Deny::OutOfScope), "{action:?}");
    }
}

#[test]
fn a_permit_says_what_the_rule_says_of_the_topic() {
    let policy = policy();
    let anonymous = Principal::anonymous(Vec::new());
    let permit = |name| {
        policy.decide(&anonymous, Action::Publish, &policy.topic(name)).without_webhook().unwrap()
    };
    let want = Permit { audience: Audience::Others, durable: false, presence: true };
    assert_eq!(permit("room:1"), want);
    assert!(permit("room:1").audience.leaves_sender_out());
    assert_eq!(permit("log:1"), Permit { durable: true, ..Permit::default() });
    assert_eq!(permit("open:1"), Permit::default());
    let decide = |action| policy.decide(&anonymous, action, &policy.topic("asks:1"));
    assert_eq!(decide(Action::Subscribe), Decision::Webhook(Hook::Subscribe));
    assert_eq!(decide(Action::Publish), Decision::Webhook(Hook::Message));
}

/// Clients compare codes, and some Phoenix applications reasons: they never change.
#[test]
fn refusals_say_what_they_always_said() {
    let text = |deny: Deny| (deny.code().text(), deny.to_string());
    assert_eq!(
        text(Deny::JoinRefused),
        (
            "forbidden",
            "clients may not enter this topic: the server's configuration (join of a [[topics]] \
             table) refuses it"
                .into()
        )
    );
    assert_eq!(text(Deny::NoPresence).0, "no_presence");
    assert_eq!(text(Deny::NotItsUser).0, "no_user");
    assert_eq!(Deny::JoinRefused.phoenix_reason(), "unauthorized");
    for deny in [Deny::PublishRefused, Deny::PublishUndecided, Deny::PublishOwn] {
        assert_eq!(deny.phoenix_reason(), "clients may not send to this topic");
        assert_eq!(deny.code(), "forbidden");
    }
    let (code, message) = text(Deny::AnotherUser);
    assert!(code == "bad_topic" && message.contains("another user's own topic"), "{message}");
    for deny in Deny::ALL {
        assert!(!deny.to_string().contains("  "), "{deny}");
    }
}

fn name() -> impl Strategy<Value = String> {
    "@?[ab:*]{0,4}"
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let join = prop_oneof![Just(JoinRule::Allow), Just(JoinRule::Refuse), Just(JoinRule::Webhook)];
    let publish = proptest::option::of(prop_oneof![
        Just(PublishRule::Refuse),
        Just(PublishRule::Allow),
        Just(PublishRule::Others),
        Just(PublishRule::Webhook)
    ]);
    let rule = ("[ab:*]{1,4}", join, publish, any::<bool>()).prop_map(
        |(pattern, join, publish, presence)| Rule {
            pattern,
            join,
            publish,
            presence,
            ..Rule::default()
        },
    );
    let prefixes = proptest::collection::vec("[ab]{0,2}", 0..2);
    (proptest::collection::vec(rule, 0..4), prefixes).prop_map(|(rules, publish_prefixes)| Rules {
        rules,
        publish_prefixes,
        inbox: None,
    })
}

fn any_grants() -> impl Strategy<Value = Grants> {
    let list = || {
        let pattern = r"(\{sub\}|[ab:*@]){0,4}".prop_map(Box::<str>::from);
        proptest::collection::vec(pattern, 0..3)
    };
    let patterns =
        (list(), list(), list(), list()).prop_map(|(subscribe, publish, presence, history)| {
            Grants::Patterns(Patterns { subscribe, publish, presence, history })
        });
    prop_oneof![1 => Just(Grants::Everything), 4 => patterns]
}

proptest! {
    #[test]
    fn no_grant_allows_what_the_rules_deny(
        rules in any_rules(),
        refuses in any::<bool>(),
        grants in any_grants(),
        own in proptest::collection::vec("[ab*]{1,2}", 0..3),
        user in "[ab*]{1,2}",
        topic in name(),
        action in 0..7usize,
    ) {
        let login = if refuses { LoginRule::Refuse } else { LoginRule::Allow };
        let policy = Policy::new(rules, login);
        let user = user.as_str();
        let action = [
            Action::Subscribe,
            Action::Publish,
            Action::Presence,
            Action::History,
            Action::Acknowledge(user),
            Action::Login(user),
            Action::Logout(user),
        ][action];
        let own: Vec<Name> = own.iter().map(Name::from).collect();
        let topic = policy.topic(&topic);
        let by_rules = policy.decide(&Principal::anonymous(own.clone()), action, &topic);
        let token = Principal::token(own, Arc::new(grants), None);
        let decision = policy.decide(&token, action, &topic);
        match by_rules {
            Decision::Deny(_) => prop_assert!(
                decision == by_rules || decision == Decision::Deny(Deny::NotGranted)
            ),
            // A grant doesn't allow what the application decides.
            Decision::Allow(_) | Decision::Webhook(_) => prop_assert!(
                decision == by_rules || decision == Decision::Deny(Deny::NotGranted)
            ),
        }
        let everything = Principal { grants: Arc::new(Grants::Everything), ..token };
        prop_assert_eq!(policy.decide(&everything, action, &topic), by_rules);
    }
}
