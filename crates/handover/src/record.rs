//! A record's value as bytes: one CBOR value.

use std::fmt::Display;

use minicbor::{Decode, Decoder, Encode};

/// The reason why bytes are no valid record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(String);

impl RecordError {
    pub(crate) fn new(what: impl Display) -> Self {
        RecordError(what.to_string())
    }
}

/// Encodes a record.
pub fn encode(record: impl Encode<()>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_into(record, &mut bytes);
    bytes
}

/// Appends a record's bytes to others.
pub fn encode_into(record: impl Encode<()>, bytes: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = minicbor::encode(record, bytes);
}

/// Reads what [`encode`] wrote, which takes all of the bytes.
///
/// # Errors
/// When the bytes are damaged, cut, or more than the record.
pub fn decode<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<T, RecordError> {
    let mut decoder = Decoder::new(bytes);
    let record = decoder.decode().map_err(RecordError::new)?;
    match decoder.position() == bytes.len() {
        true => Ok(record),
        false => Err(RecordError::new("it has data after its end")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_whole() {
        let record = (7_u32, Some("text".to_string()), vec![1_u64, 2]);
        let bytes = encode(&record);
        assert_eq!(decode(&bytes), Ok(record.clone()));
        for cut in 0..bytes.len() {
            assert!(decode::<(u32, Option<String>, Vec<u64>)>(&bytes[..cut]).is_err(), "{cut}");
        }
        let mut behind = vec![b'x'];
        encode_into(&record, &mut behind);
        assert_eq!((behind[0], &behind[1..]), (b'x', &bytes[..]));
        behind.rotate_left(1);
        let more = decode::<(u32, Option<String>, Vec<u64>)>(&behind).unwrap_err();
        assert_eq!(more.to_string(), "it has data after its end");
        assert!(decode::<u32>(&encode("a")).unwrap_err().to_string().contains("unexpected type"));
    }
}
