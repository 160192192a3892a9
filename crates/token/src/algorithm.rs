//! How tokens may be signed.

use std::fmt;
use std::str::FromStr;

use jsonwebtoken::AlgorithmFamily;

/// How a token is signed (RFC 7518, section 3, and RFC 8037). Unsigned tokens have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Algorithm(jsonwebtoken::Algorithm);

impl Algorithm {
    /// All that are known here.
    pub const ALL: [Algorithm; 10] = [
        Algorithm(jsonwebtoken::Algorithm::HS256),
        Algorithm(jsonwebtoken::Algorithm::HS384),
        Algorithm(jsonwebtoken::Algorithm::HS512),
        Algorithm(jsonwebtoken::Algorithm::RS256),
        Algorithm(jsonwebtoken::Algorithm::RS384),
        Algorithm(jsonwebtoken::Algorithm::RS512),
        Algorithm(jsonwebtoken::Algorithm::PS256),
        Algorithm(jsonwebtoken::Algorithm::ES256),
        Algorithm(jsonwebtoken::Algorithm::ES384),
        Algorithm(jsonwebtoken::Algorithm::EdDSA),
    ];

    /// Its name in a token's header.
    pub fn name(self) -> String {
        format!("{:?}", self.0)
    }

    pub(crate) fn inner(self) -> jsonwebtoken::Algorithm {
        self.0
    }

    pub(crate) fn family(self) -> AlgorithmFamily {
        self.0.family()
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// No algorithm has this name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this algorithm is not supported: use HS256, HS384, HS512, RS256, RS384, RS512, PS256, ES256, \
     ES384 or EdDSA"
)]
pub struct UnknownAlgorithm;

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        Algorithm::ALL.into_iter().find(|known| known.name() == name).ok_or(UnknownAlgorithm)
    }
}
