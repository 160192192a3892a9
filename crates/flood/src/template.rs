//! Templates with `{n}` (a user's number) and `{room}` (the number of the user's topic).

/// A text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Number,
    Room,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// If it has an unknown `{word}`.
    pub fn new(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            let Some((word, after)) = behind.split_once('}') else {
                break;
            };
            pieces.push(Piece::Text(before.into()));
            pieces.push(match word {
                "n" => Piece::Number,
                "room" => Piece::Room,
                other => {
                    return Err(format!("{{{other}}} is not known here: use {{n}} or {{room}}"));
                }
            });
            rest = after;
        }
        pieces.push(Piece::Text(rest.into()));
        pieces.retain(|piece| *piece != Piece::Text(String::new()));
        Ok(Self { pieces })
    }

    /// Adds more parameters to a query, each after a `&`.
    #[must_use]
    pub fn with_query(mut self, parameters: &str) -> Self {
        let has_query = self
            .pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Text(text) if text.contains('?')));
        let text = match has_query {
            true => parameters.to_string(),
            false => parameters.replacen('&', "?", 1),
        };
        self.pieces.push(Piece::Text(text));
        self
    }

    /// Appends the text for a user and a room.
    pub fn expand(&self, number: u32, room: u32, out: &mut String) {
        use std::fmt::Write;
        for piece in &self.pieces {
            // Writing to a String can't fail.
            let _ = match piece {
                Piece::Text(text) => out.write_str(text),
                Piece::Number => write!(out, "{number}"),
                Piece::Room => write!(out, "{room}"),
            };
        }
    }

    /// Returns the text for a user and a room.
    pub fn text(&self, number: u32, room: u32) -> String {
        let mut out = String::new();
        self.expand(number, room, &mut out);
        out
    }

    /// Returns true when the text is the same for every user.
    pub fn is_fixed(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece, Piece::Text(_)))
    }

    /// Returns true when the text is always empty.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced() {
        let text = |template: &str| Template::new(template).map(|t| t.text(407, 3));
        assert_eq!(
            text("/sse?user=u{n}&topic=room-{room}"),
            Ok("/sse?user=u407&topic=room-3".into())
        );
        assert_eq!(text("plain"), Ok("plain".into()));
        assert_eq!(text("a{"), Ok("a{".into()));
        assert!(text("{user}").unwrap_err().contains("{user}"));
        assert!(Template::new("").unwrap().is_empty() && Template::new("x").unwrap().is_fixed());
        assert!(!Template::new("{n}").unwrap().is_fixed());
        let with = |template: &str| Template::new(template).unwrap().with_query("&qos=1&a=b");
        assert_eq!(with("/mqtt?user=u{n}").text(1, 2), "/mqtt?user=u1&qos=1&a=b");
        assert_eq!(with("/mqtt").text(1, 2), "/mqtt?qos=1&a=b");
    }
}
