//! Processes the input of connections, a request, frame or line at a time.

use crate::connection::Phase;
use crate::connection::input::is_paused;
use crate::engine::Engine;
use crate::engine::dispatch::OUT_BYTES;

impl Engine {
    /// Resumes a connection that had to wait: processes the input that has come meanwhile.
    pub(crate) fn resume_input(&mut self, slot: u32) {
        if !self.core.is_open(slot) || is_paused(&self.core.table, slot) {
            return;
        }
        if let Some(cold) = self.core.table.cold_mut(slot) {
            let mut input = std::mem::take(&mut cold.input);
            self.process_input(slot, &mut input);
        }
    }

    /// Carries out whole requests and frames, sends the replies, and buffers an incomplete rest.
    pub(crate) fn process_input(&mut self, slot: u32, bytes: &mut [u8]) {
        let mut at = 0;
        let mut out = std::mem::take(&mut self.out);
        while at < bytes.len() || self.core.has_gathered(slot) {
            let Some(connection) = self.core.table.get(slot) else {
                break;
            };
            if connection.is_closing() {
                at = bytes.len();
                break;
            }
            if is_paused(&self.core.table, slot) {
                break;
            }
            // One request, frame or line at a time: after each, the connection may have to wait.
            let (consumed, again) = self.read_input(slot, &mut bytes[at..], &mut out);
            self.flush_if_large(slot, &mut out);
            at += consumed;
            if consumed == 0 && !again {
                break;
            }
        }
        if !out.is_empty() {
            self.send(slot, &out, 0);
            out.clear();
        }
        out.shrink_to(OUT_BYTES);
        self.out = out;
        let now_s = self.core.now_wrapping_s();
        if let Some(connection) = self.core.table.get_mut(slot)
            && at < bytes.len()
            && !connection.is_closing()
        {
            if connection.phase() == Phase::Idle {
                // The next request has begun, and has its own time.
                connection.enter(Phase::Request);
                connection.last_received_s = now_s;
            }
            if let Some(cold) = self.core.table.cold_or_new(slot) {
                cold.input = bytes[at..].to_vec();
            }
        }
        // Most connections have no cold state after all is consumed, and need none of this.
        if self.core.table.cold(slot).is_some() {
            self.core.count_input(slot);
            self.core.resume(slot);
            self.core.table.trim(slot);
        }
        self.resume_inputs();
    }
}
