//! Checks of the authentication and the grants of clients.

use url::Url;

use super::Checks;
use crate::Config;

/// Bytes of a shared key, at least: shorter keys can be guessed.
const HMAC_KEY_BYTES_MIN: usize = 32;

const ALGORITHMS: [&str; 10] =
    ["HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"];

/// The actions of grants.
const ACTIONS: [&str; 4] = ["subscribe", "publish", "presence", "history"];

pub(super) fn check_auth(config: &Config, checks: &mut Checks<'_>) {
    let auth = &config.auth;
    checks.require(
        &["auth.hmac_key"],
        auth.hmac_key.is_empty() || auth.hmac_key.len() >= HMAC_KEY_BYTES_MIN,
        || {
            format!(
                "a shared key must have at least {HMAC_KEY_BYTES_MIN} bytes: try openssl rand -hex \
                 32"
            )
        },
    );
    checks.require(
        &["auth.hmac_key"],
        !auth.hmac_key.trim_start().starts_with("-----BEGIN"),
        || {
            "this is a key in PEM, which may be public: name its file in auth.public_key_files"
                .into()
        },
    );
    for name in &auth.algorithms {
        checks.require(&["auth.algorithms"], ALGORITHMS.contains(&name.as_str()), || {
            format!(
                "{name:?} is not a supported algorithm: the server supports {}",
                ALGORITHMS.join(", ")
            )
        });
    }
    for url in &auth.jwks_urls {
        checks.require(&["auth.jwks_urls"], is_key_url(url), || {
            "a URL of keys must begin with http:// or https://, and have no user and no password: \
             it is printed and logged"
                .into()
        });
    }
    let has_keys = config.has_tokens();
    let keys = ["auth.required", "auth.hmac_key", "auth.public_key_files", "auth.jwks_urls"];
    checks.require(&keys, has_keys || !auth.required, || {
        "no token can be valid without a key: set auth.hmac_key_file, auth.public_key_files or \
         auth.jwks_urls"
            .into()
    });
    checks.require(
        &["auth.anonymous_grants"],
        has_keys || auth.anonymous_grants.is_empty(),
        || {
            "without a key there are no tokens, and any client may do what the rules of [[topics]] \
         allow: set auth.hmac_key_file, auth.public_key_files or auth.jwks_urls"
                .into()
        },
    );
    for grant in &auth.anonymous_grants {
        let known = grant.split_once(':').is_some_and(|(action, pattern)| {
            ACTIONS.contains(&action) && !pattern.is_empty() && !pattern.contains("{sub}")
        });
        checks.require(&["auth.anonymous_grants"], known, || {
            format!(
                "{grant:?} is not a valid grant: write an action ({}), a colon and a pattern of \
                 topics, like \"subscribe:news\"; it can't contain {{sub}}, because a client \
                 without a token has no proven name",
                ACTIONS.join(", ")
            )
        });
    }
    let name = &auth.cookie;
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    checks.require(&["auth.cookie"], is_name, || {
        format!("{name:?} is not a valid cookie name: use letters, digits, -, _ and .")
    });
}

fn is_key_url(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
    })
}

#[cfg(test)]
mod tests {
    use crate::{Loaded, Sources};

    fn load(file: &str) -> Result<(), String> {
        let sources = Sources { file: Some(("throng.toml", file)), ..Sources::default() };
        Loaded::load(&sources).map(drop).map_err(|errors| errors.to_string())
    }

    #[test]
    fn what_tokens_need_is_checked() {
        let key = "hmac_key = \"0123456789abcdef0123456789abcdef\"\n";
        for (more, want) in [
            ("", Ok(())),
            ("required = true\n", Ok(())),
            ("anonymous_grants = [\"subscribe:news\", \"history:a:*\"]\n", Ok(())),
            ("algorithms = [\"HS256\", \"EdDSA\"]\n", Ok(())),
            ("algorithms = [\"none\"]\n", Err("\"none\" is not a supported algorithm")),
            ("anonymous_grants = [\"news\"]\n", Err("\"news\" is not a valid grant")),
            ("anonymous_grants = [\"read:news\"]\n", Err("\"read:news\" is not a valid grant")),
            ("anonymous_grants = [\"subscribe:{sub}\"]\n", Err("no proven name")),
            ("cookie = \"a b\"\n", Err("not a valid cookie name")),
            ("jwks_urls = [\"https://a.example/keys?x=1\"]\n", Ok(())),
            ("jwks_urls = [\"https://al:pw@a.example/keys\"]\n", Err("no user and no password")),
            ("jwks_urls = [\"file:///etc/keys\"]\n", Err("http:// or https://")),
        ] {
            let found = load(&format!("[auth]\n{key}{more}"));
            match want {
                Ok(()) => assert_eq!(found, Ok(()), "{more}"),
                Err(text) => {
                    let error = found.unwrap_err();
                    assert!(error.contains(text) && !error.contains("al:pw"), "{more}: {error}");
                }
            }
        }
        let error = load("[auth]\nrequired = true\n").unwrap_err();
        assert!(error.contains("without a key"), "{error}");
        let error = load("[auth]\nhmac_key = \"0123456789abcdef\"\n").unwrap_err();
        assert!(error.contains("at least 32 bytes"), "{error}");
        let error = load("[auth]\nanonymous_grants = [\"subscribe:a\"]\n").unwrap_err();
        assert!(error.contains("there are no tokens"), "{error}");
    }

    #[test]
    fn who_requires_tokens_may_listen_anywhere() {
        let open = "[client]\nlisten = \"0.0.0.0:8000\"\n[auth]\n\
                    hmac_key = \"0123456789abcdef0123456789abcdef\"\n";
        assert!(load(open).unwrap_err().contains("client.insecure"));
        assert_eq!(load(&format!("{open}required = true\n")), Ok(()));
    }
}
