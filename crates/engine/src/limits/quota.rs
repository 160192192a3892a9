//! Quotas: what users and addresses may do in a second, by all of their connections on the node, and how many
//! connections and topics a user may have.
//!
//! A busy connection has accounts, and an idle one has none. A request above a limit is rejected in the protocol's own
//! form; with too many bytes, the socket is not read for a while.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use model::Name;
use protocol::Request;
use protocol::mqtt::Incoming;
use protocol::phoenix::{ClientMessage, Event};
use protocol::request::{Op, ReplyTo};
use quotas::{Account, Cost, Limits, Unit, Who};

use crate::connection::Phase;
use crate::core::Core;
use crate::core::metrics::Limited;
use crate::core::output::Output;
use crate::core::shrink::Shrink;
use crate::limits::user_counts::{Counted, Counts, Reached};

/// The limit on users of a connection that are charged for its requests. The connection may have more users.
const USERS_MAX: usize = 4;

/// A connection without a request for this time loses its accounts.
const REST_US: u64 = 3_000_000;

/// A connection is closed when it has had so many more rejections than accepted requests, or fewer over
/// [`STUBBORN_US`].
const REFUSALS_MAX: u32 = 500;

/// See [`REFUSALS_MAX`].
const STUBBORN_REFUSALS: u32 = 20;

/// A client whose requests have been rejected for this time is closed.
const STUBBORN_US: u64 = 10_000_000;

/// Input of so many bytes at once is always charged. Less is charged only to a connection that has accounts already.
const LARGE_BYTES: usize = 4 << 10;

/// One of so many commands of connections without accounts gives its connection accounts. So an address with many
/// connections that do a little each is found, too. A power of 2.
const SAMPLE: u32 = 64;

/// A busy user or address.
struct Bound {
    account: Arc<Account>,
    /// Whether the account is of a user, or of an address.
    is_user: bool,
}

impl Bound {
    fn limits<'a>(&self, core: &'a Core) -> &'a Limits {
        limits(core, self.is_user)
    }
}

fn limits(core: &Core, is_user: bool) -> &Limits {
    let settings = &core.settings;
    if is_user { &settings.per_user } else { &settings.per_address }
}

/// A connection that has made expensive requests lately.
struct BusyConnection {
    /// The accounts of its busy users, and then of its address.
    accounts: Vec<Bound>,
    /// Which of its users have an account, one bit each.
    users: u8,
    /// Its address, until that has an account.
    address: Option<IpAddr>,
    used_us: u64,
    /// Rejections, less the accepted requests between them, and since when.
    refusals: u32,
    refused_us: u64,
}

impl BusyConnection {
    fn new(now_us: u64) -> Self {
        BusyConnection {
            accounts: Vec::new(),
            users: 0,
            address: None,
            used_us: now_us,
            refusals: 0,
            refused_us: 0,
        }
    }

    /// Finds accounts for those of its users and its address that have none here and are about to be charged.
    fn find(&mut self, core: &Core, slot: u32, cost: &Cost) {
        for (at, user) in core.users(slot).take(USERS_MAX).enumerate() {
            if self.users & 1 << at == 0
                && let Some(bound) = of_user(core, user, cost)
            {
                self.users |= 1 << at;
                self.accounts.push(bound);
            }
        }
        self.find_address(core, cost);
    }

    fn find_address(&mut self, core: &Core, cost: &Cost) {
        if let Some(network) = self.address
            && let Some(bound) = of_network(core, network, cost)
        {
            self.address = None;
            self.accounts.push(bound);
        }
    }

    fn spend(&self, core: &Core, cost: &Cost) {
        let spend = |bound: &Bound| bound.account.spend(cost, bound.limits(core), core.now_us);
        self.accounts.iter().for_each(spend);
    }
}

/// Accounts of connections that have made many requests lately.
#[derive(Default)]
pub(crate) struct Quota {
    busy: HashMap<u32, BusyConnection>,
    /// Commands of connections that are not among the busy ones.
    unsampled: u32,
    /// The counts of open connections, while connections and topics of users are limited.
    counted: HashMap<u32, Counted>,
}

/// The accounts to charge for a request.
pub(crate) enum Charged<'a> {
    /// The users of an open connection, and its address.
    Connection,
    /// A request that names these users, and its connection's address.
    Request(&'a [Name]),
}

impl Quota {
    /// Charges these accounts, if none of their limits is reached. Otherwise returns the limit, and charges nothing.
    pub fn charge(
        &mut self,
        core: &mut Core,
        slot: u32,
        charged: &Charged<'_>,
        cost: &Cost,
    ) -> Option<Limited> {
        let now_us = core.now_us;
        if *cost == Cost::NOTHING {
            return None;
        }
        let (busy, once);
        let accounts = match charged {
            Charged::Connection => {
                busy = Some(self.busy(core, slot, cost)?);
                busy.as_ref().map_or(&[][..], |busy| &busy.accounts)
            }
            Charged::Request(users) => {
                busy = None;
                once = accounts(core, users, address(core, slot), cost);
                &once[..]
            }
        };
        let rejection = accounts.iter().find_map(|bound| {
            let unit = bound.account.rejecting_unit(cost, bound.limits(core), now_us)?;
            Some(Limited::rate(bound.is_user, unit))
        });
        let Some(limited) = rejection else {
            accounts.iter().for_each(|bound| {
                bound.account.spend(cost, bound.limits(core), now_us);
            });
            if let Some(busy) = busy {
                busy.refusals = busy.refusals.saturating_sub(1);
            }
            return None;
        };
        accounts.iter().for_each(|bound| bound.account.refused(now_us));
        core.metrics.limited[limited as usize].add(1);
        Some(limited)
    }

    /// Counts a rejection. Returns true if the client ignores them and is to be closed.
    pub fn is_stubborn(&mut self, core: &Core, slot: u32) -> bool {
        let Some(busy) = self.busy.get_mut(&slot) else {
            return false;
        };
        if busy.refusals == 0 {
            busy.refused_us = core.now_us;
        }
        busy.refusals += 1;
        let long = core.now_us.saturating_sub(busy.refused_us) >= STUBBORN_US;
        busy.refusals >= REFUSALS_MAX || (long && busy.refusals >= STUBBORN_REFUSALS)
    }

    /// Charges an open connection for bytes that it has sent. Returns the limit that they are above, if any.
    pub fn took(&mut self, core: &mut Core, slot: u32, bytes: usize) -> Option<Limited> {
        let is_large = bytes >= LARGE_BYTES;
        if !is_large && (self.busy.is_empty() || !self.busy.contains_key(&slot)) {
            return None;
        }
        if core.table.get(slot)?.phase() != Phase::Open {
            return None;
        }
        let cost = Cost::NOTHING.with(Unit::Bytes, bytes as u64);
        // Little input counts as the command that it is part of.
        let busy =
            if is_large { self.busy(core, slot, &cost)? } else { self.busy.get_mut(&slot)? };
        busy.used_us = core.now_us;
        busy.spend(core, &cost);
        self.bytes_exceeded(core, slot)
    }

    /// Returns the limit that keeps an open connection from sending more bytes, if any.
    pub fn bytes_exceeded(&self, core: &Core, slot: u32) -> Option<Limited> {
        let busy = self.busy.get(&slot)?;
        busy.accounts.iter().find_map(|bound| {
            let limited = bound.limits(core).of(Unit::Bytes) > 0;
            let is_exceeded = limited && bound.account.is_exceeded(Unit::Bytes, core.now_us);
            is_exceeded.then(|| Limited::rate(bound.is_user, Unit::Bytes))
        })
    }

    /// Returns the accounts of an open connection that is about to be charged; `None` if the cost is small.
    fn busy(&mut self, core: &mut Core, slot: u32, cost: &Cost) -> Option<&mut BusyConnection> {
        let now_us = core.now_us;
        match self.busy.entry(slot) {
            Entry::Occupied(busy) => {
                let busy = busy.into_mut();
                busy.find(core, slot, cost);
                busy.used_us = now_us;
                Some(busy)
            }
            Entry::Vacant(vacant) => {
                let mut busy = BusyConnection::new(now_us);
                busy.find(core, slot, cost);
                self.unsampled = self.unsampled.wrapping_add(1);
                // The limit of an address also applies if each of its connections does little.
                let is_sampled =
                    self.unsampled.is_multiple_of(SAMPLE) || core.settings.per_address.any();
                if busy.accounts.is_empty() && !is_sampled {
                    return None;
                }
                if let Some(address) = address(core, slot) {
                    busy.address = Some(core.settings.network(address));
                    busy.find_address(core, cost);
                } else if !core.is_gathered(slot) {
                    core.outputs.push(Output::Address { slot });
                }
                Some(vacant.insert(busy))
            }
        }
    }

    /// The driver has returned the address of a connection.
    pub fn locate(&mut self, core: &Core, slot: u32, address: Option<IpAddr>) {
        if let (Some(busy), Some(address)) = (self.busy.get_mut(&slot), address)
            && busy.accounts.iter().all(|bound| bound.is_user)
        {
            busy.address = Some(core.settings.network(address));
        }
    }

    /// Returns whether a connection has any counts or accounts.
    pub fn counts(&self, slot: u32) -> bool {
        self.busy.contains_key(&slot) || self.counted.contains_key(&slot)
    }

    /// The connection has ended, or its users have changed.
    pub fn forget(&mut self, slot: u32) {
        self.busy.remove(&slot);
    }

    /// Counts a connection that is about to open for these users with so many topics, their personal ones included.
    /// Returns the limit that it is above, if any; then it is not counted.
    pub fn open(
        &mut self,
        core: &Core,
        slot: u32,
        users: &[Name],
        topics: usize,
    ) -> Option<Limited> {
        let max = max(core);
        if max == Counts::default() || users.is_empty() {
            return None;
        }
        let mut counted = Counted { users: Vec::new(), topics: crate::core::count::count(topics) };
        for user in users {
            if let Err(reached) = core.shared.users.enter(user, counted.counts(), max) {
                counted.leave(&core.shared.users);
                let limited = of_reached(reached);
                core.metrics.limited[limited as usize].add(1);
                return Some(limited);
            }
            counted.users.push(user.clone());
        }
        if let Some(before) = self.counted.insert(slot, counted) {
            before.leave(&core.shared.users);
        }
        None
    }

    /// Returns the limit that keeps an open connection from joining a topic, if any. Connections on two shards may both
    /// join at the same moment when there is capacity for one.
    pub fn topics_reached(&self, core: &Core, slot: u32) -> Option<Limited> {
        let max = max(core).topics;
        let full = |user| max > 0 && core.shared.users.of(user).topics >= max;
        if !(max > 0 && core.users(slot).any(full)) {
            return None;
        }
        core.metrics.limited[Limited::UserTopics as usize].add(1);
        Some(Limited::UserTopics)
    }

    /// A connection has joined or left topics, or its users have changed. It is counted anew, if users are limited.
    pub fn settle(&mut self, core: &Core, slot: u32) {
        if self.counted.is_empty() && max(core) == Counts::default() {
            return;
        }
        let topics = crate::core::count::count(core.hub.count(slot));
        let same = |counted: &Counted| {
            counted.topics == topics && core.users(slot).eq(counted.users.iter().map(Name::as_str))
        };
        let before = self.counted.get(&slot);
        if before.map_or(core.users(slot).next().is_none(), same) {
            return;
        }
        let now = Counted { users: core.users(slot).map(Name::from).collect(), topics };
        for user in &now.users {
            // The connection is a member already: no limit applies.
            let _ = core.shared.users.enter(user, now.counts(), Counts::default());
        }
        if let Some(before) = self.counted.insert(slot, now) {
            before.leave(&core.shared.users);
        }
    }

    /// A connection has left all of its topics.
    pub fn uncount(&mut self, core: &Core, slot: u32) {
        if !self.counted.is_empty()
            && let Some(counted) = self.counted.remove(&slot)
        {
            counted.leave(&core.shared.users);
        }
    }

    /// Removes the accounts of idle connections.
    pub fn shrink(&mut self, now_us: u64) {
        self.busy.retain(|_, busy| now_us.saturating_sub(busy.used_us) < REST_US);
        self.busy.shrink();
        self.counted.shrink();
    }
}

/// The limits of a user.
fn max(core: &Core) -> Counts {
    let settings = &core.settings;
    let (connections, topics) = (settings.connections_per_user_max, settings.topics_per_user_max);
    Counts { connections, topics }
}

fn of_reached(reached: Reached) -> Limited {
    match reached {
        Reached::Connections => Limited::UserConnections,
        Reached::Topics => Limited::UserTopics,
    }
}

/// The address of a connection, as far as the engine knows it.
fn address(core: &Core, slot: u32) -> Option<IpAddr> {
    let session = || core.table.cold(slot)?.session.as_ref()?.address;
    core.peers.address(slot).or_else(session)
}

fn of_network(core: &Core, network: IpAddr, cost: &Cost) -> Option<Bound> {
    let who = Who::Address(network);
    let account = core.shared.quotas.account(who, cost, limits(core, false), core.now_us)?;
    Some(Bound { account, is_user: false })
}

fn of_user(core: &Core, user: &str, cost: &Cost) -> Option<Bound> {
    let who = Who::User(user);
    let account = core.shared.quotas.account(who, cost, limits(core, true), core.now_us)?;
    Some(Bound { account, is_user: true })
}

/// Returns the accounts of busy users and of the address that are about to be charged.
fn accounts(core: &Core, users: &[Name], address: Option<IpAddr>, cost: &Cost) -> Vec<Bound> {
    let of_address = |address| of_network(core, core.settings.network(address), cost);
    let address = address.and_then(of_address);
    // A request that its address rejects creates no accounts for the users that it names.
    let is_exceeded = |bound: &Bound| {
        bound.account.rejecting_unit(cost, bound.limits(core), core.now_us).is_some()
    };
    let users = match address.as_ref().is_some_and(is_exceeded) {
        true => &[],
        false => &users[..users.len().min(USERS_MAX)],
    };
    users.iter().filter_map(|user| of_user(core, user, cost)).chain(address).collect()
}

const COMMAND: Cost = Cost::NOTHING.with(Unit::Commands, 1);

/// The cost of a command that the protocol has rejected, or that requests nothing.
pub(crate) const BAD_COMMAND: Cost = COMMAND;

/// The cost of a message of a Phoenix client. A heartbeat is free.
pub(crate) fn message_cost(message: &ClientMessage) -> Cost {
    match message.kind() {
        Event::Heartbeat => Cost::NOTHING,
        Event::Join => COMMAND.with(Unit::Joins, 1),
        Event::Leave => COMMAND,
        Event::Other => COMMAND.with(Unit::Publishes, 1),
    }
}

/// Returns the cost of a request of so many bytes, and the accounts to charge. `None` for a request that is charged
/// elsewhere.
pub(crate) fn request_cost(request: &Request, bytes: usize) -> Option<(Cost, Charged<'_>)> {
    let command = COMMAND.with(Unit::Bytes, bytes as u64);
    let topics = |topics: usize| command.with(Unit::Joins, topics.max(1) as u64);
    let http = |to: &ReplyTo| match to {
        ReplyTo::Http(_) => (command, Charged::Request(&[])),
        ReplyTo::Id(_) => (COMMAND, Charged::Connection),
    };
    Some(match request {
        Request::Replied { .. } | Request::Status { .. } => (command, Charged::Request(&[])),
        Request::Open(open) => (topics(open.topics.len()), Charged::Request(&open.principal.users)),
        Request::Poll(poll) => (topics(poll.topics.len()), Charged::Request(&poll.principal.users)),
        Request::Subscribe(..)
        | Request::Login(..)
        | Request::Logout(..)
        | Request::Authenticate(_) => (COMMAND.with(Unit::Joins, 1), Charged::Connection),
        Request::Unsubscribe(..) | Request::UpdatePresence(..) => (COMMAND, Charged::Connection),
        Request::Publish { publication, to: ReplyTo::Http(_), .. } => {
            let users = publication.sender().map_or(&[][..], std::slice::from_ref);
            (command.with(Unit::Publishes, 1), Charged::Request(users))
        }
        Request::Publish { to: ReplyTo::Id(_), .. } => {
            (COMMAND.with(Unit::Publishes, 1), Charged::Connection)
        }
        Request::Acknowledge { principal: Some(principal), to: ReplyTo::Http(_), .. } => {
            (command, Charged::Request(&principal.users))
        }
        Request::Acknowledge { to, .. }
        | Request::Presence { to, .. }
        | Request::History { to, .. } => http(to),
        Request::Longpoll(longpoll) => match &longpoll.op {
            Op::Open { principal, .. } => (topics(1), Charged::Request(&principal.users)),
            Op::Poll { anew, .. } => {
                let principal = anew.as_ref().and_then(|(_, principal)| principal.as_ref());
                let users = principal.map_or(&[][..], |principal| &principal.users);
                (command, Charged::Request(users))
            }
            // Each message is charged to its session, and all of them to the address.
            Op::Post { messages, .. } => {
                let count = |unit| messages.iter().map(|it| message_cost(it).of(unit)).sum();
                let cost = Unit::ALL.iter().fold(command, |cost, unit| match unit {
                    Unit::Bytes => cost,
                    Unit::Commands | Unit::Publishes | Unit::Joins => {
                        cost.with(*unit, count(*unit))
                    }
                });
                (cost, Charged::Request(&[]))
            }
            Op::Gone | Op::Forbidden => (command, Charged::Request(&[])),
        },
        Request::Mqtt(incoming) => mqtt_cost(incoming, bytes),
        // A message is charged with its session's messages, and a pending request when it is read again.
        Request::Pending(_)
        | Request::Rejected
        | Request::Continue { .. }
        | Request::Phoenix(_)
        | Request::Close(_) => {
            return None;
        }
    })
}

/// Returns the cost of an MQTT packet, and the accounts to charge.
fn mqtt_cost(incoming: &Incoming, bytes: usize) -> (Cost, Charged<'_>) {
    match incoming {
        Incoming::Connect(connect) => {
            let command = COMMAND.with(Unit::Bytes, bytes as u64).with(Unit::Joins, 1);
            (command, Charged::Request(&connect.principal.users))
        }
        Incoming::Publish(_) => (COMMAND.with(Unit::Publishes, 1), Charged::Connection),
        Incoming::Subscribe(subscribe) => {
            let joins = subscribe.wants.len() as u64;
            (COMMAND.with(Unit::Joins, joins), Charged::Connection)
        }
        Incoming::Unsubscribe { filters, .. } => {
            (COMMAND.with(Unit::Joins, filters.len() as u64), Charged::Connection)
        }
        Incoming::Ping | Incoming::Broken(_) | Incoming::Authenticate { .. } => {
            (COMMAND, Charged::Connection)
        }
        // Confirmations and disconnects are free. A confirmation of nothing is charged when that is known.
        Incoming::Confirm(_) | Incoming::Disconnect { .. } => (Cost::NOTHING, Charged::Connection),
    }
}

/// The message of an error about a limit.
pub(crate) fn limit_message(limited: Limited) -> String {
    let key = limited.name();
    let what = if limited == Limited::UserConnections {
        "the user is at the limit on connections".to_string()
    } else if limited == Limited::UserTopics {
        "the user is at the limit on topics".to_string()
    } else if limited == Limited::AllTopics {
        "the server is at its limit on topics".to_string()
    } else if limited == Limited::Presences {
        "the server is at its limit on connections in topics with presence".to_string()
    } else {
        let (unit, _) = key.trim_start_matches("limits.").split_once('_').unwrap_or_default();
        let whose = if key.contains("per_user") { "user" } else { "address" };
        format!("too many {unit} in a second by this {whose}")
    };
    format!("{what} ({key}): try again in a moment")
}
