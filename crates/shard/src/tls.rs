//! TLS of a shard's connections: what the shards share, and the state of each connection.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use engine::Shrink;
use model::Name;
use model::name::check_name;
use tables::PageTable;
use tls::{Acceptor, Certificate, Handshake, HandshakeError, Progress, Records};

use crate::handover::wire::{Reader, push_piece};

/// Bytes of data that are encrypted at once: four records of full size. What the kernel doesn't take of them stays
/// encrypted in memory, so this bounds what a slow connection has beside its outbox.
pub(crate) const WINDOW_BYTES: usize = 4 * tls::RECORD_DATA_BYTES_MAX;

/// A connection that has so many encrypted bytes to send, and causes more, is closed: it sends key updates and
/// reads nothing.
pub(crate) const UNSENT_BYTES_MAX: usize = 2 * WINDOW_BYTES;

/// Messages of handshakes that one turn of the loop handles. Each takes about 0.1 ms, and open connections wait for
/// the turn's end.
pub(crate) const HANDSHAKES_PER_TURN: usize = 8;

/// Which field of a client's certificate is the user of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateUser {
    /// None: a certificate lets in, and says nothing more.
    None,
    /// The common name of the subject.
    CommonName,
    /// The first alternative name that is a host.
    Host,
    /// The first that is a mail address.
    Email,
    /// The first that is a URI.
    Uri,
}

impl CertificateUser {
    /// The user of a certificate; none if it lacks the field, or the field is no name of a user.
    fn of(self, certificate: &Certificate) -> Option<Name> {
        let first = |matches: fn(&tls::Name) -> bool| {
            certificate.names.iter().find(|name| matches(name)).map(ToString::to_string)
        };
        let user = match self {
            CertificateUser::None => None,
            CertificateUser::CommonName => certificate.common_name.clone(),
            CertificateUser::Host => first(|name| matches!(name, tls::Name::Host(_))),
            CertificateUser::Email => first(|name| matches!(name, tls::Name::Email(_))),
            CertificateUser::Uri => first(|name| matches!(name, tls::Name::Uri(_))),
        };
        user.filter(|user| check_name(user).is_ok()).map(Name::from)
    }
}

/// What connections are accepted by, as long as the configuration and the certificates stay as they are.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// Performs handshakes.
    pub acceptor: Acceptor,
    /// Which field of a client's certificate is its user.
    pub certificate_user: CertificateUser,
}

/// A client's certificate lacks the field that names its user, or that is no name of a user.
#[derive(Debug, thiserror::Error)]
#[error("the client's certificate names no user in the field that tls.client_user says")]
pub(crate) struct NoUser;

/// The queue of handshakes keeps memory for so many when a second has passed.
pub(crate) const HANDSHAKES_QUEUED: usize = 64;

/// What all shards accept connections by. A clone shares everything with its original.
#[derive(Clone, Debug)]
pub struct TlsContext {
    settings: Arc<RwLock<TlsSettings>>,
    /// Handshakes that a shard may have under way.
    handshakes_max: usize,
}

impl TlsContext {
    /// A context with first settings. Each shard has at most `handshakes_max` handshakes under way.
    pub fn new(settings: TlsSettings, handshakes_max: usize) -> Self {
        TlsContext { settings: Arc::new(RwLock::new(settings)), handshakes_max }
    }

    /// Replaces the settings. Handshakes that are under way go on by the old acceptor, and open connections don't change.
    pub fn set(&self, settings: TlsSettings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// The settings of new connections.
    pub fn settings(&self) -> TlsSettings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn handshakes_max(&self) -> usize {
        self.handshakes_max
    }
}

/// A handshake that is under way.
struct Underway {
    handshake: Box<Handshake>,
    /// As it was when the handshake began: its acceptor verifies the certificate.
    certificate_user: CertificateUser,
    /// The memory of its input, in bytes.
    input_bytes: usize,
}

/// What few connections have at a time.
#[derive(Default)]
pub(crate) struct Partial {
    /// The beginning of a record that the peer sends.
    pub record: Vec<u8>,
    /// Data that the engine can't take yet.
    pub unread: Vec<u8>,
    /// Encrypted bytes that the kernel has not taken.
    pub unsent: Vec<u8>,
    /// The peer has sent `close_notify`, which the engine learns behind `unread`.
    pub is_peer_closed: bool,
}

impl Partial {
    /// The memory of the input, in bytes.
    fn input_bytes(&self) -> usize {
        self.record.capacity() + self.unread.capacity()
    }

    fn is_empty(&self) -> bool {
        self.record.is_empty()
            && self.unread.is_empty()
            && self.unsent.is_empty()
            && !self.is_peer_closed
    }
}

/// The TLS connections of a shard, by slot. A connection that has sent nothing yet is in none of its tables.
#[derive(Default)]
pub(crate) struct TlsTable {
    /// Of connections whose handshake is done: 8 bytes here, and 224 on the heap.
    records: PageTable<Box<Records>>,
    handshakes: HashMap<u32, Underway>,
    partials: HashMap<u32, Partial>,
    /// The memory of the input in `handshakes` and `partials`, in bytes.
    input_bytes: usize,
}

impl TlsTable {
    /// True while no connection has completed its handshake.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// How many handshakes are under way.
    pub fn handshakes(&self) -> usize {
        self.handshakes.len()
    }

    /// True when the handshake is done.
    pub fn is_open(&self, slot: u32) -> bool {
        self.records.get(slot).is_some()
    }

    /// True while the handshake is under way.
    pub fn is_in_handshake(&self, slot: u32) -> bool {
        self.handshakes.contains_key(&slot)
    }

    /// Gives bytes to the handshake that is under way, if there is one, with a buffer for what is to be sent.
    pub fn on_handshake(
        &mut self,
        slot: u32,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Result<Progress, HandshakeError>> {
        let underway = self.handshakes.get_mut(&slot)?;
        let progress = underway.handshake.on_received(bytes, out);
        self.input_bytes -= underway.input_bytes;
        underway.input_bytes = underway.handshake.buffer_bytes();
        self.input_bytes += underway.input_bytes;
        Some(progress)
    }

    /// A handshake begins.
    pub fn begin(&mut self, slot: u32, settings: &TlsSettings, handshake: Box<Handshake>) {
        let certificate_user = settings.certificate_user;
        self.handshakes.insert(slot, Underway { handshake, certificate_user, input_bytes: 0 });
    }

    /// The user of a client's certificate, if certificates named users when its handshake began.
    ///
    /// # Errors
    /// When they did, and this one names none.
    pub fn user(&self, slot: u32, certificate: &Certificate) -> Result<Option<Name>, NoUser> {
        match self.handshakes.get(&slot).map(|underway| underway.certificate_user) {
            None | Some(CertificateUser::None) => Ok(None),
            Some(field) => field.of(certificate).map(Some).ok_or(NoUser),
        }
    }

    /// The handshake is done.
    pub fn open(&mut self, slot: u32, records: Box<Records>) {
        self.end_handshake(slot);
        self.records.insert(slot, records);
    }

    fn end_handshake(&mut self, slot: u32) {
        if let Some(underway) = self.handshakes.remove(&slot) {
            self.input_bytes -= underway.input_bytes;
        }
    }

    /// The records of an open connection.
    pub fn records(&mut self, slot: u32) -> Option<&mut Records> {
        self.records.get_mut(slot).map(Box::as_mut)
    }

    /// The unfinished input and output of a connection. The caller returns it with [`TlsTable::keep_partial`].
    pub fn take_partial(&mut self, slot: u32) -> Partial {
        let partial = self.partials.remove(&slot).unwrap_or_default();
        self.input_bytes -= partial.input_bytes();
        partial
    }

    /// Keeps unfinished input and output, if there is any.
    pub fn keep_partial(&mut self, slot: u32, partial: Partial) {
        if !partial.is_empty() {
            self.input_bytes += partial.input_bytes();
            self.partials.insert(slot, partial);
        }
    }

    /// The memory of input that is not whole or that the engine can't take yet, in bytes.
    pub fn input_bytes(&self) -> usize {
        self.input_bytes
    }

    /// Connections with input that is not whole or that the engine can't take yet, and how much memory that is.
    pub fn pending_inputs(&self) -> Vec<(usize, u32)> {
        let partials = self.partials.iter().map(|(slot, partial)| (partial.input_bytes(), *slot));
        let handshakes = self.handshakes.iter().map(|(slot, it)| (it.input_bytes, *slot));
        partials.chain(handshakes).filter(|(bytes, _)| *bytes > 0).collect()
    }

    /// Encrypted bytes that the kernel has not taken.
    pub fn unsent_bytes(&self, slot: u32) -> usize {
        self.partials.get(&slot).map_or(0, |partial| partial.unsent.len())
    }

    /// The unfinished input and output of a connection.
    pub fn partial(&self, slot: u32) -> Option<&Partial> {
        self.partials.get(&slot)
    }

    /// Appends the state of a connection, for another process: nothing if it has sent nothing yet. It has the keys in
    /// plain.
    pub fn export(&self, slot: u32, out: &mut Vec<u8>) {
        let Some(records) = self.records.get(slot) else {
            return;
        };
        let none = Partial::default();
        let partial = self.partials.get(&slot).unwrap_or(&none);
        let pieces = [&partial.record, &partial.unread, &partial.unsent];
        let bytes: usize = pieces.iter().map(|piece| 4 + piece.len()).sum();
        // At once, so that growing leaves no copies of the keys.
        out.reserve(4 + tls::EXPORT_BYTES_MAX + bytes + 1);
        let begin = out.len();
        out.extend_from_slice(&[0; 4]);
        records.export(out);
        let length = (out.len() - begin - 4) as u32;
        out[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
        pieces.into_iter().for_each(|piece| push_piece(out, piece));
        out.push(u8::from(partial.is_peer_closed));
    }

    /// Reads what `export` wrote.
    pub fn import(&mut self, slot: u32, state: &[u8]) -> Result<(), tls::ImportError> {
        if state.is_empty() {
            return Ok(());
        }
        let mut reader = Reader(state);
        let mut piece = || reader.piece().map_err(|_| tls::ImportError::Damaged);
        let records = Records::import(piece()?)?;
        let [record, unread, unsent] = [piece()?, piece()?, piece()?].map(<[u8]>::to_vec);
        // A newer version's fields may follow.
        let is_peer_closed = reader.u8().map_err(|_| tls::ImportError::Damaged)? != 0;
        self.open(slot, Box::new(records));
        self.keep_partial(slot, Partial { record, unread, unsent, is_peer_closed });
        Ok(())
    }

    /// Connections whose engine has still to be given something: no event of their sockets says so.
    pub fn undelivered(&self) -> impl Iterator<Item = u32> {
        let has = |partial: &Partial| !partial.unread.is_empty() || partial.is_peer_closed;
        self.partials.iter().filter(move |(_, partial)| has(partial)).map(|(slot, _)| *slot)
    }

    /// Forgets a connection.
    pub fn remove(&mut self, slot: u32) {
        self.records.remove(slot);
        self.end_handshake(slot);
        drop(self.take_partial(slot));
    }

    /// Gives memory back after many connections have left.
    pub fn shrink(&mut self) {
        self.records.shrink();
        self.handshakes.shrink();
        self.partials.shrink();
    }
}

#[cfg(test)]
mod tests {
    use tls::testing::{KINDS, pair};

    use super::*;

    /// A connection that goes on from its exported state, as if nothing had happened.
    #[test]
    fn an_exported_connection_goes_on_where_it_was() {
        for kind in KINDS {
            let (server, mut client) = pair(kind, 7);
            let mut table = TlsTable::default();
            table.open(3, Box::new(server));
            let (mut plain, mut out) = (Vec::new(), Vec::new());
            let mut record = Vec::new();
            client.seal(b"in two halves", &mut record).unwrap();
            let mut partial = Partial::default();
            let (first, second) = record.split_at_mut(9);
            let records = table.records(3).unwrap();
            records.open(&mut partial.record, first, &mut plain, &mut out).unwrap();
            partial.unread = b"unread".to_vec();
            partial.unsent = b"unsent".to_vec();
            partial.is_peer_closed = true;
            table.keep_partial(3, partial);

            let mut state = Vec::new();
            table.export(3, &mut state);
            for end in 1..state.len() {
                let cut = TlsTable::default().import(3, &state[..end]);
                assert!(cut.is_err(), "cut at {end} of {}", state.len());
            }
            let mut taken = TlsTable::default();
            taken.import(3, &state).unwrap();
            assert_eq!(taken.undelivered().collect::<Vec<_>>(), [3]);
            let mut partial = taken.take_partial(3);
            assert_eq!((&*partial.unread, &*partial.unsent), (&b"unread"[..], &b"unsent"[..]));
            assert!(partial.is_peer_closed);
            let records = taken.records(3).unwrap();
            records.open(&mut partial.record, second, &mut plain, &mut out).unwrap();
            assert_eq!(plain, b"in two halves");
            records.seal(b"answer", &mut out).unwrap();
            let mut reply = Vec::new();
            client.open(&mut Vec::new(), &mut out, &mut reply, &mut Vec::new()).unwrap();
            assert_eq!(reply, b"answer");
        }
    }

    #[test]
    fn a_connection_that_has_sent_nothing_has_no_state() {
        let (mut table, mut state) = (TlsTable::default(), Vec::new());
        table.export(1, &mut state);
        assert!(state.is_empty());
        table.import(1, &state).unwrap();
        assert!(table.is_empty() && !table.is_open(1) && !table.is_in_handshake(1));
    }
}
