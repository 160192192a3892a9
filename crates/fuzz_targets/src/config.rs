//! A configuration file.

use ::config::{Config, Loaded, Sources};

/// The printed form leaves secrets out, so a configuration with one differs from it, or needs it.
fn has_secret(config: &Config) -> bool {
    let Config { admin, auth, webhook, keys, .. } = config;
    let secrets = [&admin.api_key, &auth.hmac_key, &webhook.secret, &webhook.signing_key];
    secrets.iter().any(|secret| !secret.is_empty()) || !keys.is_empty()
}

/// Loads a file: it gives errors, or a configuration that loads again from its printed form.
pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let load = |text: &str| {
        Loaded::load(&Sources { file: Some(("fuzz.toml", text)), ..Sources::default() })
    };
    match load(&text) {
        Ok(loaded) => {
            let reloaded = load(&::config::effective(&loaded));
            if !has_secret(&loaded.config) {
                assert_eq!(reloaded.unwrap().config, loaded.config);
            }
        }
        Err(errors) => assert!(!errors.0.is_empty(), "a failure without an error"),
    }
}
