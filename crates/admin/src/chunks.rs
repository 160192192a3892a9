//! A reader of a body in chunks (RFC 9112, section 7.1), piece by piece.

use anyhow::{Result, bail, ensure};

/// The limit on the bytes of a chunk's first line, or of a trailer's.
const LINE_BYTES_MAX: usize = 1024;

/// The reader's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In the line with a chunk's size.
    Size,
    /// This many bytes of a chunk are missing.
    Data(usize),
    /// In the line end after a chunk.
    DataEnd,
    /// In the lines after the last chunk.
    Trailer,
    /// After the body.
    End,
}

/// Takes the bytes of a body in chunks and returns their content.
#[derive(Debug)]
pub(crate) struct Chunks {
    at: At,
    line: Vec<u8>,
}

impl Chunks {
    pub fn new() -> Self {
        Chunks { at: At::Size, line: Vec::new() }
    }

    /// Returns true if the body is complete.
    pub fn has_ended(&self) -> bool {
        self.at == At::End
    }

    /// Adds the content of these bytes to `out`.
    ///
    /// # Errors
    /// If the bytes are no chunks.
    pub fn read(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        while !bytes.is_empty() && self.at != At::End {
            if let At::Data(left) = self.at {
                let (data, rest) = bytes.split_at(left.min(bytes.len()));
                out.extend_from_slice(data);
                bytes = rest;
                self.at =
                    if data.len() == left { At::DataEnd } else { At::Data(left - data.len()) };
                continue;
            }
            let (line, rest) = match bytes.iter().position(|byte| *byte == b'\n') {
                Some(end) => (&bytes[..end], Some(&bytes[end + 1..])),
                None => (bytes, None),
            };
            ensure!(
                self.line.len() + line.len() <= LINE_BYTES_MAX,
                "the line with a chunk's size is too long"
            );
            self.line.extend_from_slice(line);
            let Some(rest) = rest else { return Ok(()) };
            bytes = rest;
            let line = std::mem::take(&mut self.line);
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            self.at = match self.at {
                At::Size => size(line)?,
                At::DataEnd if line.is_empty() => At::Size,
                At::DataEnd => bail!("a chunk is longer than its size says"),
                At::Trailer if line.is_empty() => At::End,
                at => at,
            };
        }
        Ok(())
    }
}

/// Returns the position after the line with a chunk's size.
fn size(line: &[u8]) -> Result<At> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let digits = std::str::from_utf8(digits).unwrap_or_default();
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match usize::from_str_radix(digits, 16) {
        Ok(0) if is_number => Ok(At::Trailer),
        Ok(size) if is_number => Ok(At::Data(size)),
        _ => bail!("a chunk's size is not a number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"5;a=b\r\nhello\r\nB\r\n, chunked \n\r\n0\r\nTrailer: x\r\n\r\n";

    #[test]
    fn a_body_is_the_same_however_it_is_cut() {
        for step in 1..=BODY.len() {
            let (mut chunks, mut out) = (Chunks::new(), Vec::new());
            for piece in BODY.chunks(step) {
                assert!(!chunks.has_ended());
                chunks.read(piece, &mut out).unwrap();
            }
            assert!(chunks.has_ended() && out == b"hello, chunked \n", "{step}");
        }
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        let long = [b'1'; LINE_BYTES_MAX + 1];
        for bytes in [
            &b"x\r\n"[..],
            b"\r\n",
            b"-1\r\n",
            b"+1\r\n",
            b"1\r\nab\r\n",
            &long,
            b"fffffffffffffffff\r\n",
        ] {
            assert!(Chunks::new().read(bytes, &mut Vec::new()).is_err(), "{bytes:?}");
        }
    }
}
