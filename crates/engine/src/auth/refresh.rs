//! Connections that the application has admitted for a limited time: before it ends, the application decides whether
//! they may stay.
//!
//! It gets one request. If it rejects the connection, or sends no response where silence denies, the connection ends
//! at its time, as with an expired token. Where silence allows, the connection stays for a while, and the application
//! gets another request.

use auth::{Principal, Source, TokenMark};
use model::Name;

use crate::engine::Engine;
use crate::webhook::pending_hook::PendingHook;
use crate::webhook::request::{HookRequest, send_requests};
use crate::webhook::{RequestDetails, WebhookKind, WebhookResponse};

impl Engine {
    /// Requests a decision whether a connection that ends at this time, in seconds since 1970, may stay.
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
            // The next pass of the sweep retries it.
            Err(_) => {}
        }
    }

    /// The application's response has come.
    pub(crate) fn on_refresh_reply(
        &mut self,
        slot: u32,
        expires_s: u32,
        response: WebhookResponse,
    ) {
        let core = &mut self.core;
        let principal = core.principal(slot);
        // A token may have replaced the admission meanwhile.
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

    /// Lets a connection stay until the next request to the application.
    fn prolong_admission(&mut self, slot: u32, expires_s: u32) {
        let core = &mut self.core;
        let seconds = core.settings.token_expiry.refresh_s();
        let expires = Some(u64::from(expires_s) + u64::from(seconds));
        let principal = Principal { expires, ..core.principal(slot) };
        core.credentials.insert(slot, &principal);
    }
}
