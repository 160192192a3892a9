//! Checks of TLS, which matter only where a port has it.

use std::net::SocketAddr;

use super::{Checks, is_loopback, overlap};
use crate::{ClientCertificates, ClientUser, Config, Login};

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
    checks.require(
        &["tls.client_certificates", "tls.client_ca_file"],
        !is_required || has_authority,
        || {
            "no certificate of a client can be valid without an authority: set tls.client_ca_file"
                .into()
        },
    );
    let names_users = tls.client_user != ClientUser::None;
    checks.require(
        &["tls.client_user", "tls.client_ca_file"],
        !names_users || has_authority,
        || {
            "no certificate of a client can be valid without an authority: set tls.client_ca_file"
                .into()
        },
    );
    let may_login = client.login == Login::Allow;
    checks.require(&["tls.client_user", "client.login"], !names_users || !may_login, || {
        "a client could log in as another user than its certificate's: set client.login = \"refuse\"".into()
    });
    let has_header = !client.user_header.is_empty();
    checks.require(&["tls.client_user", "client.user_header"], !names_users || !has_header, || {
        "the proxy (client.user_header) says who a client is, and so does a certificate: use one of them"
            .into()
    });
    let has_certificate = !tls.certificate_file.is_empty();
    let ports = [("client.listen_tls", client.listen_tls), ("mqtt.listen_tls", mqtt.listen_tls)];
    for (key, listen) in ports {
        let Some(listen) = listen else { continue };
        checks.require(&[key, "tls.certificate_file"], has_certificate, || {
            "TLS needs a certificate: set tls.certificate_file and tls.key_file".into()
        });
        checks.require(
            &[key, "client.insecure", "auth.required"],
            is_loopback(listen) || client.insecure || config.knows_clients() || is_required,
            || {
                format!(
                    "{listen} is open to other machines, and nothing authenticates clients (TLS does \
                     not): require tokens (auth.required = true) or certificates (tls.client_certificates = \
                     \"required\"), have the application say who comes (webhook.connect = true), listen on 127.0.0.1, or say --insecure \
                     (client.insecure = true) if a firewall guards it"
                )
            },
        );
    }
    let others: [(&'static str, Option<SocketAddr>); 5] = [
        ("client.listen", Some(client.listen)),
        ("admin.listen", Some(admin.listen)),
        ("mqtt.listen", mqtt.listen),
        ("client.listen_tls", client.listen_tls),
        ("mqtt.listen_tls", mqtt.listen_tls),
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
        // Relative to the folder of the file.
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
