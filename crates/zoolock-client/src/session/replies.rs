//! Handling of connect responses, replies and watch events.

use std::time::Duration;

use bytes::Bytes;
use zoolock_wire::{Code, ConnectResponse, OpResult, Reader, Reply, ReplyHeader, WatchEvent, WireError, op};

use super::connection::{ConnectionStage, InFlight, RequestPurpose};
use super::{ConnectionId, DisconnectReason, End, Instant, Output, RequestError, Session, SessionState};

/// The maximum length of the frame of a watch event, in bytes. The frame contains only one path, so
/// it is short.
const MAX_EVENT: usize = 64 * 1024;

/// The consequence of a received frame: the connection stays, the connection is lost, or the
/// session ends.
enum FrameEffect {
    Continue,
    Lose(DisconnectReason),
    Finish(End),
}

impl Session {
    /// Handles the complete frames of a connection, until one of them ends the connection.
    pub(super) fn handle_frames(&mut self, id: ConnectionId, now: Instant, random: u64) {
        while let Some(connection) = self.connection.as_mut().filter(|connection| connection.id == id) {
            let outcome = match connection.next_frame() {
                Ok(None) => return,
                Ok(Some(frame)) => match connection.stage {
                    ConnectionStage::Connecting { deadline } => {
                        self.handle_connect_response(&frame, deadline, now)
                    }
                    _ => self.handle_frame(&frame, now),
                },
                Err(error) => Err(error.to_string()),
            };
            match outcome {
                Ok(FrameEffect::Continue) => {}
                Ok(FrameEffect::Lose(loss)) => self.drop_and_redial(loss, now, random),
                Ok(FrameEffect::Finish(end)) => self.end_session(end),
                Err(message) => self.drop_and_redial(DisconnectReason::Protocol(message), now, random),
            }
        }
    }

    /// Handles the connect response. A timeout of zero means that the session has expired. A
    /// session id that differs from the session's own id means that the server has replaced the
    /// session.
    fn handle_connect_response(
        &mut self,
        frame: &Bytes,
        deadline: Instant,
        now: Instant,
    ) -> Result<FrameEffect, String> {
        let response = ConnectResponse::decode(frame)
            .map_err(|error| describe_decode_error("ConnectResponse", &error))?;
        if response.timeout_ms <= 0 {
            // Tries the next server for a new session, because a server that says that it has expired is broken.
            return Ok(if self.id == 0 {
                FrameEffect::Lose(DisconnectReason::Closed)
            } else {
                FrameEffect::Finish(End::Expired)
            });
        }
        if response.read_only == Some(true) {
            return Ok(FrameEffect::Lose(DisconnectReason::ReadOnly));
        }
        let granted = Duration::from_millis(u64::try_from(response.timeout_ms).unwrap_or(0));
        if self.id == 0 {
            if response.session == 0 {
                return Err("the connect response has the session id 0".to_owned());
            }
            self.id = response.session;
            self.created_with = Some(granted);
            self.pace.timeout = granted;
        } else if response.session != self.id {
            return Ok(FrameEffect::Finish(End::Replaced));
        }
        // Uses the shortest granted timeout, because the current leader expires the session by the timeout of the last attach,
        // and a new leader by that of the creation of the session.
        // A session that is being closed keeps its time limits.
        if self.closing.is_none() {
            self.pace.timeout = self.pace.timeout.min(granted);
        }
        self.longest = self.longest.max(granted);
        self.password = response.password;
        if let Some(connection) = &self.connection {
            let (timeout, sent) = (self.pace.timeout, connection.connect_sent);
            self.last_known = self.last_known.max(sent);
            self.outputs.push_back(Output::Granted { timeout, sent });
        }
        if self.config.sasl {
            if let Some(connection) = &mut self.connection {
                connection.stage = ConnectionStage::Authenticating { deadline, pending: 0 };
                let id = connection.id;
                self.outputs.push_back(Output::SaslChallenge(id, None));
            }
        } else {
            self.present_credentials(deadline, now);
        }
        Ok(FrameEffect::Continue)
    }

    /// Writes the credentials. If there are none, declares the session attached.
    pub(super) fn present_credentials(&mut self, deadline: Instant, now: Instant) {
        let Some(connection) = &mut self.connection else { return };
        let pending = connection.write_credentials(&self.config.credentials);
        connection.stage = ConnectionStage::Authenticating { deadline, pending };
        if pending == 0 {
            self.mark_attached(now);
        }
    }

    /// Declares the session attached. If a close is pending, sends only the close.
    fn mark_attached(&mut self, now: Instant) {
        let Some(connection) = &mut self.connection else { return };
        connection.stage = ConnectionStage::Attached;
        connection.attached_at = Some(now);
        self.was_attached = true;
        if self.closing.is_some() {
            return connection.write_close(&mut self.last_xid, now);
        }
        let sent = connection.connect_sent;
        let state = SessionState::Connected { session: self.id, timeout: self.pace.timeout, sent };
        self.outputs.push_back(Output::State(state));
        // The reply to this ping proves that the new connection works, and resets the counts of
        // failures.
        connection.write_ping(now);
    }

    fn handle_frame(&mut self, frame: &Bytes, now: Instant) -> Result<FrameEffect, String> {
        let mut reader = Reader::new(frame);
        let header =
            ReplyHeader::decode(&mut reader).map_err(|error| describe_decode_error("ReplyHeader", &error))?;
        match header.xid {
            op::XID_EVENT if frame.len() > MAX_EVENT => Err("a watch event is too long".to_owned()),
            op::XID_EVENT => {
                let event = WatchEvent::decode(&mut reader)
                    .and_then(|event| reader.check_end().map(|()| event))
                    .map_err(|error| describe_decode_error("WatcherEvent", &error))?;
                self.outputs.push_back(Output::Event(event));
                Ok(FrameEffect::Continue)
            }
            op::XID_AUTH => self.handle_auth_reply(header, now),
            _ => self.handle_reply(header, &mut reader, now),
        }
    }

    fn handle_auth_reply(&mut self, header: ReplyHeader, now: Instant) -> Result<FrameEffect, String> {
        if header.err != 0 {
            return Ok(FrameEffect::Finish(End::AuthFailed));
        }
        let Some(connection) = &mut self.connection else { return Ok(FrameEffect::Continue) };
        match &mut connection.stage {
            ConnectionStage::Authenticating { pending, .. } if *pending > 0 => {
                *pending -= 1;
                if *pending == 0 {
                    self.mark_attached(now);
                }
                Ok(FrameEffect::Continue)
            }
            _ => Err("the server answered credentials that were not sent".to_owned()),
        }
    }

    fn handle_reply(
        &mut self,
        header: ReplyHeader,
        reader: &mut Reader<'_>,
        now: Instant,
    ) -> Result<FrameEffect, String> {
        let Some(connection) = &mut self.connection else { return Ok(FrameEffect::Continue) };
        let entry = connection
            .take_in_flight(header.xid)
            .ok_or_else(|| format!("the server answered the request {}, which is not pending", header.xid))?;
        connection.adapt_window(&self.pace, entry.sent, now);
        self.last_known = self.last_known.max(entry.sent);
        // The zxid is zero in the reply to a SASL token. It is also zero if the connected server
        // itself refuses a request (`enableEagerACLCheck`).
        if header.zxid > 0 {
            if header.zxid < connection.newest_zxid {
                return Ok(self.fail_and_finish(&entry, End::WentBack));
            }
            connection.newest_zxid = header.zxid;
            self.newest_zxid = self.newest_zxid.max(header.zxid);
        }
        let result = if header.err == 0 {
            let decoded = Reply::decode(entry.op, reader);
            let reply = decoded.map_err(|error| {
                // The server has carried out the request, but the result cannot be read. So the
                // request fails as if its reply was lost.
                self.fail_request(&entry, RequestError::ConnectionLoss);
                describe_decode_error("the reply", &error)
            })?;
            Ok(reply)
        } else {
            Err(header.err)
        };
        match refusal_of(&result).and_then(Code::from_number) {
            Some(Code::SessionExpired) => return Ok(self.fail_and_finish(&entry, End::Expired)),
            Some(Code::SessionClosedRequireAuth) => return Ok(self.fail_and_finish(&entry, End::AuthFailed)),
            Some(Code::SessionMoved) => {
                self.fail_request(&entry, RequestError::ConnectionLoss);
                return Ok(FrameEffect::Lose(DisconnectReason::Moved));
            }
            _ => {}
        }
        let outcome = self.handle_result(&entry, result, now);
        let max_in_flight = self.config.max_in_flight;
        if self.closing.is_none()
            && let Some(connection) = self.connection.as_mut().filter(|connection| connection.is_attached())
        {
            connection.fill_window(max_in_flight, &mut self.last_xid, now);
        }
        outcome
    }

    fn handle_result(
        &mut self,
        entry: &InFlight,
        result: Result<Reply, i32>,
        now: Instant,
    ) -> Result<FrameEffect, String> {
        match entry.purpose {
            RequestPurpose::Caller { request, creates_ephemeral } => {
                self.has_ephemeral |= creates_ephemeral && result.is_ok();
                let result = result.map_err(RequestError::Refused);
                self.outputs.push_back(Output::Reply { request, sent: entry.sent, result });
            }
            RequestPurpose::Ping => {
                // The reply to a ping proves that the connection works, so the counts of failures
                // start again.
                self.ping_time = entry.sent.until(now);
                self.failures = 0;
                self.hang_ups = 0;
                self.slow_attaches = 0;
            }
            RequestPurpose::Close if result.is_ok() => return Ok(FrameEffect::Finish(End::Closed)),
            // The server refused the close. The session attaches on another connection, and sends
            // nothing but the close there.
            RequestPurpose::Close => return Ok(FrameEffect::Lose(DisconnectReason::CloseRefused)),
            RequestPurpose::Sasl { is_last } => return self.handle_sasl_reply(is_last, result, now),
        }
        Ok(FrameEffect::Continue)
    }

    fn handle_sasl_reply(
        &mut self,
        is_last: bool,
        result: Result<Reply, i32>,
        now: Instant,
    ) -> Result<FrameEffect, String> {
        let Some(connection) = &mut self.connection else { return Ok(FrameEffect::Continue) };
        let ConnectionStage::Authenticating { deadline, .. } = connection.stage else {
            return Err("the server sent a SASL token out of turn".to_owned());
        };
        match result {
            Ok(Reply::Token(_)) if is_last => self.present_credentials(deadline, now),
            Ok(Reply::Token(token)) => {
                let id = connection.id;
                self.outputs.push_back(Output::SaslChallenge(id, token));
            }
            _ => return Ok(FrameEffect::Finish(End::AuthFailed)),
        }
        Ok(FrameEffect::Continue)
    }

    /// Fails the request whose reply ends the session. Returns the effect that ends the session.
    fn fail_and_finish(&mut self, entry: &InFlight, end: End) -> FrameEffect {
        self.fail_request(entry, end.request_error());
        FrameEffect::Finish(end)
    }

    fn fail_request(&mut self, entry: &InFlight, error: RequestError) {
        if let RequestPurpose::Caller { request, .. } = entry.purpose {
            self.outputs.push_back(Output::Reply { request, sent: entry.sent, result: Err(error) });
        }
    }
}

/// Returns the number of the error in a reply. The error of a transaction is that of the operation that was refused. So
/// ZooKeeper answers "expired" there, and before 3.6 also "moved" (ZOOKEEPER-2886).
fn refusal_of(result: &Result<Reply, i32>) -> Option<i32> {
    match result {
        Ok(Reply::Multi(results)) => results.iter().find_map(|result| match result {
            OpResult::Error(number) if *number != 0 => Some(*number),
            _ => None,
        }),
        Ok(_) => None,
        Err(number) => Some(*number),
    }
}

fn describe_decode_error(record: &str, error: &WireError) -> String {
    format!("{record}: {error}")
}
