//! Passes sessions of browsers to another process. It gets only hashes of ids and keys, as this one has.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use handover::{Part, PartError, decode, encode};
use minicbor::{Decode, Encode};

use super::Access;

/// Sessions of browsers for another process, so that no user has to sign in again. Failed sign-ins are not passed.
pub struct SignIns(pub Arc<Access>);

/// A browser that is signed in, by the hash of its session's id.
#[derive(Encode, Decode)]
#[cbor(map)]
struct SignInRecord {
    /// The hash of the key that it signed in with.
    #[cbor(n(0), with = "minicbor::bytes")]
    key: [u8; 32],
    /// When it signed in, in seconds since 1970.
    #[n(1)]
    began_s: u64,
}

/// The part's name, which must never change.
const SIGN_INS: &str = "sign-ins";

/// Returns the time in seconds since 1970, and by the clock of the sessions.
fn now() -> (u64, Instant) {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Rounds to the nearest second, so that a session always has the same record.
    ((since_1970 + Duration::from_millis(500)).as_secs(), Instant::now())
}

impl Part for SignIns {
    fn name(&self) -> &'static str {
        SIGN_INS
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let (now_s, now) = now();
        // Sessions are few.
        let all: Vec<_> = self.0.sessions().all().collect();
        for (id, key, began) in all {
            let age = now.saturating_duration_since(began) + Duration::from_millis(500);
            let record = SignInRecord { key, began_s: now_s.saturating_sub(age.as_secs()) };
            each(&id, &encode(&record));
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let damaged = |what: &str| PartError::new(SIGN_INS, what);
        let id = key.try_into().map_err(|_| damaged("an id does not have 32 bytes"))?;
        let record: Option<SignInRecord> =
            value.map(decode).transpose().map_err(|error| damaged(&error.to_string()))?;
        let (now_s, now) = now();
        let session = record.map(|SignInRecord { key, began_s }| {
            let age = Duration::from_secs(now_s.saturating_sub(began_s));
            // The clock may have begun later than the session.
            (key, now.checked_sub(age).unwrap_or(now))
        });
        self.0.sessions().replace(id, session);
        Ok(())
    }

    /// Ends sessions whose keys this process does not have.
    fn complete(&self) -> Result<(), PartError> {
        let ring = self.0.ring();
        self.0.sessions().retain(|hash| ring.keys.iter().any(|key| key.hash == *hash));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use handover::Sent;
    use handover::testing::pass_all;

    use super::super::{AccessSettings, ApiKey};
    use super::*;

    #[test]
    fn who_is_signed_in_is_so_in_another_process() {
        let session = Duration::from_secs(3_600);
        let keys = vec![ApiKey::of_text("a", "secret-a"), ApiKey::of_text("b", "secret-b")];
        let settings = AccessSettings { keys, session, ..AccessSettings::default() };
        let fewer = AccessSettings { keys: settings.keys[..1].to_vec(), ..settings.clone() };
        let [old, new] = [settings, fewer].map(|settings| SignIns(Access::new(settings)));
        let sign_in = |secret| old.0.sign_in([127, 0, 0, 1].into(), secret).unwrap().1;
        let (first, other) = (sign_in("secret-a"), sign_in("secret-b"));
        let mut sent = Sent::new();
        let mut pass = || {
            old.export(&mut |_, value| {
                let shown = String::from_utf8_lossy(value).into_owned();
                assert!(!shown.contains("secret") && !shown.contains(&first));
            });
            pass_all(&old, &new, &mut sent)
        };
        assert_eq!(pass(), 2);
        let is_in = |id: &str| new.0.by_session(&new.0.ring(), id).is_ok();
        assert!(is_in(&first) && !is_in(&other), "the other process has not the other key");
        let caller = old.0.by_session(&old.0.ring(), &first).unwrap();
        old.0.sign_out(&caller);
        assert!(pass() >= 1);
        assert!(!is_in(&first));
        assert!(
            new.import(b"short", None).is_err() && new.import(&[0; 32], Some(b"\xff")).is_err()
        );
    }
}
