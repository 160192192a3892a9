//! TLS of a shard's connections: what the shards share, and the state of each connection.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use auth::CertificateUser;
use engine::Shrink;
use model::Name;
use model::name::check_name;
use tls::{Acceptor, Certificate, Handshake, HandshakeError, Progress, Records};

use crate::handover::wire::{Reader, push_piece};
use crate::records::RecordTable;

/// Bytes of data that are encrypted at once: four records of full size. What the kernel doesn't take of them stays
/// encrypted in memory, so this bounds what a slow connection has beside its outbox.
pub(crate) const WINDOW_BYTES: usize = 4 * tls::RECORD_DATA_BYTES_MAX;

/// The shard closes a connection that has more encrypted bytes than this to send: its peer sends key updates and
/// reads nothing.
pub(crate) const UNSENT_BYTES_MAX: usize = 2 * WINDOW_BYTES;

/// Reads of handshakes that one turn of the loop handles. Each takes about 0.1 ms, and open connections wait for the
/// turn's end.
pub(crate) const HANDSHAKES_PER_TURN: usize = 8;

/// Entries to which the queue of postponed handshakes shrinks once a second.
pub(crate) const HANDSHAKES_QUEUED: usize = 64;

/// Returns the user of a certificate, or `None` if the certificate lacks the field or the field has no valid name.
fn user_of(field: CertificateUser, certificate: &Certificate) -> Option<Name> {
    let first = |matches: fn(&tls::Name) -> bool| {
        certificate.names.iter().find(|name| matches(name)).map(ToString::to_string)
    };
    let user = match field {
        CertificateUser::None => None,
        CertificateUser::CommonName => certificate.common_name.clone(),
        CertificateUser::Host => first(|name| matches!(name, tls::Name::Host(_))),
        CertificateUser::Email => first(|name| matches!(name, tls::Name::Email(_))),
        CertificateUser::Uri => first(|name| matches!(name, tls::Name::Uri(_))),
    };
    user.filter(|user| check_name(user).is_ok()).map(Name::from)
}

/// How connections are accepted, until the configuration or a certificate changes.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// Performs handshakes.
    pub acceptor: Acceptor,
    /// Which field of a client's certificate is its user.
    pub certificate_user: CertificateUser,
}

/// A client's certificate lacks the field that names its user, or the field has no valid name.
#[derive(Debug, thiserror::Error)]
#[error("the client's certificate has no valid user in the field that tls.client_user names")]
pub(crate) struct NoUser;

/// How all shards accept connections. Clones share everything.
#[derive(Clone, Debug)]
pub struct TlsContext {
    settings: Arc<RwLock<TlsSettings>>,
    /// The limit on a shard's handshakes in progress.
    handshakes_max: usize,
}

impl TlsContext {
    /// Creates a context with its first settings. `handshakes_max` is the limit on a shard's handshakes in progress.
    pub fn new(settings: TlsSettings, handshakes_max: usize) -> Self {
        TlsContext { settings: Arc::new(RwLock::new(settings)), handshakes_max }
    }

    /// Replaces the settings. Handshakes in progress continue with the old acceptor, and open connections don't change.
    pub fn set(&self, settings: TlsSettings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// Returns the settings for new connections.
    pub fn settings(&self) -> TlsSettings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn handshakes_max(&self) -> usize {
        self.handshakes_max
    }
}

/// A handshake in progress.
struct PendingHandshake {
    handshake: Box<Handshake>,
    /// From the beginning of the handshake: the acceptor of that time verifies the certificate.
    certificate_user: CertificateUser,
    /// The memory of its input, in bytes.
    input_bytes: usize,
}

/// Incomplete input and output of a connection. Few connections have any at a time.
#[derive(Default)]
pub(crate) struct Unfinished {
    /// The beginning of a record that the peer sends.
    pub record: Vec<u8>,
    /// Data that the engine can't take yet.
    pub unread: Vec<u8>,
    /// Encrypted bytes that the kernel has not taken.
    pub unsent: Vec<u8>,
    /// The peer has sent `close_notify`, which the engine learns behind `unread`.
    pub is_peer_closed: bool,
}

impl Unfinished {
    /// Returns the memory of the input, in bytes.
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
    /// Records of connections whose handshake is done.
    records: RecordTable,
    handshakes: HashMap<u32, PendingHandshake>,
    unfinished: HashMap<u32, Unfinished>,
    /// The memory of the input in `handshakes` and `unfinished`, in bytes.
    input_bytes: usize,
}

impl TlsTable {
    /// True while no connection has completed its handshake.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the number of handshakes in progress.
    pub fn handshake_count(&self) -> usize {
        self.handshakes.len()
    }

    /// True when the handshake is done.
    pub fn is_open(&self, slot: u32) -> bool {
        self.records.has(slot)
    }

    /// True while the handshake is under way.
    pub fn is_in_handshake(&self, slot: u32) -> bool {
        self.handshakes.contains_key(&slot)
    }

    /// True while the handshake is under way, or a proxy's header before it.
    pub fn is_opening(&self, slot: u32) -> bool {
        self.is_in_handshake(slot) || !self.is_open(slot) && self.unfinished.contains_key(&slot)
    }

    /// Passes received bytes to the handshake in progress, and appends its reply to `out`. `None` if there is no
    /// handshake.
    pub fn on_handshake(
        &mut self,
        slot: u32,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Result<Progress, HandshakeError>> {
        let pending = self.handshakes.get_mut(&slot)?;
        let progress = pending.handshake.on_received(bytes, out);
        self.input_bytes -= pending.input_bytes;
        pending.input_bytes = pending.handshake.buffer_bytes();
        self.input_bytes += pending.input_bytes;
        Some(progress)
    }

    /// Begins a handshake.
    pub fn begin(&mut self, slot: u32, settings: &TlsSettings, handshake: Box<Handshake>) {
        let certificate_user = settings.certificate_user;
        self.handshakes
            .insert(slot, PendingHandshake { handshake, certificate_user, input_bytes: 0 });
    }

    /// Returns the user of a client's certificate, if certificates named users when the handshake began.
    ///
    /// # Errors
    /// When they did, and this certificate names none.
    pub fn user(&self, slot: u32, certificate: &Certificate) -> Result<Option<Name>, NoUser> {
        match self.handshakes.get(&slot).map(|pending| pending.certificate_user) {
            None | Some(CertificateUser::None) => Ok(None),
            Some(field) => user_of(field, certificate).map(Some).ok_or(NoUser),
        }
    }

    /// The handshake is done.
    pub fn open(&mut self, slot: u32, records: Records) {
        self.end_handshake(slot);
        self.records.insert(slot, records);
    }

    fn end_handshake(&mut self, slot: u32) {
        if let Some(pending) = self.handshakes.remove(&slot) {
            self.input_bytes -= pending.input_bytes;
        }
    }

    /// Returns the records of an open connection.
    pub fn records(&mut self, slot: u32) -> Option<&mut Records> {
        self.records.get_mut(slot)
    }

    /// Takes the incomplete input and output of a connection. The caller returns them with
    /// [`TlsTable::keep_unfinished`].
    pub fn take_unfinished(&mut self, slot: u32) -> Unfinished {
        let unfinished = self.unfinished.remove(&slot).unwrap_or_default();
        self.input_bytes -= unfinished.input_bytes();
        unfinished
    }

    /// Stores incomplete input and output, if there is any.
    pub fn keep_unfinished(&mut self, slot: u32, unfinished: Unfinished) {
        if !unfinished.is_empty() {
            self.input_bytes += unfinished.input_bytes();
            self.unfinished.insert(slot, unfinished);
        }
    }

    /// Returns the memory of input that is incomplete or that the engine can't take yet, in bytes.
    pub fn input_bytes(&self) -> usize {
        self.input_bytes
    }

    /// Returns the connections with input that is incomplete or that the engine can't take yet: the memory of the
    /// input, in bytes, and the slot.
    pub fn pending_inputs(&self) -> Vec<(usize, u32)> {
        let unfinished =
            self.unfinished.iter().map(|(slot, unfinished)| (unfinished.input_bytes(), *slot));
        let handshakes = self.handshakes.iter().map(|(slot, it)| (it.input_bytes, *slot));
        unfinished.chain(handshakes).filter(|(bytes, _)| *bytes > 0).collect()
    }

    /// Returns the number of encrypted bytes that the kernel has not taken.
    pub fn unsent_bytes(&self, slot: u32) -> usize {
        self.unfinished.get(&slot).map_or(0, |unfinished| unfinished.unsent.len())
    }

    /// Returns the incomplete input and output of a connection.
    pub fn unfinished(&self, slot: u32) -> Option<&Unfinished> {
        self.unfinished.get(&slot)
    }

    /// Appends the state of a connection, for another process. A connection that has sent nothing yet has no state. The
    /// state contains the keys in plain.
    pub fn export(&self, slot: u32, out: &mut Vec<u8>) {
        let Some(records) = self.records.get(slot) else {
            return;
        };
        let none = Unfinished::default();
        let unfinished = self.unfinished.get(&slot).unwrap_or(&none);
        let pieces = [&unfinished.record, &unfinished.unread, &unfinished.unsent];
        let bytes: usize = pieces.iter().map(|piece| 4 + piece.len()).sum();
        // One allocation, so that growing leaves no copies of the keys.
        out.reserve(4 + tls::EXPORT_BYTES_MAX + bytes + 1);
        let begin = out.len();
        out.extend_from_slice(&[0; 4]);
        records.export(out);
        let length = (out.len() - begin - 4) as u32;
        out[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
        pieces.into_iter().for_each(|piece| push_piece(out, piece));
        out.push(u8::from(unfinished.is_peer_closed));
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
        self.open(slot, records);
        self.keep_unfinished(slot, Unfinished { record, unread, unsent, is_peer_closed });
        Ok(())
    }

    /// Returns connections with decrypted data that the engine has not got yet. No event of their sockets reports it.
    pub fn undelivered(&self) -> impl Iterator<Item = u32> {
        let has =
            |unfinished: &Unfinished| !unfinished.unread.is_empty() || unfinished.is_peer_closed;
        self.unfinished.iter().filter(move |(_, unfinished)| has(unfinished)).map(|(slot, _)| *slot)
    }

    /// Forgets a connection.
    pub fn remove(&mut self, slot: u32) {
        self.records.remove(slot);
        self.end_handshake(slot);
        drop(self.take_unfinished(slot));
    }

    /// Gives memory back after many connections have left.
    pub fn shrink(&mut self) {
        self.records.shrink();
        self.handshakes.shrink();
        self.unfinished.shrink();
    }
}

#[cfg(test)]
mod tests {
    use tls::testing::{KINDS, pair};

    use super::*;

    /// A connection continues from its exported state, as if nothing had happened.
    #[test]
    fn an_exported_connection_goes_on_where_it_was() {
        for kind in KINDS {
            let (server, mut client) = pair(kind, 7);
            let mut table = TlsTable::default();
            table.open(3, server);
            let (mut plain, mut out) = (Vec::new(), Vec::new());
            let mut record = Vec::new();
            client.seal(b"in two halves", &mut record).unwrap();
            let mut unfinished = Unfinished::default();
            let (first, second) = record.split_at_mut(9);
            let records = table.records(3).unwrap();
            records.open(&mut unfinished.record, first, &mut plain, &mut out).unwrap();
            unfinished.unread = b"unread".to_vec();
            unfinished.unsent = b"unsent".to_vec();
            unfinished.is_peer_closed = true;
            table.keep_unfinished(3, unfinished);

            let mut state = Vec::new();
            table.export(3, &mut state);
            for end in 1..state.len() {
                let cut = TlsTable::default().import(3, &state[..end]);
                assert!(cut.is_err(), "cut at {end} of {}", state.len());
            }
            let mut taken = TlsTable::default();
            taken.import(3, &state).unwrap();
            assert_eq!(taken.undelivered().collect::<Vec<_>>(), [3]);
            let mut unfinished = taken.take_unfinished(3);
            assert_eq!(
                (&*unfinished.unread, &*unfinished.unsent),
                (&b"unread"[..], &b"unsent"[..])
            );
            assert!(unfinished.is_peer_closed);
            let records = taken.records(3).unwrap();
            records.open(&mut unfinished.record, second, &mut plain, &mut out).unwrap();
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
