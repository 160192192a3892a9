//! What the server adds to a publisher's message.
//!
//! Phoenix has no fields for that, so annotations are members of the payload's object, with the prefix that Phoenix
//! reserves for the server (such as `phx_ref` in a presence's meta). The server removes such members of a publisher,
//! even if it adds none itself.

use model::name::check_name;
use model::{Data, Name};

use serde_json::value::RawValue;

use crate::json;

/// The member with the key whose state the message is. Clients that publish use the same member.
pub const KEY: &str = "phx_key";

/// The member with the user who published the message.
pub const SENDER: &str = "phx_sender";

/// The member with the topic of a message that a client gets by a topic filter.
pub const TOPIC: &str = "phx_topic";

/// The server's annotations of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Annotations<'a> {
    /// The user who published it, if known.
    pub sender: Option<&'a str>,
    /// The key whose state it is, if it is a state.
    pub key: Option<&'a str>,
    /// Its topic, if the channel's topic is a filter.
    pub topic: Option<&'a str>,
}

/// A member of the server's own: its name, and its value if the message has one.
type Member<'a> = (&'static str, Option<&'a str>);

impl Annotations<'_> {
    fn members(&self) -> [Member<'_>; 3] {
        let Annotations { sender, key, topic } = *self;
        [(SENDER, sender), (KEY, key), (TOPIC, topic)]
    }

    /// Appends a JSON object, which must be valid, with the server's members after its own. Members of the publisher
    /// with those names are left out; an object without them that gets none is copied unchanged.
    pub(super) fn object(&self, object: &str, out: &mut Vec<u8>) {
        let own = self.members();
        let clean = !may_have(object, &own);
        if clean && own.iter().all(|(_, value)| value.is_none()) {
            return out.extend_from_slice(object.as_bytes());
        }
        out.push(b'{');
        let from = out.len();
        if clean {
            out.extend_from_slice(inner(object).as_bytes());
        } else {
            for member in members(inner(object)).filter(|member| !is_one_of(member, &own)) {
                comma(from, out);
                out.extend_from_slice(member.as_bytes());
            }
        }
        self.append(from, out);
        out.push(b'}');
    }

    /// Appends the server's members to an object whose first one begins at `from`.
    pub(super) fn append(&self, from: usize, out: &mut Vec<u8>) {
        for (name, value) in self.members() {
            if let Some(value) = value {
                comma(from, out);
                json::string(name, out);
                out.push(b':');
                json::string(value, out);
            }
        }
    }
}

/// Appends a comma after an earlier member.
fn comma(from: usize, out: &mut Vec<u8>) {
    if out.len() > from {
        out.push(b',');
    }
}

/// Returns true if an object may have one of these members, at any depth. Most objects have none and need no parsing:
/// a name would stand there literally, or with a letter as `\uXXXX`.
fn may_have(object: &str, own: &[Member<'_>]) -> bool {
    let has = |text: &str| memchr::memmem::find(object.as_bytes(), text.as_bytes()).is_some();
    has("\\u") || own.iter().any(|(name, _)| has(name))
}

/// The text between an object's braces, trimmed.
fn inner(object: &str) -> &str {
    let text = object.trim_ascii();
    let text = text.strip_prefix('{').unwrap_or(text);
    text.strip_suffix('}').unwrap_or(text).trim_ascii()
}

/// Splits the text between an object's braces into members, each with its name and value.
fn members(inner: &str) -> impl Iterator<Item = &str> {
    let mut rest = inner;
    std::iter::from_fn(move || {
        let text = rest.trim_ascii_start();
        if text.is_empty() {
            return None;
        }
        let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
        let end = text.bytes().position(|byte| {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                b',' => return depth == 0,
                _ => {}
            }
            false
        });
        // A comma is one byte, so it cuts the text between two characters.
        let (member, after) = text.split_at(end.unwrap_or(text.len()));
        rest = after.strip_prefix(',').unwrap_or("");
        Some(member.trim_ascii_end())
    })
}

/// Checks whether a member has one of these names, however it is escaped.
fn is_one_of(member: &str, own: &[Member<'_>]) -> bool {
    // The name is the first value of the text; the parser stops at the colon after it.
    let mut values = serde_json::Deserializer::from_str(member).into_iter::<MemberName<'_>>();
    // A name that is no valid text (half of a surrogate pair) is none of ours.
    let name = values.next().and_then(Result::ok);
    name.is_some_and(|name| own.iter().any(|(own, _)| name.0 == *own))
}

/// Takes the key out of a payload that a client pushes. The rest of `{"phx_key":…,"data":null}` is `null`, which
/// removes the key: members get the removal in the same form.
///
/// # Errors
/// The reason why the key is invalid.
pub fn take_key(payload: &mut Data) -> Result<Option<Name>, String> {
    let Data::Json(text) = payload else {
        return Ok(None);
    };
    let own = [(KEY, None)];
    if !text.starts_with('{') || !may_have(text, &own) {
        return Ok(None);
    }
    let (keys, rest): (Vec<&str>, Vec<&str>) =
        members(inner(text)).partition(|member| is_one_of(member, &own));
    // The last of several members with one name counts, as in a browser.
    let Some(last) = keys.last() else {
        return Ok(None);
    };
    let key: Option<String> = serde_json::from_str(value_of(last))
        .map_err(|_| "phx_key must be a string: the key whose state the message is")?;
    if let Some(Err(wrong)) = key.as_deref().map(check_name) {
        return Err(format!("phx_key: {wrong}"));
    }
    let removes = match rest.as_slice() {
        [only] => is_one_of(only, &[("data", None)]) && value_of(only) == "null",
        _ => false,
    };
    let left = if removes { "null".into() } else { format!("{{{}}}", rest.join(",")) };
    *text = left.into();
    Ok(key.map(Name::from))
}

/// The value of a member.
fn value_of(member: &str) -> &str {
    let mut name = serde_json::Deserializer::from_str(member).into_iter::<&RawValue>();
    let _ = name.next();
    let rest = member.get(name.byte_offset()..).unwrap_or_default().trim_ascii_start();
    rest.strip_prefix(':').unwrap_or(rest).trim_ascii()
}

#[derive(serde::Deserialize)]
struct MemberName<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn annotated(object: &str, sender: Option<&str>) -> String {
        let mut out = Vec::new();
        Annotations { sender, key: None, topic: None }.object(object, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_servers_members_stand_behind_the_publishers() {
        for (object, want) in [
            ("{}", r#"{"phx_sender":"al\"ice"}"#),
            (" { } ", r#"{"phx_sender":"al\"ice"}"#),
            (r#"{"a":1}"#, r#"{"a":1,"phx_sender":"al\"ice"}"#),
            (r#" {"a": "},{" } "#, r#"{"a": "},{","phx_sender":"al\"ice"}"#),
        ] {
            assert_eq!(annotated(object, Some("al\"ice")), want, "{object}");
            assert_eq!(annotated(object, None), object);
        }
    }

    #[test]
    fn no_client_speaks_for_the_server() {
        for (object, left) in [
            (r#"{"phx_sender":"bob"}"#, "{}"),
            (r#"{"phx_sender":{"a":[1,"}"]},"b":2}"#, r#"{"b":2}"#),
            (r#"{"a":1,"phx_sender":1,"b":"\",","phx_sender":null}"#, r#"{"a":1,"b":"\","}"#),
            (r#"{"\u0070hx_sender":1,"phx\u005Fsender":2}"#, "{}"),
            (r#"{ "phx_sender" : 1 , "a" : 2 }"#, r#"{"a" : 2}"#),
            // Foreign names, and ours in a nested object.
            (r#"{"a":{"phx_sender":1}}"#, r#"{"a":{"phx_sender":1}}"#),
            (r#"{"a":"phx_sender","phx_ref":1}"#, r#"{"a":"phx_sender","phx_ref":1}"#),
            (r#"{"phx_sender\u0000":1}"#, r#"{"phx_sender\u0000":1}"#),
            (r#"{"phx_sender\ud800":1}"#, r#"{"phx_sender\ud800":1}"#),
            (r#"{"phx_sender2":"é, 漢","A":"\u00e9"}"#, r#"{"phx_sender2":"é, 漢","A":"\u00e9"}"#),
        ] {
            assert_eq!(annotated(object, None), left, "{object}");
            let added = match left {
                "{}" => r#"{"phx_sender":"al"}"#.to_string(),
                left => format!(r#"{},"phx_sender":"al"}}"#, &left[..left.len() - 1]),
            };
            assert_eq!(annotated(object, Some("al")), added, "{object}");
        }
    }

    #[test]
    fn a_push_names_its_key_in_the_payload() {
        let take = |text: &str| {
            let mut payload = Data::Json(text.into());
            let key = take_key(&mut payload);
            let Data::Json(left) = payload else { panic!() };
            (key.map(|key| key.map(String::from)), left.to_string())
        };
        let key = |key: &str| Ok(Some(key.to_string()));
        for (pushed, want, left) in [
            (r#"{"phx_key":"kitchen","on":true}"#, key("kitchen"), r#"{"on":true}"#),
            (
                r#"{"on":true, "phx_key" : "a\"b" ,"x":[1,2]}"#,
                key("a\"b"),
                r#"{"on":true,"x":[1,2]}"#,
            ),
            (r#"{"\u0070hx_key":"k"}"#, key("k"), "{}"),
            (r#"{"phx_key":"a","phx_key":"b","v":1}"#, key("b"), r#"{"v":1}"#),
            (r#"{"phx_key":"k","data":null}"#, key("k"), "null"),
            (r#"{"phx_key":"k","data":5}"#, key("k"), r#"{"data":5}"#),
            (r#"{"phx_key":"k","data":null,"x":1}"#, key("k"), r#"{"data":null,"x":1}"#),
            (r#"{"phx_key":null,"v":1}"#, Ok(None), r#"{"v":1}"#),
            (r#"{"v":{"phx_key":"k"}}"#, Ok(None), r#"{"v":{"phx_key":"k"}}"#),
            (r#"{"v":"phx_key"}"#, Ok(None), r#"{"v":"phx_key"}"#),
            (r#"["phx_key"]"#, Ok(None), r#"["phx_key"]"#),
        ] {
            assert_eq!(take(pushed), (want, left.to_string()), "{pushed}");
        }
        for bad in [r#"{"phx_key":7}"#, r#"{"phx_key":""}"#, r#"{"phx_key":"a\u0000"}"#] {
            let (key, left) = take(bad);
            assert!(key.unwrap_err().starts_with("phx_key"), "{bad}");
            assert_eq!(left, bad);
        }
        assert_eq!(take_key(&mut Data::Binary([1].into())), Ok(None));
        assert_eq!(take_key(&mut Data::Text("{\"phx_key\":\"k\"}".into())), Ok(None));
    }

    /// A member's name as JSON text, with some letters as escapes.
    fn name() -> impl Strategy<Value = String> {
        let plain = prop_oneof![
            Just(SENDER.to_string()),
            Just(KEY.to_string()),
            Just("phx_ref".to_string()),
            "[a-c\"\\\\/\u{e9}\u{1f600}]{0,3}",
        ];
        (plain, any::<u32>()).prop_map(|(name, escapes)| {
            let letter = |(at, letter): (usize, char)| match letter {
                '"' | '\\' => format!("\\{letter}"),
                _ if escapes >> (at % 32) & 1 == 1 && letter.len_utf16() == 1 => {
                    format!("\\u{:04X}", u32::from(letter))
                }
                _ => letter.to_string(),
            };
            format!("\"{}\"", name.chars().enumerate().map(letter).collect::<String>())
        })
    }

    /// A value as JSON text, with white space, commas and braces in every position.
    fn value() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_string()),
            any::<i64>().prop_map(|number| number.to_string()),
            "[{}\\[\\],:\"\\\\ a\u{e9}]{0,6}".prop_map(|text| Value::from(text).to_string()),
        ];
        leaf.prop_recursive(3, 12, 3, |value| {
            prop_oneof![
                proptest::collection::vec(value.clone(), 0..3)
                    .prop_map(|values| format!("[{}]", values.join(" , "))),
                proptest::collection::vec((name(), value), 0..3).prop_map(object),
            ]
        })
    }

    fn object(members: Vec<(String, String)>) -> String {
        let members = members.into_iter().map(|(name, value)| format!("{name} : {value}"));
        format!("{{ {} }}", members.collect::<Vec<_>>().join(" ,\t"))
    }

    proptest! {
        #[test]
        fn only_the_servers_own_members_change(
            members in proptest::collection::vec((name(), value()), 0..5),
            sender in proptest::option::of("[a-z\"\\\\\u{e9}]{1,8}"),
        ) {
            let text = object(members);
            // The last of several members with one name counts, as in a browser.
            let mut want: Map<String, Value> = serde_json::from_str(&text).unwrap();
            want.remove(SENDER);
            want.remove(KEY);
            if let Some(sender) = &sender {
                want.insert(SENDER.into(), json!(sender));
            }
            let got = annotated(&text, sender.as_deref());
            prop_assert_eq!(serde_json::from_str::<Map<_, _>>(&got).unwrap(), want, "{}", got);
            let own = members_of(&got).filter(|name| name == SENDER || name == KEY).count();
            prop_assert_eq!(own, usize::from(sender.is_some()), "{}", got);
            // A client's push: the rest is the payload without the key.
            let mut payload = Data::Json(text.into());
            let pushed: Map<String, Value> = match &payload {
                Data::Json(text) => serde_json::from_str(text).unwrap(),
                Data::Text(_) | Data::Binary(_) => unreachable!(),
            };
            if let Ok(key) = take_key(&mut payload) {
                let Data::Json(left) = payload else { panic!() };
                let of = pushed.get(KEY).and_then(Value::as_str);
                let is_first = left.trim_start().starts_with('{');
                prop_assert_eq!(key.as_deref(), of.filter(|_| pushed.contains_key(KEY)));
                if is_first {
                    let mut want = pushed;
                    want.remove(KEY);
                    prop_assert_eq!(serde_json::from_str::<Map<_, _>>(&left).unwrap(), want);
                } else {
                    prop_assert_eq!(pushed.get("data"), Some(&Value::Null));
                }
            }
        }

        #[test]
        fn no_text_does_harm(text in "[{}\\[\\],:\"\\\\upxh_sendr0-7\u{e9} ]{0,60}") {
            for text in [text.clone(), format!("{{\"phx_sender{text}"), format!("{{{text}}}\\u")] {
                annotated(&text, None);
                annotated(&text, Some("al"));
                let _ = take_key(&mut Data::Json(text.into()));
            }
        }
    }

    /// The names of an object's members, with duplicates.
    fn members_of(object: &str) -> impl Iterator<Item = String> {
        members(inner(object)).map(|member| {
            let mut values = serde_json::Deserializer::from_str(member).into_iter::<String>();
            values.next().unwrap().unwrap()
        })
    }
}
