//! The context of a trace as requests carry it: the header `traceparent` of W3C Trace Context, level 1.

use std::fmt;

use axum::http::{HeaderMap, HeaderName};

/// The header of a request.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;

/// Names a span of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span.
    pub span_id: [u8; 8],
    /// Whether the trace is recorded.
    pub is_sampled: bool,
}

impl SpanContext {
    /// Reads a `traceparent`. The standard says to ignore one of another form.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.trim().splitn(5, '-');
        let mut field = |length: usize| fields.next().filter(|field| field.len() == length);
        let (version, trace_id, span_id, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let [version] = parse_hex(version)?;
        let is_longer = fields.next().is_some();
        // Later versions may have more fields behind these; 255 is no version.
        if version == 0xff || (version == 0 && is_longer) {
            return None;
        }
        let (trace_id, span_id, [flags]) =
            (parse_hex(trace_id)?, parse_hex(span_id)?, parse_hex(flags)?);
        let has_ids = trace_id != [0; 16] && span_id != [0; 8];
        has_ids.then_some(SpanContext { trace_id, span_id, is_sampled: flags & SAMPLED != 0 })
    }

    /// Reads the `traceparent` of a request. Several count as none.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all(TRACEPARENT).iter();
        let (first, None) = (all.next()?, all.next()) else { return None };
        SpanContext::parse(first.to_str().ok()?)
    }
}

/// The value of `traceparent`.
impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        };
        f.write_str("00-")?;
        write(f, &self.trace_id)?;
        f.write_str("-")?;
        write(f, &self.span_id)?;
        write!(f, "-{:02x}", u8::from(self.is_sampled))
    }
}

/// Reads lower-case hexadecimal digits, two a byte.
fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn the_example_of_the_standard_is_read_and_written() {
        let context = SpanContext::parse(TEXT).unwrap();
        assert_eq!(
            (context.trace_id[0], context.span_id[7], context.is_sampled),
            (0x0a, 0x31, true)
        );
        assert_eq!(context.to_string(), TEXT);
        let other = TEXT.replace("-01", "-02");
        assert!(!SpanContext::parse(&other).unwrap().is_sampled);
        // A later version may say more.
        assert!(SpanContext::parse(&format!("01{}-more", &TEXT[2..])).is_some());
    }

    #[test]
    fn what_has_another_form_is_none() {
        let zero_trace = TEXT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32));
        let zero_span = TEXT.replace("b7ad6b7169203331", &"0".repeat(16));
        for text in [
            "",
            "00",
            &TEXT[..54],
            &TEXT.to_uppercase(),
            &format!("{TEXT}-x"),
            &zero_trace,
            &zero_span,
            &format!("ff{}", &TEXT[2..]),
            &TEXT.replace("b7", "g7"),
            &TEXT.replace('-', "_"),
        ] {
            assert_eq!(SpanContext::parse(text), None, "{text}");
        }
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, TEXT.parse().unwrap());
        assert!(SpanContext::from_headers(&headers).is_some());
        headers.append(TRACEPARENT, TEXT.parse().unwrap());
        assert_eq!(SpanContext::from_headers(&headers), None, "two of them");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,80}") {
            if let Some(context) = SpanContext::parse(&text) {
                prop_assert_eq!(SpanContext::parse(&context.to_string()), Some(context));
            }
        }
    }
}
