//! The packed form of a user's row: sorted topic numbers, stored as differences.
//!
//! The first number is stored as it is, each following one as the difference to its predecessor
//! less 1, so that every list has exactly one form. Numbers are LEB128: seven bits a byte, the low
//! ones first, the top bit set in all bytes but the last. Among a million topics, a number takes
//! two or three bytes.

use crate::LoadRowError;

/// The bytes of the largest number.
pub(crate) const NUMBER_BYTES_MAX: usize = 5;

/// Packs numbers that are sorted and distinct.
pub(crate) fn pack(numbers: &[u32]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(numbers.len() * 3);
    pack_from(&mut packed, 0, numbers);
    packed
}

/// Appends larger numbers to a row that ends with `last`.
pub(crate) fn pack_after(packed: &mut Vec<u8>, last: u32, numbers: &[u32]) {
    pack_from(packed, last.wrapping_add(1), numbers);
}

/// Returns the number of bytes that [`pack_after`] appends.
pub(crate) fn bytes_after(last: u32, numbers: &[u32]) -> usize {
    let mut before = last;
    let mut bytes = |number: &u32| {
        let bits = 32 - (number - before - 1).leading_zeros();
        before = *number;
        bits.div_ceil(7).max(1) as usize
    };
    numbers.iter().map(&mut bytes).sum()
}

fn pack_from(packed: &mut Vec<u8>, mut next: u32, numbers: &[u32]) {
    for number in numbers {
        write(packed, number.wrapping_sub(next));
        next = number.wrapping_add(1);
    }
}

fn write(packed: &mut Vec<u8>, mut delta: u32) {
    while delta >= 0x80 {
        packed.push(delta as u8 | 0x80);
        delta >>= 7;
    }
    packed.push(delta as u8);
}

/// Adds a number to a valid row; `None` if the row has it.
pub(crate) fn with(packed: &[u8], number: u32) -> Option<Box<[u8]>> {
    let (position, found) = position_of(packed, number);
    let mut bytes = Vec::with_capacity(packed.len() + NUMBER_BYTES_MAX);
    bytes.extend_from_slice(&packed[..position.at]);
    write(&mut bytes, number.wrapping_sub(position.next as u32));
    if let Some((following, end)) = found {
        if following == number {
            return None;
        }
        write(&mut bytes, following - number - 1);
        bytes.extend_from_slice(&packed[end..]);
    }
    Some(bytes.into_boxed_slice())
}

/// Removes a number from a valid row; `None` if the row does not have it.
pub(crate) fn without(packed: &[u8], number: u32) -> Option<Box<[u8]>> {
    let (position, found) = position_of(packed, number);
    let (_, end) = found.filter(|(found, _)| *found == number)?;
    let mut bytes = Vec::with_capacity(packed.len());
    bytes.extend_from_slice(&packed[..position.at]);
    let mut rest = Numbers { rest: &packed[end..], next: u64::from(number) + 1 };
    if let Some(Ok(following)) = rest.next() {
        write(&mut bytes, following.wrapping_sub(position.next as u32));
        bytes.extend_from_slice(rest.rest);
    }
    Some(bytes.into_boxed_slice())
}

/// The position of a number in a row, which may not contain it.
struct Position {
    /// The position in bytes.
    at: usize,
    /// The smallest number that this position may have.
    next: u64,
}

/// Returns the position of a number, and the first number from it on, with its end.
fn position_of(packed: &[u8], number: u32) -> (Position, Option<(u32, usize)>) {
    let mut numbers = numbers(packed);
    loop {
        let position = Position { at: packed.len() - numbers.rest.len(), next: numbers.next };
        match numbers.next() {
            Some(Ok(found)) if found < number => {}
            Some(Ok(found)) => return (position, Some((found, packed.len() - numbers.rest.len()))),
            Some(Err(_)) | None => return (position, None),
        }
    }
}

/// Returns the number of topics in a valid row.
pub(crate) fn count(packed: &[u8]) -> usize {
    packed.iter().filter(|byte| **byte < 0x80).count()
}

/// An iterator over the numbers of a row. It ends after the first error.
pub(crate) struct Numbers<'a> {
    rest: &'a [u8],
    /// The smallest valid next number. Above `u32::MAX` the row must end.
    next: u64,
}

pub(crate) fn numbers(packed: &[u8]) -> Numbers<'_> {
    Numbers { rest: packed, next: 0 }
}

/// Returns the numbers of a valid row.
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
        fn a_number_comes_and_goes(
            mut list in proptest::collection::vec(0..900_u32, 0..60), number in 0..900_u32,
            shift in 0..22,
        ) {
            list.iter_mut().for_each(|it| *it = (*it << shift) | (*it & 1));
            let number = (number << shift) | (number & 1);
            list.sort_unstable();
            list.dedup();
            let packed = pack(&list);
            match list.binary_search(&number) {
                Ok(at) => {
                    prop_assert_eq!(with(&packed, number), None);
                    list.remove(at);
                    prop_assert_eq!(without(&packed, number).unwrap().to_vec(), pack(&list));
                }
                Err(at) => {
                    prop_assert_eq!(without(&packed, number), None);
                    list.insert(at, number);
                    prop_assert_eq!(with(&packed, number).unwrap().to_vec(), pack(&list));
                }
            }
            let (low, high) = list.split_at(list.len() / 2);
            if let Some(last) = low.last() {
                let mut both = pack(low);
                let bytes = both.len() + bytes_after(*last, high);
                pack_after(&mut both, *last, high);
                prop_assert_eq!(both.len(), bytes);
                prop_assert_eq!(both, pack(&list));
            }
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
