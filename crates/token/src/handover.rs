//! Revocations, and keys that issuers publish, on their way to another process.

use std::sync::Arc;

use ::handover::{Part, PartError, decode, encode};
use minicbor::{Decode, Encode};

use crate::jwks::JwksState;
use crate::{Jwks, Revocations, Revoked};

/// Revocations, for another process. The store does not get them again.
pub struct RevocationsPart(pub Arc<Revocations>);

/// A revocation. Its key names the tokens.
#[derive(Encode, Decode)]
#[cbor(map)]
struct RevocationRecord {
    /// Until when it is stored, in seconds since 1970.
    #[n(0)]
    until: u64,
    /// Tokens that were issued then or before, in seconds since 1970; `None` for one token.
    #[n(1)]
    issued_before: Option<u64>,
}

/// Kinds of keys. They never change.
const ID: u8 = b'i';
const USER: u8 = b'u';
const ALL: u8 = b'a';

/// The part's name, which never changes.
const REVOCATIONS: &str = "revocations";

fn text<'a>(part: &'static str, bytes: &'a [u8]) -> Result<&'a str, PartError> {
    std::str::from_utf8(bytes).map_err(|_| PartError::new(part, "a key's name is not text"))
}

impl Part for RevocationsPart {
    fn name(&self) -> &'static str {
        REVOCATIONS
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        for revocation in self.0.list(usize::MAX) {
            let (kind, name, issued_before) = match &revocation.revoked {
                Revoked::Jti(jti) => (ID, jti.as_str(), None),
                Revoked::User { user, issued_before } => {
                    (USER, user.as_str(), Some(*issued_before))
                }
                Revoked::IssuedBefore(before) => (ALL, "", Some(*before)),
            };
            let record = RevocationRecord { until: revocation.until, issued_before };
            each(&[&[kind], name.as_bytes()].concat(), &encode(&record));
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let (kind, name) =
            key.split_first().ok_or_else(|| PartError::new(REVOCATIONS, "a key is empty"))?;
        let name = text(REVOCATIONS, name)?;
        let record: Option<RevocationRecord> =
            value.map(decode).transpose().map_err(|error| PartError::new(REVOCATIONS, error))?;
        let before = || record.as_ref().and_then(|it| it.issued_before).unwrap_or_default();
        let revoked = match *kind {
            ID => Revoked::Jti(name.into()),
            USER => Revoked::User { user: name.into(), issued_before: before() },
            ALL => Revoked::IssuedBefore(before()),
            // A newer version may know more.
            _ => return Ok(()),
        };
        self.0.replace(&revoked, record.map(|record| record.until));
        Ok(())
    }
}

/// The fetched keys of issuers, for another process: it verifies tokens at once, and fetches the keys again when
/// this one would have.
///
/// It ignores keys of addresses that are not in its configuration.
pub struct JwksPart {
    jwks: Box<dyn Fn() -> Arc<Jwks> + Send + Sync>,
}

impl JwksPart {
    /// Makes the part for the keys that `jwks` returns: those in force, which a reload may replace.
    pub fn new(jwks: impl Fn() -> Arc<Jwks> + Send + Sync + 'static) -> Self {
        JwksPart { jwks: Box::new(jwks) }
    }
}

/// The times of fetches.
#[derive(Encode, Decode)]
#[cbor(map)]
struct FetchRecord {
    /// When the last fetch ended, in seconds since 1970.
    #[n(0)]
    ended_s: u64,
    /// Since when a token waits for a key that is not known, in seconds since 1970. The other process begins a
    /// fetch under way again.
    #[n(1)]
    requested_s: Option<u64>,
}

/// Kinds of keys. They never change.
const SET: u8 = b's';
const FETCH: u8 = b'f';

/// The part's name, which never changes.
const JWKS: &str = "jwks";

impl Part for JwksPart {
    fn name(&self) -> &'static str {
        JWKS
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let JwksState { sets, ended_s, requested_s } = (self.jwks)().export();
        for (url, json) in sets {
            each(&[&[SET], url.as_bytes()].concat(), &json);
        }
        each(&[FETCH], &encode(&FetchRecord { ended_s, requested_s }));
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let jwks = (self.jwks)();
        match (key, value) {
            ([SET, url @ ..], Some(json)) => {
                let url = text(JWKS, url)?;
                let taken = jwks.fetched(url, json);
                taken.map_err(|error| PartError::new(JWKS, format!("{url}: {error}")))?;
            }
            ([FETCH], Some(value)) => {
                let FetchRecord { ended_s, requested_s } =
                    decode(value).map_err(|error| PartError::new(JWKS, error))?;
                jwks.import(ended_s, requested_s);
            }
            // Keys that were fetched stay. A newer version may know more.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ::handover::Sent;
    use ::handover::testing::pass_all;

    use super::*;
    use crate::jwks::Missing;
    use crate::{AddOutcome, Revocation};

    #[test]
    fn another_process_knows_what_is_revoked() {
        let [old, new] = [(); 2].map(|()| RevocationsPart(Arc::default()));
        let user = |issued_before| Revoked::User { user: "al".into(), issued_before };
        let all = [
            (Revoked::Jti("a".into()), 10),
            (Revoked::Jti("b".into()), 20),
            (user(7), 30),
            (Revoked::IssuedBefore(3), 40),
        ];
        for (revoked, until) in all {
            assert_eq!(old.0.add(&Revocation { revoked, until }, 9), AddOutcome::New);
        }
        let sorted = |part: &RevocationsPart| {
            let mut list = part.0.list(9);
            list.sort_by_key(|it| it.until);
            list
        };
        let mut sent = Sent::new();
        assert_eq!(pass_all(&old, &new, &mut sent), 4);
        assert_eq!((sorted(&new), new.0.count()), (sorted(&old), 4));
        assert_eq!(pass_all(&old, &new, &mut sent), 0);
        old.0.sweep(10);
        old.0.add(&Revocation { revoked: user(8), until: 31 }, 9);
        assert_eq!(pass_all(&old, &new, &mut sent), 2);
        assert_eq!((sorted(&new), new.0.count()), (sorted(&old), 3));
        old.0.sweep(99);
        assert_eq!(pass_all(&old, &new, &mut sent), 3);
        assert_eq!(new.0.count(), 0);
        for key in [&b""[..], b"i\xff"] {
            assert!(new.import(key, None).is_err());
        }
        assert!(new.import(b"ia", Some(b"\xff")).is_err());
    }

    #[test]
    fn another_process_has_the_keys_that_were_fetched() {
        let json = br#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","use":"sig",
            "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
        let urls = ["https://a/keys".to_string(), "https://b/keys".into()];
        let [old, new] = [(); 2].map(|()| Arc::new(Jwks::new(&urls, &[], 600)));
        let parts = [&old, &new].map(|jwks| {
            let jwks = jwks.clone();
            JwksPart::new(move || jwks.clone())
        });
        assert_eq!(old.begin(1_000).len(), 2);
        assert_eq!(old.fetched(&urls[0], json), Ok(1));
        old.end(1_001);
        let mut sent = Sent::new();
        assert_eq!(pass_all(&parts[0], &parts[1], &mut sent), 2);
        assert_eq!(new.state(), old.state());
        assert!(new.find(|key| key.is_named("k1").then_some(())).is_some());
        assert_eq!((old.begin(1_005), new.begin(1_005)), (vec![], vec![]));
        assert_eq!(pass_all(&parts[0], &parts[1], &mut sent), 0);
        // A fetch is under way: the other process begins it again, and tokens wait for that.
        assert_eq!(old.begin(1_040).len(), 2);
        assert_eq!(old.missing(None, 1_040), Missing::Coming);
        assert_eq!(pass_all(&parts[0], &parts[1], &mut sent), 1);
        assert_eq!(new.missing(None, 1_041), Missing::Coming);
        assert_eq!(new.begin(1_041).len(), 2);
        assert!(parts[1].import(b"shttps://a/keys", Some(b"{}")).is_err());
        assert!(parts[1].import(b"f", Some(b"\xff")).is_err());
        let gone = Jwks::new(&[], &[], 600);
        assert_eq!(gone.fetched(&urls[0], json), Ok(1), "it is passed over");
    }
}
