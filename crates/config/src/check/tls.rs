//! Checks of TLS, which matter only where a port has it.

use std::net::SocketAddr;

use super::{Checks, is_loopback, overlap};
use crate::{Config, ProxyHeader};

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
    let has_certificate = !tls.certificate_file.is_empty();
    let ports = [("client.listen_tls", client.listen_tls), ("mqtt.listen_tls", mqtt.listen_tls)];
    for (key, listen) in ports {
        let Some(listen) = listen else { continue };
        checks.require(&[key, "tls.certificate_file"], has_certificate, || {
            "TLS needs a certificate: set tls.certificate_file and tls.key_file".into()
        });
        checks.require(
            &[key, "client.insecure", "auth.required"],
            is_loopback(listen) || client.insecure || config.knows_clients(),
            || {
                format!(
                    "{listen} is open to other machines, and nothing authenticates clients (TLS does \
                     not): require tokens (auth.required = true), have the application say who comes \
                     (webhook.connect = true), listen on 127.0.0.1, or say --insecure \
                     (client.insecure = true) if a firewall guards it"
                )
            },
        );
        let reads_requests = client.proxy_header != ProxyHeader::ProxyProtocol;
        checks.require(&[key, "client.proxy_header"], reads_requests, || {
            "a proxy would have to speak the PROXY protocol before TLS begins, which this port does not read: \
             let the proxy end TLS and connect to the port without it, or use another proxy_header"
                .into()
        });
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
    fn ports_with_tls_are_guarded_like_others() {
        for section in ["client", "mqtt"] {
            let error = load(&format!("[{section}]\nlisten_tls = \"0.0.0.0:8443\"\n{CERTIFICATE}"));
            let error = error.unwrap_err();
            assert!(error.contains("0.0.0.0:8443 is open to other machines"), "{error}");
            let same = format!("[{section}]\nlisten_tls = \"127.0.0.1:8000\"\n{CERTIFICATE}");
            let error = load(&same).unwrap_err();
            assert!(error.contains("client.listen (127.0.0.1:8000) is the same port"), "{error}");
        }
        let proxy = "[client]\nlisten_tls = \"127.0.0.1:1\"\nproxy_header = \"proxy-protocol\"\n";
        let error = load(&format!("{proxy}{CERTIFICATE}")).unwrap_err();
        assert!(error.contains("before TLS begins"), "{error}");
    }
}
