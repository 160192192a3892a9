//! Decides what principals may do.

use model::{JoinRule, PublishRule, Rules, Topic, TopicKind, name};

use crate::patterns::{any_covers, any_matches};
use crate::{
    Action, Audience, Decision, Deny, Grants, Hook, Permit, Principal, Source, TopicToken,
};

/// Whether clients may become other users, or cease to be, while they are connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoginRule {
    /// Clients may.
    #[default]
    Allow,
    /// Only the application does it for them.
    Refuse,
}

/// What principals may do with topics.
///
/// # Examples
///
/// ```
/// use auth::{Action, Decision, Deny, Hook, LoginRule, Policy, Principal};
/// use model::{JoinRule, Rule, Rules};
///
/// // Who enters a document's topic is the application's to say, and all others may be entered.
/// let documents =
///     Rule { pattern: "doc:*".into(), join: JoinRule::Webhook, ..Rule::default() };
/// let rules = Rules { rules: vec![documents], ..Rules::default() };
/// let policy = Policy::new(rules, LoginRule::Allow);
///
/// let alice = Principal::anonymous(vec!["alice".into()]);
/// let decide = |topic| policy.decide(&alice, Action::Subscribe, &policy.topic(topic));
/// assert!(matches!(decide("news"), Decision::Allow(_)));
/// assert_eq!(decide("doc:7"), Decision::Webhook(Hook::Subscribe));
/// // Another user's own topic is another user's.
/// assert_eq!(decide("@bob"), Decision::Deny(Deny::AnotherUser));
///
/// // No rule lets clients publish.
/// let decision = policy.decide(&alice, Action::Publish, &policy.topic("news"));
/// let Decision::Deny(deny) = decision else { panic!("{decision:?}") };
/// assert_eq!(deny.code(), model::ErrorCode::Forbidden);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Rules,
    login: LoginRule,
}

impl Policy {
    /// A policy of these rules and settings.
    pub fn new(rules: Rules, login: LoginRule) -> Self {
        Policy { rules, login }
    }

    /// Returns the rules of the policy.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns a topic with its rule, for any number of decisions about it.
    pub fn topic<'n>(&self, name: &'n str) -> Topic<'n, '_> {
        self.rules.topic(name)
    }

    /// Decides whether a principal may do something with a topic of this policy. The application may do what its
    /// key's scopes say, which is everything if they don't narrow it. For others the grants decide first, so that
    /// no client learns the rules of topics that are not granted; and no grant allows what the rules deny. Only the
    /// server publishes reports about itself; the application may not either. The caller, which has a clock, checks
    /// whether a principal has expired.
    pub fn decide(
        &self,
        principal: &Principal,
        action: Action<'_>,
        topic: &Topic<'_, '_>,
    ) -> Decision {
        if action == Action::Publish && name::is_system(topic.name) {
            return Decision::Deny(Deny::PublishSystem);
        }
        if principal.source == Source::Application {
            return match is_in_scope(&principal.grants, action, topic) {
                true => Decision::Allow(Permit::of(topic)),
                false => Decision::Deny(Deny::OutOfScope),
            };
        }
        match is_granted(principal, action, topic) {
            true => self.by_rules(principal, action, topic),
            false => Decision::Deny(Deny::NotGranted),
        }
    }

    /// Decides the same, where tokens for single topics may grant what the principal's own does not: to join the
    /// topic, to see its members, and to read its history.
    pub fn decide_with<'t>(
        &self,
        principal: &Principal,
        action: Action<'_>,
        topic: &Topic<'_, '_>,
        tokens: impl IntoIterator<Item = &'t TopicToken>,
    ) -> Decision {
        let decision = self.decide(principal, action, topic);
        let listens = matches!(action, Action::Subscribe | Action::Presence | Action::History);
        let denied = listens && decision == Decision::Deny(Deny::NotGranted);
        match denied && tokens.into_iter().any(|token| token.is_for(principal, topic.name)) {
            true => self.by_rules(principal, action, topic),
            false => decision,
        }
    }

    fn by_rules(
        &self,
        principal: &Principal,
        action: Action<'_>,
        topic: &Topic<'_, '_>,
    ) -> Decision {
        let allow_if = |holds: bool, deny: Deny| match holds {
            true => Decision::Allow(Permit::of(topic)),
            false => Decision::Deny(deny),
        };
        let reachable = topic.kind.is_ordinary() || principal.owns(topic.kind);
        match action {
            // The rules of the topics decide what a filter reaches.
            Action::Subscribe if matches!(topic.kind, TopicKind::Filter(_)) => {
                Decision::Allow(Permit::of(topic))
            }
            Action::Subscribe => match topic.join() {
                _ if !reachable => Decision::Deny(Deny::AnotherUser),
                JoinRule::Allow => Decision::Allow(Permit::of(topic)),
                JoinRule::Refuse => Decision::Deny(Deny::JoinRefused),
                JoinRule::Webhook => Decision::Webhook(Hook::Subscribe),
            },
            Action::Publish => match topic.publish() {
                _ if !topic.kind.is_ordinary() => Decision::Deny(Deny::PublishOwn),
                PublishRule::Allow | PublishRule::Others => Decision::Allow(Permit::of(topic)),
                PublishRule::Refuse => Decision::Deny(Deny::PublishRefused),
                PublishRule::Webhook => Decision::Webhook(Hook::Message),
                PublishRule::Ask => Decision::Webhook(Hook::Publish),
            },
            Action::Presence => allow_if(topic.presence(), Deny::NoPresence),
            // A client that may join a topic may read its history.
            Action::History => match topic.join() {
                _ if !reachable => Decision::Deny(Deny::AnotherUser),
                _ if principal.owns(topic.kind) => Decision::Allow(Permit::of(topic)),
                JoinRule::Allow => Decision::Allow(Permit::of(topic)),
                JoinRule::Refuse => Decision::Deny(Deny::JoinRefused),
                JoinRule::Webhook => Decision::Webhook(Hook::Subscribe),
            },
            Action::Acknowledge(user) => match topic.kind {
                TopicKind::Personal(owner) if owner != user => Decision::Deny(Deny::AnotherUser),
                TopicKind::Ordinary
                | TopicKind::Personal(_)
                | TopicKind::Broadcast
                | TopicKind::Filter(_) => allow_if(principal.is(user), Deny::NotItsUser),
            },
            Action::Login(_) | Action::Logout(_) => {
                allow_if(self.login == LoginRule::Allow, Deny::LoginRefused)
            }
        }
    }
}

/// Returns true if a key of the application allows the action. A scope says to which topics it publishes, so a
/// pattern that happens to match the name of a user's own topic doesn't reach that user: the pattern must begin
/// with `@`. `*` is everything.
fn is_in_scope(grants: &Grants, action: Action<'_>, topic: &Topic<'_, '_>) -> bool {
    let Grants::Patterns(patterns) = grants else { return true };
    if action != Action::Publish {
        return false;
    }
    patterns.publish.iter().any(|pattern| match topic.kind {
        TopicKind::Broadcast => &**pattern == "*",
        TopicKind::Personal(_) if !pattern.starts_with('@') => &**pattern == "*",
        TopicKind::Personal(_) | TopicKind::Ordinary => model::rules::matches(pattern, topic.name),
        TopicKind::Filter(_) => false,
    })
}

/// Returns true if the principal's grants allow the action. Topics that it is in by itself need no grant.
fn is_granted(principal: &Principal, action: Action<'_>, topic: &Topic<'_, '_>) -> bool {
    let Grants::Patterns(patterns) = &*principal.grants else {
        return match action {
            // The application has named the connection's user.
            Action::Login(user) | Action::Logout(user) => {
                principal.source != Source::Hook || principal.is(user)
            }
            Action::Subscribe
            | Action::Publish
            | Action::Presence
            | Action::History
            | Action::Acknowledge(_) => true,
        };
    };
    let any = |patterns: &[Box<str>]| match name::of_filter(topic.name) {
        Some((_, filter)) => any_covers(patterns, principal, filter),
        None => any_matches(patterns, principal, topic.name),
    };
    match action {
        Action::Subscribe => principal.owns(topic.kind) || any(&patterns.subscribe),
        Action::Publish => any(&patterns.publish),
        Action::Presence => any(&patterns.presence),
        Action::History => principal.owns(topic.kind) || any(&patterns.history),
        // Otherwise a client that may join nothing would learn which topics are acknowledged.
        Action::Acknowledge(user) => {
            principal.is(user) && (!topic.kind.is_ordinary() || any(&patterns.subscribe))
        }
        Action::Logout(user) => principal.is(user),
        // A token names its users, and grants no others.
        Action::Login(user) => principal.is(user),
    }
}

impl Audience {
    /// True if the sender does not get the message.
    pub fn leaves_sender_out(self) -> bool {
        self == Audience::Others
    }
}
