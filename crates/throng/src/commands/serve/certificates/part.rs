//! Passes the keys of TLS tickets from process to process.

use std::sync::Arc;

use handover::{Part, PartError};
use tls::TicketKeys;

use super::{Certificates, unix_s};

/// The name of the part.
const TICKETS: &str = "tls-tickets";

/// Passes the keys of tickets to another process, where clients then resume their TLS sessions.
pub(in super::super) struct TicketsPart(pub Arc<Certificates>);

impl Part for TicketsPart {
    fn name(&self) -> &'static str {
        TICKETS
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let keys = self.0.state().ticket_keys.export();
        each(b"keys", &keys);
    }

    fn import(&self, _: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let Some(value) = value else { return Ok(()) };
        let mut state = self.0.state();
        let keys = TicketKeys::import(value).map_err(|error| PartError::new(TICKETS, error))?;
        // The keys may have been on their way for a long time.
        keys.rotate(unix_s()).map_err(|error| PartError::new(TICKETS, error))?;
        let before = std::mem::replace(&mut state.ticket_keys, keys);
        let tls_config = state.tls_config.clone();
        self.0.read(&mut state, tls_config).map_err(|error| {
            state.ticket_keys = before;
            PartError::new(TICKETS, error)
        })
    }
}

/// Ignores the keys of a process with TLS if this one has no TLS.
pub(in super::super) struct NoTicketsPart;

impl Part for NoTicketsPart {
    fn name(&self) -> &'static str {
        TICKETS
    }

    fn export(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn import(&self, _: &[u8], _: Option<&[u8]>) -> Result<(), PartError> {
        Ok(())
    }
}
