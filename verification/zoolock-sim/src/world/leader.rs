//! The decisions of the leader, and how they reach the servers and the clients of each server.

use super::*;

impl World {
    pub(super) fn handle_leader_request(&mut self, server: usize, life: u64, ask: LeaderRequest) {
        let known = &self.servers[server];
        if known.life != life {
            // The server has restarted since it sent this message, so the message is lost. But a
            // write may have reached the leader before the restart.
            if !matches!(ask, LeaderRequest::Write { .. }) || self.rng.bool() {
                return;
            }
        } else if known.is_cut(self.now) {
            let until = known.cut_until;
            return self.schedule_at(until, WorldEvent::ToLeader(server, life, ask));
        }
        if self.now < self.leader.elected_at {
            return;
        }
        if self.now < self.leader.stalled_until {
            let until = self.leader.stalled_until;
            return self.schedule_at(until, WorldEvent::ToLeader(server, life, ask));
        }
        let latency = self.latency();
        match ask {
            LeaderRequest::Session { conn, session: 0, timeout } => {
                let id = self.rng.u64(..);
                let session = self.leader.begin_session(id, timeout, ((server, conn, 0), life), self.now);
                self.trace.note(self.now, "session", &[session as u64 & 0xffff, conn], "");
                if let Some(conn) = self.conns.get(&conn) {
                    let record = SessionRecord {
                        host: conn.host,
                        over_at: None,
                        is_closed: false,
                        known_at: self.now,
                        timeout,
                        shortest: timeout,
                        is_shortened: false,
                    };
                    self.sessions.insert(session, record);
                }
                self.send_to_servers();
            }
            LeaderRequest::Session { conn, session, timeout } => {
                let is_alive = self.leader.sessions.contains_key(&session);
                self.leader.extend_session(session, timeout, self.now);
                self.leader.set_owner(session, (server, life));
                if let Some(record) =
                    self.sessions.get_mut(&session).filter(|record| is_alive && timeout < record.shortest)
                {
                    (record.shortest, record.is_shortened) = (timeout, true);
                }
                self.schedule_after(latency, WorldEvent::Validated(server, conn, is_alive));
            }
            LeaderRequest::Sync { conn, xid } => {
                let upto = self.leader.log.len();
                self.schedule_after(latency, WorldEvent::Synced(server, conn, xid, upto));
            }
            LeaderRequest::Write { conn: id } => {
                let Some(conn) = self.conns.get(&id) else { return };
                let Some((xid, request)) = conn.work.front() else { return };
                let (xid, request, session) = (*xid, request.clone(), conn.session);
                self.requests += 1;
                let from: RequestOrigin = (server, id, xid);
                let what = describe(&request);
                let closes = request == Request::CloseSession;
                match self.leader.write(request, session, (from, life), self.now) {
                    WriteOutcome::Logged => {
                        if let Some(record) = self.sessions.get_mut(&session).filter(|_| closes) {
                            record.is_closed = true;
                        }
                        let refused = matches!(
                            self.leader.log.last().map(|entry| &entry.txn.change),
                            Some(zoolock_server::txn::Change::Refused(_))
                        );
                        let zxid = self.leader.state.zxid.0;
                        let numbers =
                            [session as u64 & 0xffff, zxid as u64 & 0xffff_ffff, u64::from(refused)];
                        self.trace.note(self.now, "write", &numbers, &what);
                        self.send_to_servers();
                    }
                    WriteOutcome::Expired => {
                        self.schedule_after(latency, WorldEvent::Refused(server, id, xid, true))
                    }
                    WriteOutcome::Moved => {
                        self.schedule_after(latency, WorldEvent::Refused(server, id, xid, false))
                    }
                }
            }
        }
    }

    /// Sends the newest decision to all servers.
    pub(super) fn send_to_servers(&mut self) {
        for server in 0..self.servers.len() {
            let mut lag = self.latency();
            if self.now < self.servers[server].slow_until {
                lag += self.rng.u64(..=self.servers[server].slow_by);
            }
            self.schedule_after(lag, WorldEvent::Apply(server));
        }
    }

    pub(super) fn apply_next_entry(&mut self, server: usize) {
        let known = &mut self.servers[server];
        let until = known.cut_until.max(known.silent_until);
        if self.now < until {
            return self.schedule_at(until, WorldEvent::Apply(server));
        }
        let Some(entry) = self.leader.log.get(known.applied) else { return };
        let applied = known.apply(entry, self.plan.returns_created_stat);
        let (from, greeting, session) = (entry.from, entry.greeting, entry.txn.session);
        let ends = matches!(entry.txn.change, zoolock_server::txn::Change::CloseSession { .. });
        let conns: Vec<u64> = match ends {
            true => self.open_connections_of(server, session.0),
            false => Vec::new(),
        };
        // A client whose session ends with this log entry gets no events of the entry. It would
        // take the deletion of its own znodes for a deletion by another client.
        for (conn, event) in applied.events.into_iter().filter(|(conn, _)| !conns.contains(conn)) {
            self.send_event(conn, &event);
        }
        if let Some((_, conn, xid)) = from.filter(|(by, ..)| *by == server) {
            if greeting {
                self.accept_session(conn, session.0);
            } else {
                self.answer(conn, xid, &applied.reply);
            }
        }
        conns.into_iter().for_each(|conn| self.close_from_server(conn));
        let known = &mut self.servers[server];
        let done = known.applied;
        let (ready, waiting) =
            std::mem::take(&mut known.syncs).into_iter().partition(|(upto, ..)| *upto <= done);
        known.syncs = waiting;
        let ready: Vec<(usize, u64, i32)> = ready;
        for (_, conn, xid) in ready {
            self.answer_sync(conn, xid);
        }
    }
}
