//! Checks of the cluster.

use url::Url;

use super::Checks;
use crate::{Config, TopicRule};

/// Bytes of the name of a cluster or a node, at most.
const NAME_BYTES_MAX: usize = 64;

/// The reason why history in a cluster needs a database.
const NO_HISTORY: &str = "each node of a cluster would have a history of its own: set history.url, a database that all nodes share";

pub(super) fn check(config: &Config, checks: &mut Checks<'_>) {
    let (cluster, limits) = (&config.cluster, &config.limits);
    for url in &cluster.urls {
        if let Err(reason) = server(url) {
            checks.require(&["cluster.urls"], false, || reason);
        }
    }
    let is_token = |token: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        !token.is_empty() && token.bytes().all(is_plain)
    };
    let is_name = cluster.name.len() <= NAME_BYTES_MAX && cluster.name.split('.').all(is_token);
    checks.require(&["cluster.name"], is_name, || {
        format!(
            "{:?} can't begin a subject: write up to {NAME_BYTES_MAX} letters, digits, - and _, with dots \
             between them",
            cluster.name
        )
    });
    let is_shown = cluster.node.len() <= NAME_BYTES_MAX && !cluster.node.contains(char::is_control);
    checks.require(&["cluster.node"], is_shown, || {
        format!("a node's name may have up to {NAME_BYTES_MAX} bytes, and no control characters")
    });
    checks.require(
        &["cluster.password", "cluster.user"],
        cluster.user.is_empty() || !cluster.password.is_empty(),
        || "a user needs a password: set cluster.password_file".into(),
    );
    checks.require(
        &["cluster.credentials", "cluster.user", "cluster.password"],
        cluster.credentials.is_empty() || cluster.user.is_empty() && cluster.password.is_empty(),
        || {
            "the node can log in with only one of them: remove cluster.credentials_file, or \
             cluster.user and cluster.password_file"
                .into()
        },
    );
    checks.require(
        &["cluster.queue_bytes_max", "limits.message_bytes_max"],
        cluster.urls.is_empty() || limits.message_bytes_max <= cluster.queue_bytes_max,
        || {
            format!(
                "the largest message must fit: make cluster.queue_bytes_max (it is {}) at least \
                 limits.message_bytes_max, which is {}",
                cluster.queue_bytes_max, limits.message_bytes_max
            )
        },
    );
    checks.require(
        &["inbox.enabled", "cluster.urls"],
        cluster.urls.is_empty() || !config.inbox.enabled || !config.history.url.is_empty(),
        || {
            "messages can't wait for users in the memory of one node of a cluster: set history.url, \
             or set this to false"
                .into()
        },
    );
}

/// The reason why a rule by topic is invalid in a cluster, if it is, with its key.
pub(super) fn check_rule(config: &Config, rule: &TopicRule) -> Option<(&'static str, String)> {
    let has_history = rule.history_messages_max > 0 && !config.cluster.urls.is_empty();
    (has_history && config.history.url.is_empty()).then(|| {
        let message = format!(
            "{NO_HISTORY}; or set it to 0, without the keys that go with it, or remove \
             cluster.urls and serve with one node"
        );
        ("history_messages_max", message)
    })
}

/// Checks the URL of a NATS server. The error does not repeat a text that may contain a password.
fn server(text: &str) -> Result<(), String> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "nats" | "tls"));
    if text.contains('@') {
        return Err(
            "a URL is printed and logged, so it must contain no user and no password: use \
                    cluster.user and cluster.password_file"
                .into(),
        );
    }
    let is_server = url.is_some_and(|url| {
        let has_host = url.host_str().is_some_and(|host| !host.is_empty());
        has_host
            && matches!(url.path(), "" | "/")
            && url.query().is_none()
            && url.fragment().is_none()
    });
    match is_server {
        true => Ok(()),
        false => Err(format!(
            "{text:?} is not the URL of a NATS server: write nats://host:4222, or tls://host:4222"
        )),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Loaded, Sources};

    fn error(text: &str) -> String {
        let sources = Sources { file: Some(("throng.toml", text)), ..Sources::default() };
        Loaded::load(&sources).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn a_cluster_needs_servers_of_nats() {
        let of = |urls: &str| error(&format!("[cluster]\nurls = [{urls}]\n"));
        assert_eq!(of(r#""nats://a:4222", "tls://b.example", "nats://[::1]:4""#), "");
        for bad in ["http://a", "a:4222", "nats://", "nats://a/b", "nats://a?b", "nats://a#b"] {
            let error = of(&format!("{bad:?}"));
            assert!(
                error.contains("is not the URL of a NATS server: write nats://host:4222"),
                "{bad}: {error}"
            );
        }
        let secret = of(r#""nats://user:hush@a:4222""#);
        assert!(secret.contains("cluster.password_file") && !secret.contains("hush"), "{secret}");
    }

    #[test]
    fn credentials_replace_a_password() {
        let of = |keys: &str| error(&format!("[cluster]\n{keys}\n"));
        assert_eq!(of("credentials = \"a\""), "");
        for other in
            ["password = \"hush-hush-hush-ha\"", "user = \"u\"\npassword = \"hush-hush-hush-ha\""]
        {
            let error = of(&format!("credentials = \"secret\"\n{other}"));
            assert!(error.contains("remove cluster.credentials_file"), "{error}");
            assert!(!error.contains("hush") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_clusters_name_begins_subjects() {
        let of = |name: &str| error(&format!("[cluster]\nname = {name:?}\n"));
        assert_eq!(of("eu.chat-1_b"), "");
        for bad in ["", "a b", "a.", ".a", "a..b", "a*", "a>", "é", &"a".repeat(65)] {
            assert!(of(bad).contains("can't begin a subject"), "{bad:?}");
        }
        assert!(error("[cluster]\nuser = \"a\"\n").contains("a user needs a password"));
    }

    #[test]
    fn topics_with_history_need_a_database_in_a_cluster() {
        let cluster = "[cluster]\nurls = [\"nats://a\"]\n";
        let rule = "[[topics]]\npattern = \"chat:*\"\nhistory_messages_max = 5\n";
        let refused = error(&format!("{cluster}{rule}"));
        assert!(refused.contains("throng.toml:5:"), "{refused}");
        assert!(refused.contains("set it to 0"), "{refused}");
        let refused = error(&format!("{cluster}[inbox]\nenabled = true\n"));
        assert!(
            refused.contains("inbox.enabled") && refused.contains("set history.url"),
            "{refused}"
        );
        assert_eq!(error(rule), "");
        let database = "[history]\nurl = \"postgres://h/d\"\n";
        assert_eq!(error(&format!("{cluster}{database}{rule}durable = true\n")), "");
    }
}
