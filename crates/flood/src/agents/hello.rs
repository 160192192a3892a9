//! The handshake of a coordinator and an agent: both must have the same version, and the same key if the agent has
//! one.
//!
//! The agent speaks first. Each side proves that it knows the key by an HMAC-SHA256 of both challenges, so the key
//! itself never crosses the network.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use data_encoding::HEXLOWER;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::frame::{Until, receive, send};

/// The version of the protocol.
const PROTOCOL: u32 = 1;
/// The version of this binary, which both must have.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How long the handshake may take.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the longest message of a peer that has proved nothing yet.
const HELLO_BYTES_MAX: u32 = 4 << 10;

/// The agent's first message. Other versions read it, too: it may only grow.
#[derive(Deserialize, Serialize)]
struct Greeting {
    protocol: u32,
    throng: String,
    challenge: String,
    wants_key: bool,
}

/// The coordinator's reply.
#[derive(Deserialize, Serialize)]
struct HelloReply {
    protocol: u32,
    throng: String,
    challenge: String,
    proof: Option<String>,
}

/// The agent's decision about that reply.
#[derive(Deserialize, Serialize)]
enum Decision {
    Welcome { proof: Option<String> },
    Refused { why: String },
}

/// The side that makes a proof: it is part of the proof, so that a peer can't send the other side's proof back.
#[derive(Clone, Copy)]
enum Side {
    Agent,
    Coordinator,
}

fn mac(key: &str, side: Side, agents: &str, coordinators: &str) -> Result<Hmac<Sha256>> {
    let side = match side {
        Side::Agent => "agent",
        Side::Coordinator => "coordinator",
    };
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).context("a key")?;
    mac.update(format!("throng flood {side}\n{agents}\n{coordinators}").as_bytes());
    Ok(mac)
}

fn proof(key: &str, side: Side, agents: &str, coordinators: &str) -> Result<String> {
    let mac = mac(key, side, agents, coordinators)?;
    Ok(HEXLOWER.encode(&mac.finalize().into_bytes()))
}

/// Checks a proof, in a time that reveals nothing about the right one.
fn is_proved(proof: Option<&str>, key: &str, side: Side, agents: &str, others: &str) -> bool {
    let bytes = proof.and_then(|text| HEXLOWER.decode(text.as_bytes()).ok());
    let mac = mac(key, side, agents, others).ok();
    mac.zip(bytes).is_some_and(|(mac, bytes)| mac.verify_slice(&bytes).is_ok())
}

fn challenge() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
    Ok(HEXLOWER.encode(&bytes))
}

/// Does the agent's side of the handshake.
///
/// # Errors
/// If the other side has another version, doesn't know the key, or is no coordinator.
pub fn welcome(mut socket: &TcpStream, key: Option<&str>) -> Result<()> {
    let own = challenge()?;
    let greeting = Greeting {
        protocol: PROTOCOL,
        throng: VERSION.into(),
        challenge: own.clone(),
        wants_key: key.is_some(),
    };
    send(&mut socket, &greeting)?;
    let mut from = Until::new(socket, HELLO_TIMEOUT);
    let reply: HelloReply =
        receive(&mut from, HELLO_BYTES_MAX)?.context("it closed the connection")?;
    let HelloReply { protocol, throng, challenge, proof: theirs } = reply;
    let refused = match key {
        _ if (protocol, throng.as_str()) != (PROTOCOL, VERSION) => {
            Some(format!("the agent is throng {VERSION}, the coordinator {throng}"))
        }
        Some(key) if !is_proved(theirs.as_deref(), key, Side::Coordinator, &own, &challenge) => {
            Some("the agent has another key".to_string())
        }
        _ => None,
    };
    if let Some(why) = refused {
        send(&mut socket, &Decision::Refused { why: why.clone() })?;
        bail!(why);
    }
    let proof = key.map(|key| proof(key, Side::Agent, &own, &challenge)).transpose()?;
    send(&mut socket, &Decision::Welcome { proof })
}

/// Does the coordinator's side of the handshake.
///
/// # Errors
/// If the other side has another version, the keys differ, or it is no agent. The error says what to do.
pub fn meet(mut socket: &TcpStream, key: Option<&str>) -> Result<()> {
    let mut from = Until::new(socket, HELLO_TIMEOUT);
    let greeting: Greeting = receive(&mut from, HELLO_BYTES_MAX)
        .and_then(|greeting| {
            greeting.context("it closed the connection: it has too many connections")
        })
        .context("no agent responds there: is it throng flood agent?")?;
    let Greeting { protocol, throng, challenge: theirs, wants_key } = greeting;
    ensure!(
        (protocol, throng.as_str()) == (PROTOCOL, VERSION),
        "the agent is throng {throng}, and this is {VERSION}: run the same binary everywhere"
    );
    ensure!(
        !wants_key || key.is_some(),
        "the agent requires a key: name its file with --agents-key-file"
    );
    ensure!(
        wants_key || key.is_none(),
        "the agent has no key, so it can't prove who it is: start it with --key-file, or leave out \
         --agents-key-file"
    );
    let own = challenge()?;
    let proof = key.map(|key| proof(key, Side::Coordinator, &theirs, &own)).transpose()?;
    let reply =
        HelloReply { protocol: PROTOCOL, throng: VERSION.into(), challenge: own.clone(), proof };
    send(&mut socket, &reply)?;
    match receive(&mut from, HELLO_BYTES_MAX)?.context("it closed the connection")? {
        Decision::Refused { why } => bail!("it rejects the connection: {why}"),
        Decision::Welcome { proof } => {
            let knows = |key: &str| is_proved(proof.as_deref(), key, Side::Agent, &theirs, &own);
            ensure!(key.is_none_or(knows), "it doesn't know the key: it is not the expected agent");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Does the handshake with these keys, and returns the results of both sides.
    fn hello(agents: Option<&str>, coordinators: Option<&str>) -> (Result<()>, Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let agent = scope.spawn(|| welcome(&listener.accept().unwrap().0, agents));
            let meets = meet(&TcpStream::connect(address).unwrap(), coordinators);
            (agent.join().unwrap(), meets)
        })
    }

    #[test]
    fn only_those_with_the_same_key_meet() {
        for (agents, coordinators, said) in [
            (None, None, None),
            (Some("secret"), Some("secret"), None),
            (Some("secret"), Some("other"), Some("another key")),
            (Some("secret"), None, Some("--agents-key-file")),
            (None, Some("secret"), Some("--key-file")),
        ] {
            let (agent, coordinator) = hello(agents, coordinators);
            assert_eq!(agent.is_ok(), said.is_none(), "{agents:?} {coordinators:?}");
            let text = coordinator.err().map(|error| format!("{error:#}"));
            assert_eq!(text.is_some(), said.is_some(), "{text:?}");
            assert!(text.as_ref().is_none_or(|text| text.contains(said.unwrap())), "{text:?}");
        }
    }

    #[test]
    fn one_sides_proof_is_not_the_others() {
        let of = |side| proof("key", side, "a", "b").unwrap();
        assert!(is_proved(Some(&of(Side::Agent)), "key", Side::Agent, "a", "b"));
        assert!(!is_proved(Some(&of(Side::Coordinator)), "key", Side::Agent, "a", "b"));
        assert!(!is_proved(Some("00"), "key", Side::Agent, "a", "b"));
        assert!(!is_proved(None, "key", Side::Agent, "a", "b"));
    }

    #[test]
    fn another_version_is_an_error_that_names_the_remedy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut socket = listener.accept().unwrap().0;
                let text =
                    r#"{"protocol":9,"throng":"9.0.0","challenge":"","wants_key":false,"new":1}"#;
                let greeting: serde_json::Value = serde_json::from_str(text).unwrap();
                send(&mut socket, &greeting).unwrap();
            });
            let error = meet(&TcpStream::connect(address).unwrap(), None).unwrap_err();
            assert!(error.to_string().contains("run the same binary everywhere"), "{error}");
        });
    }
}
