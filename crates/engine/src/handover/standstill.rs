//! An engine that stands still, so that another one can take its place: what is under way in it comes to an
//! end, and nothing new begins.

use std::sync::Arc;

use crate::core::Core;
use crate::core::command::Command;
use crate::engine::Engine;

/// Whether a command waits until the engine goes on. What was asked of the history is asked again by another
/// engine: while this one stands still no answer begins the next question.
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
    /// Stands still from now on, until [`Engine::go_on`]. Meanwhile the driver gives the engine nothing
    /// that comes from sockets (no bytes, no new connection, no word that bytes have left), and calls
    /// nothing of it but [`set_now`](Engine::set_now), [`take_commands`](Engine::take_commands),
    /// [`run_commands`](Engine::run_commands), and what performs its outputs: no [`slice`](Engine::slice),
    /// `sweep`, `serve_due`, `reply_woken`, `release_pending` or `resume_waiters`. Fan-outs grow longer
    /// meanwhile, and [`Engine::take_owed`] takes what is left of them. Sockets that an output has the
    /// driver read on are read when it goes on, and so is it said then that bytes have left. That a socket
    /// has failed may be said.
    pub fn stand_still(&mut self) {
        self.core.stands_still = true;
    }

    /// Goes on where it stood, when nobody has taken its place. What [`Engine::take_owed`] has taken is to be
    /// [given back](Engine::give_owed) before.
    pub fn go_on(&mut self) {
        let core = &mut self.core;
        core.stands_still = false;
        // They came before those that wait.
        std::mem::take(&mut core.aside)
            .into_iter()
            .rev()
            .for_each(|it| core.commands.push_front(it));
        self.restarts.owed = Default::default();
    }

    /// True when nothing is under way any more in an engine that stands still: no command waits, all
    /// outputs are performed, what the application is to hear is with who carries it there, all changes of
    /// who is present are said, no MQTT client waits for its session, and nothing of a connection is on its
    /// way to the disk. A command of another engine ends that: all of them must say so, with nothing done
    /// in between.
    ///
    /// Not waited for are the history, which is asked again by [`Engine::restart`], and the application, whose
    /// questions are passed on by others. An engine that drains is never still: it ends instead.
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
            // Last, for whoever lets go of it has left its answer in the mailbox before.
            && Arc::strong_count(&core.under_way) == 1
            && core.handle.inbox.queue.is_empty()
    }
}

impl Core {
    /// Publishes all changes of who is present that have not been, for all shards: only the first one does.
    pub(crate) fn notify_presence(&mut self) {
        if self.number == 0 && !self.shared.presence.is_settled() {
            self.shared.presence.hasten(self.now_us);
            self.publish_presence();
        }
    }
}
