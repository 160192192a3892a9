//! A configuration file: any text loads or gives errors, and a loaded configuration can be printed and
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
        Err(errors) => assert!(!errors.0.is_empty()),
    }
});
