//! The operator's dashboard: the files of the page at `/`, which draws what the API tells.
//!
//! The files need no key, for they say nothing about the node; every call that they make does.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::{Node, guard};

/// Where the files are, beside the page itself.
pub(crate) const FOLDER: &str = "/dashboard/";

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

macro_rules! files {
    ($($kind:ident $name:literal)*) => {
        [$((concat!("/dashboard/", $name), $kind, include_str!(concat!("dashboard/", $name)))),*]
    };
}

const SVG: &str = "image/svg+xml";

/// Path, media type and text of each file.
const FILES: [(&str, &str, &str); 25] = files! {
    CSS "style.css"
    SVG "icon.svg"
    JS "api.js"
    JS "app.js"
    JS "chart.js"
    JS "config.js"
    JS "connections.js"
    JS "dom.js"
    JS "format.js"
    JS "help.js"
    JS "history.js"
    JS "live.js"
    JS "overview.js"
    JS "paint.js"
    JS "publish.js"
    JS "route.js"
    JS "scale.js"
    JS "shards.js"
    JS "sse.js"
    JS "theme.js"
    JS "tiles.js"
    JS "toml.js"
    JS "top.js"
    JS "topic.js"
    JS "user.js"
};

pub(crate) fn router() -> Router<Arc<Node>> {
    let router = Router::new().route("/", get(page));
    FILES.iter().fold(router, |router, &(path, kind, text)| {
        router.route(path, get(async move || (headers(kind, ""), text)))
    })
}

async fn page(State(node): State<Arc<Node>>, asked: HeaderMap) -> Response {
    let host = asked.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    let client_url = client_url(&node.client_url, host);
    let text = include_str!("dashboard/index.html").replace("{{CLIENT_URL}}", &client_url);
    (headers("text/html; charset=utf-8", &client_url), text).into_response()
}

/// The page loads nothing from elsewhere; it talks to this port, and to the client port to listen.
fn headers(kind: &'static str, client_url: &str) -> [(header::HeaderName, String); 5] {
    let policy = format!(
        "default-src 'self'; connect-src 'self' {client_url}; object-src 'none'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    [
        (header::CONTENT_TYPE, kind.into()),
        // A page of one version with modules of another would break: the browser asks each time.
        (header::CACHE_CONTROL, "no-cache".into()),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".into()),
        (header::REFERRER_POLICY, "no-referrer".into()),
    ]
}

/// Where the page's browser finds the client port: one that is bound to every address (0.0.0.0 or
/// ::) is under the name that the page itself was asked by. Nothing that isn't an address or a
/// host's name gets into the page.
fn client_url(configured: &str, host: &str) -> String {
    let url = match configured.split_once("://") {
        Some((scheme, rest)) => {
            let every = ["0.0.0.0", "[::]"].into_iter().find_map(|any| rest.strip_prefix(any));
            match (every, guard::host_name(host)) {
                (Some(port), name) if name.contains(':') => format!("{scheme}://[{name}]{port}"),
                (Some(port), name) if !name.is_empty() => format!("{scheme}://{name}{port}"),
                _ => configured.to_string(),
            }
        }
        None => configured.to_string(),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/[]%".contains(c);
    if url.chars().all(is_plain) { url } else { String::new() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::tests::fake::{Mood, bench};

    #[tokio::test]
    async fn every_file_of_the_folder_is_served_without_the_key() {
        let bench = bench(Mood::Willing);
        bench.node.live.write().unwrap().api_key = Some("correct horse".into());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard");
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut served = 0;
        for name in names.map(|name| name.into_string().unwrap()) {
            let path = if name == "index.html" { "/".into() } else { format!("{FOLDER}{name}") };
            let answer = bench.get(&path).await;
            assert_eq!(answer.status, 200, "{path}");
            assert_eq!(answer.headers["cache-control"], "no-cache", "{path}");
            assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{path}");
            let kind = match name.rsplit_once('.').unwrap().1 {
                "html" => "text/html; charset=utf-8",
                "css" => CSS,
                "svg" => SVG,
                _ => JS,
            };
            assert_eq!(answer.headers["content-type"], kind, "{path}");
            let policy = answer.headers["content-security-policy"].to_str().unwrap();
            assert!(policy.starts_with("default-src 'self';"), "{policy}");
            served += 1;
        }
        assert_eq!(served, FILES.len() + 1);
        assert_eq!(bench.get("/dashboard/nothing.js").await.status, 404);
    }

    #[tokio::test]
    async fn the_page_loads_nothing_from_elsewhere() {
        let page = bench(Mood::Willing).get("/").await;
        let policy = page.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("connect-src 'self' http://127.0.0.1:8000;"), "{policy}");
        assert!(page.text.contains("data-client=\"http://127.0.0.1:8000\""));
        assert!(!page.text.contains("{{"));
        for reference in page.text.split(['"']).filter(|text| text.contains("://")) {
            assert_eq!(reference, "http://127.0.0.1:8000");
        }
        let links = page.text.split("=\"/").skip(1).filter_map(|rest| rest.split('"').next());
        for link in links.filter(|link| !link.is_empty()) {
            assert!(FILES.iter().any(|(path, ..)| path[1..] == *link), "/{link}");
        }
    }

    #[test]
    fn modules_import_what_is_served() {
        for (path, _, text) in FILES.iter().filter(|(_, kind, _)| *kind == JS) {
            let imports =
                text.split(" from './").skip(1).filter_map(|rest| rest.split('\'').next());
            for import in imports {
                let wanted = format!("{FOLDER}{import}");
                assert!(FILES.iter().any(|(path, ..)| *path == wanted), "{path}: {import}");
            }
            for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"] {
                assert!(!text.contains(forbidden), "{path}: {forbidden}");
            }
        }
    }

    #[test]
    fn the_page_finds_a_client_port_on_every_address() {
        for (configured, host, want) in [
            ("http://127.0.0.1:8000", "localhost:8001", "http://127.0.0.1:8000"),
            ("http://0.0.0.0:8000", "10.1.2.3:8001", "http://10.1.2.3:8000"),
            ("http://[::]:8000", "[fe80::1]:8001", "http://[fe80::1]:8000"),
            ("http://[::]:8000", "push.example", "http://push.example:8000"),
            ("http://0.0.0.0:8000", "", "http://0.0.0.0:8000"),
            ("http://0.0.0.0:8000", "\"><script>", ""),
            ("http://a; script-src *", "localhost", ""),
        ] {
            assert_eq!(client_url(configured, host), want);
        }
    }
}
