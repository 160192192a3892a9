//! What connections send: requests, joins, heartbeats.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};
use wire::client::Request;

use super::Worker;
use crate::crowd::Reason;
use crate::crowd::connection::Stage;
use crate::target::{Paths, Url};

impl Worker<'_> {
    /// Writes what a connection asks for into `self.path`, and gives its server's index.
    pub(super) fn path(&mut self, index: u32) -> usize {
        let plan = &self.common.plan;
        let all = self.from + index;
        let number = plan.first + all;
        self.path.clear();
        match &plan.paths {
            Paths::Templates(templates) => {
                let template = &templates[all as usize % templates.len()];
                template.expand(number, plan.room(number), &mut self.path);
                all as usize % plan.servers.len()
            }
            Paths::List { targets, text, ends } => {
                let at = all as usize % ends.len();
                let from = if at == 0 { 0 } else { ends[at - 1] as usize };
                self.path.push_str(&text[from..ends[at] as usize]);
                usize::from(targets[at])
            }
        }
    }

    /// Writes the request of a connection into `self.request`, and gives its server.
    pub(super) fn prepare(&mut self, index: u32) -> &Url {
        let server_at = self.path(index);
        let whole = self.add_places(index);
        let server = &self.common.plan.servers[server_at];
        self.request.clear();
        let since = match (self.places.get(&index), whole) {
            (_, Some(since)) => Some(since),
            (Some(since), None) => Some(since.to_string()),
            (None, None) => self.connections[index as usize].since().map(|id| id.to_string()),
        };
        let request = Request {
            host: &server.host,
            target: &self.path,
            number: u64::from(self.common.plan.first + self.from + index),
            since: since.as_deref(),
        };
        self.client(index).request(&request, &mut self.request);
        server
    }

    /// False when it must wait. A fresh socket has room for any request.
    pub(super) fn write_request(&self, socket: &OwnedFd) -> Result<bool, Reason> {
        match send(socket, &self.request, SendFlags::NOSIGNAL) {
            Ok(bytes) if bytes == self.request.len() => Ok(true),
            Ok(_) => Err(Reason::Unsent),
            Err(Errno::AGAIN | Errno::NOTCONN) => Ok(false),
            // What connect came to, before what writing to its ruin says.
            Err(error) => Err(match sockopt::socket_error(socket) {
                Ok(Err(first)) => first.into(),
                _ => error.into(),
            }),
        }
    }

    /// A poll goes on from here.
    pub(super) fn ask_again(&mut self, index: u32, since: wire::Since) {
        if !self.recovers() {
            self.connections[index as usize].set_since(since.id);
        }
        if self.recovers() {
            // It is remembered.
        } else if since.position.is_some() {
            self.places.insert(index, since);
        } else {
            self.places.remove(&index);
        }
        self.prepare(index);
        self.ask(index);
    }

    /// The server waits for the connection to join its topics.
    pub(super) fn join(&mut self, index: u32) {
        let server = self.path(index);
        self.add_places(index);
        let request = Request {
            host: &self.common.plan.servers[server].host,
            target: &self.path,
            number: u64::from(self.common.plan.first + self.from + index),
            since: None,
        };
        let client = self.client(index);
        self.request.clear();
        self.connections[index as usize].state.join(client, &request, &mut self.request);
        self.ask(index);
    }

    /// Writes `self.request` to a connection that has asked before.
    fn ask(&mut self, index: u32) {
        let Some(socket) = &self.connections[index as usize].socket else {
            return;
        };
        match self.write_request(socket) {
            Ok(true) => {}
            Ok(false) => self.end(index, Reason::Unsent),
            Err(reason) => self.end(index, reason),
        }
    }

    /// Sends the heartbeats whose turn it is.
    pub(super) fn beat(&mut self, now: u64) {
        let Some(round) = &mut self.round else {
            return;
        };
        let count = self.connections.len() as u64;
        for turn in round.turns(now, count) {
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
            match send(socket, &self.request, SendFlags::NOSIGNAL) {
                // The rest would have to come before anything else.
                Ok(bytes) if bytes < self.request.len() => self.end(index, Reason::Unsent),
                // Where the server reads nothing, one heartbeat less is the least; and what ended
                // the connection is told by the next read.
                Ok(_) | Err(_) => {}
            }
        }
    }
}
