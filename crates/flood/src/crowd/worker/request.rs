//! The bytes that connections send: requests, joins and heartbeats.

use std::os::fd::OwnedFd;

use admin::Url;
use client::Request;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::Worker;
use super::tls::Sessions;
use crate::crowd::CloseReason;
use crate::crowd::connection::Stage;
use crate::target::Paths;

impl Worker<'_> {
    /// Writes the path that a connection requests into `self.path`. Returns its server's index.
    pub(super) fn write_path(&mut self, index: u32) -> usize {
        let plan = &self.common.plan;
        let (all, server) = (self.at(index), self.server(index));
        let number = plan.first + all;
        self.path.clear();
        match &plan.paths {
            Paths::Templates(templates) => {
                // The templates of a server stand together, one for each transport.
                let transports = plan.transports.len();
                let at = server * transports + all as usize % transports;
                let template = &templates[at % templates.len()];
                template.expand(number, plan.room(number), &mut self.path);
            }
            Paths::List { text, ends, .. } => {
                let at = all as usize % ends.len();
                let from = if at == 0 { 0 } else { ends[at - 1] as usize };
                self.path.push_str(&text[from..ends[at] as usize]);
            }
        }
        server
    }

    /// Writes the request of a connection into `self.request`. Returns its server.
    pub(super) fn prepare_request(&mut self, index: u32) -> &Url {
        let server_at = self.write_path(index);
        let token = self.add_resume_parameters(index);
        let server = &self.common.plan.servers[server_at];
        self.request.clear();
        let since = match (self.poll_positions.get(&index), token) {
            (_, Some(token)) => Some(token),
            (Some(since), None) => Some(since.to_string()),
            (None, None) => {
                self.connections[index as usize].poll_position().map(|id| id.to_string())
            }
        };
        let request = Request {
            host: &server.host,
            target: &self.path,
            number: u64::from(self.common.plan.first + self.at(index)),
            token: since.as_deref(),
        };
        self.client(index).request(&request, &mut self.request);
        server
    }

    /// Sends the next long poll, which continues from `since`.
    pub(super) fn poll_again(&mut self, index: u32, since: model::ResumeToken) {
        if !self.recovers() {
            self.connections[index as usize].set_poll_position(since.id);
        }
        if self.recovers() {
            // The resume state has the position.
        } else if since.frontier.is_some() {
            self.poll_positions.insert(index, since);
        } else {
            self.poll_positions.remove(&index);
        }
        self.prepare_request(index);
        self.send_request(index);
    }

    /// Joins the topics of a connection, when the server expects the joins.
    pub(super) fn join(&mut self, index: u32) {
        let server = self.write_path(index);
        self.add_resume_parameters(index);
        let request = Request {
            host: &self.common.plan.servers[server].host,
            target: &self.path,
            number: u64::from(self.common.plan.first + self.at(index)),
            token: None,
        };
        let client = self.client(index);
        self.request.clear();
        self.connections[index as usize].state.join(client, &request, &mut self.request);
        self.send_request(index);
    }

    /// Sends the first request of a connection, and counts it as written. Returns false when that is too early.
    pub(super) fn send_first_request(&mut self, index: u32) -> Result<bool, CloseReason> {
        self.prepare_request(index);
        let Some(socket) = &self.connections[index as usize].socket else {
            return Ok(false);
        };
        let is_written = write(&mut self.sessions, index, socket, &self.request)?;
        if is_written {
            self.request_written(index);
        }
        Ok(is_written)
    }

    /// Writes `self.request` to a connection that has sent its first request.
    fn send_request(&mut self, index: u32) {
        let Some(socket) = &self.connections[index as usize].socket else {
            return;
        };
        match write(&mut self.sessions, index, socket, &self.request) {
            Ok(true) => {}
            Ok(false) => self.end(index, CloseReason::Unsent),
            Err(reason) => self.end(index, reason),
        }
    }

    /// Sends the heartbeats that are due.
    pub(super) fn send_heartbeats(&mut self, now: u64) {
        let Some(wheel) = &mut self.heartbeats else {
            return;
        };
        let count = self.connections.len() as u64;
        for turn in wheel.turns(now, count) {
            let index = (turn % count) as u32;
            let connection = &self.connections[index as usize];
            let Some(socket) =
                connection.socket.as_ref().filter(|_| connection.stage == Stage::Open)
            else {
                continue;
            };
            self.request.clear();
            self.client(index).heartbeat(&mut self.request);
            if self.request.is_empty() {
                continue;
            }
            match self.sessions.send(index, socket, &self.request) {
                // Half a heartbeat would corrupt all later data.
                Ok(bytes) if bytes < self.request.len() => self.end(index, CloseReason::Unsent),
                // A missing heartbeat is harmless if the server reads nothing. If the connection has ended, the next
                // read reports why.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// Writes a request to a socket. Returns false when the socket is not connected yet, or its TLS handshake is under way.
/// A new socket's buffer has capacity for any request, so a short write is an error.
pub(super) fn write(
    sessions: &mut Sessions,
    index: u32,
    socket: &OwnedFd,
    request: &[u8],
) -> Result<bool, CloseReason> {
    match sessions.send(index, socket, request) {
        Ok(bytes) if bytes == request.len() => Ok(true),
        Ok(_) => Err(CloseReason::Unsent),
        Err(Errno::AGAIN | Errno::NOTCONN) => Ok(false),
        // A failed connect says more than the write to its socket.
        Err(error) => Err(match sockopt::socket_error(socket) {
            Ok(Err(first)) => first.into(),
            _ => error.into(),
        }),
    }
}
