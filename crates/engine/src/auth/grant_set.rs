//! The content of a token except its user and its expiry, in one allocation.
//!
//! Most tokens differ only by the name of their user, like `chat:alice:*` in alice's. A grant set leaves that name out,
//! so that all connections with the same grants but for the name share one set.

use std::sync::Arc;

use auth::{Grants, Patterns, Principal};
use model::Name;

// Separators. These bytes never occur in UTF-8 text.
/// Stands for the name of the only user.
const OWNER: u8 = 0xff;
/// The end of a pattern.
const PATTERN: u8 = 0xfe;
/// The end of the patterns of an action.
const ACTION: u8 = 0xfd;
/// In place of patterns: grants all that the rules allow.
const EVERYTHING: u8 = 0xfc;

/// Encoded as the module's documentation says: the patterns to subscribe, to publish, for presence and for history,
/// then the info.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct GrantSet(Box<[u8]>);

impl GrantSet {
    /// Encodes the grants and the info of a principal.
    pub fn of(principal: &Principal) -> Self {
        let mut bytes = Vec::new();
        match &*principal.grants {
            Grants::Everything => bytes.extend([EVERYTHING, ACTION, ACTION, ACTION, ACTION]),
            Grants::Patterns(Patterns { subscribe, publish, presence, history }) => {
                for patterns in [subscribe, publish, presence, history] {
                    for pattern in patterns {
                        bytes.extend(pattern.as_bytes());
                        bytes.push(PATTERN);
                    }
                    bytes.push(ACTION);
                }
            }
        }
        bytes.extend(principal.info.as_deref().unwrap_or_default().as_bytes());
        if let [owner] = &principal.users[..] {
            leave_out(&mut bytes, owner.as_bytes());
        }
        GrantSet(bytes.into())
    }

    /// True when the set leaves a name out, and so grants something else to another user.
    pub fn is_owners(&self) -> bool {
        self.0.contains(&OWNER)
    }

    /// Returns the grants for these users. Patterns with the owner's name count only for a single user.
    pub fn grants(&self, users: &[Name]) -> Grants {
        let mut actions = self.0.split(|byte| *byte == ACTION);
        let mut next = || -> Vec<Box<str>> {
            let patterns = actions.next().unwrap_or_default().split_inclusive(|it| *it == PATTERN);
            patterns.filter_map(|it| text(it.strip_suffix(&[PATTERN])?, users)).collect()
        };
        if self.0.first() == Some(&EVERYTHING) {
            return Grants::Everything;
        }
        let (subscribe, publish, presence, history) = (next(), next(), next(), next());
        Grants::Patterns(Patterns { subscribe, publish, presence, history })
    }

    /// Returns the info of the token, or of the application's admission, for these users: the text of a JSON object.
    pub fn info(&self, users: &[Name]) -> Option<Arc<str>> {
        let info = self.0.rsplit(|byte| *byte == ACTION).next().unwrap_or_default();
        (!info.is_empty()).then(|| text(info, users).map(Arc::from))?
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Leaves out each occurrence of a name that is a whole word. A name within a longer word stays: otherwise the user
/// `a` would not share the grants that all have.
fn leave_out(bytes: &mut Vec<u8>, name: &[u8]) {
    let is_word = |byte: Option<&u8>| {
        byte.is_some_and(|it| it.is_ascii_alphanumeric() || (0x80..EVERYTHING).contains(it))
    };
    if name.is_empty() {
        return;
    }
    let mut at = 0;
    while at + name.len() <= bytes.len() {
        let end = at + name.len();
        let before = at.checked_sub(1).and_then(|it| bytes.get(it));
        if bytes[at..].starts_with(name) && !is_word(before) && !is_word(bytes.get(end)) {
            bytes.splice(at..end, [OWNER]);
        }
        at += 1;
    }
}

/// Puts the user's name back into a text. `None` if the text needs a name and the users are not exactly one.
fn text(bytes: &[u8], users: &[Name]) -> Option<Box<str>> {
    let mut parts = bytes.split(|it| *it == OWNER);
    let mut text = String::from_utf8_lossy(parts.next()?).into_owned();
    for part in parts {
        let [owner] = users else { return None };
        text.push_str(owner);
        text.push_str(&String::from_utf8_lossy(part));
    }
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(users: &[&str], subscribe: &[&str], publish: &[&str], info: Option<&str>) -> Principal {
        let boxed = |texts: &[&str]| texts.iter().map(|it| Box::from(*it)).collect();
        let (subscribe, publish) = (boxed(subscribe), boxed(publish));
        let grants = Grants::Patterns(Patterns { subscribe, publish, ..Patterns::default() });
        let users = users.iter().map(|it| Name::from(*it)).collect();
        let info = info.map(Arc::from);
        Principal { info, ..Principal::token(users, Arc::new(grants), None) }
    }

    #[test]
    fn who_is_granted_alike_but_for_the_own_name_has_the_same() {
        let info = |name| format!("{{\"id\":\"{name}\",\"team\":1}}");
        let [al, bo] = ["al", "bo"].map(|user| {
            let own = format!("chat:{user}:*");
            GrantSet::of(&of(&[user], &[&own, "all", user], &["*"], Some(&info(user))))
        });
        assert!(al == bo && al.is_owners());
        let grants = bo.grants(&["bo".into()]);
        assert_eq!(grants, *of(&[], &["chat:bo:*", "all", "bo"], &["*"], None).grants);
        assert_eq!(al.info(&["al".into()]).unwrap()[..], info("al"));
        let two = ["al".into(), "bo".into()];
        assert_eq!(bo.grants(&two), *of(&[], &["all"], &["*"], None).grants);
        assert_eq!(bo.info(&[]), None);
        // The name is no whole word, the token has no user, or it has two.
        for users in [&["a"][..], &[], &["chat", "al"]] {
            let grant_set = GrantSet::of(&of(users, &["chat:al:*", "all"], &[], None));
            assert!(!grant_set.is_owners(), "{users:?}");
        }
        let everything =
            Principal { grants: Arc::new(Grants::Everything), ..of(&["al"], &[], &[], Some("{}")) };
        let grant_set = GrantSet::of(&everything);
        assert_eq!(
            (grant_set.grants(&[]), grant_set.info(&[])),
            (Grants::Everything, Some("{}".into()))
        );
        assert_eq!(grant_set.len(), 7);
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            users in prop::collection::vec("[aé*:]{1,3}", 0..3),
            lists in prop::collection::vec(prop::collection::vec("([aé*:]|\\{sub\\}){0,6}", 0..3), 4),
            info in prop::option::of("\\{[aé*:\"]{0,6}\\}"),
        ) {
            let mut lists = lists.into_iter().map(|list| list.into_iter().map(Box::from).collect());
            let mut next = || -> Vec<Box<str>> { lists.next().unwrap() };
            let (subscribe, publish, presence, history) = (next(), next(), next(), next());
            let grants = Grants::Patterns(Patterns { subscribe, publish, presence, history });
            let users: Vec<Name> = users.into_iter().map(Name::from).collect();
            let principal = Principal {
                info: info.map(Arc::from),
                ..Principal::token(users.clone(), Arc::new(grants), None)
            };
            let grant_set = GrantSet::of(&principal);
            prop_assert_eq!(grant_set.grants(&users), (*principal.grants).clone());
            prop_assert_eq!(grant_set.info(&users), principal.info);
        }
    }
}
