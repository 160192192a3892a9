//! How the application is asked.

use auth::Hook;
use model::{ErrorCode, Name};

use crate::core::Core;
use crate::core::command::Command;
use crate::core::count::count;
use crate::webhook::pending_hook::PendingHook;
use crate::webhook::{HookPlace, QueueFull, Refusal, RequestDetails, WebhookKind, WebhookRequest};

/// Requests about one connection that the application has not answered: more are refused, so that no
/// client fills the queue of all.
pub(crate) const HOOKS_PENDING_MAX: u32 = 128;

/// A request to the application about a connection.
pub(crate) struct HookRequest {
    pub details: RequestDetails,
    /// What waits for the response.
    pub hook: PendingHook,
}

impl HookRequest {
    /// Whether these users may enter a topic.
    pub fn subscribe(
        topic: Name,
        users: Vec<Name>,
        transport: &'static str,
        hook: PendingHook,
    ) -> Self {
        let details = RequestDetails::new(WebhookKind::Subscribe, Some(topic), users, transport);
        HookRequest { details, hook }
    }
}

/// The kind of question that a policy's hook is.
pub(crate) fn kind(hook: Hook) -> WebhookKind {
    match hook {
        Hook::Subscribe => WebhookKind::Subscribe,
        Hook::Message => WebhookKind::Message,
        Hook::Publish => WebhookKind::Publish,
    }
}

/// The application can't be asked now; what would have waited for its answers.
pub(crate) struct Unasked {
    pub hooks: Vec<PendingHook>,
    /// The connection has asked for something that is not answered.
    pub behind_others: bool,
}

/// Why it can't be asked.
pub(crate) fn busy() -> Refusal {
    Refusal::silent(ErrorCode::Overloaded, "the application is busy: try again later")
}

/// Sends requests to the application, all together. The responses come as [`Command::WebhookResponded`].
pub(crate) fn send_requests(
    core: &mut Core,
    slot: u32,
    requests: Vec<HookRequest>,
) -> Result<(), Unasked> {
    let pending = core.table.cold(slot).map_or(0, |cold| cold.hooks_pending);
    let unasked = |hooks| Err(Unasked { hooks, behind_others: pending > 0 });
    let (requested, several) = (count(requests.len()), requests.len() > 1);
    let (Some(webhook), Some(serial)) =
        (core.webhook.clone(), core.table.get(slot).map(|connection| connection.serial))
    else {
        return unasked(requests.into_iter().map(|request| request.hook).collect());
    };
    // A request with several topics is one: their number has a limit of its own. What a client waits for
    // doesn't keep the server from asking whether it may stay.
    let is_own = requests.iter().any(|request| matches!(request.hook, PendingHook::Refresh(_)));
    if pending >= HOOKS_PENDING_MAX && !several && !is_own {
        return unasked(requests.into_iter().map(|request| request.hook).collect());
    }
    let mut places = Vec::with_capacity(requests.len());
    let policy = core.settings.clone();
    let requests = requests.into_iter().map(|request| {
        let HookRequest { details, hook } = request;
        // Where it is when nobody takes the request.
        let place = HookPlace::new(hook);
        places.push(place.clone());
        let handle = core.handle.clone();
        let topic = details.topic.as_ref();
        let rule = topic.and_then(|topic| policy.session.policy.topic(topic).rule);
        WebhookRequest {
            url: rule.and_then(|rule| rule.webhook_url.clone()),
            details,
            connection: core.id(slot, serial),
            hook: place.clone(),
            reply: Box::new(move |response| {
                if let Some(hook) = place.take() {
                    handle.send(Command::WebhookResponded { slot, serial, hook, response });
                }
            }),
        }
    });
    let requests = requests.collect();
    if let Err(QueueFull) = webhook.send(requests) {
        return unasked(places.iter().filter_map(HookPlace::take).collect());
    }
    if let Some(cold) = core.table.cold_or_new(slot) {
        cold.hooks_pending += requested;
    }
    Ok(())
}

/// The application has replied to one of a connection's requests.
pub(crate) fn on_reply(core: &mut Core, slot: u32) {
    if let Some(cold) = core.table.cold_mut(slot) {
        cold.hooks_pending = cold.hooks_pending.saturating_sub(1);
    }
    core.table.trim(slot);
}
