//! The messages between zoolock and the reaper: one packet of JSON each.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::reaper::ending::Ending;

/// The size of the buffer for a packet in bytes.
const PACKET: usize = 128;

/// The processes that an order is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Scope {
    /// The command's process group.
    Group,
    /// The command's process group, and all descendants of the command.
    All,
}

/// A message from zoolock to the reaper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReaperOrder {
    /// Start the command, with this end of the lease, on [`crate::base::clock`]. The message carries the command's standard
    /// input, a file with its command line, and optionally a file to keep open.
    Start(Duration),
    /// The end of the lease has changed.
    Lease(Duration),
    /// The grace period has changed. It can only become shorter.
    Grace(Duration),
    /// Send TERM to the group, and KILL after the grace period.
    Terminate,
    /// The command has ended: end the processes that are left, with TERM first.
    Finish(Scope),
    /// Kill the group and all descendants.
    Kill,
    /// The command has ended, and zoolock releases the lock: do not kill any more.
    Release,
    /// Exit: the lock is released, or the reaper is not needed any more.
    Dismiss,
}

/// A message from the reaper to zoolock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReaperReport {
    /// The command runs with this pid.
    Started(i32),
    /// The command could not be started. The value is the system's error number.
    Failed(i32),
    /// The command was not started, because the lease has ended.
    LeaseEnded,
    /// A signal with this number stopped the command.
    Stopped(i32),
    /// TERM was sent to the command, by order or because the lease ends.
    TermSent,
    /// KILL was sent to the command.
    Killed,
    /// The command's own process has ended.
    Ended(Ending),
    /// This number of processes is left after the end of the command. TERM was sent to them.
    LeftoversTerminated(i32),
    /// This number of processes was killed, but has not ended.
    Stuck(i32),
    /// All processes that the last `Finish` or `Kill` was for have ended.
    AllEnded,
}

impl ReaperOrder {
    /// Sends the message without waiting.
    pub(crate) fn send(self, socket: impl AsFd) -> io::Result<()> {
        self.send_with(socket, &[])
    }

    /// Sends the message and files.
    pub(crate) fn send_with(self, socket: impl AsFd, files: &[rustix::fd::BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(&self)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(socket, &[IoSlice::new(&text)], &mut control, flags)?;
        Ok(())
    }

    /// Receives the next message and its files. Returns `None` if zoolock has closed the socket. An unknown message counts
    /// as `ReaperOrder::Kill`.
    pub(crate) fn receive(socket: impl AsFd) -> io::Result<Option<(Self, Vec<OwnedFd>)>> {
        let mut buffer = [0; PACKET];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let length = recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        if length == 0 {
            return Ok(None);
        }
        Ok(Some((serde_json::from_slice(&buffer[..length]).unwrap_or(Self::Kill), files)))
    }
}

impl ReaperReport {
    /// Sends the message without waiting. Fails if the socket is full, for example while zoolock is
    /// stopped.
    pub(crate) fn send(self, socket: impl AsFd) -> io::Result<()> {
        send(socket, &serde_json::to_vec(&self)?, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for the next message. Returns `None` if the reaper has ended.
    pub(crate) fn receive(socket: impl AsFd) -> Option<Self> {
        let mut buffer = [0; PACKET];
        loop {
            match recv(&socket, &mut buffer, RecvFlags::empty()) {
                Ok((_, 0)) => return None,
                Ok((_, length)) => {
                    if let Ok(report) = serde_json::from_slice(&buffer[..length]) {
                        return Some(report);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn messages_decode_as_encoded() {
        let until = Duration::new(86_400 * 365, 123_456_789);
        for order in [
            ReaperOrder::Start(until),
            ReaperOrder::Lease(until),
            ReaperOrder::Grace(Duration::from_millis(333)),
            ReaperOrder::Terminate,
            ReaperOrder::Finish(Scope::Group),
            ReaperOrder::Finish(Scope::All),
            ReaperOrder::Kill,
            ReaperOrder::Release,
            ReaperOrder::Dismiss,
        ] {
            let text = serde_json::to_vec(&order).expect("encoded");
            assert_eq!(serde_json::from_slice::<ReaperOrder>(&text).expect("decoded"), order);
            assert!(text.len() < PACKET);
        }
        for report in [
            ReaperReport::Started(1),
            ReaperReport::Failed(2),
            ReaperReport::LeaseEnded,
            ReaperReport::Stopped(19),
            ReaperReport::TermSent,
            ReaperReport::Killed,
            ReaperReport::Ended(Ending::Code(255)),
            ReaperReport::Ended(Ending::Signal(64)),
            ReaperReport::LeftoversTerminated(3),
            ReaperReport::Stuck(4),
            ReaperReport::AllEnded,
        ] {
            let text = serde_json::to_vec(&report).expect("encoded");
            assert_eq!(serde_json::from_slice::<ReaperReport>(&text).expect("decoded"), report);
            assert!(text.len() < PACKET);
        }
    }

    #[test]
    fn unknown_order_kills() {
        let (zoolock, reaper) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("sockets");
        send(&zoolock, b"{\"Pause\":1}", SendFlags::empty()).expect("the socket has room");
        let received = ReaperOrder::receive(&reaper).expect("readable").expect("an order");
        assert_eq!(received.0, ReaperOrder::Kill);
    }
}
