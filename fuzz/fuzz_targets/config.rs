//! A configuration file: any text is loaded or refused, and what was loaded can be printed and
//! loaded again.
#![no_main]

use config::{Loaded, Sources};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let load = |text: &str| {
        Loaded::load(&Sources { file: Some(("fuzz.toml", text)), ..Sources::default() })
    };
    match load(text) {
        Ok(loaded) => {
            // Secrets are not printed: what needs one does not load again, or not the same.
            let again = load(&config::effective(&loaded));
            if loaded.config.admin.api_key.is_empty() && loaded.config.webhook.secret.is_empty() {
                assert_eq!(again.unwrap().config, loaded.config);
            }
        }
        Err(problems) => assert!(!problems.0.is_empty()),
    }
});
