//! The faults of the plan, and which servers a host can use.

use super::*;

impl World {
    pub(super) fn inject(&mut self, nth: usize) {
        let now = self.now;
        let fault = self.plan.faults[nth].1.clone();
        self.trace.note(now, "fault", &[nth as u64], &format!("{fault:?}"));
        match fault {
            PlannedFault::Break(host) => self.break_connections(host),
            PlannedFault::Partition { host, up, down, until } => {
                let host = &mut self.hosts[host];
                if up {
                    host.up_until = host.up_until.max(until);
                }
                if down {
                    host.down_until = host.down_until.max(until);
                }
            }
            PlannedFault::Pause { host, until } => {
                let machine = &mut self.hosts[host];
                if !machine.dead && machine.paused_until <= now {
                    (machine.paused_at, machine.paused_until) = (now, until);
                    self.executor.stop(host);
                    self.schedule_at(until, WorldEvent::Resume(host));
                }
            }
            // `Sim::run_to_end` drops the tasks of the dead host.
            PlannedFault::Crash(host) => {
                // At least one host stays alive.
                if self.hosts.iter().filter(|host| !host.dead).count() > 1 {
                    self.hosts[host].dead = true;
                    self.break_connections(host);
                }
            }
            PlannedFault::CutOff { server, until } => self.cut_off(server, until, false),
            PlannedFault::Depose { server, until, election } => {
                if self.servers.len() > 1 {
                    self.cut_off(server, until, true);
                    for other in 0..self.servers.len() {
                        if other != server {
                            self.restart_server(other, now + election);
                        }
                    }
                    self.leader.elected_at = now + election;
                    self.leader.elect(now + election);
                } else {
                    self.restart_server(server, now + election);
                    self.leader.elect(now + election);
                }
            }
            PlannedFault::Restart { server, until } => {
                self.restart_server(server, until);
                if self.servers.len() == 1 {
                    self.leader.elected_at = until;
                    self.leader.elect(until);
                }
            }
            PlannedFault::Reconfigure { longest_timeout, until } => {
                for server in 0..self.servers.len() {
                    self.restart_server(server, until);
                    self.servers[server].longest_timeout = longest_timeout;
                }
                self.leader.elected_at = until;
                self.leader.elect(until);
            }
            PlannedFault::Restore { back, until } => self.restore(now.saturating_sub(back), until),
            PlannedFault::Silent { server, until } => {
                self.servers[server].silent_until = self.servers[server].silent_until.max(until);
                if self.servers.len() == 1 {
                    self.leader.stalled_until = self.leader.stalled_until.max(until);
                }
                self.cut_off(server, until, false);
            }
            PlannedFault::Refuse { server, until } => self.servers[server].refuses_until = until,
            PlannedFault::Late { server, by, until } => {
                let server = &mut self.servers[server];
                (server.late_until, server.late_by) = (until, by);
            }
            PlannedFault::Stall { until } => self.leader.stalled_until = self.leader.stalled_until.max(until),
            PlannedFault::Lag { server, by, until } => {
                let server = &mut self.servers[server];
                (server.slow_until, server.slow_by) = (until, by);
            }
            PlannedFault::Expire(host) => {
                self.operator_actions.iter_mut().for_each(|count| *count += 1);
                let before = self.leader.log.len();
                let sessions: Vec<i64> = self
                    .sessions
                    .iter()
                    .filter(|(_, session)| session.host == host)
                    .map(|(session, _)| *session)
                    .collect();
                for session in sessions {
                    self.leader.end_session(session, now);
                    self.record_session_end(session);
                }
                (before..self.leader.log.len()).for_each(|_| self.send_to_servers());
            }
            PlannedFault::Remove(lock) => {
                self.operator_actions[lock] += 1;
                let before = self.leader.log.len();
                self.leader.remove_all(&directory(lock), now);
                (before..self.leader.log.len()).for_each(|_| self.send_to_servers());
            }
        }
    }

    pub(super) fn cut_off(&mut self, server: usize, until: u64, deposed: bool) {
        // A single server is its own leader, so it cannot be cut off.
        if self.servers.len() == 1 {
            return;
        }
        let known = &mut self.servers[server];
        known.cut_until = known.cut_until.max(until);
        known.deposed = deposed;
        let life = known.life;
        self.schedule_after(SYNC_LIMIT * TICK, WorldEvent::GiveUp(server, life));
        // When the server is no longer cut off, it reports at once which sessions have sent
        // requests.
        self.schedule_at(until, WorldEvent::ReportOnce(server));
    }

    /// Restarts a server: it ends all connections, and loses the messages under way.
    pub(super) fn restart_server(&mut self, server: usize, until: u64) {
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
            self.close_from_server(id);
            // If the first request waits for the leader, it may have arrived there. All other
            // requests are lost.
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.work.truncate(usize::from(conn.busy));
            }
        }
    }

    /// Restarts all servers with the state that they had at a former time. A lock that was acquired
    /// after that time is free again, like a lock that an operator breaks.
    fn restore(&mut self, then: u64, until: u64) {
        for server in 0..self.servers.len() {
            self.restart_server(server, until);
        }
        // Requests that are under way to the former servers are lost.
        self.conns.values_mut().for_each(|conn| conn.work.clear());
        self.leader.restore(then, until);
        for server in &mut self.servers {
            server.restore(&self.leader);
        }
        self.restored_at = Some(self.now);
        self.operator_actions.iter_mut().for_each(|count| *count += 1);
        let alive: BTreeSet<i64> = self.leader.sessions.keys().copied().collect();
        let now = self.now;
        for (_, session) in self.sessions.iter_mut().filter(|(id, _)| !alive.contains(id)) {
            session.over_at.get_or_insert(now);
        }
    }

    pub(super) fn break_connections(&mut self, host: usize) {
        let broken: Vec<u64> =
            self.conns.iter().filter(|(_, conn)| conn.host == host).map(|(id, _)| *id).collect();
        broken.into_iter().for_each(|conn| self.close_client_end(conn));
        self.hosts[host].slow = Some(self.now);
    }

    /// Returns a server that the host could use all the time since `since`: the network passed
    /// messages, and the server answered and had a leader. Also returns `None` if a server to which
    /// the host was connected answered slowly, because a host does not leave such a server.
    pub(crate) fn usable_server(&self, host: usize, since: u64) -> Option<usize> {
        let mut attached = self.conns.values().filter(|conn| conn.host == host && conn.session != 0);
        let is_slow = |server: &SimServer| since < server.late_until.max(server.slow_until);
        let was_in_use = |conn: &SimConnection| conn.client_open || conn.given_up_at >= since;
        if attached.any(|conn| was_in_use(conn) && is_slow(&self.servers[conn.server])) {
            return None;
        }
        let host = &self.hosts[host];
        let own = [host.paused_until, host.up_until, host.down_until];
        let leader = [self.leader.elected_at, self.leader.stalled_until];
        (0..self.servers.len()).find(|server| {
            let server = &self.servers[*server];
            let its = [
                server.cut_until,
                server.down_until,
                server.refuses_until,
                server.silent_until,
                // A message that was sent before `late_until`, and all messages behind it, may be
                // late by `late_by`.
                server.late_until + server.late_by,
                server.slow_until + server.slow_by,
            ];
            own.iter().chain(&leader).chain(&its).all(|until| *until <= since)
        })
    }
}
