//! The OpenAPI 3 document, made from the types and functions that serve it.

use axum::Json;
use model::name::NAME_BYTES_MAX;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder, Schema};
use utoipa::{Modify, OpenApi};

use super::{
    connections, cursors, history, login, members, messages, operate, presence, publish, samples,
    stats, subscriptions, tokens, top, topics,
};
use crate::http::{ErrorBody, guard};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Throng",
        description = "Publish messages to topics, to users and to everyone; see who is connected. \
            Errors have the form {\"error\":{\"code\",\"message\"}}. Calls need the API key as soon \
            as one is configured. Every answer to a request that could be read has an x-request-id, \
            its own or a new one, which the log has, too."
    ),
    paths(
        publish::publish, publish::send, publish::broadcast, publish::batch::batch,
        connections::disconnect, connections::subscribe, connections::unsubscribe,
        login::login, login::logout, tokens::revoke, tokens::revocations,
        topics::topics, topics::topic, members::user, stats::stats, operate::config,
        history::page, history::delete, cursors::acknowledge, cursors::cursor,
        subscriptions::change, subscriptions::list, subscriptions::clear, subscriptions::import,
        subscriptions::subscribers::subscribers,
        presence::presence, top::top, members::members, messages::messages,
        samples::live, samples::samples,
        operate::healthz, operate::readyz, operate::metrics, document
    ),
    components(schemas(publish::batch::Command, ErrorBody)),
    modifiers(&Key, &Errors, &Names),
    security(("key" = []), ())
)]
struct Document;

/// The API key, and which paths don't ask for it.
struct Key;

impl Modify for Key {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("key", scheme);
        for (path, item) in &mut document.paths.paths {
            if let Some(get) = &mut item.get
                && guard::is_open(path)
            {
                get.security = Some(Vec::new());
            }
        }
    }
}

/// The lengths of names in what callers send.
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
        ("400", "The body is not JSON, or not what this call takes"),
        ("408", "The body did not arrive, or the call could not be done, in 30 seconds"),
        ("413", "The body or the message is too large"),
        (
            "415",
            "The body is said to be something else than JSON: send Content-Type: application/json",
        ),
        ("503", "Nothing was done: the server is behind, or going down; see Retry-After"),
    ];

    /// For calls that need the key.
    const KEY: (&str, &str) = ("401", "The API key is missing or wrong");

    /// For all.
    const ALL: (&str, &str) = ("403", "Called by a web page of another origin or host name");

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
        for (path, item) in &mut document.paths.paths {
            let with_body = item.post.is_some();
            let operations = [&mut item.get, &mut item.post, &mut item.delete];
            for operation in operations.into_iter().flatten() {
                Errors::add(operation, Errors::ALL);
                if !guard::is_open(path) {
                    Errors::add(operation, Errors::KEY);
                }
                if with_body {
                    Errors::BODY.into_iter().for_each(|error| Errors::add(operation, error));
                }
                if operation.parameters.is_some() {
                    Errors::add(operation, ("400", "A name or a number is not allowed here"));
                    Errors::add(operation, ("503", "A shard doesn't answer"));
                }
            }
        }
    }
}

/// The document as JSON, for those who write about the API.
pub fn openapi() -> serde_json::Value {
    serde_json::to_value(Document::openapi()).unwrap_or_default()
}

/// This document.
#[utoipa::path(get, path = "/api/openapi.json", tag = "operate", responses(
    (status = 200, description = "OpenAPI 3.1", content_type = "application/json")))]
pub(crate) async fn document() -> Json<utoipa::openapi::OpenApi> {
    Json(Document::openapi())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described_with_its_errors() {
        let document = serde_json::to_value(Document::openapi()).unwrap();
        let source = include_str!("mod.rs");
        let routes: Vec<(&str, &str)> = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix(".route(\"")?.split_once("\", "))
            .filter(|(path, _)| *path != "/api/history")
            .collect();
        assert!(routes.len() >= 21, "{routes:?}");
        let methods = routes.iter().flat_map(|(path, handler)| {
            let first = handler.split('(').next().unwrap();
            let second = handler.contains(".delete(").then_some("delete");
            [Some(first), second].into_iter().flatten().map(move |method| (*path, method))
        });
        for (path, method) in methods {
            let operation = &document["paths"][path][method];
            assert!(
                operation["summary"].is_string(),
                "{path} has no line in paths(…) of this file"
            );
            let responses = &operation["responses"];
            assert!(responses["403"].is_object(), "{path}");
            assert_eq!(responses["401"].is_object(), !guard::is_open(path), "{path}");
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
