//! Connections that the application has let in for some time: it is asked before that ends whether they may
//! stay.
//!
//! It is asked once. What it refuses, or doesn't say where silence denies, ends at its time as an expired
//! token does. Where silence allows, the connection stays for a while, and the application is asked again.

use auth::{Principal, Source, TokenMark};
use model::Name;

use crate::engine::Engine;
use crate::webhook::pending_hook::PendingHook;
use crate::webhook::request::{HookRequest, send_requests};
use crate::webhook::{RequestDetails, WebhookKind, WebhookResponse};

impl Engine {
    /// Asks whether a connection may stay that ends at this time, in seconds since 1970.
    pub(crate) fn request_refresh(&mut self, slot: u32, expires_s: u32) {
        let core = &mut self.core;
        let Some(protocol) = core.protocol(slot) else {
            return;
        };
        let users: Vec<Name> = core.users(slot).map(Name::from).collect();
        let details = RequestDetails::new(WebhookKind::Refresh, None, users, protocol.name());
        let hook = PendingHook::Refresh(expires_s);
        match send_requests(core, slot, vec![HookRequest { details, hook }]) {
            Ok(()) => core.credentials.set_warned(slot),
            Err(_) if core.settings.silence_allows => self.prolong_admission(slot, expires_s),
            // The next pass tries it again.
            Err(_) => {}
        }
    }

    /// The application has answered.
    pub(crate) fn on_refresh_reply(
        &mut self,
        slot: u32,
        expires_s: u32,
        response: WebhookResponse,
    ) {
        let core = &mut self.core;
        let principal = core.principal(slot);
        // It may have been given a token meanwhile.
        let expires = (principal.source == Source::Hook).then_some(principal.expires).flatten();
        if expires != Some(expires_s.into()) {
            return;
        }
        match response {
            WebhookResponse::Ok { changes, .. } => {
                let now_s = core.unix_s();
                let admission = changes.admission.unwrap_or_default();
                let expires = admission.expires_s(now_s);
                let issued_s = u32::try_from(now_s).unwrap_or(u32::MAX);
                let renewed = Principal {
                    grants: admission.grants.unwrap_or_else(|| principal.grants.clone()),
                    info: admission.info.or(principal.info),
                    expires,
                    mark: TokenMark { issued_s, id_hash: 0 },
                    ..principal
                };
                core.credentials.insert(slot, &renewed);
            }
            WebhookResponse::Silent(_) if core.settings.silence_allows => {
                self.prolong_admission(slot, expires_s);
            }
            WebhookResponse::Error(_) | WebhookResponse::Silent(_) => {}
        }
    }

    /// Lets a connection stay until the application can be asked again.
    fn prolong_admission(&mut self, slot: u32, expires_s: u32) {
        let core = &mut self.core;
        let seconds = core.settings.token_expiry.refresh_s();
        let expires = Some(u64::from(expires_s) + u64::from(seconds));
        let principal = Principal { expires, ..core.principal(slot) };
        core.credentials.insert(slot, &principal);
    }
}
