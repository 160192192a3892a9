//! Templates of requests, with `{n}` for the connection's number.

/// A text with any number of `{n}`.
#[derive(Debug, Clone)]
pub struct Template {
    /// The literal pieces, with the number between each two.
    pieces: Vec<Box<[u8]>>,
    /// Texts that replace the numbers.
    texts: Option<std::sync::Arc<[String]>>,
}

impl Template {
    /// Parses a template.
    pub fn new(text: &str) -> Self {
        Self::bytes(text.as_bytes())
    }

    /// Parses a template of bytes that need not be text.
    pub fn bytes(template: &[u8]) -> Self {
        let (mut pieces, mut rest) = (Vec::new(), template);
        while let Some(at) = rest.windows(3).position(|part| part == b"{n}") {
            pieces.push(rest[..at].into());
            rest = &rest[at + 3..];
        }
        pieces.push(rest.into());
        Self { pieces, texts: None }
    }

    /// Returns the template with a text of its own for each number; numbers after the last text start again with the
    /// first.
    #[must_use]
    pub fn with_texts(self, texts: std::sync::Arc<[String]>) -> Self {
        Self { texts: Some(texts), ..self }
    }

    /// Returns the template with these bytes appended.
    #[must_use]
    pub fn then(mut self, bytes: &[u8]) -> Self {
        if let Some(last) = self.pieces.last_mut() {
            *last = [&**last, bytes].concat().into();
        }
        self
    }

    /// Replaces the content of `out` with the text for one number. Allocates only while `out` grows.
    pub fn expand(&self, number: usize, out: &mut Vec<u8>) {
        out.clear();
        let mut digits = [0u8; 20];
        let digits = match &self.texts {
            Some(texts) => texts[number % texts.len()].as_bytes(),
            None => decimal(number as u64, &mut digits),
        };
        for (i, piece) in self.pieces.iter().enumerate() {
            if i > 0 {
                out.extend_from_slice(digits);
            }
            out.extend_from_slice(piece);
        }
    }
}

/// Returns the decimal digits of a number, without leading zeros.
fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str, number: usize) -> String {
        let mut out = b"left over".to_vec();
        Template::new(text).expand(number, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn every_placeholder_becomes_the_number() {
        assert_eq!(expanded("/sse?user=u{n}&topic=t{n}", 407), "/sse?user=u407&topic=t407");
        assert_eq!(expanded("{n}", 0), "0");
        assert_eq!(expanded("{n}{n}", 10), "1010");
    }

    #[test]
    fn text_without_a_placeholder_is_unchanged() {
        assert_eq!(expanded("/sse?topic=all", 5), "/sse?topic=all");
        assert_eq!(expanded("{N} {", 5), "{N} {");
    }

    #[test]
    fn largest_number_fits() {
        assert_eq!(expanded("{n}", usize::MAX), usize::MAX.to_string());
    }
}
