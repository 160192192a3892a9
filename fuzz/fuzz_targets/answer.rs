//! What the application answers to a webhook: no panic, an error or a decision for each event, and nothing in
//! a decision that a transport could not carry. The first byte says how many events there were.
#![no_main]

use control::webhook::check_answer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((events, body)) = bytes.split_first() {
        check_answer(body, usize::from(events % 4));
        // The same replies, where the fuzzer needs not find the frame around them.
        let replies = [b"{\"replies\":[", body, b"]}"].concat();
        check_answer(&replies, usize::from(events % 4));
    }
});
