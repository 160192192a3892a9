//! Which tokens are valid, and what they grant.

use std::sync::Arc;

use auth::{Authenticator, Grants, Patterns, TokenError};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::EncodingKey;
use jsonwebtoken::jwk::Jwk;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const NOW_S: u64 = 1_000_000;

/// Pairs of keys: private and public.
const RSA: (&str, &str) = (include_str!("tests/rsa.pem"), include_str!("tests/rsa.pub.pem"));
const P256: (&str, &str) = (include_str!("tests/p256.pem"), include_str!("tests/p256.pub.pem"));
const P384: (&str, &str) = (include_str!("tests/p384.pem"), include_str!("tests/p384.pub.pem"));
const ED: (&str, &str) = (include_str!("tests/ed25519.pem"), include_str!("tests/ed25519.pub.pem"));

fn algorithm(name: &str) -> Algorithm {
    name.parse().unwrap()
}

fn sign(name: &str, key: &str, claims: &Value) -> String {
    Signer::new(key, algorithm(name), None).unwrap().sign(claims).unwrap()
}

/// Signs with the shared key.
fn shared(claims: Value) -> String {
    sign("HS256", SECRET, &claims)
}

fn settings(keys: Vec<Key>) -> Settings {
    Settings { keys, ..Settings::default() }
}

fn authority(settings: Settings) -> Authority {
    Authority::new(settings, Arc::default(), Arc::default(), Arc::default())
}

fn with_secret() -> Authority {
    authority(settings(vec![Key::shared(SECRET).unwrap()]))
}

fn error(authority: &Authority, token: &str) -> TokenError {
    authority.verify(token, NOW_S).unwrap_err()
}

#[test]
fn each_algorithm_counts_with_its_key_and_no_other() {
    let pairs = [
        (vec!["HS256", "HS384", "HS512"], SECRET, Key::shared(SECRET).unwrap()),
        (vec!["RS256", "RS384", "RS512", "PS256"], RSA.0, Key::public(RSA.1).unwrap()),
        (vec!["ES256"], P256.0, Key::public(P256.1).unwrap()),
        (vec!["ES384"], P384.0, Key::public(P384.1).unwrap()),
        (vec!["EdDSA"], ED.0, Key::public(ED.1).unwrap()),
    ];
    let all = authority(settings(pairs.iter().map(|(_, _, key)| key.clone()).collect()));
    let claims = json!({ "sub": "al" });
    for (names, private, key) in &pairs {
        let own = authority(settings(vec![key.clone()]));
        for name in names {
            let token = sign(name, private, &claims);
            for authority in [&own, &all] {
                assert_eq!(authority.verify(&token, NOW_S).unwrap().users, ["al"], "{name}");
            }
            let named =
                Settings { algorithms: vec![algorithm(name)], ..settings(vec![key.clone()]) };
            assert!(authority(named).verify(&token, NOW_S).is_ok());
            for (_, _, other) in pairs.iter().filter(|(known, ..)| known != names) {
                let error = error(&authority(settings(vec![other.clone()])), &token);
                assert!(
                    matches!(error, TokenError::Algorithm | TokenError::Signature),
                    "{name}: {error:?}"
                );
            }
            let others = Algorithm::ALL.into_iter().filter(|known| known.name() != *name).collect();
            let unnamed = Settings { algorithms: others, ..settings(vec![key.clone()]) };
            assert_eq!(error(&authority(unnamed), &token), TokenError::Algorithm);
        }
        let kind = Signer::algorithm_of(private);
        assert_eq!(
            kind.map(Algorithm::name),
            names.first().filter(|_| *private != SECRET).map(|it| it.to_string())
        );
    }
}

#[test]
fn a_public_key_is_never_taken_for_a_shared_one() {
    for (_, public) in [RSA, P256, ED] {
        assert_eq!(Key::shared(public).unwrap_err(), KeyError::PublicAsSecret);
        let authority = authority(settings(vec![Key::public(public).unwrap()]));
        for name in ["HS256", "HS384", "HS512"] {
            let forged = sign(name, public, &json!({ "sub": "al" }));
            assert_eq!(error(&authority, &forged), TokenError::Algorithm, "{name}");
        }
    }
    assert_eq!(Key::shared("0123456789abcdef").unwrap_err(), KeyError::Short);
    assert_eq!(Key::public(RSA.0).unwrap_err(), KeyError::Private);
    assert_eq!(Key::public("-----BEGIN PUBLIC KEY-----\nAAAA\n").unwrap_err(), KeyError::Unknown);
}

/// A token whose header and claims are as written, with this signature.
fn written(header: &str, claims: &str, signature: &str) -> String {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.{signature}", part(header), part(claims))
}

#[test]
fn what_is_not_signed_counts_for_nothing() {
    let authority = with_secret();
    let claims = r#"{"sub":"al"}"#;
    for (header, want) in [
        (r#"{"alg":"none"}"#, TokenError::Algorithm),
        (r#"{"alg":"None"}"#, TokenError::Algorithm),
        (r#"{"alg":"hs256"}"#, TokenError::Algorithm),
        (r#"{"alg":"HS256"}"#, TokenError::Signature),
        (r#"{"alg":"RS256"}"#, TokenError::Algorithm),
    ] {
        for signature in ["", "AAAA"] {
            assert_eq!(error(&authority, &written(header, claims, signature)), want, "{header}");
        }
    }
    let good = shared(json!({ "sub": "al" }));
    let (head, signature) = good.rsplit_once('.').unwrap();
    let other = written(r#"{"alg":"HS256","typ":"JWT"}"#, r#"{"sub":"bo"}"#, signature);
    assert_eq!(error(&authority, &other), TokenError::Signature);
    for malformed in
        ["", ".", "..", "a.b", "a.b.c", head, &format!("{good}."), &format!("{good}.x")]
    {
        let error = error(&authority, malformed);
        assert!(matches!(error, TokenError::Malformed(_)), "{malformed:?} {error:?}");
        assert_eq!(error.code(), "invalid_token");
    }
    // No critical extension is known here.
    let header = json!({ "alg": "HS256", "crit": ["exp"], "exp": 1 }).to_string();
    assert!(matches!(error(&authority, &written(&header, claims, "AA")), TokenError::Malformed(_)));
    let long = shared(json!({ "sub": "al", "x": "a".repeat(20_000) }));
    assert_eq!(error(&authority, &long), TokenError::Malformed("it is too long"));
}

#[test]
fn claims_say_who_may_do_what_and_when() {
    let authority = with_secret();
    let ok = |claims: Value| authority.verify(&shared(claims), NOW_S).unwrap();
    let verified = ok(json!({
        "sub": "al", "users": ["bo", "al"], "exp": NOW_S as f64 + 5.5, "iat": NOW_S - 7, "jti": "t1",
        "throng": {
            "subscribe": ["chat:{sub}:*"], "publish": ["chat:1"], "info": {"name": "Al"}, "history": []
        },
        "other": {"x": 1}
    }));
    assert_eq!(verified.users, ["al", "bo"]);
    assert_eq!(verified.expires, Some(NOW_S + 6), "not early");
    assert_eq!((verified.mark.issued_s, verified.mark.id_hash), (999_993, id_hash("t1")));
    assert_eq!(verified.info.as_deref(), Some(r#"{"name":"Al"}"#));
    let want = Patterns {
        subscribe: vec!["chat:{sub}:*".into()],
        publish: vec!["chat:1".into()],
        ..Patterns::default()
    };
    assert_eq!(*verified.grants, Grants::Patterns(want));

    // A token grants only the own topic, unless the configuration says more.
    assert_eq!(*ok(json!({ "sub": "al" })).grants, Grants::default());
    let news = Arc::new(Grants::Patterns(Patterns {
        subscribe: vec!["news".into()],
        ..Patterns::default()
    }));
    let more =
        Settings { anonymous_grants: news.clone(), ..settings(vec![Key::shared(SECRET).unwrap()]) };
    let more = super::tests::authority(more);
    assert_eq!(more.verify(&shared(json!({ "sub": "al" })), NOW_S).unwrap().grants, news);
    let none = shared(json!({ "sub": "al", "throng": {} }));
    assert_eq!(*more.verify(&none, NOW_S).unwrap().grants, Grants::default());
    assert!(ok(json!({})).users.is_empty());

    for (claims, want) in [
        (json!({ "exp": NOW_S }), TokenError::Expired),
        (json!({ "exp": 0.5 }), TokenError::Expired),
        (json!({ "nbf": NOW_S + 61 }), TokenError::NotYet),
        (json!({ "aud": "others" }), TokenError::Audience),
    ] {
        assert_eq!(error(&authority, &shared(claims.clone())), want, "{claims}");
    }
    // Clocks differ a little.
    ok(json!({ "nbf": NOW_S + 60, "exp": NOW_S + 1 }));
    for claims in [
        json!({ "sub": "" }),
        json!({ "sub": 7 }),
        json!({ "users": "al" }),
        json!({ "exp": "soon" }),
        json!({ "exp": null }),
        json!({ "nbf": null }),
        json!({ "throng": { "subscribed": ["news"] } }),
        json!({ "throng": { "subscribe": "news" } }),
        json!({ "throng": { "subscribe": vec!["a"; PATTERNS_MAX + 1] } }),
        json!({ "throng": { "subscribe": ["a".repeat(300)] } }),
        json!({ "throng": { "info": [1] } }),
        json!({ "throng": { "info": { "x": "a".repeat(INFO_BYTES_MAX) } } }),
        json!({ "sub": "al", "topic": "news" }),
        json!([]),
    ] {
        let error = error(&authority, &shared(claims.clone()));
        assert!(matches!(error, TokenError::Claim(_)), "{claims}: {error:?}");
    }
    for (claims, want) in [
        (
            json!({ "exp": "soon" }),
            "exp: invalid type: string \"soon\", expected a number, of seconds since 1970",
        ),
        (
            json!({ "exp": null }),
            "exp: invalid type: null, expected a number, of seconds since 1970",
        ),
        (json!({ "sub": 7 }), "sub: invalid type: integer `7`, expected a string"),
        (
            json!({ "throng": { "publish": [1] } }),
            "throng.publish[0]: invalid type: integer `1`, expected a string",
        ),
        (json!([]), "the claims: invalid length 0, expected struct Claims with 10 elements"),
    ] {
        assert_eq!(error(&authority, &shared(claims)), TokenError::Claim(want.into()));
    }
}

#[test]
fn issuers_and_audience_are_checked_where_they_are_named() {
    let named = Settings {
        issuers: vec!["https://a.example".into(), "b".into()],
        audience: Some("throng".into()),
        ..settings(vec![Key::shared(SECRET).unwrap()])
    };
    let authority = authority(named);
    for (claims, want) in [
        (json!({ "iss": "b", "aud": "throng" }), Ok(())),
        (json!({ "iss": "https://a.example", "aud": ["x", "throng"] }), Ok(())),
        (json!({ "iss": "c", "aud": "throng" }), Err(TokenError::Issuer)),
        (json!({ "aud": "throng" }), Err(TokenError::Issuer)),
        (json!({ "iss": "b" }), Err(TokenError::Audience)),
        (json!({ "iss": "b", "aud": ["x"] }), Err(TokenError::Audience)),
    ] {
        let verified = authority.verify(&shared(claims.clone()), NOW_S).map(|_| ());
        assert_eq!(verified, want, "{claims}");
    }
}

#[test]
fn a_token_for_one_topic_is_for_nothing_else() {
    let authority = with_secret();
    let topic = shared(json!({ "sub": "al", "topic": "room:1", "exp": NOW_S + 60 }));
    let token = authority.verify_topic(&topic, NOW_S).unwrap();
    assert_eq!((token.users.as_slice(), &*token.topic), (&["al".into()][..], "room:1"));
    assert!(matches!(error(&authority, &topic), TokenError::Claim(_)));
    assert_eq!(authority.verify_topic(&topic, NOW_S + 60), Err(TokenError::Expired));
    for claims in [
        json!({ "sub": "al" }),
        json!({ "topic": "room:1" }),
        json!({ "sub": "al", "topic": "" }),
        json!({ "sub": "al", "topic": "@bo" }),
        json!({ "sub": "al", "topic": "*" }),
    ] {
        let error = authority.verify_topic(&shared(claims.clone()), NOW_S).unwrap_err();
        assert!(matches!(error, TokenError::Claim(_)), "{claims}");
    }
}

#[test]
fn what_is_revoked_counts_no_longer_for_as_long_as_it_is_remembered() {
    let revocations = Arc::new(Revocations::default());
    let keys = settings(vec![Key::shared(SECRET).unwrap()]);
    let stats = Arc::new(Stats::default());
    let authority = Authority::new(keys, Arc::default(), revocations.clone(), stats.clone());
    let token = |user: &str, jti: &str, iat: u64| {
        let claims = json!({ "sub": user, "jti": jti, "iat": iat });
        authority.verify(&shared(claims), NOW_S).map(|_| ())
    };
    let add = |revoked| {
        let added = revocations.add(&Revocation { revoked, until: NOW_S + 10 }, 3);
        added != AddOutcome::Full
    };
    assert_eq!(token("al", "t1", 5), Ok(()));
    assert!(add(Revoked::Jti("t1".into())));
    assert_eq!(token("al", "t1", 5), Err(TokenError::Revoked));
    assert_eq!(token("al", "t2", 5), Ok(()));
    assert!(add(Revoked::User { user: "al".into(), issued_before: 5 }));
    assert_eq!((token("al", "t2", 5), token("al", "t2", 6)), (Err(TokenError::Revoked), Ok(())));
    assert_eq!(token("bo", "t2", 5), Ok(()));
    // A token without a time of issue counts as one from before.
    let undated = shared(json!({ "sub": "al" }));
    assert_eq!(authority.verify(&undated, NOW_S), Err(TokenError::Revoked));
    // Another user of a token is revoked with it.
    let both = shared(json!({ "sub": "bo", "users": ["al"], "iat": 5 }));
    assert_eq!(authority.verify(&both, NOW_S), Err(TokenError::Revoked));
    assert!(add(Revoked::IssuedBefore(3)));
    assert_eq!((token("bo", "t3", 3), token("bo", "t3", 4)), (Err(TokenError::Revoked), Ok(())));
    // At the limit, known revocations may change, and new ones are rejected.
    assert!(!add(Revoked::Jti("t9".into())));
    assert!(add(Revoked::IssuedBefore(2)) && add(Revoked::IssuedBefore(4)));
    assert_eq!(token("bo", "t3", 4), Err(TokenError::Revoked));
    assert_eq!(
        (revocations.count(), revocations.list(9).len(), revocations.list(1).len()),
        (3, 3, 1)
    );
    let again = |revoked, until| revocations.add(&Revocation { revoked, until }, 3);
    assert_eq!(again(Revoked::IssuedBefore(4), NOW_S + 10), AddOutcome::Known);
    assert_eq!(again(Revoked::IssuedBefore(3), NOW_S + 9), AddOutcome::Known, "it means less");
    assert_eq!(again(Revoked::Jti("t1".into()), NOW_S + 10), AddOutcome::Known);
    let page = |after: &str, max| -> Vec<String> {
        revocations.page(after, max).iter().map(|it| it.revoked.key()).collect()
    };
    let all = page("", 9);
    assert!(all.is_sorted() && all.len() == 3);
    assert_eq!(
        (page("", 2), page(&all[1], 2), page(&all[2], 2)),
        (all[..2].into(), all[2..].into(), vec![])
    );
    assert!(revocations.sweep(NOW_S + 9).is_empty());
    assert_eq!(revocations.sweep(NOW_S + 10).len(), 3);
    assert_eq!((token("al", "t1", 5), revocations.count()), (Ok(()), 0));
    let revoked = stats.rejected().find(|(code, _)| *code == "token_revoked").unwrap().1;
    assert!(stats.accepted() > 5 && revoked == 6, "{stats:?}");
}

#[test]
fn a_revocation_is_found_again_by_its_text() {
    for revoked in [
        Revoked::Jti("t\"1".into()),
        Revoked::User { user: "al".into(), issued_before: 7 },
        Revoked::IssuedBefore(9),
    ] {
        assert_eq!(Revoked::of_key(&revoked.key()), Some(revoked));
    }
    assert_eq!(Revoked::of_key("{}"), None);
}

/// A set with the public parts of these, each with its name.
fn set(keys: &[(&str, &str, &str)]) -> Vec<u8> {
    let jwk = |(name, algorithm, private): &(&str, &str, &str)| {
        let pem = private.as_bytes();
        let key = EncodingKey::from_rsa_pem(pem)
            .or_else(|_| EncodingKey::from_ec_pem(pem))
            .or_else(|_| EncodingKey::from_ed_pem(pem));
        let inner = self::algorithm(algorithm).inner();
        let mut jwk = Jwk::from_encoding_key(&key.unwrap(), inner).unwrap();
        jwk.common.key_id = Some(name.to_string());
        serde_json::to_value(jwk).unwrap()
    };
    json!({ "keys": keys.iter().map(jwk).collect::<Vec<_>>() }).to_string().into_bytes()
}

fn signed_by(name: &str, algorithm: &str, private: &str, claims: &Value) -> String {
    let signer = Signer::new(private, self::algorithm(algorithm), Some(name.into())).unwrap();
    signer.sign(claims).unwrap()
}

#[test]
fn published_keys_are_fetched_when_they_are_needed_and_not_more_often() {
    let url = "https://a.example/keys".to_string();
    let woken = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let jwks = Arc::new(Jwks::new(std::slice::from_ref(&url), &[], 300));
    let counts = woken.clone();
    jwks.set_wake(move || {
        counts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    let authority =
        Authority::new(Settings::default(), jwks.clone(), Arc::default(), Arc::default());
    let verify = |token: &str, now_s| authority.verify(token, now_s).map(|_| ());
    let first = signed_by("1", "RS256", RSA.0, &json!({}));
    let second = signed_by("2", "ES256", P256.0, &json!({}));

    // No keys have come yet.
    assert_eq!(verify(&first, 100), Err(TokenError::KeysComing));
    assert_eq!(jwks.begin(100), std::slice::from_ref(&url));
    assert!(jwks.begin(100).is_empty(), "one at a time");
    assert_eq!(verify(&first, 101), Err(TokenError::KeysComing));
    let version = authority.keys_version();
    jwks.end(101);
    assert_ne!(authority.keys_version(), version);
    // They could not be fetched: that is not the token's fault.
    assert_eq!(verify(&first, 102), Err(TokenError::KeysUnavailable));
    assert!(jwks.begin(106).is_empty(), "nobody needs them");
    assert_eq!(verify(&first, 106), Err(TokenError::KeysComing));
    assert_eq!(jwks.begin(106).len(), 1);
    let version = authority.keys_version();
    assert_eq!(jwks.fetched(&url, &set(&[("1", "RS256", RSA.0)])), Ok(1));
    assert_ne!(authority.keys_version(), version, "nobody waits for the others");
    assert_eq!(verify(&first, 106), Ok(()));
    // The issuer responds slowly, and the end of the fetch counts.
    jwks.end(110);

    // The issuer has a new key.
    assert_eq!(verify(&second, 111), Err(TokenError::UnknownKey), "just fetched");
    assert_eq!(verify(&second, 115), Err(TokenError::KeysComing));
    assert_eq!(jwks.begin(115).len(), 1);
    let both = set(&[("1", "RS256", RSA.0), ("2", "ES256", P256.0)]);
    assert_eq!(jwks.fetched(&url, &both), Ok(2));
    jwks.end(115);
    assert_eq!((verify(&first, 116), verify(&second, 116)), (Ok(()), Ok(())));
    // Tokens with unknown keys make the server fetch now and then, and no more.
    let fetches = (0..60)
        .map(|second| {
            let forged = signed_by("9", "ES256", OTHER_P256, &json!({ "n": second }));
            let reply = verify(&forged, 200 + second);
            let begun = jwks.begin(200 + second).len();
            if begun > 0 {
                assert_eq!(reply, Err(TokenError::KeysComing));
                jwks.fetched(&url, &both).unwrap();
                jwks.end(200 + second);
            } else {
                assert_eq!(reply, Err(TokenError::UnknownKey));
            }
            begun
        })
        .sum::<usize>();
    assert_eq!(fetches, 12);
    // A wrong signature of a known key starts no fetch.
    let broken = first.rsplit_once('.').unwrap().0.to_string() + ".AAAA";
    assert_eq!(verify(&broken, 300), Err(TokenError::Signature));
    // The issuer removes the old key.
    assert_eq!(jwks.begin(558 + 300).len(), 1);
    assert!(jwks.fetched(&url, b"{}").is_err());
    assert_eq!(jwks.fetched(&url, br#"{"keys":[]}"#), Err(KeyError::Empty));
    assert_eq!(verify(&first, 900), Ok(()), "what can't be read changes nothing");
    assert_eq!(jwks.fetched(&url, &set(&[("2", "ES256", P256.0)])), Ok(1));
    jwks.end(858);
    assert_eq!(verify(&first, 862), Err(TokenError::UnknownKey));
    assert!(woken.load(std::sync::atomic::Ordering::Relaxed) >= 14);
    // The clock is set back.
    assert_eq!(verify(&first, 10), Err(TokenError::KeysComing));
    assert_eq!(jwks.begin(10).len(), 1);
    jwks.end(10);
    // The caller never fetches.
    assert_eq!(verify(&first, 20), Err(TokenError::KeysComing));
    assert_eq!(verify(&first, 29), Err(TokenError::KeysComing));
    assert_eq!(verify(&first, 30), Err(TokenError::KeysUnavailable));
}

/// A fetch may end between the search for a key and the choice of the error.
#[test]
fn a_token_is_not_refused_while_its_key_arrives() {
    let url = "https://a.example/keys".to_string();
    let token = signed_by("1", "RS256", RSA.0, &json!({}));
    let published = set(&[("1", "RS256", RSA.0)]);
    for round in 0..500 {
        let jwks = Arc::new(Jwks::new(std::slice::from_ref(&url), &[], 300));
        let authority =
            Authority::new(Settings::default(), jwks.clone(), Arc::default(), Arc::default());
        assert_eq!(jwks.begin(100).len(), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                jwks.fetched(&url, &published).unwrap();
                jwks.end(100);
            });
            while let Err(error) = authority.verify(&token, 100) {
                assert_eq!(error, TokenError::KeysComing, "round {round}");
            }
        });
    }
}

#[test]
fn what_an_issuer_publishes_by_now_is_not_known_while_it_replies_with_errors() {
    let url = "https://a.example/keys".to_string();
    let jwks = Arc::new(Jwks::new(std::slice::from_ref(&url), &[], 300));
    let authority =
        Authority::new(Settings::default(), jwks.clone(), Arc::default(), Arc::default());
    let verify = |token: &str, now_s| authority.verify(token, now_s).map(|_| ());
    let first = signed_by("1", "RS256", RSA.0, &json!({}));
    let second = signed_by("2", "ES256", P256.0, &json!({}));
    jwks.begin(100);
    jwks.fetched(&url, &set(&[("1", "RS256", RSA.0)])).unwrap();
    jwks.end(100);
    assert_eq!((verify(&first, 101), verify(&second, 101)), (Ok(()), Err(TokenError::UnknownKey)));
    // The issuer has a new key, and its address responds with errors.
    assert_eq!(verify(&second, 110), Err(TokenError::KeysComing));
    assert_eq!(jwks.begin(110).len(), 1);
    jwks.end(111);
    assert_eq!(verify(&second, 112), Err(TokenError::KeysUnavailable));
    assert_eq!(verify(&first, 112), Ok(()), "keys from before stay");
    let broken = first.rsplit_once('.').unwrap().0.to_string() + ".AAAA";
    assert_eq!(verify(&broken, 112), Err(TokenError::Signature), "of a known key");
    // The server fetches again, even if no token needs it.
    assert!(jwks.begin(140).is_empty());
    assert_eq!(jwks.begin(141).len(), 1);
    jwks.fetched(&url, &set(&[("1", "RS256", RSA.0), ("2", "ES256", P256.0)])).unwrap();
    jwks.end(141);
    assert_eq!(verify(&second, 142), Ok(()));
}

#[test]
fn a_key_of_another_issuer_with_the_same_name_proves_no_user() {
    let urls = ["https://a.example/keys", "https://b.example/keys"].map(String::from);
    let issuers = ["https://a.example/", "https://b.example/"].map(String::from);
    let jwks = Arc::new(Jwks::new(&urls, &issuers, 300));
    let settings = Settings { issuers: issuers.to_vec(), ..Settings::default() };
    let authority = Authority::new(settings, jwks.clone(), Arc::default(), Arc::default());
    let verify = |token: &str, now_s| authority.verify(token, now_s).map(|_| ());
    let [a, b] = issuers.map(|issuer| json!({ "iss": issuer }));
    let (of_a, of_b) = (signed_by("1", "RS256", RSA.0, &a), signed_by("1", "ES256", P256.0, &b));
    jwks.begin(100);
    jwks.fetched(&urls[0], &set(&[("1", "RS256", RSA.0)])).unwrap();
    assert_eq!((verify(&of_a, 101), verify(&of_b, 101)), (Ok(()), Err(TokenError::KeysComing)));
    jwks.end(101);
    assert_eq!(verify(&of_b, 102), Err(TokenError::KeysUnavailable));
    let forged = signed_by("1", "ES256", OTHER_P256, &a);
    assert_eq!(verify(&forged, 102), Err(TokenError::UnknownKey), "all keys of a are known");
    // No keys count for a token without an issuer: nothing is fetched for it.
    let foreign = signed_by("9", "ES256", OTHER_P256, &json!({}));
    assert_eq!(verify(&foreign, 120), Err(TokenError::UnknownKey));
    assert!(jwks.begin(120).is_empty());
    assert_eq!(verify(&of_b, 120), Err(TokenError::KeysComing));
    assert_eq!(jwks.begin(120).len(), 2);
    jwks.fetched(&urls[1], &set(&[("1", "ES256", P256.0)])).unwrap();
    jwks.end(120);
    assert_eq!(verify(&of_b, 121), Ok(()));
    // Keys that another issuer's fetch has not brought don't concern this issuer.
    let forged = signed_by("1", "RS256", RSA.0, &b);
    assert_eq!(verify(&forged, 121), Err(TokenError::Issuer));
}

/// However slowly issuers respond, a token waits for one fetch only.
#[test]
fn keys_that_never_come_are_not_waited_for_for_ever() {
    let urls = ["https://a.example/keys".to_string(), "https://b.example/keys".to_string()];
    let jwks = Arc::new(Jwks::new(&urls, &[], 300));
    let authority =
        Authority::new(Settings::default(), jwks.clone(), Arc::default(), Arc::default());
    let token = signed_by("1", "RS256", RSA.0, &json!({}));
    let verify = |now_s| authority.verify(&token, now_s).map(|_| ());
    for begun_s in (100..200).step_by(10) {
        assert_eq!(verify(begun_s), Err(TokenError::KeysComing));
        assert_eq!(jwks.begin(begun_s).len(), 2);
        // One issuer responds at once, the other never.
        jwks.fetched(&urls[1], &set(&[("2", "ES256", P256.0)])).unwrap();
        assert_eq!(verify(begun_s + 4), Err(TokenError::KeysComing));
        jwks.end(begun_s + 5);
        assert_eq!(verify(begun_s + 5), Err(TokenError::KeysUnavailable));
    }
}

/// A key that no issuer publishes.
const OTHER_P256: &str = include_str!("tests/other_p256.pem");

#[test]
fn no_issuer_speaks_for_another() {
    // The keys of the last are at an address of no issuer.
    let urls = ["https://a.example/keys", "https://b.example/t/keys", "https://keys.example/c"];
    let urls = urls.map(String::from);
    let issuers = ["https://a.example/", "https://b.example/t", "https://c.example"];
    let issuers = issuers.map(String::from);
    let jwks = Arc::new(Jwks::new(&urls, &issuers, 300));
    jwks.begin(100);
    jwks.fetched(&urls[0], &set(&[("1", "RS256", RSA.0)])).unwrap();
    jwks.fetched(&urls[1], &set(&[("1", "ES256", P256.0)])).unwrap();
    jwks.fetched(&urls[2], &set(&[("1", "EdDSA", ED.0)])).unwrap();
    jwks.end(100);
    let settings = Settings { issuers: issuers.to_vec(), ..Settings::default() };
    let authority = Authority::new(settings, jwks, Arc::default(), Arc::default());
    let [a, b, c] = issuers.map(|issuer| json!({ "iss": issuer }));
    for (name, key, claims, want) in [
        ("RS256", RSA.0, &a, Ok(())),
        ("ES256", P256.0, &b, Ok(())),
        ("RS256", RSA.0, &b, Err(TokenError::Issuer)),
        ("ES256", P256.0, &a, Err(TokenError::Issuer)),
        ("EdDSA", ED.0, &c, Ok(())),
        ("EdDSA", ED.0, &a, Err(TokenError::Issuer)),
        ("EdDSA", ED.0, &b, Err(TokenError::Issuer)),
    ] {
        let token = signed_by("1", name, key, claims);
        assert_eq!(authority.verify(&token, 101).map(|_| ()), want, "{name} {claims}");
    }
}

#[test]
fn keys_of_a_set_that_are_for_something_else_are_passed_over() {
    let mut keys: Value = serde_json::from_slice(&set(&[
        ("1", "RS256", RSA.0),
        ("2", "ES256", P256.0),
        ("3", "EdDSA", ED.0),
        ("4", "ES384", P384.0),
    ]))
    .unwrap();
    let list = keys["keys"].as_array_mut().unwrap();
    list[0]["use"] = "enc".into();
    list.push(json!({ "kty": "oct", "k": URL_SAFE_NO_PAD.encode(SECRET), "kid": "5" }));
    list.push(json!({ "kty": "new", "kid": "6" }));
    list.push(json!(7));
    let read = KeySet::read(keys.to_string().as_bytes()).unwrap();
    assert_eq!(read.len(), 3);
    // A key is for its curve's algorithm alone.
    let names = |at: usize| read.0[at].algorithms().iter().map(|it| it.name()).collect::<Vec<_>>();
    assert_eq!(
        (names(0), names(1), names(2)),
        (vec!["ES256".into()], vec!["EdDSA".into()], vec!["ES384".into()])
    );
    assert!(matches!(KeySet::read(b"[]"), Err(KeyError::Set(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_text_does_harm(text in any::<String>(), parts in proptest::collection::vec("[A-Za-z0-9_=-]{0,40}", 0..5)) {
        let authority = with_secret();
        prop_assert!(authority.verify(&text, NOW_S).is_err());
        prop_assert!(authority.verify(&parts.join("."), NOW_S).is_err());
        let _ = (read_unverified(&text), KeySet::read(text.as_bytes()));
    }

    /// Any claims are read or rejected, and a token with a changed byte is rejected.
    #[test]
    fn no_claims_do_harm_and_no_change_passes(
        claims in json_value(), at in any::<proptest::sample::Index>(), byte in "[A-Za-z0-9_-]",
    ) {
        let authority = with_secret();
        let token = shared(claims);
        let judged = authority.verify(&token, NOW_S);
        let _ = authority.verify_topic(&token, NOW_S);
        let at = at.index(token.len());
        let mut changed = token.clone();
        changed.replace_range(at..=at, &byte);
        // The last letter has bits that the decoder ignores.
        prop_assume!(changed != token && at < token.len() - 1);
        prop_assert!(authority.verify(&changed, NOW_S).is_err(), "{judged:?}");
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z@*{}:]{0,8}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::hash_map("[a-z]{1,4}", inner, 0..4)
                .prop_map(|map| map.into_iter().collect::<Value>()),
        ]
    });
    let names = ["sub", "users", "exp", "nbf", "iat", "iss", "aud", "jti", "throng", "topic"];
    proptest::collection::vec((proptest::sample::select(names.to_vec()), value), 0..6)
        .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_string(), value)).collect())
}
