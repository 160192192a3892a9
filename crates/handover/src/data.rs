//! Payloads within records.

use std::borrow::Cow;

use minicbor::decode::{self, Decode, Decoder};
use minicbor::encode::{self, Encode, Encoder, Write};
use model::Data;

/// A payload within a record: borrowed for writing, owned after reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataRecord<'a>(Cow<'a, Data>);

/// The written form of a payload.
#[derive(minicbor::Encode, minicbor::Decode)]
enum Written<'b> {
    #[n(0)]
    Json(#[b(0)] &'b str),
    #[n(1)]
    Text(#[b(0)] &'b str),
    #[n(2)]
    Binary(
        #[b(0)]
        #[cbor(with = "minicbor::bytes")]
        &'b [u8],
    ),
}

impl<'a> From<&'a Data> for DataRecord<'a> {
    fn from(data: &'a Data) -> Self {
        DataRecord(Cow::Borrowed(data))
    }
}

impl From<Data> for DataRecord<'_> {
    fn from(data: Data) -> Self {
        DataRecord(Cow::Owned(data))
    }
}

impl From<DataRecord<'_>> for Data {
    fn from(DataRecord(data): DataRecord<'_>) -> Self {
        data.into_owned()
    }
}

impl<C> Encode<C> for DataRecord<'_> {
    fn encode<W: Write>(
        &self,
        e: &mut Encoder<W>,
        context: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        let written = match &*self.0 {
            Data::Json(json) => Written::Json(json),
            Data::Text(text) => Written::Text(text),
            Data::Binary(bytes) => Written::Binary(bytes),
        };
        written.encode(e, context)
    }
}

impl<'b, C> Decode<'b, C> for DataRecord<'_> {
    fn decode(d: &mut Decoder<'b>, context: &mut C) -> Result<Self, decode::Error> {
        let data = match Written::decode(d, context)? {
            Written::Json(json) => Data::Json(json.into()),
            Written::Text(text) => Data::Text(text.into()),
            Written::Binary(bytes) => Data::Binary(bytes.into()),
        };
        Ok(data.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode, encode};

    #[test]
    fn payloads_stand_like_this() {
        let all: [(Data, &[u8]); 3] = [
            (Data::Json("{}".into()), b"\x82\x00\x81\x62{}"),
            (Data::Text("a".into()), b"\x82\x01\x81\x61a"),
            (Data::Binary([0, 255].into()), b"\x82\x02\x81\x42\x00\xff"),
        ];
        for (data, bytes) in all {
            assert_eq!(encode(DataRecord::from(&data)), bytes);
            assert_eq!(encode(DataRecord::from(data.clone())), bytes);
            assert_eq!(decode::<DataRecord<'_>>(bytes).map(Data::from), Ok(data));
        }
        assert!(decode::<DataRecord<'_>>(b"\x82\x03\x81\x61a").is_err());
    }
}
