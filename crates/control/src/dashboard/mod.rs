//! The operator's dashboard: the files of the page at `/`, which shows responses of the API.
//!
//! The files require no key, for they contain nothing about the node; every call that they make requires it.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use url::{Host, Url};

use crate::http::host::host_name;
use crate::http::listener::On;
use crate::node::Node;

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

macro_rules! files {
    ($($kind:ident $name:literal)*) => {
        [$((concat!("/dashboard/", $name), $kind, include_str!(concat!("page/", $name)))),*]
    };
}

const SVG: &str = "image/svg+xml";

/// Path, media type and text of each file.
pub(crate) const FILES: [(&str, &str, &str); 36] = files! {
    CSS "style.css"
    SVG "icon.svg"
    JS "api.js"
    JS "app.js"
    JS "certificates.js"
    JS "chart.js"
    JS "config.js"
    JS "connections.js"
    JS "dom.js"
    JS "format.js"
    JS "help.js"
    JS "history.js"
    JS "kernel.js"
    JS "live.js"
    JS "mqtt.js"
    JS "mqtt_retained.js"
    JS "mqtt_sessions.js"
    JS "nodes.js"
    JS "outbox.js"
    JS "overview.js"
    JS "paint.js"
    JS "publish.js"
    JS "route.js"
    JS "rows.js"
    JS "samples.js"
    JS "scale.js"
    JS "shards.js"
    JS "slowest.js"
    JS "sse.js"
    JS "theme.js"
    JS "tiles.js"
    JS "toml.js"
    JS "noisiest.js"
    JS "top.js"
    JS "topic.js"
    JS "user.js"
};

/// Serves one of the page's files below `/dashboard/`.
pub(crate) fn file(kind: &'static str, text: &'static str) -> Response {
    (headers(kind, ""), text).into_response()
}

/// Serves the page.
pub(crate) async fn page(
    State(node): State<Arc<Node>>,
    on: Option<Extension<ConnectInfo<On>>>,
    request: HeaderMap,
) -> Response {
    let host = request.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    // A page that a browser loaded over TLS may connect over TLS alone.
    let has_tls = on.is_some_and(|Extension(ConnectInfo(On(.., has_tls)))| has_tls);
    let url = match (&node.client_url, &node.client_url_tls) {
        (Some(_), Some(tls)) if has_tls => tls.as_str(),
        (Some(url), _) | (None, Some(url)) => url,
        (None, None) => "",
    };
    let client_url = client_url(url, host);
    let text = include_str!("page/index.html").replace("{{CLIENT_URL}}", &client_url);
    (headers("text/html; charset=utf-8", &client_url), text).into_response()
}

/// The page loads nothing from elsewhere: it connects to this port, and to the client port for messages.
fn headers(kind: &'static str, client_url: &str) -> [(header::HeaderName, String); 5] {
    let policy = format!(
        "default-src 'self'; connect-src 'self' {client_url}; object-src 'none'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    [
        (header::CONTENT_TYPE, kind.into()),
        // A page of one version with modules of another would break: the browser revalidates each time.
        (header::CACHE_CONTROL, "no-cache".into()),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".into()),
        (header::REFERRER_POLICY, "no-referrer".into()),
    ]
}

/// Returns where the page's browser finds the client port: one that is bound to every address (0.0.0.0 or ::) is
/// under the name in the `Host` of the page's request. Only an address or a host's name gets into the page.
fn client_url(configured: &str, host: &str) -> String {
    let Ok(mut url) = Url::parse(configured) else { return String::new() };
    let is_every = match url.host() {
        Some(Host::Ipv4(address)) => address.is_unspecified(),
        Some(Host::Ipv6(address)) => address.is_unspecified(),
        _ => false,
    };
    let name = host_name(host);
    if is_every && !name.is_empty() {
        let set = match name.parse() {
            Ok(address) => url.set_ip_host(address),
            Err(_) => url.set_host(Some(name)).map_err(drop),
        };
        if set.is_err() {
            return String::new();
        }
    }
    let origin = url.origin().ascii_serialization();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/[]%".contains(c);
    if origin.chars().all(is_plain) { origin } else { String::new() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::http::guard::OPEN_FOLDER;
    use crate::tests::fake::{Mood, bench};

    #[tokio::test]
    async fn every_file_of_the_folder_is_served_without_the_key() {
        let bench = bench(Mood::Willing);
        bench.node.access.set(crate::tests::fake::access(&[("horse", &["admin"])]));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/page");
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut served = 0;
        for name in names.map(|name| name.into_string().unwrap()) {
            let path =
                if name == "index.html" { "/".into() } else { format!("{OPEN_FOLDER}{name}") };
            let reply = bench.get(&path).await;
            assert_eq!(reply.status, 200, "{path}");
            assert_eq!(reply.headers["cache-control"], "no-cache", "{path}");
            assert_eq!(reply.headers["x-content-type-options"], "nosniff", "{path}");
            let kind = match name.rsplit_once('.').unwrap().1 {
                "html" => "text/html; charset=utf-8",
                "css" => CSS,
                "svg" => SVG,
                _ => JS,
            };
            assert_eq!(reply.headers["content-type"], kind, "{path}");
            let policy = reply.headers["content-security-policy"].to_str().unwrap();
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
        assert_eq!(foreign(&page.text), ["http://127.0.0.1:8000"]);
        for link in ["href", "src"].iter().flat_map(|name| attributes(&page.text, name)) {
            let known = link.starts_with('#') || FILES.iter().any(|(path, ..)| *path == link);
            assert!(known, "{link}");
        }
        for (path, kind, text) in FILES {
            assert!(foreign(text).is_empty(), "{path}: {:?}", foreign(text));
            let loads = ["@import", "url("].iter().any(|word| text.contains(word));
            assert!(kind != CSS || !loads, "{path}");
        }
    }

    /// Addresses of other hosts in a file, as they stand between quotes or brackets.
    fn foreign(text: &str) -> Vec<&str> {
        let strings = text.split(['"', '\'', '`', '(', ')']);
        let elsewhere = strings.filter(|part| {
            // A comment of JavaScript has a blank after its slashes.
            let host = part.strip_prefix("//").is_some_and(|rest| !rest.starts_with([' ', '\n']));
            host || part.contains("://")
        });
        elsewhere.filter(|address| *address != "http://www.w3.org/2000/svg").collect()
    }

    fn attributes<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let start = format!(" {name}=\"");
        text.split(start.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn addresses_of_other_hosts_are_found() {
        let text = "'//cdn/x.js' `//y` fetch(\"https://z\") // a comment\nh('b') //\nurl(//w)";
        assert_eq!(foreign(text), ["//cdn/x.js", "//y", "https://z", "//w"]);
    }

    #[test]
    fn modules_import_what_is_served() {
        for (path, _, text) in FILES.iter().filter(|(_, kind, _)| *kind == JS) {
            for import in imports(text) {
                let file = import.strip_prefix("./").unwrap_or_else(|| panic!("{path}: {import}"));
                let served = format!("{OPEN_FOLDER}{file}");
                assert!(FILES.iter().any(|(path, ..)| *path == served), "{path}: {import}");
            }
            for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"] {
                assert!(!text.contains(forbidden), "{path}: {forbidden}");
            }
        }
    }

    /// Returns what a module imports: `from '…'`, `import '…'` and `import('…')`. A computed import gives its
    /// expression, which is no file.
    fn imports(text: &str) -> Vec<&str> {
        let mut found = Vec::new();
        for word in ["from", "import"] {
            for (at, _) in text.match_indices(word) {
                let is_part = |c: char| c.is_alphanumeric() || "_$.".contains(c);
                if text[..at].ends_with(is_part) {
                    continue;
                }
                let rest = text[at + word.len()..].trim_start();
                let called = rest.strip_prefix('(').filter(|_| word == "import");
                let rest = called.unwrap_or(rest).trim_start();
                match rest.strip_prefix(['\'', '"']) {
                    Some(name) => found.extend(name.split(['\'', '"']).next()),
                    None if called.is_some() => found.extend(rest.split(')').next()),
                    None => {}
                }
            }
        }
        found
    }

    #[test]
    fn every_form_of_an_import_is_seen() {
        let text = "import { a } from './a.js';\nimport './b.js'; import\"./c.js\";\n\
                    await import( './d.js' ); import(name); export * from \"./e.js\"; x.from('no');";
        assert_eq!(imports(text), ["./a.js", "./e.js", "./b.js", "./c.js", "./d.js", "name"]);
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
