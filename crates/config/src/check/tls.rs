//! Checks of TLS, which apply only if a port has it.

use std::net::SocketAddr;

use auth::{CertificateUser, LoginRule};

use super::{Checks, is_host, is_loopback, overlap};
use crate::{ClientCertificates, Config};

pub(super) fn check(config: &Config, checks: &mut Checks<'_>) {
    let Config { client, admin, mqtt, tls, .. } = config;
    let files = [
        ("tls.certificate_file", &tls.certificate_file, "tls.key_file", &tls.key_file),
        ("tls.key_file", &tls.key_file, "tls.certificate_file", &tls.certificate_file),
    ];
    for (key, file, other, other_file) in files {
        checks.require(&[other, key], file.is_empty() || !other_file.is_empty(), || {
            format!("a certificate and its key belong together: set {other}, too")
        });
    }
    let has_authority = !tls.client_ca_file.is_empty();
    let is_required = tls.client_certificates == ClientCertificates::Required;
    let names_users = tls.client_user != CertificateUser::None;
    for (key, is_set) in
        [("tls.client_certificates", is_required), ("tls.client_user", names_users)]
    {
        checks.require(&[key, "tls.client_ca_file"], !is_set || has_authority, || {
            "no certificate of a client can be valid without an authority: set tls.client_ca_file"
                .into()
        });
    }
    let may_login = client.login == LoginRule::Allow;
    checks.require(&["tls.client_user", "client.login"], !names_users || !may_login, || {
        "a client could log in as another user than its certificate's: set client.login = \"refuse\"".into()
    });
    let has_header = !client.user_header.is_empty();
    checks.require(&["tls.client_user", "client.user_header"], !names_users || !has_header, || {
        "the proxy (client.user_header) names the user of a client, and so does a certificate: use \
         one of them"
            .into()
    });
    acme(config, checks);
    let has_certificate = !tls.certificate_file.is_empty() || !tls.acme_hosts.is_empty();
    let clients = [("client.listen_tls", client.listen_tls), ("mqtt.listen_tls", mqtt.listen_tls)];
    let ports = [clients[0], clients[1], ("admin.listen_tls", admin.listen_tls)];
    for (key, _) in ports.into_iter().filter(|(_, listen)| listen.is_some()) {
        checks.require(&[key, "tls.certificate_file"], has_certificate, || {
            "TLS needs a certificate: set tls.certificate_file and tls.key_file, or tls.acme_hosts".into()
        });
    }
    for (key, listen) in clients {
        let Some(listen) = listen else { continue };
        checks.require(
            &[key, "client.insecure", "auth.required"],
            is_loopback(listen) || client.insecure || config.knows_clients() || is_required,
            || {
                format!(
                    "{listen} is open to other machines, and nothing authenticates clients (TLS \
                     does not): require tokens (auth.required = true) or certificates \
                     (tls.client_certificates = \"required\"), let the application decide who \
                     connects (webhook.connect = true), listen on 127.0.0.1, or set --insecure \
                     (client.insecure = true) if a firewall guards it"
                )
            },
        );
    }
    let others: [(&'static str, Option<SocketAddr>); 6] = [
        ("client.listen", client.listen),
        ("admin.listen", Some(admin.listen)),
        ("mqtt.listen", mqtt.listen),
        ("client.listen_tls", client.listen_tls),
        ("mqtt.listen_tls", mqtt.listen_tls),
        ("admin.listen_tls", admin.listen_tls),
    ];
    for (key, listen) in ports {
        for (other, address) in others.into_iter().take_while(|(other, _)| *other != key) {
            if let (Some(listen), Some(address)) = (listen, address) {
                checks.require(&[key, other], !overlap(listen, address), || {
                    format!("{other} ({address}) is the same port: change one of them")
                });
            }
        }
    }
}

/// Hosts of a certificate, at most, for which authorities sign it.
const ACME_HOSTS_MAX: usize = 100;

fn acme(config: &Config, checks: &mut Checks<'_>) {
    let Config { client, tls, store, .. } = config;
    if tls.acme_hosts.is_empty() {
        return;
    }
    for host in &tls.acme_hosts {
        checks.require(&["tls.acme_hosts"], !host.starts_with("*."), || {
            format!("{host:?}: a wildcard can't be verified by ACME at a port: name each host")
        });
        let is_public = host.contains('.')
            && host.parse::<std::net::IpAddr>().is_err()
            && is_host(host.strip_prefix("*.").unwrap_or(host));
        checks.require(&["tls.acme_hosts"], is_public, || {
            format!("{host:?} is not a public host name, like \"push.example.com\"")
        });
    }
    checks.require(&["tls.acme_hosts"], tls.acme_hosts.len() <= ACME_HOSTS_MAX, || {
        format!("a certificate has at most {ACME_HOSTS_MAX} hosts")
    });
    checks.require(&["tls.acme_hosts", "tls.acme_terms_agreed"], tls.acme_terms_agreed, || {
        "the authority has terms: read them, and set tls.acme_terms_agreed = true".into()
    });
    checks.require(&["tls.acme_hosts", "client.listen_tls"], client.listen_tls.is_some(), || {
        "the authority verifies hosts at the port with TLS: set client.listen_tls".into()
    });
    let has_dir = !tls.acme_dir.is_empty() || !store.data.is_empty();
    checks.require(&["tls.acme_hosts", "tls.acme_dir"], has_dir, || {
        "the account and the certificate must outlive the process: set tls.acme_dir, or store.data"
            .into()
    });
    let is_required = tls.client_certificates == ClientCertificates::Required;
    checks.require(&["tls.acme_hosts", "tls.client_certificates"], !is_required, || {
        "the authority that verifies hosts has no client certificate: set tls.client_certificates \
         = \"optional\", or get the certificate with another program"
            .into()
    });
    let is_https = tls.acme_directory.starts_with("https://");
    checks.require(&["tls.acme_directory"], is_https, || {
        format!("{:?} is not an https:// URL", tls.acme_directory)
    });
    for contact in &tls.acme_contacts {
        checks.require(&["tls.acme_contacts"], contact.starts_with("mailto:"), || {
            format!("{contact:?}: write it as \"mailto:ops@example.com\"")
        });
    }
    let (id, key) = (&tls.acme_eab_key_id, &tls.acme_eab_key);
    checks.require(
        &["tls.acme_eab_key_id", "tls.acme_eab_key"],
        id.is_empty() == key.is_empty(),
        || {
            "the id and the key are needed together, and the authority shows both: set \
             tls.acme_eab_key_id, and tls.acme_eab_key or tls.acme_eab_key_file"
                .into()
        },
    );
    let is_key = crate::parse_eab_key(key).is_some();
    checks.require(&["tls.acme_eab_key"], key.is_empty() || is_key, || {
        "it is not base64url: copy the key as the authority shows it".into()
    });
}

#[cfg(test)]
mod tests {
    use crate::{Loaded, Sources};

    const CERTIFICATE: &str = "[tls]\ncertificate_file = \"a.pem\"\nkey_file = \"/b.pem\"\n";

    fn load(file: &str) -> Result<Loaded, String> {
        let sources = Sources { file: Some(("/etc/throng.toml", file)), ..Sources::default() };
        Loaded::load(&sources).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_port_with_tls_has_a_certificate() {
        let port = "[client]\nlisten_tls = \"127.0.0.1:8443\"\n";
        let error = load(port).unwrap_err();
        assert!(error.contains("throng.toml:2:14: client.listen_tls: TLS needs a cert"), "{error}");
        let config = load(&format!("{port}{CERTIFICATE}")).unwrap().config;
        assert_eq!(config.client.listen_tls, Some("127.0.0.1:8443".parse().unwrap()));
        // Paths are relative to the folder of the file.
        assert_eq!(config.tls.certificate_file, "/etc/a.pem");
        assert_eq!(config.tls.key_file, "/b.pem");
        let error = load("[tls]\nkey_file = \"b\"\n").unwrap_err();
        assert!(error.contains("set tls.certificate_file, too"), "{error}");
    }

    #[test]
    fn further_certificates_are_tables() {
        let more = "[[tls.certificates]]\ncertificate_file = \"c.pem\"\nkey_file = \"d.pem\"\n";
        let loaded = load(&format!("{CERTIFICATE}{more}")).unwrap();
        let [rule] = &loaded.config.certificates[..] else { panic!("{loaded:?}") };
        assert_eq!((&*rule.certificate_file, &*rule.key_file), ("/etc/c.pem", "/etc/d.pem"));
        let printed = crate::print::effective(&loaded);
        assert_eq!(load(&printed).unwrap().config, loaded.config, "{printed}");
        let error =
            load(&format!("{CERTIFICATE}[[tls.certificates]]\nkey_file = \"\"\n")).unwrap_err();
        assert!(error.contains("tls.certificates[0].certificate_file: it is missing"), "{error}");
        let error = load("[tls]\ncertificates = 1\n").unwrap_err();
        assert!(error.contains("write [[tls.certificates]]"), "{error}");
    }

    #[test]
    fn certificates_of_clients_need_an_authority_and_guard_a_port() {
        let with = |more: &str| load(&format!("{CERTIFICATE}{more}"));
        for line in ["client_certificates = \"required\"\n", "client_user = \"common-name\"\n"] {
            let error = with(line).unwrap_err();
            assert!(error.contains("set tls.client_ca_file"), "{error}");
        }
        let authority = "client_ca_file = \"ca.pem\"\n";
        let error = with(&format!("{authority}client_user = \"email\"\n")).unwrap_err();
        assert!(error.contains("set client.login = \"refuse\""), "{error}");
        let users = format!("{authority}client_user = \"email\"\n[client]\nlogin = \"refuse\"\n");
        assert_eq!(with(&users).unwrap().config.tls.client_ca_file, "/etc/ca.pem");
        let open = "[client]\nlisten_tls = \"0.0.0.0:443\"\n";
        assert!(with(&format!("{authority}{open}")).is_err());
        let required = format!("{authority}client_certificates = \"required\"\n{open}");
        assert!(with(&required).is_ok());
    }

    #[test]
    fn mqtt_is_open_to_this_host_alone_however_clients_come() {
        let open = |more: &str| {
            let file = format!("[mqtt]\nlisten = \"127.0.0.1:1883\"\n{CERTIFICATE}{more}");
            load(&file).unwrap().config.is_open_to_mqtt()
        };
        assert!(open(""));
        assert!(open("[client]\nlisten_tls = \"127.0.0.1:8443\"\n"));
        assert!(!open("[client]\ninsecure = true\nlisten_tls = \"0.0.0.0:8443\"\n"));
        let users = "client_ca_file = \"ca.pem\"\nclient_user = \"email\"\n";
        assert!(!open(&format!("{users}[client]\nlogin = \"refuse\"\n")));
    }

    #[test]
    fn acme_needs_consent_a_port_and_a_directory() {
        let port = "[client]\nlisten_tls = \"127.0.0.1:8443\"\n";
        let acme = "[tls]\nacme_hosts = [\"push.example.com\"]\n";
        let with = |more: &str| load(&format!("{port}{acme}{more}")).map(|it| it.config);
        let error = with("").unwrap_err();
        assert!(error.contains("set tls.acme_terms_agreed = true"), "{error}");
        assert!(error.contains("set tls.acme_dir, or store.data"), "{error}");
        let agreed = "acme_terms_agreed = true\nacme_dir = \"acme\"\n";
        assert_eq!(with(agreed).unwrap().tls.acme_dir, "/etc/acme");
        assert!(with("acme_terms_agreed = true\n[store]\ndata = \"/d\"\n").is_ok());
        for (lines, says) in [
            ("acme_eab_key_id = \"kid-1\"\n", "set tls.acme_eab_key_id, and tls.acme_eab_key"),
            ("acme_eab_key = \"a2V5\"\n", "set tls.acme_eab_key_id, and tls.acme_eab_key"),
            ("acme_eab_key_id = \"kid-1\"\nacme_eab_key = \"a+b\"\n", "it is not base64url"),
        ] {
            let error = with(&format!("{agreed}{lines}")).unwrap_err();
            assert!(error.contains(says), "{error}");
            assert!(!error.contains("a+b"), "{error}");
        }
        let both = "acme_eab_key_id = \"kid-1\"\nacme_eab_key = \"a2V5\"\n";
        assert!(with(&format!("{agreed}{both}")).is_ok());
        let error = load(&format!("{acme}{agreed}")).unwrap_err();
        assert!(error.contains("set client.listen_tls"), "{error}");
        for (line, want) in [
            ("acme_directory = \"http://a\"\n", "not an https:// URL"),
            ("acme_contacts = [\"ops@example.com\"]\n", "mailto:ops@example.com"),
        ] {
            let error = with(&format!("{agreed}{line}")).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
        for host in ["*.example.com", "localhost", "127.0.0.1", "a b.example"] {
            let file = format!("{port}[tls]\nacme_hosts = [\"{host}\"]\n{agreed}");
            assert!(load(&file).unwrap_err().contains(&format!("{host:?}")), "{host}");
        }
        let many = (0..101).map(|n| format!("\"h{n}.example\"")).collect::<Vec<_>>().join(",");
        let error = load(&format!("{port}[tls]\nacme_hosts = [{many}]\n{agreed}")).unwrap_err();
        assert!(error.contains("at most 100 hosts"), "{error}");
    }

    #[test]
    fn clients_have_a_port_with_or_without_tls() {
        let error = load("[client]\nlisten = \"\"\n").unwrap_err();
        assert!(error.contains("clients have no port"), "{error}");
        let only = format!("[client]\nlisten = \"\"\nlisten_tls = \"127.0.0.1:1\"\n{CERTIFICATE}");
        assert_eq!(load(&only).unwrap().config.client.listen, None);
    }

    #[test]
    fn the_admin_port_with_tls_is_guarded_like_the_one_without() {
        let with = |listen: &str, more: &str| {
            load(&format!("{CERTIFICATE}[admin]\nlisten_tls = \"{listen}\"\n{more}"))
        };
        assert!(with("127.0.0.1:8444", "").is_ok());
        let error = with("0.0.0.0:8444", "").unwrap_err();
        assert!(
            error.contains("0.0.0.0:8444 is open to other machines: set admin.api_key"),
            "{error}"
        );
        assert!(with("0.0.0.0:8444", "api_key = \"0123456789abcdef\"\n").is_ok());
        let error = with("127.0.0.1:8001", "").unwrap_err();
        assert!(error.contains("admin.listen (127.0.0.1:8001) is the same port"), "{error}");
        let error = load("[admin]\nlisten_tls = \"127.0.0.1:8444\"\n").unwrap_err();
        assert!(error.contains("TLS needs a certificate"), "{error}");
    }

    #[test]
    fn ports_with_tls_are_guarded_like_others() {
        for section in ["client", "mqtt"] {
            let error = load(&format!("[{section}]\nlisten_tls = \"0.0.0.0:8443\"\n{CERTIFICATE}"));
            let error = error.unwrap_err();
            assert!(error.contains("0.0.0.0:8443 is open to other machines"), "{error}");
            let same = format!("[{section}]\nlisten_tls = \"127.0.0.1:8000\"\n{CERTIFICATE}");
            let error = load(&same).unwrap_err();
            assert!(error.contains("client.listen (127.0.0.1:8000) is the same port"), "{error}");
        }
    }
}
