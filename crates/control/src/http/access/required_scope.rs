//! The scope that a call requires: each route of the router has one row.

use std::collections::HashMap;

use axum::http::Method;

/// The scope that a caller must have for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredScope {
    /// Nothing: the call shows only that the node is there.
    Nothing,
    /// Any key.
    Key,
    /// A key that may read.
    Read,
    /// A key that may publish something; the call itself checks the topic.
    Publish,
    /// A key with the scope `admin`.
    Admin,
}

impl RequiredScope {
    /// Returns the scope for `WWW-Authenticate`: a word without blanks.
    pub fn scope(self) -> &'static str {
        match self {
            RequiredScope::Nothing | RequiredScope::Key => "any",
            RequiredScope::Read => "read",
            RequiredScope::Publish => "publish",
            RequiredScope::Admin => "admin",
        }
    }

    /// Returns the scope as a key's configuration has it, for people.
    pub fn wants(self) -> &'static str {
        match self {
            RequiredScope::Publish => "publish:PATTERN",
            other => other.scope(),
        }
    }
}

/// A call and its required scope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub method: &'static str,
    /// The template of its path.
    pub path: &'static str,
    pub required_scope: RequiredScope,
}

/// The required scope of each call, by path and method.
#[derive(Default)]
pub(crate) struct Table(HashMap<&'static str, Vec<(&'static str, RequiredScope)>>);

impl Table {
    /// Makes a table of these rows.
    pub fn new(rows: &[Row]) -> Self {
        let mut table = Table::default();
        for row in rows {
            table.0.entry(row.path).or_default().push((row.method, row.required_scope));
        }
        table
    }

    /// Returns the required scope of a request that matches this route. A method that the route doesn't take requires
    /// a key if others do; a route without a row requires `admin`.
    pub fn required_scope(&self, method: &Method, path: &str) -> RequiredScope {
        // The router serves HEAD as it does GET.
        let method = if method == Method::HEAD { "GET" } else { method.as_str() };
        match self.0.get(path) {
            Some(rows) => {
                let row = rows.iter().find(|(of, _)| *of == method);
                let is_open = rows
                    .iter()
                    .all(|(_, required_scope)| *required_scope == RequiredScope::Nothing);
                let other = if is_open { RequiredScope::Nothing } else { RequiredScope::Key };
                row.map_or(other, |(_, required_scope)| *required_scope)
            }
            None => RequiredScope::Admin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_needs_what_its_row_says() {
        let row = |method, path, required_scope| Row { method, path, required_scope };
        let table = Table::new(&[
            row("GET", "/a", RequiredScope::Read),
            row("DELETE", "/a", RequiredScope::Admin),
            row("GET", "/", RequiredScope::Nothing),
        ]);
        for (method, path, want) in [
            (Method::GET, "/a", RequiredScope::Read),
            (Method::HEAD, "/a", RequiredScope::Read),
            (Method::DELETE, "/a", RequiredScope::Admin),
            (Method::POST, "/a", RequiredScope::Key),
            (Method::GET, "/", RequiredScope::Nothing),
            (Method::POST, "/", RequiredScope::Nothing),
            (Method::GET, "/b", RequiredScope::Admin),
        ] {
            assert_eq!(table.required_scope(&method, path), want, "{method} {path}");
        }
    }
}
