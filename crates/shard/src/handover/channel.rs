//! The channel from one process to the next: frames with descriptors over a Unix socket.
//!
//! A frame is its kind (two bytes), the length of its body (four), both little endian, and the body.
//! Descriptors go with the first byte of a frame. A reader passes over kinds that it doesn't know.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};

/// Descriptors of one frame: the kernel takes no more in one message (SCM_MAX_FD).
pub const DESCRIPTORS_MAX: usize = 253;

/// Bytes of a frame's body, at most. A reader rejects a larger length.
pub const BODY_BYTES_MAX: usize = 1 << 30;

const HEAD_BYTES: usize = 6;

/// How long a sender waits in all while the kernel has too many descriptors under way.
const UNDER_WAY_WAIT: Duration = Duration::from_secs(10);

/// A received frame.
#[derive(Debug)]
pub struct Frame {
    /// The kind, which says what the body contains.
    pub kind: u16,
    /// Its content.
    pub body: Vec<u8>,
    /// The descriptors that came with it, which are closed on exec.
    pub descriptors: Vec<OwnedFd>,
}

/// One end of the channel between two processes.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
}

impl Channel {
    /// Makes a channel over a connected socket. The process at its other end must run as the same user, or as root.
    ///
    /// # Errors
    /// When it runs as another user, or the system can't tell.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        let peer = sockopt::socket_peercred(&socket)?;
        let (us, them) = (rustix::process::geteuid(), peer.uid);
        if them != us && !them.is_root() {
            let (them, us) = (them.as_raw(), us.as_raw());
            return Err(io::Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "the other process runs as user {them}; only user {us} and root may take part"
                ),
            ));
        }
        socket.set_nonblocking(false)?;
        Ok(Channel { socket })
    }

    /// Connects to the process that listens at this path.
    ///
    /// # Errors
    /// When no process listens there, or one of another user.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Channel::new(UnixStream::connect(path)?)
    }

    /// Limits how long a call waits for the other process; `None` is no limit.
    ///
    /// # Errors
    /// When the system rejects it.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(timeout)?;
        self.socket.set_write_timeout(timeout)
    }

    /// Returns another handle to the same end.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Channel { socket: self.socket.try_clone()? })
    }

    /// Ends the channel for both sides: a call that waits in either process returns.
    pub fn shut(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Sends a frame, with at most [`DESCRIPTORS_MAX`] descriptors.
    ///
    /// # Errors
    /// When the other process has gone, is silent for too long, or the frame is too large.
    pub fn send(&self, kind: u16, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if body.len() > BODY_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
            return Err(io::Error::other("the data does not fit into one frame"));
        }
        let mut head = [0; HEAD_BYTES];
        head[..2].copy_from_slice(&kind.to_le_bytes());
        head[2..].copy_from_slice(&(body.len() as u32).to_le_bytes());
        let mut sent = self.send_first(&[IoSlice::new(&head), IoSlice::new(body)], descriptors)?;
        let mut socket = &self.socket;
        if sent < HEAD_BYTES {
            socket.write_all(&head[sent..])?;
            sent = HEAD_BYTES;
        }
        socket.write_all(&body[sent - HEAD_BYTES..])
    }

    /// Sends the first bytes with the descriptors. The kernel limits how many are under way between processes of
    /// one user. At that limit this waits until the other process has taken some.
    fn send_first(&self, parts: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let began = Instant::now();
        loop {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(fds));
            }
            match sendmsg(&self.socket, parts, &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => return Ok(sent),
                Err(Errno::INTR) => {}
                Err(Errno::TOOMANYREFS) if began.elapsed() < UNDER_WAY_WAIT => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for the next frame. Returns `None` when the other process has ended the channel between two frames.
    ///
    /// # Errors
    /// When the other process breaks off, is silent for too long, or sends something that is no frame, or when this
    /// one lacks descriptors for those that came.
    pub fn receive(&self) -> io::Result<Option<Frame>> {
        let mut head = [0; HEAD_BYTES];
        let mut descriptors = Vec::new();
        let mut read = 0;
        while read < HEAD_BYTES {
            let bytes = self.receive_some(&mut head[read..], &mut descriptors)?;
            match (bytes, read) {
                (0, 0) => return Ok(None),
                (0, _) => return Err(ErrorKind::UnexpectedEof.into()),
                (bytes, _) => read += bytes,
            }
        }
        let kind = u16::from_le_bytes([head[0], head[1]]);
        let length = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
        if length > BODY_BYTES_MAX {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "the data is not a frame: it is too long",
            ));
        }
        // The capacity grows with what arrives, not with the announced length.
        let mut body = Vec::with_capacity(length.min(1 << 20));
        (&self.socket).take(length as u64).read_to_end(&mut body)?;
        if body.len() < length {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(Frame { kind, body, descriptors }))
    }

    fn receive_some(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        loop {
            let parts = &mut [IoSliceMut::new(into)];
            match recvmsg(&self.socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => {
                    for part in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(came) = part {
                            fds.extend(came);
                        }
                    }
                    if message.flags.contains(ReturnFlags::CTRUNC) {
                        return Err(io::Error::other(
                            "this process may open too few file descriptors for all connections: \
                             raise the limit on open files (ulimit -n)",
                        ));
                    }
                    return Ok(message.bytes);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// True if input has arrived. Does not wait.
    pub fn has_input(&self) -> bool {
        self.wait_for_input(Duration::ZERO)
    }

    /// Waits for input, at most this long. Returns true if some has arrived.
    pub fn wait_for_input(&self, wait: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let wait = Timespec::try_from(wait).unwrap_or_default();
        poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
    }

    /// Reads the frames that have arrived, up to one of this kind, and does not wait for more. If the other process
    /// breaks off, it sends the reason behind its earlier frames.
    pub fn find(&self, kind: u16) -> Option<Frame> {
        while self.has_input() {
            let frame = self.receive().ok()??;
            if frame.kind == kind {
                return Some(frame);
            }
        }
        None
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.socket.into()
    }
}

impl From<OwnedFd> for Channel {
    fn from(fd: OwnedFd) -> Self {
        Channel { socket: fd.into() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (a, b) = UnixStream::pair().unwrap();
        (Channel::new(a).unwrap(), Channel::new(b).unwrap())
    }

    #[test]
    fn frames_come_as_they_were_sent_with_their_descriptors() {
        let (a, b) = pair();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let large = vec![7; 1 << 20];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                a.send(1, b"one", &[]).unwrap();
                a.send(2, b"", &[writer.as_fd(), reader.as_fd()]).unwrap();
                let many = vec![reader.as_fd(); DESCRIPTORS_MAX];
                a.send(3, &large, &many).unwrap();
                a.shut();
            });
            let next = || b.receive().unwrap();
            let first = next().unwrap();
            assert_eq!((first.kind, &first.body[..], first.descriptors.len()), (1, &b"one"[..], 0));
            let second = next().unwrap();
            assert_eq!((second.kind, second.body.len(), second.descriptors.len()), (2, 0, 2));
            rustix::io::write(&second.descriptors[0], b"x").unwrap();
            assert_eq!(rustix::io::read(&second.descriptors[1], &mut [0; 4]), Ok(1));
            let third = next().unwrap();
            assert_eq!((third.body, third.descriptors.len()), (large.clone(), DESCRIPTORS_MAX));
            assert!(next().is_none());
        });
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        for bytes in [&b"\x01"[..], b"\x01\x00\xff\xff\xff\xff", b"\x01\x00\x05\x00\x00\x00abc"] {
            let (a, b) = pair();
            (&a.socket).write_all(bytes).unwrap();
            a.shut();
            assert!(b.receive().is_err(), "{bytes:?}");
        }
        let (_a, b) = pair();
        b.set_timeout(Some(Duration::from_millis(5))).unwrap();
        assert!(b.receive().is_err(), "nobody says anything");
    }

    /// The bytes of a frame.
    fn bytes(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_le_bytes()[..], &(body.len() as u32).to_le_bytes(), body].concat()
    }

    #[test]
    fn a_frame_is_its_kind_its_length_and_its_body() {
        let (a, b) = pair();
        a.send(0x0102, b"abc", &[]).unwrap();
        a.shut();
        let mut raw = Vec::new();
        (&b.socket).read_to_end(&mut raw).unwrap();
        assert_eq!(raw, b"\x02\x01\x03\x00\x00\x00abc");
    }

    #[test]
    fn more_than_fits_a_frame_is_not_sent() {
        let (a, b) = pair();
        assert!(a.send(1, b"", &vec![b.as_fd(); DESCRIPTORS_MAX + 1]).is_err());
        a.send(2, b"", &[]).unwrap();
        assert_eq!(b.receive().unwrap().unwrap().kind, 2, "nothing of it came");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn any_bytes_are_frames_or_an_error(raw in prop::collection::vec(any::<u8>(), 0..100)) {
            let (a, b) = pair();
            (&a.socket).write_all(&raw).unwrap();
            a.shut();
            let mut took = 0;
            while let Ok(Some(frame)) = b.receive() {
                took += HEAD_BYTES + frame.body.len();
                prop_assert!(took <= raw.len());
            }
        }

        #[test]
        fn a_cut_frame_is_an_error_and_those_before_it_come(
            frames in prop::collection::vec(
                (any::<u16>(), prop::collection::vec(any::<u8>(), 0..30), any::<bool>()), 1..5),
            cut in any::<prop::sample::Index>(),
        ) {
            let (a, b) = pair();
            let (last, before) = frames.split_last().unwrap();
            for (kind, body, has_fd) in before {
                let fds = [a.as_fd()];
                a.send(*kind, body, if *has_fd { &fds } else { &[] }).unwrap();
            }
            let whole = bytes(last.0, &last.1);
            let cut = cut.index(whole.len());
            (&a.socket).write_all(&whole[..cut]).unwrap();
            a.shut();
            for (kind, body, has_fd) in before {
                let frame = b.receive().unwrap().unwrap();
                prop_assert_eq!((frame.kind, &frame.body), (*kind, body));
                prop_assert_eq!(frame.descriptors.len(), usize::from(*has_fd));
            }
            prop_assert_eq!(b.receive().is_err(), cut > 0);
        }
    }
}
