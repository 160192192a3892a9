//! Identities, and the errors for invalid ones.

use rcgen::{PKCS_ECDSA_P256_SHA256, date_time_ymd};

use super::support::{AUTHORITY, params, pem, server};
use crate::{Identity, IdentityError, PemError};

#[test]
fn a_chain_and_its_key_make_an_identity() {
    let mut params = params(&["One.test", "*.two.test", "10.0.0.1"]);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2021, 1, 1);
    let signed = AUTHORITY.sign(&PKCS_ECDSA_P256_SHA256, &params);
    let chain = [signed.chain_pem(), AUTHORITY.pem()].concat();
    let identity = Identity::from_pem(&chain, &signed.key_pem()).unwrap();
    let certificate = identity.certificate();
    assert_eq!(certificate.hosts().collect::<Vec<_>>(), ["one.test", "*.two.test"]);
    let names: Vec<_> = certificate.names.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["one.test", "*.two.test", "10.0.0.1"]);
    // The certificate has expired, which is no error.
    assert_eq!((certificate.not_before, certificate.not_after), (1_577_836_800, 1_609_459_200));
    assert!(certificate.is_expired(1_609_459_201) && !certificate.is_expired(1_609_459_200));
    // The chain and the key are in one file with text between them, as some tools write it.
    let both = [&chain[..], b"subject: one\r\n", &signed.key_pem()].concat();
    assert!(Identity::from_pem(&both, &both).is_ok());
    let windows = String::from_utf8(both).unwrap().replace('\n', "\r\n").into_bytes();
    assert!(Identity::from_pem(&windows, &windows).is_ok());
}

#[test]
fn each_mistake_has_its_error() {
    let (signed, other) = (server(&["one.test"]), server(&["one.test"]));
    let (chain, key) = (signed.chain_pem(), signed.key_pem());
    let fails = |chain: &[u8], key: &[u8]| Identity::from_pem(chain, key).unwrap_err();

    assert_eq!(fails(b"", &key), IdentityError::Chain(PemError::NoCertificate));
    assert_eq!(fails(&key, &key), IdentityError::Chain(PemError::NoCertificate));
    assert_eq!(fails(&chain, b"secret"), IdentityError::Key(PemError::NoKey));
    assert_eq!(fails(&chain, &chain), IdentityError::Key(PemError::NoKey));
    assert_eq!(fails(&signed.certificate, &key), IdentityError::Chain(PemError::Der));
    assert_eq!(fails(&chain, &signed.key), IdentityError::Key(PemError::Der));
    let encrypted = pem("ENCRYPTED PRIVATE KEY", &signed.key);
    assert_eq!(fails(&chain, &encrypted), IdentityError::Key(PemError::Encrypted));
    let old = b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\nAAAA\n";
    assert_eq!(fails(&chain, old), IdentityError::Key(PemError::Encrypted));
    assert_eq!(fails(&chain, &other.key_pem()), IdentityError::Mismatch);
    let reversed = [other.chain_pem(), chain.clone()].concat();
    assert_eq!(fails(&reversed, &key), IdentityError::Order(2));
    let unreadable = [chain.clone(), pem("CERTIFICATE", b"none")].concat();
    assert_eq!(fails(&unreadable, &key), IdentityError::InvalidCertificate(2));
    assert_eq!(fails(&chain, &pem("PRIVATE KEY", b"none")), IdentityError::KeyKind);

    let cut = &chain[..chain.len() - 10];
    assert!(fails(cut, &key).to_string().contains("no -----END line"), "{}", fails(cut, &key));
    let damaged = String::from_utf8(key.clone()).unwrap().replacen("MI", "M!", 1).into_bytes();
    assert!(fails(&chain, &damaged).to_string().contains("not Base64"));
    let text = fails(&reversed, &key).to_string();
    assert!(text.contains("number 2") && text.contains("comes first"), "{text}");
}

#[test]
fn debug_prints_no_key() {
    let signed = server(&["one.test"]);
    let text = format!("{:?}", signed.identity());
    assert!(text.contains("one.test") && !text.contains("key"), "{text}");
}
