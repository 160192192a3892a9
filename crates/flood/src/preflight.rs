//! Verifies, before the crowd connects, that the server retains the messages that the run needs. Otherwise the run
//! would wait in vain for messages that the server dropped.

use admin::{Http, encoded};
use anyhow::{Result, ensure};
use model::ErrorCode;

use crate::AGENT;
use crate::args::Common;
use crate::publisher::Audience;
use crate::setup::Setup;

/// Checks the history of topics and users, if the run needs it and the server is Throng.
///
/// # Errors
/// If the server has no history for them: nothing could be recovered or acknowledged.
pub fn check(setup: &Setup, common: &Common) -> Result<()> {
    let Setup { shape, plan, streams, .. } = setup;
    let Some(admin) = setup.admins.first().filter(|_| common.urls.is_none()) else {
        return Ok(());
    };
    let mut http = Http::new(admin, setup.key.as_deref(), AGENT);
    let mut has_no_history = |topic: &str| {
        let path = format!("/api/history/{}?limit=1", encoded(topic));
        // Any other reply shows in the run, or is another server's.
        match http.request("GET", &path, "application/json", "") {
            Ok((404, body)) => admin::refusal(404, &body).starts_with(ErrorCode::NoHistory.text()),
            _ => false,
        }
    };
    let to_topics = streams.iter().any(|stream| matches!(stream.to, Audience::Topics { .. }));
    // An MQTT server stores sessions by itself.
    let needs_history = plan.transports.iter().any(|client| client.is_http());
    if plan.recover && needs_history && (to_topics || shape.missed > 0) {
        for room in [0, plan.rooms().saturating_sub(1)] {
            let topic = plan.topic.text(plan.first + room * plan.users_per_room.max(1), room);
            ensure!(
                !has_no_history(&topic),
                "topic {topic:?} has no history, as the server says (no_history), so clients that \
                 come back can't get the messages that they missed: give it history_messages_max \
                 in a [[topics]] rule of the server's configuration, or name topics that have a \
                 history with --topic-template"
            );
        }
    }
    if plan.acks.is_some() {
        let user = plan.user.text(plan.first, plan.room(plan.first));
        ensure!(
            !has_no_history(&format!("@{user}")),
            "the server retains no messages for user {user:?} (no_history), so none can be \
             acknowledged: set enabled = true in [inbox] of the server's configuration"
        );
    }
    Ok(())
}
