//! How requests are sent to the application.

use auth::Hook;
use model::{ErrorCode, Name};

use crate::core::Core;
use crate::core::command::Command;
use crate::core::count::count;
use crate::webhook::pending_hook::PendingHook;
use crate::webhook::{QueueFull, Refusal, RequestDetails, SharedHook, WebhookKind, WebhookRequest};

/// The limit on requests about one connection that wait for their responses. It keeps one client from filling the
/// queue.
pub(crate) const HOOKS_PENDING_MAX: u32 = 128;

/// A request to the application about a connection.
pub(crate) struct HookRequest {
    pub details: RequestDetails,
    /// What waits for the response.
    pub hook: PendingHook,
}

impl HookRequest {
    /// Creates a request for the decision whether these users may subscribe to a topic.
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

/// Returns the kind of request for a policy's hook.
pub(crate) fn kind(hook: Hook) -> WebhookKind {
    match hook {
        Hook::Subscribe => WebhookKind::Subscribe,
        Hook::Message => WebhookKind::Message,
        Hook::Publish => WebhookKind::Publish,
    }
}

/// Requests that were not sent because the queue has no capacity, with the hooks that would have waited for the
/// responses.
pub(crate) struct NotSent {
    pub hooks: Vec<PendingHook>,
    /// The connection has other requests that wait for their responses.
    pub behind_others: bool,
}

/// The error of a client whose request could not be sent to the application.
pub(crate) fn busy() -> Refusal {
    Refusal::silent(ErrorCode::Overloaded, "the application is busy: try again later")
}

/// Sends requests to the application, all together. The responses come as [`Command::WebhookResponded`].
pub(crate) fn send_requests(
    core: &mut Core,
    slot: u32,
    requests: Vec<HookRequest>,
) -> Result<(), NotSent> {
    let pending = core.table.cold(slot).map_or(0, |cold| cold.hooks_pending);
    let not_sent = |hooks| Err(NotSent { hooks, behind_others: pending > 0 });
    let (requested, several) = (count(requests.len()), requests.len() > 1);
    let (Some(webhook), Some(serial)) =
        (core.webhook.clone(), core.table.get(slot).map(|connection| connection.serial))
    else {
        return not_sent(requests.into_iter().map(|request| request.hook).collect());
    };
    // The limit does not reject a request with several topics, because topics have a limit of their own, nor the
    // refresh of a connection.
    let is_own = requests.iter().any(|request| matches!(request.hook, PendingHook::Refresh(_)));
    if pending >= HOOKS_PENDING_MAX && !several && !is_own {
        return not_sent(requests.into_iter().map(|request| request.hook).collect());
    }
    let mut hooks = Vec::with_capacity(requests.len());
    let policy = core.settings.clone();
    let requests = requests.into_iter().map(|request| {
        let HookRequest { details, hook } = request;
        // The queue may reject the request. The hook is then taken back.
        let hook = SharedHook::new(hook);
        hooks.push(hook.clone());
        let handle = core.handle.clone();
        let topic = details.topic.as_ref();
        let rule = topic.and_then(|topic| policy.session.policy.topic(topic).rule);
        WebhookRequest {
            url: rule.and_then(|rule| rule.webhook_url.clone()),
            details,
            connection: core.id(slot, serial),
            hook: hook.clone(),
            reply: Box::new(move |response| {
                if let Some(hook) = hook.take() {
                    handle.send(Command::WebhookResponded { slot, serial, hook, response });
                }
            }),
        }
    });
    let requests = requests.collect();
    if let Err(QueueFull) = webhook.send(requests) {
        return not_sent(hooks.iter().filter_map(SharedHook::take).collect());
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
