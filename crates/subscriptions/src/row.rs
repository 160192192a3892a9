//! The packed form of a user's row: sorted topic numbers, stored as differences.
//!
//! The first number is stored as it is, each following one as the difference to its predecessor
//! less 1, so that every list has exactly one form. Numbers are LEB128: seven bits a byte, the low
//! ones first, the top bit set in all bytes but the last. Among a million topics, a number takes
//! two or three bytes.

use crate::LoadRowError;

/// The bytes of the largest number.
const NUMBER_BYTES_MAX: usize = 5;

/// Packs numbers that are sorted and distinct.
pub(crate) fn pack(numbers: &[u32]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(numbers.len() * 3);
    let mut next = 0;
    for number in numbers {
        let mut delta = number.wrapping_sub(next);
        while delta >= 0x80 {
            packed.push(delta as u8 | 0x80);
            delta >>= 7;
        }
        packed.push(delta as u8);
        next = number.wrapping_add(1);
    }
    packed
}

/// The number of topics in a valid row.
pub(crate) fn count(packed: &[u8]) -> usize {
    packed.iter().filter(|byte| **byte < 0x80).count()
}

/// An iterator over the numbers of a row. It ends after the first error.
pub(crate) struct Numbers<'a> {
    rest: &'a [u8],
    /// The smallest valid next number. Above `u32::MAX` there is none.
    next: u64,
}

pub(crate) fn numbers(packed: &[u8]) -> Numbers<'_> {
    Numbers { rest: packed, next: 0 }
}

/// The numbers of a valid row.
pub(crate) fn unpack(packed: &[u8]) -> impl Iterator<Item = u32> + '_ {
    numbers(packed).map_while(Result::ok)
}

impl Numbers<'_> {
    fn delta(&mut self) -> Result<u64, LoadRowError> {
        let mut delta = 0;
        for at in 0..NUMBER_BYTES_MAX {
            let byte = *self.rest.get(at).ok_or(LoadRowError::Cut)?;
            delta |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                if byte == 0 && at > 0 {
                    return Err(LoadRowError::Long);
                }
                self.rest = &self.rest[at + 1..];
                return Ok(delta);
            }
        }
        Err(LoadRowError::Long)
    }
}

impl Iterator for Numbers<'_> {
    type Item = Result<u32, LoadRowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let number = self.delta().and_then(|delta| {
            let number = u32::try_from(self.next + delta).map_err(|_| LoadRowError::Large)?;
            self.next = u64::from(number) + 1;
            Ok(number)
        });
        if number.is_err() {
            self.rest = &[];
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(packed: &[u8]) -> Result<Vec<u32>, LoadRowError> {
        numbers(packed).collect()
    }

    #[test]
    fn decode_errors_are_specific() {
        assert_eq!(read(&[]), Ok(vec![]));
        assert_eq!(read(&[0, 0, 5]), Ok(vec![0, 1, 7]));
        assert_eq!(read(&[1, 0x80]), Err(LoadRowError::Cut));
        assert_eq!(read(&[0x80, 0]), Err(LoadRowError::Long));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0]), Err(LoadRowError::Long));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x0f]), Ok(vec![u32::MAX]));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x0f, 0]), Err(LoadRowError::Large));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x1f]), Err(LoadRowError::Large));
    }

    proptest! {
        #[test]
        fn rows_round_trip(mut list in proptest::collection::vec(any::<u32>(), 0..200)) {
            list.sort_unstable();
            list.dedup();
            let packed = pack(&list);
            prop_assert_eq!(count(&packed), list.len());
            prop_assert_eq!(read(&packed), Ok(list));
        }

        #[test]
        fn every_valid_row_has_one_form(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(list) = read(&bytes) {
                prop_assert!(list.is_sorted_by(|one, other| one < other));
                prop_assert_eq!(pack(&list), bytes);
            }
        }
    }
}
