//! The OpenAPI 3 document, made from the types and functions that serve it.

use axum::Json;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use crate::{inspect, members, metrics, publish};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Throng",
        description = "Publish messages to topics, to users and to everyone; see who is connected. \
            Errors have the form {\"error\":{\"code\",\"message\"}}. Calls need the API key as soon \
            as one is configured."
    ),
    paths(
        publish::publish, publish::send, publish::broadcast, publish::batch,
        members::disconnect, members::subscribe, members::unsubscribe,
        inspect::topics, inspect::topic, inspect::user, inspect::stats, inspect::config,
        inspect::healthz, inspect::readyz, metrics::metrics
    ),
    components(schemas(publish::Command)),
    modifiers(&Key),
    security(("key" = []), ())
)]
struct Document;

struct Key;

impl Modify for Key {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("key", scheme);
    }
}

pub(crate) async fn document() -> Json<utoipa::openapi::OpenApi> {
    Json(Document::openapi())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described() {
        let document = serde_json::to_value(Document::openapi()).unwrap();
        let source = include_str!("api.rs");
        let routes: Vec<&str> = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix(".route(\"")?.split('"').next())
            .filter(|path| !["/", "/api/openapi.json"].contains(path))
            .collect();
        assert!(routes.len() >= 15, "{routes:?}");
        for route in routes {
            assert!(document["paths"].get(route).is_some(), "{route}");
        }
        assert!(document["components"]["schemas"]["Command"].is_object());
    }
}
