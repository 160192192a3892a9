//! Stops an engine, so that another one can replace it: pending work comes to an end, and no new work begins.

use std::sync::Arc;

use crate::core::Core;
use crate::core::command::Command;
use crate::engine::Engine;

/// True for a command that waits until the engine goes on. Another engine repeats the queries to the history: while
/// this one stands still, no reply begins the next query.
pub(crate) fn waits(command: &Command) -> bool {
    matches!(
        command,
        Command::Started { .. }
            | Command::Pulled { .. }
            | Command::Paged { .. }
            | Command::MqttRead { .. }
            | Command::MqttRedispatch { .. }
    )
}

impl Engine {
    /// Stands still from now on, until [`Engine::go_on`]. Meanwhile the driver passes on no input from sockets (no
    /// bytes, no new connection, no `on_drained`), except that a socket has failed. It calls nothing but
    /// [`set_now`](Engine::set_now), [`take_commands`](Engine::take_commands), [`run_commands`](Engine::run_commands),
    /// and what performs the outputs: no [`slice`](Engine::slice), `sweep`, `serve_due`, `reply_woken`,
    /// `release_pending` or `resume_waiters`. Fan-outs grow longer meanwhile, and [`Engine::take_owed`] takes the rest
    /// of them. When the engine goes on, the driver reads the sockets of all [`Output::Resume`](crate::Output::Resume)
    /// outputs, and reports those that are drained.
    pub fn stand_still(&mut self) {
        self.core.stands_still = true;
    }

    /// Goes on where it stood, when no other engine has replaced it. The driver first [gives back](Engine::give_owed)
    /// what [`Engine::take_owed`] has taken.
    pub fn go_on(&mut self) {
        let core = &mut self.core;
        core.stands_still = false;
        // These replies came before the commands that wait.
        std::mem::take(&mut core.aside)
            .into_iter()
            .rev()
            .for_each(|it| core.commands.push_front(it));
        self.restarts.owed = Default::default();
    }

    /// True when nothing is pending any more in an engine that stands still: no command waits, all outputs are
    /// performed, the event sender has all events for the application, all presence changes are published, no MQTT
    /// client waits for its session, and no state of a connection is on its way to the disk. A command of another
    /// engine ends that: all engines must report it, with nothing done in between.
    ///
    /// It does not wait for the history, since [`Engine::restart`] repeats the queries, nor for the application,
    /// since its senders pass its requests on. An engine that drains is never still: it ends instead.
    pub fn is_still(&self) -> bool {
        let core = &self.core;
        core.stands_still
            && !self.is_draining()
            && !self.has_outputs()
            && core.commands.is_empty()
            && core.handle.inbox.queue.is_empty()
            && core.effects.is_empty()
            && core.resumed.is_empty()
            && core.hook_events.is_empty()
            && core.mqtt.is_settled()
            && (core.number > 0 || core.shared.presence.is_settled())
            // Checked last: each user of it sends its result to the mailbox before it drops it.
            && Arc::strong_count(&core.under_way) == 1
            && core.handle.inbox.queue.is_empty()
    }
}

impl Core {
    /// Publishes all unpublished presence changes, for all shards: only the first one does.
    pub(crate) fn notify_presence(&mut self) {
        if self.number == 0 && !self.shared.presence.is_settled() {
            self.shared.presence.hasten(self.now_us);
            self.publish_presence();
        }
    }
}
