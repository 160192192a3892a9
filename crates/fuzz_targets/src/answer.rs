//! An application's response to a webhook request.

use control::webhook::check_response;

/// Reads the body of a response: an error, or a decision for each event that every transport can carry.
/// The first byte is the number of events.
pub fn answer(data: &[u8]) {
    let Some((events, body)) = data.split_first() else { return };
    let events = usize::from(events % 4);
    check_response(body, events);
    // The same bytes as the list of replies, so that a mutation need not preserve the frame around them.
    check_response(&[b"{\"replies\":[", body, b"]}"].concat(), events);
}
