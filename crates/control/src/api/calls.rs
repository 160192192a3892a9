//! Routes, each with its required scope. None can be added without one.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodRouter, delete, get, post};

use crate::http::access::{RequiredScope, Row};

/// Routes of one state, and a row for each.
pub(crate) struct Calls<S> {
    router: Router<S>,
    rows: Vec<Row>,
}

impl<S: Clone + Send + Sync + 'static> Calls<S> {
    /// Makes an empty table.
    pub fn new() -> Self {
        Calls { router: Router::new(), rows: Vec::new() }
    }

    /// Adds a call that changes nothing.
    pub fn get<T: 'static>(
        self,
        path: &'static str,
        required_scope: RequiredScope,
        handler: impl Handler<T, S>,
    ) -> Self {
        self.add("GET", path, required_scope, get(handler))
    }

    /// Adds a call with a body.
    pub fn post<T: 'static>(
        self,
        path: &'static str,
        required_scope: RequiredScope,
        handler: impl Handler<T, S>,
    ) -> Self {
        self.add("POST", path, required_scope, post(handler))
    }

    /// Adds a call that deletes.
    pub fn delete<T: 'static>(
        self,
        path: &'static str,
        required_scope: RequiredScope,
        handler: impl Handler<T, S>,
    ) -> Self {
        self.add("DELETE", path, required_scope, delete(handler))
    }

    fn add(
        mut self,
        method: &'static str,
        path: &'static str,
        required_scope: RequiredScope,
        route: MethodRouter<S>,
    ) -> Self {
        self.rows.push(Row { method, path, required_scope });
        Calls { router: self.router.route(path, route), rows: self.rows }
    }

    /// The rows, in the order of the routes.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The routes.
    pub fn into_router(self) -> Router<S> {
        self.router
    }
}
