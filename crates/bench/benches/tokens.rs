//! The costs of tokens: memory of an idle connection, and CPU of a connect by the token's signature.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::Args;
use bench::crowd::{Crowd, Plan};
use bench::report::{Table, median, thousands};
use bench::throng::Throng;
use serde_json::{Value, json};
use token::{Algorithm, Signer};

const SECRET: &str = "a key for benches, which everybody knows";

/// Users with a token of their own; further connections start again with the first.
const TOKENS_MAX: usize = 100_000;

fn main() -> ExitCode {
    bench::main(run)
}

/// A way in which connections authenticate.
struct Case {
    name: &'static str,
    /// The algorithm and the private key of tokens; `None` without tokens.
    signed: Option<(&'static str, String)>,
    settings: Vec<(&'static str, String)>,
    claims: fn(usize) -> Value,
}

/// All users get the same grants.
fn shared(number: usize) -> Value {
    let subscribe = ["all", "room:{sub}:*"];
    json!({ "sub": format!("u{number}"), "exp": 4_000_000_000_u64, "throng": { "subscribe": subscribe } })
}

/// Each user gets grants of its own, by its name.
fn own(number: usize) -> Value {
    let subscribe = ["all".to_string(), format!("room:u{number}:*")];
    json!({ "sub": format!("u{number}"), "exp": 4_000_000_000_u64, "throng": { "subscribe": subscribe } })
}

/// Each user gets other grants, which its name doesn't determine.
fn other(number: usize) -> Value {
    let subscribe = ["all".to_string(), format!("room:{}:*", number * 7)];
    json!({ "sub": format!("u{number}"), "exp": 4_000_000_000_u64, "throng": { "subscribe": subscribe } })
}

fn run(args: &Args) -> Result<()> {
    let (connections, shards, cores) = (args.connections(), args.shards(), args.cores_note());
    let rounds = args.rounds_or(3);
    let folder = std::env::temp_dir().join(format!("throng-bench-keys-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let pem = |name: &str, flags: &[&str]| -> Result<(String, String)> {
        let (private, public) = (folder.join(name), folder.join(format!("{name}.pub")));
        let made = std::process::Command::new("openssl")
            .args(["genpkey", "-quiet", "-out"])
            .arg(&private)
            .args(flags)
            .status()
            .context("openssl makes the keys")?;
        ensure!(made.success(), "openssl: {made}");
        let made = std::process::Command::new("openssl")
            .args(["pkey", "-pubout", "-in"])
            .arg(&private)
            .arg("-out")
            .arg(&public)
            .status()?;
        ensure!(made.success(), "openssl: {made}");
        Ok((std::fs::read_to_string(&private)?, public.display().to_string()))
    };
    let rsa = pem("rsa", &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"])?;
    let p256 = pem("p256", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"])?;
    let ed = pem("ed", &["-algorithm", "ed25519"])?;
    let hmac = vec![("THRONG_AUTH_HMAC_KEY", SECRET.to_string())];
    let public =
        |(_, file): &(String, String)| vec![("THRONG_AUTH_PUBLIC_KEY_FILES", file.clone())];
    let cases = [
        Case { name: "no token", signed: None, settings: Vec::new(), claims: shared },
        Case {
            name: "HS256, granted alike",
            signed: Some(("HS256", SECRET.into())),
            settings: hmac.clone(),
            claims: shared,
        },
        Case {
            name: "HS256, grants of its own, by its name",
            signed: Some(("HS256", SECRET.into())),
            settings: hmac.clone(),
            claims: own,
        },
        Case {
            name: "HS256, grants that nobody else has",
            signed: Some(("HS256", SECRET.into())),
            settings: hmac,
            claims: other,
        },
        Case {
            name: "RS256",
            signed: Some(("RS256", rsa.0.clone())),
            settings: public(&rsa),
            claims: shared,
        },
        Case {
            name: "ES256",
            signed: Some(("ES256", p256.0.clone())),
            settings: public(&p256),
            claims: shared,
        },
        Case {
            name: "EdDSA",
            signed: Some(("EdDSA", ed.0.clone())),
            settings: public(&ed),
            claims: shared,
        },
    ];
    let mut measured: Vec<(Vec<f64>, Vec<f64>, Vec<f64>)> = vec![Default::default(); cases.len()];
    for _ in 0..rounds {
        for (case, (bytes, cpu, per_second)) in cases.iter().zip(&mut measured) {
            let server = Throng::start_with(shards, connections, &case.settings)?;
            let plan = plan(case, &server, connections)?;
            server.process.wait_idle(Duration::from_secs(10))?;
            let (before, at) = (server.process.anonymous_bytes()?, server.process.cpu()?);
            let (crowd, took) = Crowd::open_all(plan).with_context(|| case.name)?;
            server.process.wait_idle(Duration::from_secs(30))?;
            let grown = server.process.anonymous_bytes()? as f64 - before as f64;
            let used = server.process.cpu()? - at;
            ensure!(crowd.totals().closed == 0, "{}: connections were closed", case.name);
            bytes.push(grown / connections as f64);
            cpu.push(used.as_secs_f64() * 1e6 / connections as f64);
            per_second.push(connections as f64 / took.as_secs_f64());
        }
    }
    std::fs::remove_dir_all(&folder)?;
    println!(
        "\ntokens: {connections} SSE connections with a user and a topic, {shards} shards{cores}, \
         medians of {rounds} rounds"
    );
    let mut table =
        Table::new(&["", "user bytes/connection", "more", "µs CPU/connect", "more", "connects/s"]);
    let (plain_bytes, plain_cpu) = (median(&measured[0].0), median(&measured[0].1));
    for (case, (bytes, cpu, per_second)) in cases.iter().zip(&measured) {
        table.row([
            case.name.to_owned(),
            format!("{:.1}", median(bytes)),
            format!("{:+.1}", median(bytes) - plain_bytes),
            format!("{:.1}", median(cpu)),
            format!("{:+.1}", median(cpu) - plain_cpu),
            thousands(median(per_second)),
        ]);
    }
    println!("{table}");
    Ok(())
}

fn plan(case: &Case, server: &Throng, connections: usize) -> Result<Plan> {
    let Some((algorithm, key)) = &case.signed else {
        return Ok(Plan::get(server.clients, connections, "/sse?topic=all&user=u{n}"));
    };
    let algorithm: Algorithm = algorithm.parse()?;
    let signer = Signer::new(key, algorithm, None)?;
    let tokens: Result<Arc<[String]>, _> = (0..connections.min(TOKENS_MAX))
        .map(|number| signer.sign(&(case.claims)(number)))
        .collect();
    let plan = Plan::get(server.clients, connections, "/sse?topic=all&token={n}");
    Ok(Plan { request: plan.request.with_texts(tokens?), ..plan })
}
