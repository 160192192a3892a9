//! Turns the flags and the scenario into the parts of a run: servers, paths, the crowd's plan and
//! the streams of messages.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use admin::{Layer, Url};
use anyhow::{Context, Result, anyhow, bail, ensure};
use client::Client;

use crate::args::Common;
use crate::crowd::{AckPlan, Clock, Lifetime, Part, Plan, Published};
use crate::host;
use crate::publisher::{Api, Audience, Broker, PublishContext, Stream};
use crate::scenario::{Scenario, Shape};
use crate::source::Sources;
use crate::target::{self, Paths, path_template, split, url_list};
use crate::template::Template;
use crate::tls::{Tls, Trust, server_name};

/// Connections of one run, at most.
const CONNECTIONS_MAX: u32 = 100_000_000;

/// The largest list of URLs, in bytes.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// The largest file of trusted certificates, in bytes.
const CA_BYTES_MAX: u64 = 4 << 20;

/// Mean seconds until a connection that recovers comes back.
const RECOVER_AFTER_SECONDS: f64 = 1.0;

/// The parts of a run.
pub struct Setup {
    pub shape: Shape,
    pub plan: Plan,
    pub context: Option<PublishContext>,
    pub streams: Vec<Stream>,
    /// The admin ports of all nodes.
    pub admins: Vec<Url>,
    pub key: Option<String>,
    /// The certificates of --ca, in PEM.
    pub ca: Option<String>,
    /// URLs that are requested all the time, each with its TLS.
    pub probes: Vec<(Url, Option<Layer>)>,
    pub published: Arc<Published>,
}

/// The share of a run to set up.
#[derive(Clone, Default)]
pub struct Share {
    pub part: Part,
    /// The number of the run, which is the same for all shares.
    pub run: u32,
    pub clock: Clock,
    /// The key of the admin port, instead of the one in --api-key-file.
    pub key: Option<String>,
    /// The certificates to trust, in PEM, instead of the ones in --ca.
    pub ca: Option<String>,
}

impl Share {
    /// Returns the share that is a whole new run.
    pub fn all() -> Self {
        let run = host::unix_seconds() as u32 ^ std::process::id().rotate_left(16);
        Self { run, ..Self::default() }
    }
}

impl Setup {
    /// Sets up a run: resolves all hosts and reads all files.
    pub fn new(scenario: &Scenario, share: Share) -> Result<Self> {
        let common = scenario.common();
        let shape = scenario.shape();
        let topic = common.topic_template.clone().unwrap_or_else(|| shape.topic.into());
        let transports = transports(common)?;
        let list = common.urls.as_deref().map(|path| read_list(path, common.tls)).transpose()?;
        let connections = connections(common, &shape, list.as_ref().map(|(_, paths)| paths))?;
        ensure!(
            common.response_timeout <= 3_600.0 && common.silence.unwrap_or(0.0) <= 36_000.0,
            "--answer-timeout is at most an hour, --silence at most ten"
        );
        let recover = common.recover || shape.recover;
        let Share { part, run, clock, key, ca } = share;
        let is_list = list.is_some();
        let (servers, paths) = match list {
            Some(list) => list,
            None => targets(common, &topic, &transports, &mqtt_parameters(common, recover, run)?)?,
        };
        let ca = match ca {
            Some(ca) => Some(ca),
            None => common.ca.as_deref().map(read_ca).transpose()?,
        };
        let tls = tls(common, ca.as_deref(), &servers)?;
        let name = |url: &Url| url.is_tls.then(|| server_name(url)).transpose();
        let names = servers.iter().map(name).collect::<Result<_>>()?;
        let topic = Template::new(&topic).map_err(anyhow::Error::msg)?;
        let users_per_room = match shape.memberships {
            // The plan draws the members of each topic at random.
            Some(_) => 1,
            None => {
                room_size(common.users_per_topic.or(shape.users_per_topic), &topic, connections)
            }
        };
        let sources = match &common.source {
            Some(text) => Sources::parse(text)?,
            None => Sources::for_server(servers[0].address.ip()),
        };
        let acks = AckPlan { every: common.ack_every, skip_percent: common.ack_skip };
        let plan = Plan {
            part,
            clock,
            roams: recover && servers.len() > 1 && !is_list,
            transports,
            paths,
            connections,
            first: common.first,
            users_per_room,
            sources,
            rate: rate(common, connections, part),
            lifetime: lifetime(common, &shape, recover),
            in_flight_max: common.in_flight.div_ceil(part.of),
            response_seconds_max: common.response_timeout.ceil() as u32,
            silence_seconds_max: common.silence.unwrap_or(0.0).ceil() as u32,
            run,
            seed: common.seed,
            servers,
            tls,
            names,
            user: Template::new(&common.user_template).map_err(anyhow::Error::msg)?,
            topic: topic.clone(),
            recover,
            memberships: shape.memberships,
            cuts: shape.cuts,
            missed: shape.missed,
            acks: common.ack.then_some(acks),
            persistent: is_persistent(common, recover),
            heartbeats: !common.no_heartbeats,
            silences: common.silences,
        };
        ensure!(
            plan.first.checked_add(connections).is_some(),
            "--first {} and {connections} connections exceed the largest number of a user",
            plan.first
        );
        let streams = streams(common, &shape, &plan, &topic)?;
        ensure!(
            plan.own_connections() > 0,
            "{connections} connections can't be divided among {} agents: leave some out",
            part.of
        );
        let key = match key {
            Some(key) => Some(key),
            None => common.api_key_file.as_deref().map(read_key).transpose()?,
        };
        Ok(Self { ca, ..Self::with_publishing(common, shape, plan, topic, streams, key)? })
    }

    fn with_publishing(
        common: &Common,
        shape: Shape,
        plan: Plan,
        topic: Template,
        streams: Vec<Stream>,
        key: Option<String>,
    ) -> Result<Self> {
        let admins = admins(common, &plan.servers)?;
        let published = Arc::new(published(common, &shape, &plan, &streams, admins.len()));
        let layer = |url: &Url| plan.tls.as_ref().map_or(Ok(None), |tls| tls.layer(url));
        let broker = |url: &Url, qos| -> Result<Broker> {
            Ok(Broker { address: url.address, qos, layer: layer(url)? })
        };
        let api = api(common, &shape, &plan, &streams, (&admins, key.as_deref()), &broker)?;
        if api.is_none() && (!streams.is_empty() || shape.missed > 0) {
            bail!(
                "this run publishes messages, but no address for them is given: give Throng's \
                 admin port with --admin http://host:8001, or another server's with --publish URL"
            );
        }
        let mut requests = None;
        if streams.iter().any(Stream::has_replies) {
            let server = &plan.servers[0];
            requests = Some(broker(server, common.qos.unwrap_or(1))?);
        }
        let context = api.map(|api| -> Result<PublishContext> {
            Ok(PublishContext {
                api,
                requests,
                user: Template::new(&common.user_template).map_err(anyhow::Error::msg)?,
                topic,
                first: plan.first,
                users_per_room: plan.users_per_room,
                bytes: common.message_bytes as usize,
                run: plan.run,
                seed: common.seed,
                published: published.clone(),
                accepted: AtomicU64::new(0),
                failed: AtomicU64::new(0),
                unsure: AtomicU64::new(0),
                clock: plan.clock.clone(),
                times: std::sync::Mutex::new(crate::crowd::histogram()),
                last_error: std::sync::Mutex::default(),
                stop: AtomicBool::new(false),
            })
        });
        let probe = |text: &String| {
            let url = Url::parse_any(text)?;
            Ok((url.clone(), layer(&url)?))
        };
        let probes = common.probe.iter().map(probe).collect::<Result<_>>()?;
        Ok(Self {
            shape,
            plan,
            context: context.transpose()?,
            streams,
            admins,
            key,
            ca: None,
            probes,
            published,
        })
    }
}

/// Returns the number of connections of the run.
fn connections(common: &Common, shape: &Shape, list: Option<&Paths>) -> Result<u32> {
    let listed = list.map(|paths| match paths {
        Paths::List { ends, .. } => ends.len() as u32,
        Paths::Templates(_) => 0,
    });
    let connections = common.connections.or(listed).unwrap_or(shape.connections);
    ensure!(
        connections <= CONNECTIONS_MAX,
        "{connections} connections: at most {CONNECTIONS_MAX} in one run"
    );
    Ok(connections)
}

/// Returns how many connections one agent opens per second; 0 is without limit.
fn rate(common: &Common, connections: u32, part: Part) -> f64 {
    let rate = match common.ramp {
        Some(ramp) if ramp > 0.0 => f64::from(connections) / ramp,
        _ => common.rate.unwrap_or(0.0),
    };
    rate / f64::from(part.of)
}

/// Returns how long connections stay and are away. Those that recover come back even if no flag sets a time.
fn lifetime(common: &Common, shape: &Shape, recover: bool) -> Lifetime {
    let back = shape.lifetime.away_seconds.or(recover.then_some(RECOVER_AFTER_SECONDS));
    Lifetime { away_seconds: common.reconnect.or(back), ..shape.lifetime }
}

/// Returns the counters of published messages, for all users and topics that the streams may name.
fn published(
    common: &Common,
    shape: &Shape,
    plan: &Plan,
    streams: &[Stream],
    nodes: usize,
) -> Published {
    let users = |stream: &Stream| match stream.to {
        Audience::Users { count, .. } => count.max(plan.connections),
        Audience::Requesters { from, count } => (from + count).max(plan.connections),
        _ => 0,
    };
    let users = streams.iter().map(users).max().unwrap_or(0);
    let rooms = |stream: &Stream| match stream.to {
        Audience::Topics { count } => count.max(plan.rooms()),
        _ => 0,
    };
    let storms = if shape.missed > 0 { plan.rooms() } else { 0 };
    let rooms = streams.iter().map(rooms).max().unwrap_or(0).max(storms);
    let nodes = if is_by_api(common) { nodes.max(1) as u32 } else { 1 };
    Published::new(users, rooms).of(plan.part, nodes)
}

/// Returns by what messages are published; `None` if no flag names an address for them.
fn api(
    common: &Common,
    shape: &Shape,
    plan: &Plan,
    streams: &[Stream],
    (admins, key): (&[Url], Option<&str>),
    broker: &dyn Fn(&Url, u8) -> Result<Broker>,
) -> Result<Option<Api>> {
    Ok(match (&common.publish, &common.publish_mqtt, admins.is_empty()) {
        (_, Some(address), _) => {
            let is_topics = |stream: &Stream| matches!(stream.to, Audience::Topics { .. });
            ensure!(
                streams.iter().all(is_topics),
                "--publish-mqtt is only for topics: clients can't publish to users or to \
                 everyone"
            );
            let qos = common.qos.unwrap_or(u8::from(plan.recover));
            Some(Api::Mqtt(broker(&Url::parse_any(address)?, qos)?))
        }
        (Some(text), None, _) => {
            let url = Url::parse(text)?;
            let topic = common.topic_template.as_deref().unwrap_or(shape.topic);
            let path = if url.path.is_empty() { "/" } else { &url.path };
            let path = path_template(path, &common.user_template, topic)?;
            Some(Api::Plain { path, url })
        }
        (None, None, false) => {
            Some(Api::Throng { urls: admins.to_vec(), key: key.map(str::to_owned) })
        }
        (None, None, true) => None,
    })
}

fn transports(common: &Common) -> Result<Vec<&'static dyn Client>> {
    let find = |name: &String| {
        let known: Vec<&str> = client::ALL.iter().map(|client| client.name()).collect();
        client::by_name(name)
            .with_context(|| format!("--transport {name}: choose from {}", known.join(", ")))
    };
    common.transport.iter().map(find).collect()
}

/// Reads the list from a file or, for `-`, from standard input. It stops at a limit, so that an endless file or pipe
/// ends in an error.
fn read_list(path: &Path, tls: bool) -> Result<(Vec<Url>, Paths)> {
    let name = || format!("--urls {}", path.display());
    let mut text = String::new();
    let input: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(File::open(path).with_context(name)?),
    };
    let read = input.take(LIST_BYTES_MAX + 1).read_to_string(&mut text).with_context(name)?;
    ensure!(
        read as u64 <= LIST_BYTES_MAX,
        "{}: it has more than {LIST_BYTES_MAX} bytes: name the right file",
        name()
    );
    url_list(&text, tls).with_context(name)
}

fn read_ca(path: &Path) -> Result<String> {
    files::read_text(path, CA_BYTES_MAX).map_err(|error| anyhow!("--ca {error}"))
}

/// Returns the TLS setup of clients, if any of their targets needs it.
fn tls(common: &Common, ca: Option<&str>, servers: &[Url]) -> Result<Option<Tls>> {
    let mut others = common.probe.iter().chain(&common.publish_mqtt);
    let is_tls = |text: &String| Url::parse_any(text).is_ok_and(|url| url.is_tls);
    if !servers.iter().any(|url| url.is_tls) && !others.any(is_tls) {
        let flag = if ca.is_some() { "--ca" } else { "--insecure-tls" };
        ensure!(
            ca.is_none() && !common.insecure_tls,
            "{flag} is for TLS, and no target has it: write https:// in its URL, or add --tls"
        );
        return Ok(None);
    }
    let trust = match ca {
        Some(pem) => Trust::Pem(pem),
        None if common.insecure_tls => Trust::Any,
        None => Trust::System,
    };
    let file =
        || common.ca.as_ref().map_or("--ca".into(), |path| format!("--ca {}", path.display()));
    match trust {
        Trust::Pem(_) => Ok(Some(Tls::new(trust).with_context(file)?)),
        Trust::System | Trust::Any => Ok(Some(Tls::new(trust)?)),
    }
}

fn read_key(path: &Path) -> Result<String> {
    files::read_secret(path).map_err(|error| anyhow!("--api-key-file {error}"))
}

/// Returns true if the sessions of MQTT clients persist between connections.
fn is_persistent(common: &Common, recover: bool) -> bool {
    let speaks = common.transport.iter().any(|name| name == "mqtt");
    speaks && common.session.as_deref().map_or(recover, |session| session == "kept")
}

/// Returns the parameters that the targets of MQTT clients have beside users and topics.
fn mqtt_parameters(common: &Common, recover: bool, run: u32) -> Result<String> {
    let speaks = common.transport.iter().any(|name| name == "mqtt");
    let persistent = is_persistent(common, recover);
    let qos = common.qos.unwrap_or(u8::from(recover));
    if speaks {
        ensure!(!common.ack, "--ack is not for MQTT, whose clients acknowledge with --qos 1");
        ensure!(
            !recover || (persistent && qos > 0),
            "MQTT clients get missed messages only with --qos 1 or 2 and kept sessions"
        );
    }
    let mut text = format!("&qos={qos}");
    if persistent {
        // A session of an earlier run has other topics.
        text.push_str(&format!("&session=flood{run:08x}"));
    }
    if common.no_heartbeats {
        text.push_str("&keepalive=0");
    }
    if common.broadcast_every.is_some() {
        text.push_str("&topic=*");
    }
    Ok(text)
}

/// Returns the servers, and a path for each transport in turn. If the URLs name a path, it serves all transports.
fn targets(
    common: &Common,
    topic: &str,
    transports: &[&'static dyn Client],
    mqtt: &str,
) -> Result<(Vec<Url>, Paths)> {
    let parse = |text| target::parse(text, common.tls);
    let servers: Vec<Url> = split(&common.targets).into_iter().map(parse).collect::<Result<_>>()?;
    ensure!(servers.len() <= usize::from(u16::MAX), "more than 65,535 servers");
    let named = |url: &Url| !url.path.is_empty();
    let count = match servers.iter().any(named) {
        true => servers.len() * transports.len(),
        false => transports.len(),
    };
    // The templates of a server stand together.
    let template = |at: usize| {
        let url = &servers[at / transports.len()];
        let path = match named(url) {
            true => url.path.as_str(),
            false => transports[at % transports.len()].default_target(),
        };
        let template = path_template(path, &common.user_template, topic)?;
        match transports[at % transports.len()].is_http() {
            true => Ok(template),
            false => Ok(template.with_query(mqtt)),
        }
    };
    let templates = (0..count).map(template).collect::<Result<Vec<_>>>()?;
    Ok((servers, Paths::Templates(templates)))
}

/// Returns how many users share a topic: all if its name is the same for all, one if the name contains the user's
/// number.
fn room_size(users_per_topic: Option<u32>, topic: &Template, connections: u32) -> u32 {
    if topic.is_fixed() {
        return connections;
    }
    let by_number = topic.text(1, 0) != topic.text(2, 0);
    if by_number { 1 } else { users_per_topic.unwrap_or(connections) }
}

/// Returns the nodes' admin ports: those of `--admin`, or Throng's default beside its default client port.
fn admins(common: &Common, servers: &[Url]) -> Result<Vec<Url>> {
    if !common.admin.is_empty() {
        return common.admin.iter().map(|text| Url::parse(text)).collect();
    }
    let default = |server: &Url| {
        let host = server.host.strip_suffix(":8000")?;
        Some(Url::parse(&format!("http://{host}:8001")))
    };
    match common.publish {
        Some(_) => Ok(Vec::new()),
        None if common.urls.is_some() => default(&servers[0]).into_iter().collect(),
        None => servers.iter().filter_map(default).collect(),
    }
}

/// Returns true if messages are published by Throng's API.
fn is_by_api(common: &Common) -> bool {
    common.publish.is_none() && common.publish_mqtt.is_none()
}

fn streams(common: &Common, shape: &Shape, plan: &Plan, topic: &Template) -> Result<Vec<Stream>> {
    let mut streams = shape.streams.clone();
    let is_topics = |stream: &Stream| matches!(stream.to, Audience::Topics { .. });
    // The flags may have changed the number of topics that the scenario assumed.
    for stream in streams.iter_mut().filter(|stream| is_topics(stream)) {
        stream.to = Audience::Topics { count: plan.rooms() };
    }
    let flow = |to, per_second| Stream { to, per_second, messages_max: None };
    if let Some(rate) = common.topic_rate {
        streams.retain(|stream| !is_topics(stream));
        streams.push(flow(Audience::Topics { count: plan.rooms() }, rate));
    }
    if let Some(rate) = common.send_rate {
        let to = Audience::Users { count: plan.connections, long_tail: false };
        streams.push(flow(to, rate));
    }
    if let Some(every) = common.broadcast_every.filter(|every| *every > 0.0) {
        streams.push(flow(Audience::All, 1.0 / every));
    }
    ensure!(
        (!streams.iter().any(is_topics) && shape.missed == 0) || !topic.is_empty(),
        "this run publishes to topics: --topic-template can't be empty"
    );
    ensure!(
        shape.memberships.is_none() || topic.text(1, 0) != topic.text(1, 1),
        "connections are in several topics here: --topic-template must have {{room}} in it"
    );
    ensure!(
        !common.ack || common.user_template.contains("{n}"),
        "--ack is for messages to users: --user-template must have {{n}} in it"
    );
    let to_users =
        |stream: &Stream| matches!(stream.to, Audience::Users { .. } | Audience::Requesters { .. });
    ensure!(
        !streams.iter().any(to_users) || !common.user_template.is_empty(),
        "this run publishes to users: --user-template can't be empty"
    );
    ensure!(
        !streams.iter().any(to_users) || common.user_template.contains("{n}"),
        "this run publishes to users one at a time: --user-template must have {{n}} in it"
    );
    for (hole, wanted) in [
        ("{user}", streams.iter().any(to_users)),
        ("{topic}", streams.iter().any(is_topics) && !topic.is_fixed()),
    ] {
        ensure!(
            !wanted || common.publish.as_ref().is_none_or(|url| url.contains(hole)),
            "this run publishes to more than one target: --publish must have {hole} in it"
        );
    }
    ensure!(
        common.send_rate.is_none() || streams.iter().filter(|it| to_users(it)).count() <= 1,
        "this scenario publishes to users already: leave out --send-rate"
    );
    ensure!(
        common.publish.is_none() || !streams.iter().any(|stream| stream.to == Audience::All),
        "--broadcast-every is only for Throng: it can't be used with --publish"
    );
    Ok(streams)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_must_contain_a_key_and_be_readable_by_its_owner_only() {
        let path = std::env::temp_dir().join(format!("throng-flood-key-{}", std::process::id()));
        let mode = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode));
        std::fs::write(&path, " secret\n").expect("written");
        mode(0o644).expect("changed");
        let error = read_key(&path).expect_err("everybody can read it").to_string();
        assert!(error.starts_with("--api-key-file ") && error.contains("chmod 600"), "{error}");
        mode(0o600).expect("changed");
        assert_eq!(read_key(&path).expect("a key"), "secret");
        std::fs::write(&path, "\n").expect("written");
        let error = read_key(&path).expect_err("no key").to_string();
        assert!(error.contains("the file is empty"), "{error}");
        std::fs::remove_file(&path).expect("removed");
        let error = read_key(&path).expect_err("no file").to_string();
        assert!(error.contains("--api-key-file"), "{error}");
    }

    #[test]
    fn an_endless_list_of_urls_is_an_error() {
        let error =
            read_list(Path::new("/dev/zero"), false).map(drop).expect_err("no list").to_string();
        assert!(error.contains("more than 268435456 bytes"), "{error}");
    }
}
