//! What zoolock and the reaper say to each other: one packet each, a word and a number.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};

use crate::child::Ending;

/// Longer than any packet.
const PACKET: usize = 64;

/// Until when the lock is ours, on [`crate::clock`]; `None`: the command may go on without it.
pub(crate) type Lease = Option<Duration>;

/// Whom an order is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The command's process group.
    Group,
    /// And everything that descends from it.
    All,
}

/// What zoolock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Start the command; two files come with it: its standard input and its command line.
    Start(Lease),
    /// The lock was renewed.
    Renewed(Lease),
    /// Ask the group to end, and kill all of it when the grace period is over.
    Ask,
    /// The command has ended: see to it that nothing is left of it, with TERM first.
    Finish(Scope),
    /// Kill all of it.
    Kill,
    /// It is over.
    Goodbye,
}

/// What the reaper says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command runs, as this process.
    Started(i32),
    /// It could not be started, with this error of the system.
    Failed(i32),
    /// It was not started: there was no time left.
    Late,
    /// A signal stopped it.
    Stopped(i32),
    /// It was asked to end, as ordered or because the lease is running out.
    Asked,
    /// It was sent KILL; whoever says this is not stopped.
    Killed,
    /// Its own process is over.
    Ended(Ending),
    /// That many are left of it, and were asked to end.
    Left(i32),
    /// That many could be killed, but are still there.
    Stuck(i32),
    /// Nobody is left of those the last order was about.
    Gone,
}

impl Order {
    fn encode(self) -> String {
        let lease = |lease: Lease| lease.map_or_else(|| "-".to_owned(), |until| until.as_nanos().to_string());
        match self {
            Self::Start(until) => format!("start {}", lease(until)),
            Self::Renewed(until) => format!("renewed {}", lease(until)),
            Self::Ask => "ask".to_owned(),
            Self::Finish(Scope::Group) => "finish group".to_owned(),
            Self::Finish(Scope::All) => "finish all".to_owned(),
            Self::Kill => "kill".to_owned(),
            Self::Goodbye => "goodbye".to_owned(),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (word, value) = text.split_once(' ').unwrap_or((text, ""));
        let lease = || match value {
            "-" => Some(None),
            nanos => Some(Some(Duration::from_nanos(nanos.parse().ok()?))),
        };
        Some(match (word, value) {
            ("start", _) => Self::Start(lease()?),
            ("renewed", _) => Self::Renewed(lease()?),
            ("ask", "") => Self::Ask,
            ("finish", "group") => Self::Finish(Scope::Group),
            ("finish", "all") => Self::Finish(Scope::All),
            ("kill", "") => Self::Kill,
            ("goodbye", "") => Self::Goodbye,
            _ => return None,
        })
    }

    /// Says it without waiting.
    pub(crate) fn send(self, socket: impl AsFd) -> io::Result<()> {
        self.send_with(socket, &[])
    }

    /// Says it, and hands over files.
    pub(crate) fn send_with(self, socket: impl AsFd, files: &[rustix::fd::BorrowedFd<'_>]) -> io::Result<()> {
        let text = self.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(socket, &[IoSlice::new(text.as_bytes())], &mut control, flags)?;
        Ok(())
    }

    /// Takes the next one; `None` at the end of the conversation. An order that is not understood is one to kill.
    pub(crate) fn receive(socket: impl AsFd) -> io::Result<Option<(Self, Vec<OwnedFd>)>> {
        let mut buffer = [0; PACKET];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
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
        let text = buffer.get(..length).and_then(|bytes| std::str::from_utf8(bytes).ok());
        Ok(Some((text.and_then(Self::decode).unwrap_or(Self::Kill), files)))
    }
}

impl Report {
    fn encode(self) -> String {
        match self {
            Self::Started(pid) => format!("started {pid}"),
            Self::Failed(error) => format!("failed {error}"),
            Self::Late => "late".to_owned(),
            Self::Stopped(signal) => format!("stopped {signal}"),
            Self::Asked => "asked".to_owned(),
            Self::Killed => "killed".to_owned(),
            Self::Ended(Ending::Code(code)) => format!("ended {code}"),
            Self::Ended(Ending::Signal(signal)) => format!("signalled {signal}"),
            Self::Left(count) => format!("left {count}"),
            Self::Stuck(count) => format!("stuck {count}"),
            Self::Gone => "gone".to_owned(),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (word, value) = text.split_once(' ').unwrap_or((text, "0"));
        let value: i32 = value.parse().ok()?;
        Some(match word {
            "started" => Self::Started(value),
            "failed" => Self::Failed(value),
            "late" => Self::Late,
            "stopped" => Self::Stopped(value),
            "asked" => Self::Asked,
            "killed" => Self::Killed,
            "ended" => Self::Ended(Ending::Code(u8::try_from(value).ok()?)),
            "signalled" => Self::Ended(Ending::Signal(value)),
            "left" => Self::Left(value),
            "stuck" => Self::Stuck(value),
            "gone" => Self::Gone,
            _ => return None,
        })
    }

    /// Says it without waiting: zoolock may be stopped, and its ear full.
    pub(crate) fn send(self, socket: impl AsFd) -> io::Result<()> {
        send(socket, self.encode().as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for the next one; `None` when the reaper is gone.
    pub(crate) fn receive(socket: impl AsFd) -> Option<Self> {
        let mut buffer = [0; PACKET];
        loop {
            match recv(&socket, &mut buffer, RecvFlags::empty()) {
                Ok((_, 0)) => return None,
                Ok((_, length)) => {
                    let text = buffer.get(..length).and_then(|bytes| std::str::from_utf8(bytes).ok());
                    if let Some(report) = text.and_then(Self::decode) {
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
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        let until = Some(Duration::new(86_400 * 365, 123_456_789));
        for order in [
            Order::Start(until),
            Order::Start(None),
            Order::Renewed(until),
            Order::Ask,
            Order::Finish(Scope::Group),
            Order::Finish(Scope::All),
            Order::Kill,
            Order::Goodbye,
        ] {
            assert_eq!(Order::decode(&order.encode()), Some(order));
            assert!(order.encode().len() < PACKET);
        }
        for report in [
            Report::Started(1),
            Report::Failed(2),
            Report::Late,
            Report::Stopped(19),
            Report::Asked,
            Report::Killed,
            Report::Ended(Ending::Code(255)),
            Report::Ended(Ending::Signal(64)),
            Report::Left(3),
            Report::Stuck(4),
            Report::Gone,
        ] {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        for bad in ["", "start", "start x", "finish", "kill now", "renewed -1"] {
            assert_eq!(Order::decode(bad), None, "{bad}");
        }
    }
}
