//! The connections between clients and servers, and what servers answer by themselves.

use super::*;

impl World {
    pub(crate) fn dial(&mut self, client: u64, server: usize) -> u64 {
        let id = self.next_conn;
        self.next_conn += 1;
        self.conns.insert(
            id,
            Conn {
                client,
                server,
                session: 0,
                client_open: true,
                server_open: true,
                up: VecDeque::new(),
                down: VecDeque::new(),
                up_at: 0,
                down_at: 0,
                work: VecDeque::new(),
                busy: false,
            },
        );
        id
    }

    pub(crate) fn send_up(&mut self, id: u64, message: Up) {
        let latency = self.latency();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.up_at = conn.up_at.max(self.now + latency);
        conn.up.push_back(message);
        let at = conn.up_at;
        self.at(at, Event::Up(id));
    }

    pub(super) fn send_down(&mut self, id: u64, message: Down) {
        let latency = self.latency();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.server_open || !conn.client_open {
            return;
        }
        conn.down_at = conn.down_at.max(self.now + latency);
        conn.down.push_back(message);
        let at = conn.down_at;
        self.at(at, Event::Down(id));
    }

    /// The client gives a connection up: only a part of what is under way still arrives.
    pub(crate) fn give_up(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.client_open = false;
        conn.down.clear();
        let keep = self.rng.usize(..=conn.up.len());
        conn.up.truncate(keep);
        // A part of what has arrived is not even read.
        if !conn.work.is_empty() && self.rng.bool() {
            let keep = self.rng.usize(1..=conn.work.len());
            conn.work.truncate(keep);
        }
        self.send_up(id, Up::Bye);
    }

    /// A server ends a connection.
    pub(super) fn hang_up(&mut self, id: u64) {
        self.send_down(id, Down::Bye);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.server_open = false;
        let server = conn.server;
        self.servers[server].forget(id);
    }

    pub(super) fn arrive_up(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (server, host) = (conn.server, self.clients.get(&conn.client).map_or(0, |client| client.host));
        let clear = self.hosts[host].up_until;
        if self.now < clear {
            conn.up_at = conn.up_at.max(clear);
            return self.at(clear, Event::Up(id));
        }
        let Some(message) = conn.up.pop_front() else { return };
        if !conn.server_open {
            return;
        }
        let known = &mut self.servers[server];
        if self.now < known.down_until {
            return self.hang_up(id);
        }
        match message {
            Up::Hello { session, seen, timeout } => {
                if seen > known.state.zxid.get() {
                    // It would see time go back.
                    return self.hang_up(id);
                }
                if known.deposed && known.is_cut(self.now) {
                    let alive = known.state.sessions.keys().any(|id| id.get() == session);
                    return if alive { self.welcome(id, session) } else { self.hang_up(id) };
                }
                let life = known.life;
                let latency = self.latency();
                let ask = Ask::Session { conn: id, session, timeout };
                self.after(latency, Event::ToLeader(server, life, ask));
            }
            Up::Request(xid, request) => {
                known.touched.insert(conn.session);
                conn.work.push_back((xid, Work::Do(request)));
                self.pump(id);
            }
            Up::SetWatches { seen, watches } => {
                conn.work.push_back((SET_WATCHES, Work::SetWatches(seen, watches)));
                self.pump(id);
            }
            Up::Bye => {
                conn.server_open = false;
                known.forget(id);
            }
        }
    }

    /// Does what comes first, as long as that needs nobody else.
    pub(super) fn pump(&mut self, id: u64) {
        while let Some(conn) = self.conns.get_mut(&id) {
            if conn.busy {
                return;
            }
            let (server, session, heard) = (conn.server, conn.session, conn.server_open && conn.client_open);
            let Some((xid, work)) = conn.work.front() else { return };
            let xid = *xid;
            let known = &mut self.servers[server];
            let ask = match work {
                Work::Do(request) if is_write(request) => Some(Ask::Write { conn: id }),
                // It knows of nobody else whom it could ask.
                Work::Do(Request::Sync { .. }) if !(known.deposed && known.is_cut(self.now)) => {
                    Some(Ask::Sync { conn: id, xid })
                }
                _ => None,
            };
            if let Some(ask) = ask {
                conn.busy = true;
                let life = known.life;
                let latency = self.latency();
                return self.after(latency, Event::ToLeader(server, life, ask));
            }
            let Some((_, work)) = conn.work.pop_front() else { return };
            // Nobody listens, and it must set no watch.
            if !heard {
                continue;
            }
            match work {
                Work::SetWatches(since, watches) => {
                    for told in known.set_watches(id, since, &watches) {
                        self.send_down(id, Down::Told(told));
                    }
                    self.reply(id, xid, Ok(Reply::Empty));
                }
                Work::Do(Request::Ping | Request::Sync { .. }) => self.reply(id, xid, Ok(Reply::Empty)),
                Work::Do(Request::RemoveWatches { path, kind }) => {
                    known.unwatch(id, &path, if kind == 1 { Side::Children } else { Side::Data });
                    self.reply(id, xid, Ok(Reply::Empty));
                }
                Work::Do(request) => {
                    let reply = known.read(&request, session, id);
                    self.reply(id, xid, reply);
                }
            }
        }
    }

    pub(super) fn reply(&mut self, id: u64, xid: i32, reply: Result<Reply, Code>) {
        let Some(conn) = self.conns.get(&id) else { return };
        let zxid = self.servers[conn.server].state.zxid.get();
        self.send_down(id, Down::Reply { xid, zxid, reply });
    }

    /// The answer to what came first, which needed the leader.
    pub(super) fn answer(&mut self, id: u64, xid: i32, reply: Result<Reply, Code>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.busy = false;
        if conn.work.front().is_some_and(|(first, _)| *first == xid) {
            conn.work.pop_front();
        }
        self.reply(id, xid, reply);
        self.pump(id);
    }

    pub(super) fn welcome(&mut self, id: u64, session: i64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.session = session;
        let server = conn.server;
        self.servers[server].touched.insert(session);
        self.send_down(id, Down::Welcome { session });
    }

    pub(super) fn validated(&mut self, server: usize, id: u64, alive: bool) {
        let Some(conn) = self.conns.get(&id) else { return };
        if !conn.server_open || self.now < self.servers[server].down_until {
            return;
        }
        let client = conn.client;
        let session = self.clients.get(&client).map_or(0, |client| client.session);
        if alive {
            self.welcome(id, session);
        } else {
            self.send_down(id, Down::NoSession);
            self.hang_up(id);
        }
    }
}
