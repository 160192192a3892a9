//! What is asked of a policy, and what it answers.

use model::{PublishRule, Topic};

use crate::Deny;

/// What a principal wants to do with a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Enter it.
    Subscribe,
    /// Publish to it.
    Publish,
    /// See who is in it.
    Presence,
    /// Read what was published before.
    History,
    /// Say that this user has its messages.
    Acknowledge(&'a str),
    /// Become this user as well; the topic is the user's own.
    Login(&'a str),
    /// Be this user no longer; the topic is the user's own.
    Logout(&'a str),
}

/// What a policy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// It may be done.
    Allow(Permit),
    /// It may not be done, for this reason.
    Deny(Deny),
    /// The application decides.
    Webhook(Hook),
}

/// Which of the application's hooks decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Whether a client may enter.
    Subscribe,
    /// What a client's message is answered.
    Message,
    /// Whether a client's message is published.
    Publish,
}

/// What whoever carries out the action needs to know of the topic, so that its rule is not looked
/// for again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permit {
    /// Who gets what is published.
    pub audience: Audience,
    /// A publisher is answered when the message is on disk.
    pub durable: bool,
    /// Members know of each other.
    pub presence: bool,
}

/// A decision that is no refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// It may be done.
    Given(Permit),
    /// It may be done if the application says so.
    Requested(Hook),
}

/// Who gets what a client publishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// All members.
    #[default]
    All,
    /// All members but the sender, where the sender's protocol has such an audience.
    Others,
}

impl Permit {
    /// What there is to know of a topic.
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
    /// The decision where no request can go to the application: what it would have to allow is denied.
    ///
    /// # Errors
    /// Why it may not be done.
    pub fn without_webhook(self) -> Result<Permit, Deny> {
        match self {
            Decision::Allow(permit) => Ok(permit),
            Decision::Deny(deny) => Err(deny),
            Decision::Webhook(Hook::Subscribe) => Err(Deny::JoinUndecided),
            Decision::Webhook(Hook::Message | Hook::Publish) => Err(Deny::PublishUndecided),
        }
    }

    /// The decision where the application can be asked.
    ///
    /// # Errors
    /// Why it may not be done.
    pub fn undenied(self) -> Result<Consent, Deny> {
        match self {
            Decision::Allow(permit) => Ok(Consent::Given(permit)),
            Decision::Webhook(hook) => Ok(Consent::Requested(hook)),
            Decision::Deny(deny) => Err(deny),
        }
    }

    /// Whether it may be done without another word.
    pub fn is_allowed(self) -> bool {
        matches!(self, Decision::Allow(_))
    }
}
