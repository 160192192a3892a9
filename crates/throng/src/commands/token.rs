//! `throng token`: makes tokens for trials, and reads tokens.

use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use auth::{Authenticator, Grants};
use clap::{Args, Subcommand};
use config::Config;
use serde_json::{Map, Value, json};
use token::{Algorithm, Authority, Signer, read_unverified};

use super::serve::tokens::authority;
use crate::error::CommandError;
use crate::flags::Flags;
use crate::sources;

/// The largest file with a key, in bytes.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

/// The longest token that the command reads, in bytes.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

/// What to do with a token.
#[derive(Subcommand)]
pub enum What {
    /// Make a token and print it, signed with the configuration's auth.hmac_key or with a key of your own.
    Make(Box<Make>),
    /// Show what a token contains, and whether a server with this configuration accepts it. The
    /// exit status is 0 if it does, and 3 if not.
    Read(ReadArgs),
}

#[derive(Args)]
pub struct Make {
    /// User of the token (sub); repeat the flag for further users, which are in the claim users.
    #[arg(long, value_name = "USER")]
    user: Vec<String>,
    /// Topics that the client may enter, as a pattern: * is any text, {sub} the user, {client} an
    /// MQTT client's identifier.
    #[arg(long, value_name = "PATTERN")]
    subscribe: Vec<String>,
    /// Topics that the client may publish to.
    #[arg(long, value_name = "PATTERN")]
    publish: Vec<String>,
    /// Topics whose presence the client may see.
    #[arg(long, value_name = "PATTERN")]
    presence: Vec<String>,
    /// Topics whose history the client may read.
    #[arg(long, value_name = "PATTERN")]
    history: Vec<String>,
    /// What others see of the user in presence: a JSON object.
    #[arg(long, value_name = "JSON")]
    info: Option<String>,
    /// Make a token for this topic only; the client also needs a token that names its user.
    #[arg(long, value_name = "TOPIC", conflicts_with_all = ["subscribe", "publish", "presence", "history", "info"])]
    topic: Option<String>,
    /// How long the token is valid; with 0 it does not expire.
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    seconds: u64,
    /// Id of the token (jti), by which it can be revoked.
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// Issuer of the token (iss) [default: the first of the configuration's auth.issuers].
    #[arg(long, value_name = "NAME")]
    issuer: Option<String>,
    /// Audience of the token (aud) [default: the configuration's auth.audience].
    #[arg(long, value_name = "NAME")]
    audience: Option<String>,
    /// Sign with the key in this file: a private key in PEM, or a shared key as text.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Signature algorithm [default: HS256, or the first that fits the private key].
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// Id of the key (kid), if it is published under one.
    #[arg(long, value_name = "NAME")]
    key_id: Option<String>,
    #[command(flatten)]
    settings: Flags,
}

#[derive(Args)]
pub struct ReadArgs {
    /// The token; with -, or without it, the command reads it from standard input, so that no
    /// process list shows it.
    #[arg(value_name = "TOKEN", default_value = "-")]
    token: String,
    #[command(flatten)]
    settings: Box<Flags>,
}

/// Runs the command.
pub fn run(what: &What) -> Result<(), CommandError> {
    match what {
        What::Make(args) => make(args),
        What::Read(args) => read(args),
    }
}

fn make(args: &Make) -> Result<(), CommandError> {
    let loaded = sources::load(&args.settings)?;
    let claims = claims(args, &loaded.config, now_s())?;
    let usage = |error: &dyn ToString| CommandError::Usage(error.to_string());
    let key = match &args.key_file {
        Some(path) => {
            let text = files::read_text(path, KEY_FILE_BYTES_MAX).map_err(|error| usage(&error))?;
            if text.contains("-----BEGIN") { text } else { text.trim_end().to_string() }
        }
        None => loaded.config.auth.hmac_key.clone(),
    };
    if key.is_empty() {
        let message = "no key to sign with: name a file with --key-file, or set auth.hmac_key_file in the \
                       configuration";
        return Err(CommandError::Usage(message.into()));
    }
    let algorithm = match args.algorithm {
        Some(algorithm) => algorithm,
        None if key.contains("-----BEGIN") => Signer::algorithm_of(&key).ok_or_else(|| {
            let message = "this is not a private key in PEM that tokens can be signed with: RSA, EC (P-256, \
                           P-384) or Ed25519, as `openssl genpkey` writes them";
            CommandError::Usage(message.into())
        })?,
        None => "HS256".parse().map_err(|error| usage(&error))?,
    };
    let signer = Signer::new(&key, algorithm, args.key_id.clone());
    let token = signer.and_then(|signer| signer.sign(&claims)).map_err(|error| usage(&error))?;
    print(&format!("{token}\n"));
    Ok(())
}

fn claims(args: &Make, config: &Config, now_s: u64) -> Result<Value, CommandError> {
    let mut claims = Map::new();
    let mut set = |key: &str, value: Value| claims.insert(key.into(), value);
    if let Some((first, others)) = args.user.split_first() {
        set("sub", json!(first));
        if !others.is_empty() {
            set("users", json!(others));
        }
    }
    set("iat", json!(now_s));
    if args.seconds > 0 {
        set("exp", json!(now_s + args.seconds));
    }
    if let Some(id) = &args.id {
        set("jti", json!(id));
    }
    if let Some(issuer) = args.issuer.as_ref().or(config.auth.issuers.first()) {
        set("iss", json!(issuer));
    }
    let audience = args.audience.as_ref().unwrap_or(&config.auth.audience);
    if !audience.is_empty() {
        set("aud", json!(audience));
    }
    let mut throng = Map::new();
    for (action, patterns) in [
        ("subscribe", &args.subscribe),
        ("publish", &args.publish),
        ("presence", &args.presence),
        ("history", &args.history),
    ] {
        if !patterns.is_empty() {
            throng.insert(action.into(), json!(patterns));
        }
    }
    if let Some(info) = &args.info {
        let wrong = |_| CommandError::Usage("--info: this is not a JSON object".into());
        let info: Map<String, Value> = serde_json::from_str(info).map_err(wrong)?;
        throng.insert("info".into(), info.into());
    }
    if let Some(topic) = &args.topic {
        set("topic", json!(topic));
    } else if !throng.is_empty() {
        set("throng", throng.into());
    }
    Ok(claims.into())
}

fn read(args: &ReadArgs) -> Result<(), CommandError> {
    let loaded = sources::load(&args.settings)?;
    let token = match args.token.as_str() {
        "-" => {
            if std::io::stdin().is_terminal() {
                eprintln!("paste the token, and end with Ctrl-D");
            }
            let (mut text, input) = (String::new(), std::io::stdin());
            let read = input.lock().take(TOKEN_BYTES_MAX).read_to_string(&mut text);
            read.map_err(|error| CommandError::Runtime(format!("standard input: {error}")))?;
            text.trim().to_string()
        }
        token => token.to_string(),
    };
    let Some((header, claims)) = read_unverified(&token) else {
        let message =
            "this is not a JSON Web Token: it has three parts in base64url with dots between them";
        return Err(CommandError::Usage(message.into()));
    };
    let now_s = now_s();
    print(&format!("header  {header}\nclaims  {claims}\n"));
    for (name, key) in [("issued", "iat"), ("expires", "exp")] {
        if let Some(at) = claims.get(key).and_then(Value::as_u64) {
            print(&format!("{name:<8}{}\n", when(at, now_s)));
        }
    }
    let config = &loaded.config;
    if !config.has_tokens() {
        print("verdict not checked: this configuration has no key ([auth])\n");
        return Ok(());
    }
    let is_topic = claims.get("topic").is_some();
    let authority =
        Authority::new(authority(config)?, Arc::default(), Arc::default(), Arc::default());
    let result = match is_topic {
        true => authority.verify_topic(&token, now_s).map(|token| {
            let users: Vec<&str> = token.users.iter().map(|user| user.as_str()).collect();
            format!("accepted: {} may enter {}", users.join(", "), token.topic)
        }),
        false => authority.verify(&token, now_s).map(|verified| {
            let users: Vec<&str> = verified.users.iter().map(|user| user.as_str()).collect();
            let who = if users.is_empty() { "no user".into() } else { users.join(", ") };
            format!("accepted: {who}{}", granted(&verified.grants))
        }),
    };
    match result {
        Ok(text) => {
            print(&format!("verdict {text}\n"));
            Ok(())
        }
        Err(error) => {
            let fetched = if config.auth.jwks_urls.is_empty() {
                ""
            } else {
                "\n        (keys of auth.jwks_urls were not fetched: only a running server does that)"
            };
            print(&format!("verdict rejected ({}): {error}{fetched}\n", error.code()));
            Err(CommandError::Findings)
        }
    }
}

/// Returns a line for each action that the token grants.
fn granted(grants: &Grants) -> String {
    let Grants::Patterns(patterns) = grants else { return String::new() };
    let lines = [
        ("subscribe", &patterns.subscribe),
        ("publish", &patterns.publish),
        ("presence", &patterns.presence),
        ("history", &patterns.history),
    ];
    let some = lines.iter().filter(|(_, patterns)| !patterns.is_empty());
    some.map(|(action, patterns)| format!("\n        {action}: {}", patterns.join(", "))).collect()
}

/// Formats a time in seconds since 1970 as seconds from now.
fn when(at: u64, now_s: u64) -> String {
    match at.checked_sub(now_s) {
        Some(0) => "now".into(),
        Some(left) => format!("in {left} s ({at})"),
        None => format!("{} s ago ({at})", now_s - at),
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Prints a text. A closed pipe is not an error.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
