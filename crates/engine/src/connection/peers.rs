//! The addresses of connections. For a connection through a trusted proxy the proxy names it. For all others the socket
//! has it, and nothing is stored once they are open.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use minicbor::{Decode, Encode};
use model::Name;
use protocol::Peer;
use proxies::ProxyHeader;

use crate::core::handle::Shared;
use crate::core::shrink::Shrink;
use crate::handover::value::Text;

/// How a connection arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// From this address, if the driver knows it already.
    Direct(Option<IpAddr>),
    /// Above the limit of its address. It may be a health check.
    Reserved,
    /// From the address of a trusted proxy, which names the address of its client.
    Proxy(IpAddr),
}

/// A connection of a trusted proxy.
pub(crate) struct Proxied {
    /// The proxy.
    pub proxy: IpAddr,
    /// A header of the PROXY protocol must come first.
    pub awaits_header: bool,
    /// The client that the proxy named last; port 0 if it named none.
    pub client: Option<SocketAddr>,
    /// The address for which it counts, while connections of an address are limited.
    pub counted: Option<IpAddr>,
}

/// The export to another engine.
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

/// Stored addresses: of connections through trusted proxies, and of others until they are open. An idle connection has
/// none.
#[derive(Default)]
pub(crate) struct Peers {
    proxied: HashMap<u32, Proxied>,
    direct: HashMap<u32, IpAddr>,
    /// Users that certificates of connections name.
    certificate_users: HashMap<u32, Name>,
}

impl Peers {
    /// Stores the address of a new connection.
    pub fn open_direct(&mut self, slot: u32, address: IpAddr) {
        self.direct.insert(slot, address);
    }

    /// The connection is open: its address is removed. From now on the driver has it.
    pub fn opened(&mut self, slot: u32) {
        self.direct.remove(&slot);
    }

    /// Returns the address of a connection, if it is stored.
    pub fn address(&self, slot: u32) -> Option<IpAddr> {
        let direct = || self.direct.get(&slot).copied();
        self.client(slot).map(|client| client.ip()).or_else(direct)
    }

    /// Stores a connection of a trusted proxy.
    pub fn open(&mut self, slot: u32, proxy: IpAddr, header: ProxyHeader) {
        let awaits_header = header == ProxyHeader::ProxyProtocol;
        let proxied = Proxied { proxy, awaits_header, client: None, counted: None };
        self.proxied.insert(slot, proxied);
    }

    /// Returns whether the connection is a trusted proxy's.
    pub fn peer(&self, slot: u32) -> Peer {
        let proxy = self.proxied(slot).map(|proxied| proxied.proxy);
        Peer { proxy, client: None, certificate_user: self.certificate_user(slot).cloned() }
    }

    /// Returns the user that the connection's certificate names.
    pub fn certificate_user(&self, slot: u32) -> Option<&Name> {
        if self.certificate_users.is_empty() { None } else { self.certificate_users.get(&slot) }
    }

    /// Stores the user that the connection's certificate names.
    pub fn set_certificate_user(&mut self, slot: u32, user: Name) {
        self.certificate_users.insert(slot, user);
    }

    /// Returns the address of a connection through a proxy: the proxy's own, until the proxy has named another.
    pub fn client(&self, slot: u32) -> Option<SocketAddr> {
        let proxied = self.proxied(slot)?;
        Some(proxied.client.unwrap_or(SocketAddr::new(proxied.proxy, 0)))
    }

    /// Returns the state of a connection through a proxy.
    pub fn proxied(&self, slot: u32) -> Option<&Proxied> {
        if self.proxied.is_empty() { None } else { self.proxied.get(&slot) }
    }

    /// Returns the mutable state of a connection through a proxy.
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
        // The connection was accepted before: no limit applies now.
        counted.into_iter().for_each(|address| {
            shared.addresses.enter(address, u32::MAX);
        });
        self.proxied.insert(slot, Proxied { proxy, awaits_header, client, counted });
    }

    /// Gives memory back after many connections have ended.
    pub fn shrink(&mut self) {
        self.proxied.shrink();
        self.direct.shrink();
        self.certificate_users.shrink();
    }
}
