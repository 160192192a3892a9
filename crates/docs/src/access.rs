//! The page about access to all calls, from the endpoints of both ports.

use std::fmt::Write;

use protocol::http::Needs;

/// The text above each table.
const TEXT: &str = include_str!("access.md");

/// Columns of the table of the admin port: the scopes of a key, and the requirements that it fulfils.
const KEYS: [(&str, &[&str]); 4] = [
    ("no key", &["nothing"]),
    ("`read`", &["nothing", "any", "read"]),
    ("`publish:…`", &["nothing", "any", "publish"]),
    ("`admin`", &["nothing", "any", "read", "publish", "admin"]),
];

/// Returns the page.
pub fn page() -> String {
    TEXT.replace("{{CLIENT}}", client().trim_end()).replace("{{ADMIN}}", admin().trim_end())
}

fn client() -> String {
    let mut out = "| request | if tokens are required: without a token | with a token |\n\
                   | --- | --- | --- |\n"
        .to_owned();
    for endpoint in protocol::standard().endpoints() {
        let (without, with) = match endpoint.needs {
            Needs::Nothing => ("anyone", "anyone".to_owned()),
            Needs::TokenByCommand => (
                "opens; its first command must bring one",
                "any token; each command needs the grants of its request".to_owned(),
            ),
            Needs::Token => ("refused", "any token; each join needs the grant `subscribe`".into()),
            Needs::Grants([]) => ("refused", "any token".to_owned()),
            Needs::Grants(grants) => {
                let names: Vec<String> =
                    grants.iter().map(|grant| format!("`{}`", grant.name())).collect();
                ("refused", format!("with the grant {} for each topic", names.join(" and ")))
            }
            Needs::User => (
                "refused",
                "of the user in the request, with the grant `subscribe` for the topic".to_owned(),
            ),
        };
        let (methods, path) = (endpoint.methods, endpoint.path);
        let _ = writeln!(out, "| `{methods} {path}` | {without} | {with} |");
    }
    out
}

fn admin() -> String {
    let names = KEYS.map(|(name, _)| name).join(" | ");
    let mut out = format!("| call | {names} |\n| ---{} |\n", " | :---:".repeat(KEYS.len()));
    for [method, path, needs] in control::access() {
        let cells = KEYS.map(|(_, may)| if may.contains(&needs) { "yes" } else { "–" }).join(" | ");
        let _ = writeln!(out, "| `{method} {path}` | {cells} |");
    }
    out
}

#[test]
fn every_need_has_a_column() {
    for [method, path, needs] in control::access() {
        assert!(KEYS[3].1.contains(&needs), "{method} {path}: {needs}");
    }
}
