//! The OpenAPI 3 document, made from the types and functions that serve it.
//!
//! The server serves `docs/openapi.json`, which `cargo run -p docs` writes. So the program does not contain the code that
//! makes the document, which is six times as long as the document.

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use model::name::NAME_BYTES_MAX;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ArrayBuilder, ContentBuilder, ObjectBuilder, Ref, RefOr, Required, ResponseBuilder, Schema,
    Type,
};
use utoipa::{Modify, OpenApi};

use super::{
    backup, certificates, cluster, cluster_nodes, connections, cursors, drain, history, kernel,
    login, members, messages, mqtt, noisiest, operate, outbox, presence, publish, samples, session,
    slowest, spread, stats, subscriptions, tokens, top, topics, trace, upgrade,
};
use crate::http::ErrorBody;
use crate::http::access::{RequiredScope, Row};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Throng",
        description = "Publish messages to topics, to users and to everyone; see who is connected. Errors have the \
                       form {\"error\":{\"code\",\"message\"}}. As soon as an API key is configured, calls require a \
                       key with the scope that each call names; a browser session can replace the key. Every response \
                       to a readable request has an x-request-id: the request's own or a new one. The log has it, too."
    ),
    paths(
        publish::publish, publish::send, publish::broadcast, publish::batch::batch,
        connections::disconnect, connections::subscribe, connections::unsubscribe,
        login::login, login::logout, tokens::revoke, tokens::revocations,
        topics::topics, topics::topic, members::user, stats::stats, operate::config,
        cluster::cluster, cluster_nodes::cluster_nodes, outbox::outbox,
        history::page, history::delete, cursors::acknowledge, cursors::cursor,
        subscriptions::change, subscriptions::list, subscriptions::clear, subscriptions::import,
        subscriptions::subscribers::subscribers,
        presence::presence, top::top, noisiest::noisiest, slowest::slowest, members::members, messages::messages, trace::trace,
        mqtt::sessions::list, mqtt::sessions::one, mqtt::sessions::end,
        mqtt::retained::list, mqtt::retained::one, mqtt::retained::delete,
        samples::live, samples::samples, kernel::kernel, certificates::certificates, backup::begin, backup::progress,
        drain::drain, drain::begin_drain, drain::cancel_drain,
        drain::rebalance, drain::begin_rebalance, drain::cancel_rebalance,
        upgrade::begin, upgrade::progress,
        session::sign_in, session::session, session::sign_out,
        operate::healthz, operate::readyz, operate::metrics, document
    ),
    components(schemas(publish::batch::Command, ErrorBody)),
    modifiers(&Key, &Nodes, &Errors, &Names),
    security(("key" = []), ())
)]
struct Document;

/// The API key, and the calls that don't require it.
struct Key;

/// Returns the document's entry for a call.
fn operation<'d>(
    document: &'d mut utoipa::openapi::OpenApi,
    row: &Row,
) -> Option<&'d mut Operation> {
    let item = document.paths.paths.get_mut(row.path)?;
    match row.method {
        "GET" => item.get.as_mut(),
        "POST" => item.post.as_mut(),
        "DELETE" => item.delete.as_mut(),
        _ => None,
    }
}

impl Modify for Key {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("key", scheme);
        for row in super::rows().iter().filter(|row| row.required_scope == RequiredScope::Nothing) {
            if let Some(operation) = operation(document, row) {
                operation.security = Some(Vec::new());
            }
        }
    }
}

/// Parameters and fields of calls that all nodes of a cluster do.
struct Nodes;

impl Modify for Nodes {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        for row in super::rows() {
            let call = spread::CALLS.iter().find(|it| (it.0, it.1) == (row.method, row.path));
            let Some((_, _, merge)) = call else { continue };
            let Some(operation) = operation(document, &row) else { continue };
            let description = if merge.is_by_one() {
                "In a cluster: the node that handles the call, by name or id; by default the node \
                 that is called"
            } else {
                "In a cluster: the one node that handles the call, by name or id, or `self`; by \
                 default all nodes"
            };
            let node = ParameterBuilder::new()
                .name("node")
                .parameter_in(ParameterIn::Query)
                .required(Required::False)
                .description(Some(description))
                .schema(Some(text()));
            operation.parameters.get_or_insert_default().push(node.build());
        }
        let components = document.components.get_or_insert_default();
        for called in [
            "Topics",
            "Topic",
            "TopicMembers",
            "User",
            "Disconnected",
            "Subscribed",
            "Stats",
            "ClusterNodes",
        ] {
            let Some(RefOr::T(Schema::Object(object))) = components.schemas.get_mut(called) else {
                continue;
            };
            let missing = ArrayBuilder::new().items(text()).description(Some(
                "In a cluster: nodes that did not reply, by name or id. Absent if a single node \
                 handles the call.",
            ));
            object.properties.insert("missing".into(), missing.build().into());
        }
    }
}

/// The lengths of names in request bodies.
struct Names;

impl Modify for Names {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        for called in [
            "Publish",
            "Send",
            "Broadcast",
            "Disconnect",
            "Membership",
            "Identity",
            "Acknowledgement",
            "Revoke",
            "Subscribe",
            "UserChange",
        ] {
            let Some(RefOr::T(Schema::Object(object))) = components.schemas.get_mut(called) else {
                continue;
            };
            for field in ["topic", "user", "event", "key", "sender"] {
                if let Some(RefOr::T(Schema::Object(name))) = object.properties.get_mut(field) {
                    (name.min_length, name.max_length) = (Some(1), Some(NAME_BYTES_MAX));
                }
            }
        }
    }
}

/// The rejections that every call shares.
struct Errors;

impl Errors {
    /// For calls with a body.
    const BODY: [(&str, &str); 5] = [
        ("400", "The body is not JSON, or has fields or values that this call does not accept"),
        ("408", "The body did not arrive, or the call did not finish, in 30 seconds"),
        ("413", "The body or the message is too large"),
        ("415", "The Content-Type is not JSON: send Content-Type: application/json"),
        ("503", "Nothing was done: the server is overloaded, or going down; see Retry-After"),
    ];

    /// For calls that require a key.
    const KEY: (&str, &str) = ("401", "The API key is missing, wrong or expired");

    /// For calls that require a key.
    const RATE: (&str, &str) = ("429", "The key has exceeded a limit per second; see Retry-After");

    /// For all calls.
    const ALL: (&str, &str) =
        ("403", "The request comes from a web page of another origin, or names another host");

    /// For calls that require a scope, instead of the one for all.
    fn scope(required_scope: RequiredScope) -> Option<String> {
        let scope = match required_scope {
            RequiredScope::Nothing | RequiredScope::Key => return None,
            RequiredScope::Read => "`read` or `admin`",
            RequiredScope::Publish => "`publish:PATTERN` for the topic, or `admin`",
            RequiredScope::Admin => "`admin`",
        };
        Some(format!(
            "The key does not have the scope {scope}; or the request comes from a web page of \
             another origin, or names another host"
        ))
    }

    fn add(operation: &mut Operation, (status, description): (&str, &str)) {
        let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
        let response = ResponseBuilder::new()
            .description(description)
            .content("application/json", body)
            .build()
            .into();
        operation.responses.responses.entry(status.into()).or_insert(response);
    }
}

impl Modify for Errors {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for row in super::rows() {
            let Some(operation) = operation(document, &row) else { continue };
            if let Some(scope) = Errors::scope(row.required_scope) {
                Errors::add(operation, ("403", &scope));
            }
            Errors::add(operation, Errors::ALL);
            if row.required_scope != RequiredScope::Nothing {
                Errors::add(operation, Errors::KEY);
                Errors::add(operation, Errors::RATE);
            }
            if row.method == "POST" {
                Errors::BODY.into_iter().for_each(|error| Errors::add(operation, error));
            }
            if operation.parameters.is_some() {
                Errors::add(operation, ("400", "A name or a number is not allowed here"));
                Errors::add(operation, ("503", "A shard did not reply"));
            }
        }
    }
}

/// The document as `cargo run -p docs` wrote it.
const DOCUMENT: &str = include_str!("../../../../docs/openapi.json");

/// Makes the document from the code. Only the documentation and tests call it.
pub fn openapi() -> serde_json::Value {
    serde_json::to_value(Document::openapi()).unwrap_or_default()
}

/// This document.
#[utoipa::path(get, path = "/api/openapi.json", tag = "operate", responses(
    (status = 200, description = "OpenAPI 3.1", content_type = "application/json")))]
pub(crate) async fn document() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::guard;

    #[test]
    fn every_route_is_described_with_its_errors() {
        let document = serde_json::to_value(Document::openapi()).unwrap();
        let rows = super::super::rows();
        let is_file = |path: &str| path == "/" || path.starts_with(guard::OPEN_FOLDER);
        // Users with the name of a call, and the hint for a path without a name, are not described.
        let is_described = |row: &&Row| match (row.method, row.path) {
            ("GET", "/api/history") => false,
            ("GET" | "DELETE", "/api/subscriptions/import") => false,
            (_, path) => !is_file(path),
        };
        let described: Vec<Row> = rows.iter().filter(is_described).copied().collect();
        assert!(described.len() >= 30, "{described:?}");
        for Row { method, path, required_scope } in described {
            let method = method.to_lowercase();
            let operation = &document["paths"][path][&method];
            assert!(
                operation["summary"].is_string(),
                "{path} has no line in paths(…) of this file"
            );
            let responses = &operation["responses"];
            assert!(responses["403"].is_object(), "{path}");
            let has_401 = required_scope != RequiredScope::Nothing || path == "/api/session";
            assert_eq!(responses["401"].is_object(), has_401, "{path}");
            assert_eq!(responses["408"].is_object(), method == "post", "{path}");
            assert_eq!(responses["415"].is_object(), method == "post", "{path}");
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let is_in_path =
                    path.contains(&format!("{{{}}}", parameter["name"].as_str().unwrap()));
                assert_eq!(parameter["in"], if is_in_path { "path" } else { "query" }, "{path}");
                assert_eq!(parameter["required"], is_in_path, "{path}");
            }
        }
        let schemas = &document["components"]["schemas"];
        assert!(schemas["Command"].is_object() && schemas["ErrorBody"].is_object());
        assert_eq!(document["components"]["securitySchemes"]["key"]["scheme"], "bearer");
        assert_eq!(document["paths"]["/healthz"]["get"]["security"], serde_json::json!([]));
    }
}
