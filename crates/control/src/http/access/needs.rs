//! What a call needs: each route of the router has one row.

use std::collections::HashMap;

use axum::http::Method;

/// What a caller must have for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: it shows nothing of the node but that it is there.
    Nothing,
    /// Any key.
    Key,
    /// A key that may read.
    Read,
    /// A key that may publish something; to what, the call itself looks at.
    Publish,
    /// A key for everything.
    Admin,
}

impl Needs {
    /// The scope that is missing, for `WWW-Authenticate`: a word without blanks.
    pub fn scope(self) -> &'static str {
        match self {
            Needs::Nothing | Needs::Key => "any",
            Needs::Read => "read",
            Needs::Publish => "publish",
            Needs::Admin => "admin",
        }
    }

    /// The scope as it is to be written, for people.
    pub fn wants(self) -> &'static str {
        match self {
            Needs::Publish => "publish:PATTERN",
            other => other.scope(),
        }
    }
}

/// A call and what it needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub method: &'static str,
    /// The template of its path.
    pub path: &'static str,
    pub needs: Needs,
}

/// What each call needs, by path and method.
#[derive(Default)]
pub(crate) struct Table(HashMap<&'static str, Vec<(&'static str, Needs)>>);

impl Table {
    /// What all these rows say.
    pub fn new(rows: &[Row]) -> Self {
        let mut table = Table::default();
        for row in rows {
            table.0.entry(row.path).or_default().push((row.method, row.needs));
        }
        table
    }

    /// What a request needs that matches this route. A method that the route doesn't take needs a key where
    /// others do; a route without a row is for those who may do everything.
    pub fn needs(&self, method: &Method, path: &str) -> Needs {
        // The router answers HEAD by what it has for GET.
        let method = if method == Method::HEAD { "GET" } else { method.as_str() };
        match self.0.get(path) {
            Some(rows) => {
                let row = rows.iter().find(|(of, _)| *of == method);
                let is_open = rows.iter().all(|(_, needs)| *needs == Needs::Nothing);
                let other = if is_open { Needs::Nothing } else { Needs::Key };
                row.map_or(other, |(_, needs)| *needs)
            }
            None => Needs::Admin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_needs_what_its_row_says() {
        let row = |method, path, needs| Row { method, path, needs };
        let table = Table::new(&[
            row("GET", "/a", Needs::Read),
            row("DELETE", "/a", Needs::Admin),
            row("GET", "/", Needs::Nothing),
        ]);
        for (method, path, want) in [
            (Method::GET, "/a", Needs::Read),
            (Method::HEAD, "/a", Needs::Read),
            (Method::DELETE, "/a", Needs::Admin),
            (Method::POST, "/a", Needs::Key),
            (Method::GET, "/", Needs::Nothing),
            (Method::POST, "/", Needs::Nothing),
            (Method::GET, "/b", Needs::Admin),
        ] {
            assert_eq!(table.needs(&method, path), want, "{method} {path}");
        }
    }
}
