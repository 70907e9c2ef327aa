//! What the leader decides, and how it reaches the servers and those connected to them.

use super::*;

impl World {
    pub(super) fn ask_leader(&mut self, server: usize, life: u64, ask: Ask) {
        let known = &self.servers[server];
        if known.life != life {
            // It was on its way when the server began anew: perhaps it got through before.
            if !matches!(ask, Ask::Write { .. }) || self.rng.bool() {
                return;
            }
        } else if known.is_cut(self.now) {
            let until = known.cut_until;
            return self.at(until, Event::ToLeader(server, life, ask));
        }
        if self.now < self.leader.elected_at {
            return;
        }
        let latency = self.latency();
        match ask {
            Ask::Session { conn, session: 0, timeout } => {
                let id = self.rng.u64(..);
                let session = self.leader.begin_session(id, timeout, (server, conn, 0), self.now);
                self.trace.note(self.now, "session", &[session as u64 & 0xffff, conn], "");
                self.spread();
            }
            Ask::Session { conn, session, .. } => {
                let alive = self.leader.sessions.contains_key(&session);
                self.leader.touch(session, self.now);
                self.after(latency, Event::Validated(server, conn, alive));
            }
            Ask::Sync { conn, xid } => {
                let upto = self.leader.log.len();
                self.after(latency, Event::Synced(server, conn, xid, upto));
            }
            Ask::Write { conn: id } => {
                let Some(conn) = self.conns.get(&id) else { return };
                let Some((xid, Work::Do(request))) = conn.work.front() else { return };
                let (xid, request, session) = (*xid, request.clone(), conn.session);
                self.requests += 1;
                let from: From = (server, id, xid);
                let what = describe(&request);
                match self.leader.write(request, session, from, self.now) {
                    Decided::Logged => {
                        let refused = matches!(
                            self.leader.log.last().map(|entry| &entry.txn.change),
                            Some(zoolock_server::txn::Change::Refused(_))
                        );
                        let zxid = self.leader.state.zxid.get();
                        let numbers =
                            [session as u64 & 0xffff, zxid as u64 & 0xffff_ffff, u64::from(refused)];
                        self.trace.note(self.now, "write", &numbers, &what);
                        self.spread();
                    }
                    Decided::Expired => self.after(latency, Event::Refused(server, id, xid, true)),
                    Decided::Moved => self.after(latency, Event::Refused(server, id, xid, false)),
                }
            }
        }
    }

    /// All servers learn of the newest decision, sometime.
    pub(super) fn spread(&mut self) {
        for server in 0..self.servers.len() {
            let mut lag = self.latency();
            if self.now < self.servers[server].slow_until {
                lag += self.rng.u64(..=self.servers[server].slow_by);
            }
            self.after(lag, Event::Apply(server));
        }
    }

    pub(super) fn apply(&mut self, server: usize) {
        let known = &mut self.servers[server];
        if known.is_cut(self.now) {
            let until = known.cut_until;
            return self.at(until, Event::Apply(server));
        }
        let Some(entry) = self.leader.log.get(known.applied) else { return };
        let applied = known.apply(entry, self.plan.tells);
        let (from, greeting, session) = (entry.from, entry.greeting, entry.txn.session);
        let ends = matches!(entry.txn.change, zoolock_server::txn::Change::CloseSession { .. });
        let conns: Vec<u64> = match ends {
            true => self.attached(server, session.get()),
            false => Vec::new(),
        };
        // Whose session is over hears nothing of its own nodes: it would take them for deleted by somebody.
        for (conn, told) in applied.told.into_iter().filter(|(conn, _)| !conns.contains(conn)) {
            self.send_down(conn, Down::Told(told));
        }
        if let Some((_, conn, xid)) = from.filter(|(by, ..)| *by == server) {
            if greeting {
                self.welcome(conn, session.get());
            } else {
                self.answer(conn, xid, applied.reply);
            }
        }
        conns.into_iter().for_each(|conn| self.hang_up(conn));
        let known = &mut self.servers[server];
        let done = known.applied;
        let (ready, waiting) =
            std::mem::take(&mut known.syncs).into_iter().partition(|(upto, ..)| *upto <= done);
        known.syncs = waiting;
        let ready: Vec<(usize, u64, i32)> = ready;
        for (_, conn, xid) in ready {
            self.answer(conn, xid, Ok(Reply::Empty));
        }
    }

    pub(super) fn attached(&self, server: usize, session: i64) -> Vec<u64> {
        let conns = self.conns.iter();
        let attached =
            conns.filter(|(_, conn)| conn.server == server && conn.server_open && conn.session == session);
        attached.map(|(id, _)| *id).collect()
    }

    pub(super) fn arrive_down(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let client = conn.client;
        let Some(host) = self.clients.get(&client).map(|client| client.host) else { return };
        let machine = &self.hosts[host];
        let clear = machine.paused_until.max(machine.down_until);
        if self.now < clear && conn.client_open {
            conn.down_at = conn.down_at.max(clear);
            return self.at(clear, Event::Down(id));
        }
        let dead = machine.dead;
        let Some(message) = conn.down.pop_front() else { return };
        if conn.client_open && !dead {
            self.hear(client, id, message);
        }
    }
}
