//! Actions, and what a policy decides about them.

use model::{PublishRule, Topic};

use crate::Deny;

/// What a principal wants to do with a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Join it.
    Subscribe,
    /// Publish to it.
    Publish,
    /// See its members.
    Presence,
    /// Read its history.
    History,
    /// Acknowledge its messages for this user.
    Acknowledge(&'a str),
    /// Become this user as well; the topic is the user's own.
    Login(&'a str),
    /// Be this user no longer; the topic is the user's own.
    Logout(&'a str),
}

/// What a policy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// The action is allowed.
    Allow(Permit),
    /// The action is denied, for this reason.
    Deny(Deny),
    /// The application decides.
    Webhook(Hook),
}

/// The application's hook that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Decides whether a client may join.
    Subscribe,
    /// Replies to a client's message.
    Message,
    /// Decides whether a client's message is published.
    Publish,
}

/// What an allowed action needs to know of the topic, so that no caller searches for its rule again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permit {
    /// The members that get the message.
    pub audience: Audience,
    /// True if a publisher gets its reply when the message is on disk.
    pub durable: bool,
    /// True if members see each other.
    pub presence: bool,
}

/// A decision that is no denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// The action is allowed.
    Given(Permit),
    /// The action is allowed if the application allows it.
    Requested(Hook),
}

/// The members that get what a client publishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// All members.
    #[default]
    All,
    /// All members but the sender, where the sender's protocol has such an audience.
    Others,
}

impl Permit {
    /// Returns the permit for a topic.
    pub fn of(topic: &Topic<'_, '_>) -> Self {
        let audience = match topic.rule.and_then(|rule| rule.publish) {
            Some(PublishRule::Others) => Audience::Others,
            _ => Audience::All,
        };
        let durable = topic.history().is_some_and(|history| history.durable);
        Permit { audience, durable, presence: topic.presence() }
    }
}

impl Decision {
    /// Returns the decision if no request can go to the application: what it would have to allow is denied.
    ///
    /// # Errors
    /// With the reason of the denial.
    pub fn without_webhook(self) -> Result<Permit, Deny> {
        match self {
            Decision::Allow(permit) => Ok(permit),
            Decision::Deny(deny) => Err(deny),
            Decision::Webhook(Hook::Subscribe) => Err(Deny::JoinUndecided),
            Decision::Webhook(Hook::Message | Hook::Publish) => Err(Deny::PublishUndecided),
        }
    }

    /// Returns the decision if a request can go to the application.
    ///
    /// # Errors
    /// With the reason of the denial.
    pub fn undenied(self) -> Result<Consent, Deny> {
        match self {
            Decision::Allow(permit) => Ok(Consent::Given(permit)),
            Decision::Webhook(hook) => Ok(Consent::Requested(hook)),
            Decision::Deny(deny) => Err(deny),
        }
    }

    /// True if the action is allowed without the application.
    pub fn is_allowed(self) -> bool {
        matches!(self, Decision::Allow(_))
    }
}
