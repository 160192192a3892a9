//! The costs of TLS: encrypting and decrypting a record, a handshake, and the memory of both.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bench::Args;
use bench::report::{Table, median, thousands};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};
use tls::testing::{CERTIFICATE, KINDS, acceptor, pair, request_key_update};
use tls::{Acceptor, Established, Handshake, Progress, Records};

/// Connections that get a record in one turn of a shard.
const BATCH: usize = 512;

/// Sizes of messages, in bytes.
const SIZES: [usize; 4] = [60, 128, 200, 1_024];

const ALGORITHMS: [&str; 3] = ["AES-128-GCM", "AES-256-GCM", "ChaCha20-Poly1305"];

/// Handshakes of a round, and handshakes that are under way together.
const HANDSHAKES: usize = 200;
const UNDER_WAY: usize = 2_000;

fn main() -> ExitCode {
    bench::main(run)
}

fn run(args: &Args) -> Result<()> {
    let (connections, rounds) = (args.connections(), args.rounds_or(5));
    println!("\ntls: one thread, {connections} connections, medians of {rounds} rounds\n");
    // The memory comes first, while the process has freed none.
    memory(connections)?;
    sealing(connections, rounds)?;
    opening(connections, rounds)?;
    handshakes(rounds)
}

/// Returns the median time of a batch per member, in ns. Another process that runs between two batches does not
/// count.
fn batches<T>(
    members: &mut [T],
    rounds: u32,
    mut work: impl FnMut(&mut [T]) -> Result<()>,
) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        for batch in members.chunks_mut(BATCH) {
            let begin = Instant::now();
            work(batch)?;
            times.push(begin.elapsed().as_nanos() as f64 / batch.len() as f64);
        }
    }
    Ok(median(&times))
}

fn name((version, aead): (tls::Version, usize)) -> String {
    format!("TLS {version}, {}", ALGORITHMS[aead])
}

fn sealing(connections: usize, rounds: u32) -> Result<()> {
    let mut head = vec!["ns to seal a record of so many bytes".to_owned()];
    head.extend(SIZES.map(|size| thousands(size as f64)));
    let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
    let mut out = Vec::with_capacity(1 << 20);
    for kind in KINDS {
        let mut all: Vec<Records> =
            (0..connections).map(|number| pair(kind, number as u8).0).collect();
        let mut row = vec![name(kind)];
        for size in SIZES {
            let plain = vec![1; size];
            let ns = batches(&mut all, rounds, |batch| {
                out.clear();
                for records in batch {
                    records.seal(&plain, &mut out)?;
                }
                black_box(&out);
                Ok(())
            })?;
            row.push(thousands(ns));
        }
        table.row(row);
    }
    // The last row has keys that stay expanded, each of which takes memory.
    let mut keys =
        (0..connections).map(|number| expanded(number as u8)).collect::<Result<Vec<_>>>()?;
    let mut row = vec![format!("{}, expanded once", ALGORITHMS[0])];
    for size in SIZES {
        let plain = vec![1; size];
        let mut number = 0_u64;
        let ns = batches(&mut keys, rounds, |batch| {
            out.clear();
            for key in batch {
                let begin = out.len();
                out.extend_from_slice(&[23, 3, 3, 0, 0]);
                out.extend_from_slice(&plain);
                out.push(23);
                number += 1;
                let mut nonce = [0; 12];
                nonce[4..].copy_from_slice(&number.to_be_bytes());
                let nonce = Nonce::assume_unique_for_key(nonce);
                let header = Aad::from([23, 3, 3, 0, 0]);
                let tag = key.seal_in_place_separate_tag(nonce, header, &mut out[begin + 5..]);
                out.extend_from_slice(tag.ok().context("sealing")?.as_ref());
            }
            black_box(&out);
            Ok(())
        })?;
        row.push(thousands(ns));
    }
    table.row(row);
    println!("{table}");
    Ok(())
}

fn expanded(key: u8) -> Result<LessSafeKey> {
    let key = UnboundKey::new(&AES_128_GCM, &[key; 16]);
    Ok(LessSafeKey::new(key.ok().context("a key of 16 bytes")?))
}

fn opening(connections: usize, rounds: u32) -> Result<()> {
    let mut table = Table::new(&["ns", "open 128 B", "open a key update and answer it"]);
    for kind in KINDS {
        let mut all: Vec<_> = (0..connections)
            .map(|number| (pair(kind, number as u8), Vec::new(), Vec::new()))
            .collect();
        let mut cells = vec![name(kind)];
        for updates in [false, true] {
            let mut times = Vec::new();
            for _ in 0..rounds {
                for ((_, client), sent, pending) in &mut all {
                    sent.clear();
                    pending.clear();
                    if updates {
                        request_key_update(client, sent);
                    }
                    client.seal(&[1; 128], sent)?;
                }
                let (mut plain, mut out) =
                    (Vec::with_capacity(1 << 20), Vec::with_capacity(1 << 20));
                times.push(batches(&mut all, 1, |batch| {
                    plain.clear();
                    out.clear();
                    for ((server, _), sent, pending) in batch {
                        server.open(pending, sent, &mut plain, &mut out)?;
                    }
                    black_box((&plain, &out));
                    Ok(())
                })?);
            }
            let has_updates = kind.0 == tls::Version::Tls13;
            cells.push(match has_updates || !updates {
                true => thousands(median(&times)),
                false => "–".to_owned(),
            });
        }
        table.row(cells);
    }
    println!("{table}");
    Ok(())
}

fn client(version: &'static SupportedProtocolVersion, resumes: bool) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CERTIFICATE.as_bytes())?)?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[version])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    if !resumes {
        config.resumption = Resumption::disabled();
    }
    Ok(Arc::new(config))
}

fn connection(config: &Arc<ClientConfig>) -> Result<ClientConnection> {
    Ok(ClientConnection::new(Arc::clone(config), ServerName::try_from("localhost")?)?)
}

fn sent(client: &mut ClientConnection) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes)?;
    }
    Ok(bytes)
}

/// Performs a handshake. Returns the time of the server, and the bytes that it has sent.
fn connect(
    acceptor: &Acceptor,
    config: &Arc<ClientConfig>,
) -> Result<(Established, Duration, usize)> {
    let mut client = connection(config)?;
    let begin = Instant::now();
    let mut handshake = acceptor.handshake(&[b"http/1.1"], now());
    let (mut took, mut bytes) = (begin.elapsed(), 0);
    for _ in 0..10 {
        let (request, mut out) = (sent(&mut client)?, Vec::new());
        let begin = Instant::now();
        let progress = handshake.on_received(&request, &mut out)?;
        took += begin.elapsed();
        bytes += out.len();
        let mut rest = &out[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest)?;
            client.process_new_packets()?;
        }
        if let Progress::Done(established) = progress {
            return Ok((*established, took, bytes));
        }
    }
    bail!("the handshake does not end")
}

fn now() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed();
    since.map_or(0, |since| since.as_secs())
}

fn handshakes(rounds: u32) -> Result<()> {
    let head = ["a handshake (ECDSA P-256)", "µs of the server", "bytes that it sends"];
    let mut table = Table::new(&head);
    for (version, resumes) in [(&TLS13, false), (&TLS13, true), (&TLS12, false), (&TLS12, true)] {
        let (acceptor, config) = (acceptor(now()), client(version, resumes)?);
        let (mut times, mut bytes) = (Vec::new(), 0);
        // The first handshake gets the first ticket.
        connect(&acceptor, &config)?;
        for _ in 0..rounds as usize * HANDSHAKES {
            let (established, took, sent) = connect(&acceptor, &config)?;
            ensure!(
                established.is_resumed == resumes,
                "a handshake was resumed or full, against expectation"
            );
            times.push(took.as_nanos() as f64 / 1e3);
            bytes = sent;
        }
        let how = if resumes { "resumed" } else { "full" };
        let version = if version == &TLS13 { "1.3" } else { "1.2" };
        table.row([
            format!("TLS {version}, {how}"),
            thousands(median(&times)),
            thousands(bytes as f64),
        ]);
    }
    println!("{table}");
    Ok(())
}

/// Makes this many values, and returns them with the bytes of memory that each takes with its heap, by the growth of
/// the process. That is exact only while no freed memory is left that new values reuse, so the callers must not drop
/// the values.
fn grown<T>(count: usize, make: impl FnMut(usize) -> Result<T>) -> Result<(Vec<T>, f64)> {
    let before = resident()?;
    let values = (0..count).map(make).collect::<Result<Vec<T>>>()?;
    let bytes = resident()?.saturating_sub(before) as f64 / count as f64;
    Ok((values, bytes))
}

fn resident() -> Result<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split(' ').nth(1).context("/proc/self/statm has pages")?;
    Ok(pages.parse::<usize>()? * rustix::param::page_size())
}

fn memory(connections: usize) -> Result<()> {
    let mut table = Table::new(&["bytes", "each"]);
    table.row(["records of an open connection".into(), thousands(size_of::<Records>() as f64)]);
    let (_records, bytes) = grown(connections, |number| Ok(pair(KINDS[0], number as u8).0))?;
    table.row(["the same, by the growth of the process".into(), thousands(bytes)]);
    let two = |number| Ok((expanded(number as u8)?, expanded(number as u8)?));
    let (_expanded, bytes) = grown(connections, two)?;
    table.row(["two expanded keys, by the growth of the process".into(), thousands(bytes)]);
    let acceptor = acceptor(now());
    let begin = || acceptor.handshake(&[b"http/1.1"], now());
    let (_waiting, bytes) = grown(UNDER_WAY, |_| Ok(begin()))?;
    table.row(["a handshake before the client sends".into(), thousands(bytes)]);
    let hello = sent(&mut connection(&client(&TLS13, false)?)?)?;
    let (_replied, bytes) = grown(UNDER_WAY, |_| -> Result<Box<Handshake>> {
        let mut handshake = begin();
        handshake.on_received(&hello, &mut Vec::new())?;
        Ok(handshake)
    })?;
    table.row(["a handshake before the client's second flight".into(), thousands(bytes)]);
    println!("{table}");
    Ok(())
}
