//! A writer becomes a reader, in the same queue position. Only a holder of one lock can do this.

use super::*;

impl Machine {
    /// Returns whether a downgrade is under way.
    pub fn is_downgrading(&self) -> bool {
        matches!(self.phase, Phase::Downgrading(_))
    }

    pub(super) fn downgrade(&mut self, step: &mut Step) {
        if self.phase != Phase::Held || self.lost.is_some() || self.is_of_several() {
            return;
        }
        let position = &mut self.positions[0];
        let Some(me) = position.node else { return };
        if !self.config.kind.properties().becomes_reader || me.prefix.as_reader().is_none() {
            return step.actions.push(Action::Downgraded(me));
        }
        // Remove the watch on our own znode, because it would fire for our own transaction.
        step.actions.extend(position.own_watch.take().map(Action::Unwatch));
        self.trips.void_all(step);
        self.phase = Phase::Downgrading(None);
        // Checks first without a connection, because the request then arrives late, and another contender may have a
        // znode of that name by then.
        if self.offline { self.check_downgrade(step) } else { self.send_downgrade(step) }
    }

    fn send_downgrade(&mut self, step: &mut Step) {
        let position = &self.positions[0];
        let Some(me) = position.node else { return };
        let marker = position.release_marker(HolderState::Downgraded, &self.config);
        let marker = marker.filter(|(marker, _)| marker.tracked);
        let directory = (RequestKind::Directory, Request::ReadDirectory);
        let directory = self.config.rules.downgrades_in_place().then_some(directory);
        let requests = [
            (RequestKind::Main, Request::Downgrade { node: me, marker }),
            (RequestKind::Reader, Request::FindReader(me)),
        ];
        self.trips.send(0, Purpose::Downgrade, requests.into_iter().chain(directory), step);
    }

    /// Checks our znode before a downgrade is sent again or sent late, because another contender may have a znode of
    /// that name now. No earlier downgrade can arrive after a repeated downgrade. If an earlier downgrade succeeded,
    /// the repeated downgrade finds the reader's znode instead of the writer's znode.
    pub(super) fn check_downgrade(&mut self, step: &mut Step) {
        let Some(me) = self.positions[0].node else { return };
        let requests = [(RequestKind::Sync, Request::Sync), (RequestKind::Own(None), Request::Exists(me))];
        self.trips.send(0, Purpose::DowngradeCheck, requests, step);
    }

    pub(super) fn handle_downgrade_check(&mut self, answers: &Answers, step: &mut Step) {
        let Some(me) = self.positions[0].node else { return };
        if !matches!(answers.sync, Some(Ok(()))) {
            return self.back_off(0, Purpose::DowngradePause, step);
        }
        match self.config.is_znode_ours(me, answers.own.as_ref()) {
            // The lock is lost, because another contender has our name: the directory was deleted with our znode, and
            // created again.
            Some(false) if matches!(answers.own, Some(Ok(_))) => self.lose_downgrade(step),
            Some(_) => self.send_downgrade(step),
            None => self.back_off(0, Purpose::DowngradePause, step),
        }
    }

    pub(super) fn handle_downgrade_answer(&mut self, answers: &Answers, step: &mut Step) {
        let Some(me) = self.positions[0].node else { return };
        match downgraded_znode(answers) {
            Ok(reader) => match answers.directory {
                // Holds only in a directory that is older than the writer's znode, because we joined that directory. In a
                // younger one, another writer had our name, and the transaction replaced that writer's znode.
                Some(Ok(seen)) if seen.czxid < me.czxid => self.hold_as(reader, step),
                Some(Ok(_) | Err(RequestFailure::NoNode)) => {
                    self.lose_downgrade(step);
                    self.clean_up_leftover(0, Leftover { node: reader, undo: None, checks: true }, step);
                }
                Some(Err(RequestFailure::Unknown | RequestFailure::Throttled)) => {
                    self.back_off(0, Purpose::DowngradePause, step);
                }
                // Relies on the name alone, because the server refuses the read of the directory.
                None | Some(Err(_)) => self.hold_as(reader, step),
            },
            Err(RequestFailure::Unknown | RequestFailure::Throttled) => {
                self.back_off(0, Purpose::DowngradePause, step);
            }
            Err(RequestFailure::NoNode) => self.lose_downgrade(step),
            // Downgrades without a marker, because another client has written the record. Checks first, because the
            // refusal does not prove that the znode of that name is still ours.
            Err(RequestFailure::BadVersion) => {
                self.positions[0].directory = None;
                self.check_downgrade(step);
            }
            // Stays a writer, because the server refuses the downgrade, and a writer may also read.
            Err(_) => self.hold_as(me, step),
        }
    }

    /// Reports a loss, because another client deleted our znode.
    fn lose_downgrade(&mut self, step: &mut Step) {
        self.positions[0].node = None;
        self.lose(Loss::Broken, step);
        self.end_downgrade(step);
    }

    /// Continues to hold: as a reader, or as a writer if the server refused the downgrade.
    fn hold_as(&mut self, me: Node, step: &mut Step) {
        self.positions[0].node = Some(me);
        if self.lost.is_none() {
            step.actions.push(Action::Downgraded(me));
        }
        self.end_downgrade(step);
    }

    /// Holds again, or carries out the release that the holder asked for meanwhile.
    pub(super) fn end_downgrade(&mut self, step: &mut Step) {
        let Phase::Downgrading(release) = std::mem::replace(&mut self.phase, Phase::Held) else { return };
        match release {
            Some(state) => self.release(state, step),
            None if self.lost.is_none() => self.at(0, step, Position::watch_own),
            None => {}
        }
    }
}

/// Returns the reader's znode after a downgrade, or the reason why there is none. `answers`: those to the transaction,
/// and to the read of the reader's znode after it.
fn downgraded_znode(answers: &Answers) -> Answer<Node> {
    let unknown = Err(RequestFailure::Unknown);
    let Some(read) = answers.reader else { return unknown };
    match (answers.main(), read) {
        // The transaction finds no writer's znode if an earlier downgrade has succeeded.
        (Ok(_) | Err(RequestFailure::NoNode), Ok(reader)) => Ok(reader),
        // Another client has deleted the reader's znode.
        (Ok(_), Err(RequestFailure::NoNode)) => Err(RequestFailure::NoNode),
        (Ok(_), Err(_)) => unknown,
        // Only the read can show that an earlier downgrade has succeeded.
        (Err(_), Err(failure)) if !failure.is_answer() => unknown,
        (Err(failure), _) => Err(failure),
    }
}

impl Rules {
    /// Returns whether a writer becomes a reader only in its own directory ([`Rule::DowngradeInPlace`]).
    pub(super) fn downgrades_in_place(self) -> bool {
        !self.off(Rule::DowngradeInPlace)
    }
}
