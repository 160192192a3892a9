//! Escapes text from outside for HTML and scripts.

use std::fmt::{self, Display, Write as _};

/// Displays a text with all markup characters escaped, for content and quoted attributes. Control
/// characters that HTML forbids become U+FFFD.
pub struct Escaped<'a>(pub &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\'' => out.write_str("&#39;")?,
                '\n' | '\t' => out.write_char(character)?,
                other if other.is_control() => out.write_char('\u{fffd}')?,
                other => out.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// Returns JSON for a `<script>` element. The text can't end the element or begin a comment in it.
pub fn script_json(value: &serde_json::Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped() {
        let text = Escaped("<a href=\"x\" id='y'>&amp;\u{1b}[0m").to_string();
        assert_eq!(text, "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;amp;\u{fffd}[0m");
    }

    #[test]
    fn json_cannot_end_its_script() {
        let json = script_json(&serde_json::json!({ "name": "</script><!--" }));
        assert!(!json.contains('<'));
        let back: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(back["name"], "</script><!--");
    }
}
