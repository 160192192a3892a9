//! Checks UTF-8 in pieces, up to the first invalid byte. The caller checks at the end that no character is
//! incomplete.

/// The incomplete character at the end of a piece: at most three bytes.
#[derive(Clone, Copy, Debug, Default, minicbor::Encode, minicbor::Decode)]
pub(super) struct Utf8 {
    #[n(0)]
    carry: [u8; 4],
    #[n(1)]
    length: u8,
}

impl Utf8 {
    /// Returns false for a state that no text produces.
    pub fn is_possible(&self) -> bool {
        let carry = self.carry.get(..self.length as usize).filter(|carry| carry.len() < 4);
        carry.is_some_and(|carry| match std::str::from_utf8(carry) {
            Ok(text) => text.is_empty(),
            Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
        })
    }

    /// Checks the next piece; returns false if the text is not UTF-8.
    pub fn push(&mut self, mut bytes: &[u8]) -> bool {
        while self.length > 0 {
            let Some((&next, rest)) = bytes.split_first() else {
                return true;
            };
            self.carry[self.length as usize] = next;
            self.length += 1;
            bytes = rest;
            match std::str::from_utf8(&self.carry[..self.length as usize]) {
                Ok(_) => self.length = 0,
                // The character is not complete.
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return false,
            }
        }
        match simdutf8::compat::from_utf8(bytes) {
            Ok(_) => true,
            Err(error) if error.error_len().is_none() => {
                let left = &bytes[error.valid_up_to()..];
                self.carry[..left.len()].copy_from_slice(left);
                // Less than a character is left.
                self.length = u8::try_from(left.len()).unwrap_or(0);
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
            #[test]
            fn pieces_are_judged_as_the_whole(bytes in proptest::collection::vec(
                proptest::prop_oneof![0u8..=255, proptest::prelude::Just(0xf0), 0x80u8..0xc0], 0..24
            ), cuts in proptest::collection::vec(0usize..24, 0..4), text: String) {
                for bytes in [bytes, text.into_bytes()] {
                    let mut cuts: Vec<usize> = cuts.iter().map(|cut| (*cut).min(bytes.len())).collect();
                    cuts.extend([0, bytes.len()]);
                    cuts.sort_unstable();
                    let mut utf8 = Utf8::default();
                    let good = cuts.windows(2).all(|cut| utf8.push(&bytes[cut[0]..cut[1]]));
    let error = std::str::from_utf8(&bytes).err();
                    let hopeless = error.is_some_and(|error| error.error_len().is_some());
                    proptest::prop_assert_eq!(good, !hopeless);
                    proptest::prop_assert!(error.is_some() || utf8.length == 0);
                }
            }
        }
}
