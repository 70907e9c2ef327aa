//! What goes wrong: the faults of the plan.

use super::*;

impl World {
    pub(super) fn strike(&mut self, nth: usize) {
        let now = self.now;
        let fault = self.plan.faults[nth].1.clone();
        self.trace.note(now, "fault", &[nth as u64], &format!("{fault:?}"));
        match fault {
            Fault::Break(host) => self.break_all(host),
            Fault::Partition { host, up, down, until } => {
                let host = &mut self.hosts[host];
                if up {
                    host.up_until = host.up_until.max(until);
                }
                if down {
                    host.down_until = host.down_until.max(until);
                }
            }
            Fault::Pause { host, until } => {
                let machine = &mut self.hosts[host];
                if !machine.dead && machine.paused_until <= now {
                    machine.paused_until = until;
                    self.executor.stop(host);
                    self.at(until, Event::Resume(host));
                }
            }
            // The tasks are ended by whoever sees that it is dead.
            Fault::Crash(host) => {
                // Somebody has to live.
                if self.hosts.iter().filter(|host| !host.dead).count() > 1 {
                    self.hosts[host].dead = true;
                    self.break_all(host);
                }
            }
            Fault::CutOff { server, until } => self.cut_off(server, until, false),
            Fault::Depose { server, until, election } => {
                if self.servers.len() > 1 {
                    self.cut_off(server, until, true);
                    for other in 0..self.servers.len() {
                        if other != server {
                            self.begin_anew(other, now + election);
                        }
                    }
                    self.leader.elected_at = now + election;
                    self.leader.elect(now + election);
                } else {
                    self.begin_anew(server, now + election);
                    self.leader.elect(now + election);
                }
            }
            Fault::Restart { server, until } => self.begin_anew(server, until),
            Fault::Lag { server, by, until } => {
                let server = &mut self.servers[server];
                (server.slow_until, server.slow_by) = (until, by);
            }
            Fault::Expire(host) => {
                self.acts.iter_mut().for_each(|acts| *acts += 1);
                let before = self.leader.log.len();
                let sessions: Vec<i64> = self
                    .clients
                    .values()
                    .filter(|client| client.host == host)
                    .map(|client| client.session)
                    .collect();
                sessions.into_iter().for_each(|session| self.leader.end(session, now));
                (before..self.leader.log.len()).for_each(|_| self.spread());
            }
            Fault::Remove(lock) => {
                self.acts[lock] += 1;
                let before = self.leader.log.len();
                self.leader.remove_all(&directory(lock), now);
                (before..self.leader.log.len()).for_each(|_| self.spread());
            }
        }
    }

    pub(super) fn cut_off(&mut self, server: usize, until: u64, deposed: bool) {
        // One server is its own leader, and no one can cut it off from itself.
        if self.servers.len() == 1 {
            return;
        }
        let known = &mut self.servers[server];
        known.cut_until = known.cut_until.max(until);
        known.deposed = deposed;
        let life = known.life;
        self.after(SYNC_LIMIT * TICK, Event::GiveUp(server, life));
        // What the leader asked meanwhile is what it hears first.
        self.at(until, Event::Flush(server));
    }

    /// A server ends all connections, and forgets what was under way.
    pub(super) fn begin_anew(&mut self, server: usize, until: u64) {
        let known = &mut self.servers[server];
        known.life += 1;
        known.deposed = false;
        known.touched.clear();
        known.down_until = known.down_until.max(until);
        let conns: Vec<u64> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.server == server && conn.server_open)
            .map(|(id, _)| *id)
            .collect();
        for id in conns {
            self.hang_up(id);
            // What has left for the leader may have got there; the rest is lost.
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.work.truncate(usize::from(conn.busy));
            }
        }
    }

    pub(super) fn break_all(&mut self, host: usize) {
        let broken: Vec<u64> =
            self.clients.iter().filter(|(_, client)| client.host == host).map(|(id, _)| *id).collect();
        broken.into_iter().for_each(|client| self.lose(client));
    }
}
