//! The credentials of a user of NATS: a JWT, and the key that proves it.

use std::fmt;
use std::sync::Arc;

use nkeys::{KeyPair, KeyPairType};

/// The credentials of a user of NATS, in the form of a `.creds` file. `Debug` shows no secret.
///
/// Source: <https://docs.nats.io/using-nats/developer/connecting/creds>.
#[derive(Clone)]
pub struct Credentials {
    jwt: String,
    key: Arc<KeyPair>,
}

/// An error in the text of a `.creds` file. No message contains a part of it.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A block is missing.
    #[error("there is no block -----BEGIN {0}-----: use the file that nsc generate creds writes")]
    NoBlock(&'static str),
    /// The key can't be parsed.
    #[error(
        "the key of the user (the line that begins with SU) can't be read: was the file copied whole?"
    )]
    BadKey,
    /// The key is that of an account, an operator or a server.
    #[error(
        "the key is not that of a user (it begins with SU): use the file that nsc generate creds writes"
    )]
    NotOfUser,
}

const JWT: &str = "NATS USER JWT";
const SEED: &str = "USER NKEY SEED";

impl Credentials {
    /// Parses the text of a `.creds` file.
    ///
    /// # Errors
    /// If the JWT or the key is missing, or the key is not that of a user. The servers accept or reject them when the
    /// node connects.
    pub fn parse(text: &str) -> Result<Self, CredentialsError> {
        let jwt = block(text, JWT).ok_or(CredentialsError::NoBlock(JWT))?.to_owned();
        let seed = block(text, SEED).ok_or(CredentialsError::NoBlock(SEED))?;
        let key = KeyPair::from_seed(seed).map_err(|_| CredentialsError::BadKey)?;
        if !matches!(key.key_pair_type(), KeyPairType::User) {
            return Err(CredentialsError::NotOfUser);
        }
        Ok(Credentials { jwt, key: Arc::new(key) })
    }

    /// Returns the JWT.
    pub(crate) fn jwt(&self) -> &str {
        &self.jwt
    }

    /// Signs the nonce of a server.
    pub(crate) fn sign(&self, nonce: &[u8]) -> Result<Vec<u8>, nkeys::error::Error> {
        self.key.sign(nonce)
    }
}

/// Returns the line between the two lines that frame a block: dashes, `BEGIN` or `END`, a name, dashes. NATS writes
/// five dashes before BEGIN and six before END.
fn block<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let begin = format!("BEGIN {name}");
    lines.find(|line| line.trim_matches('-') == begin)?;
    lines.next().filter(|line| !line.starts_with('-'))
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        self.jwt == other.jwt && self.key.public_key() == other.key.public_key()
    }
}

impl Eq for Credentials {}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(jwt: &str, seed: &str) -> String {
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             ************************* IMPORTANT *************************\n\
             NKEY Seed printed below can be used to sign and prove identity.\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    }

    #[test]
    fn a_file_of_nats_has_a_jwt_and_a_key() {
        let user = KeyPair::new_user();
        let seed = user.seed().unwrap();
        let text = file("a.b.c", &seed);
        let credentials = Credentials::parse(&text).unwrap();
        assert_eq!(credentials.jwt(), "a.b.c");
        let signature = credentials.sign(b"nonce").unwrap();
        assert!(user.verify(b"nonce", &signature).is_ok());
        assert_eq!(Credentials::parse(&text.replace('\n', "\r\n")).unwrap(), credentials);
        assert_eq!(format!("{credentials:?}"), "Credentials(…)");
        assert_ne!(Credentials::parse(&file("a.b.d", &seed)).unwrap(), credentials);
    }

    #[test]
    fn errors_say_what_is_wrong_and_no_secret() {
        let seed = KeyPair::new_user().seed().unwrap();
        let error = |text: &str| {
            let error = Credentials::parse(text).unwrap_err().to_string();
            assert!(!error.contains(&seed[2..]), "{error}");
            error
        };
        assert!(error("").contains("BEGIN NATS USER JWT"));
        assert!(error("a password").contains("nsc generate creds"));
        let whole = file("a.b.c", &seed);
        let jwt_alone = whole.split("\n\n").next().unwrap();
        assert!(error(jwt_alone).contains("BEGIN USER NKEY SEED"));
        assert!(error(&file("a.b.c", "")).contains("BEGIN USER NKEY SEED"));
        assert!(error(&file("a.b.c", &seed[..40])).contains("copied whole"));
        let account = KeyPair::new_account().seed().unwrap();
        assert!(error(&file("a.b.c", &account)).contains("not that of a user"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(-----BEGIN |NATS USER JWT|USER NKEY SEED|-----|\n|SU[A-Z2-7]{0,60}|.){0,12}") {
            let _ = Credentials::parse(&text);
        }
    }
}
