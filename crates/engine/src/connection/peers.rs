//! Where connections come from. Of those that come through a trusted proxy it is what that says; all others
//! come from where their socket says, and nothing is held for them once they are open.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use minicbor::{Decode, Encode};
use model::Name;
use protocol::Peer;
use proxies::ProxyHeader;

use crate::core::handle::Shared;
use crate::core::shrink::Shrink;
use crate::handover::value::Text;

/// How a connection came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// As most do, from this address, if the driver knows it already.
    Direct(Option<IpAddr>),
    /// Beyond the limit of its address, if it may be a health check.
    Reserved,
    /// From the address of a trusted proxy, which says where its client is.
    Proxy(IpAddr),
}

/// A connection that a trusted proxy has made.
pub(crate) struct Proxied {
    /// The proxy.
    pub proxy: IpAddr,
    /// A header of the PROXY protocol is to come first.
    pub awaits_header: bool,
    /// The client, as the proxy has said last; port 0 where it has not said one.
    pub client: Option<SocketAddr>,
    /// As whose connection it counts, while those of an address are limited.
    pub counted: Option<IpAddr>,
}

/// The same on its way to another engine.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct ProxiedRecord {
    #[n(0)]
    proxy: Text<IpAddr>,
    #[n(1)]
    awaits_header: bool,
    #[n(2)]
    client: Option<Text<SocketAddr>>,
    #[n(3)]
    counted: Option<Text<IpAddr>>,
}

/// Where connections come from, as far as it is held: that of those that came through trusted proxies, and
/// that of others until they are open. A connection that rests for long holds nothing.
#[derive(Default)]
pub(crate) struct Peers {
    proxied: HashMap<u32, Proxied>,
    direct: HashMap<u32, IpAddr>,
    /// Users of connections whose certificates name them.
    certificate_users: HashMap<u32, Name>,
}

impl Peers {
    /// Somebody has connected whose address is known.
    pub fn open_direct(&mut self, slot: u32, address: IpAddr) {
        self.direct.insert(slot, address);
    }

    /// The connection is open, and the driver is asked where it is if anybody wants to know.
    pub fn opened(&mut self, slot: u32) {
        self.direct.remove(&slot);
    }

    /// Where a connection comes from, if that is held.
    pub fn address(&self, slot: u32) -> Option<IpAddr> {
        let direct = || self.direct.get(&slot).copied();
        self.client(slot).map(|client| client.ip()).or_else(direct)
    }

    /// A trusted proxy has connected.
    pub fn open(&mut self, slot: u32, proxy: IpAddr, header: ProxyHeader) {
        let awaits_header = header == ProxyHeader::ProxyProtocol;
        let proxied = Proxied { proxy, awaits_header, client: None, counted: None };
        self.proxied.insert(slot, proxied);
    }

    /// Whether the connection is a trusted proxy's, for who reads a request of it.
    pub fn peer(&self, slot: u32) -> Peer {
        let proxy = self.proxied(slot).map(|proxied| proxied.proxy);
        Peer { proxy, client: None, certificate_user: self.certificate_user(slot).cloned() }
    }

    /// The user whom the connection's certificate names.
    pub fn certificate_user(&self, slot: u32) -> Option<&Name> {
        if self.certificate_users.is_empty() { None } else { self.certificate_users.get(&slot) }
    }

    /// The connection's certificate names this user.
    pub fn set_certificate_user(&mut self, slot: u32, user: Name) {
        self.certificate_users.insert(slot, user);
    }

    /// Where a connection that came through a proxy comes from: the proxy, until that has said it.
    pub fn client(&self, slot: u32) -> Option<SocketAddr> {
        let proxied = self.proxied(slot)?;
        Some(proxied.client.unwrap_or(SocketAddr::new(proxied.proxy, 0)))
    }

    /// What is known of a connection that came through a proxy.
    pub fn proxied(&self, slot: u32) -> Option<&Proxied> {
        if self.proxied.is_empty() { None } else { self.proxied.get(&slot) }
    }

    /// The same, to change it.
    pub fn proxied_mut(&mut self, slot: u32) -> Option<&mut Proxied> {
        if self.proxied.is_empty() { None } else { self.proxied.get_mut(&slot) }
    }

    /// The connection has ended.
    pub fn forget(&mut self, slot: u32, shared: &Shared) {
        self.direct.remove(&slot);
        self.certificate_users.remove(&slot);
        if !self.proxied.is_empty()
            && let Some(proxied) = self.proxied.remove(&slot)
            && let Some(counted) = proxied.counted
        {
            shared.addresses.leave(counted);
        }
    }

    pub fn export(&self, slot: u32) -> Option<ProxiedRecord> {
        let Proxied { proxy, awaits_header, client, counted } = self.proxied(slot)?;
        Some(ProxiedRecord {
            proxy: Text(*proxy),
            awaits_header: *awaits_header,
            client: client.map(Text),
            counted: counted.map(Text),
        })
    }

    pub fn import(&mut self, slot: u32, record: Option<ProxiedRecord>, shared: &Shared) {
        let Some(record) = record else { return };
        let ProxiedRecord { proxy: Text(proxy), awaits_header, client, counted } = record;
        let (client, counted) = (client.map(|it| it.0), counted.map(|it| it.0));
        // It was let in before: no limit keeps it out.
        counted.into_iter().for_each(|address| {
            shared.addresses.enter(address, u32::MAX);
        });
        self.proxied.insert(slot, Proxied { proxy, awaits_header, client, counted });
    }

    /// Gives back what a crowd took.
    pub fn shrink(&mut self) {
        self.proxied.shrink();
        self.direct.shrink();
        self.certificate_users.shrink();
    }
}
