//! Deletes our own znodes until none is left, and never another contender's.

use super::*;

/// A znode of ours that must be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Departure {
    node: Node,
    /// The marker to leave, and the version of the record that it replaces.
    marker: Option<(Marker, Option<i32>)>,
    /// Set if the holder waits for the outcome.
    pub(super) report: bool,
    /// Set to write to the znode first, so that a successor which its deletion alone would grant looks again.
    write_first: bool,
    /// Set if an earlier delete may have succeeded.
    repeated: bool,
    /// The marker of our beginning, if it must be undone.
    undo: Option<Undo>,
}

impl Departure {
    fn new(node: Node, marker: Option<(Marker, Option<i32>)>) -> Departure {
        Departure { node, marker, report: false, write_first: false, repeated: false, undo: None }
    }
}

impl Contender {
    pub(super) fn depart(
        &mut self,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        report: bool,
        context: &mut StepContext,
    ) {
        let departure = self.departure(node, marker, report, false);
        self.departures.push(departure);
        // Without a connection a request arrives late: then the name may be another contender's.
        if self.offline && self.on(Rule::NoBlindDelete) {
            self.check_departure(node.czxid, context);
        } else {
            self.send_departure(node.czxid, context);
        }
    }

    /// Deletes a znode if it is still ours. It was not read for long, so its name may be another contender's
    /// now.
    pub(super) fn depart_if_there(&mut self, node: Node, context: &mut StepContext) {
        self.depart_after(Departure::new(node, None), context);
    }

    /// Does the same as `depart_if_there`, and leaves a marker.
    pub(super) fn depart_after_wait(
        &mut self,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        context: &mut StepContext,
    ) {
        self.depart_after(Departure::new(node, marker), context);
    }

    /// Does the same as `depart_if_there`, for a holder whose loss has been reported.
    pub(super) fn depart_doubtful(&mut self, node: Node, context: &mut StepContext) {
        let departure = self.departure(node, None, true, false);
        self.depart_after(Departure { report: false, ..departure }, context);
    }

    /// Deletes the znode of a contender that may have written that it begins, but has not begun. Also
    /// restores the record, unless another contender has written it since. This matters for an upgrade: its
    /// znode keeps no other contender out once the reader's znode is deleted.
    pub(super) fn depart_undone(&mut self, node: Node, undo: Undo, context: &mut StepContext) {
        if !self.on(Rule::UndoWhatIsThere) {
            return self.depart_after(Departure::new(node, Some((undo.marker, None))), context);
        }
        self.depart_after(Departure { undo: Some(undo), ..Departure::new(node, None) }, context);
    }

    /// Deletes a holder's znode that another client may have deleted.
    pub(super) fn depart_after_look(
        &mut self,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        context: &mut StepContext,
    ) {
        self.depart_after(self.departure(node, marker, true, false), context);
    }

    /// Deletes a znode after a delete that may have succeeded.
    pub(super) fn depart_again(
        &mut self,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        context: &mut StepContext,
    ) {
        self.depart_after(self.departure(node, marker, true, true), context);
    }

    fn departure(
        &self,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        report: bool,
        repeated: bool,
    ) -> Departure {
        let write_first = report && node.prefix.is_computable() && self.on(Rule::LeaveAloud);
        Departure { report, write_first, repeated, ..Departure::new(node, marker) }
    }

    /// Checks that the znode is still ours, and then deletes it.
    fn depart_after(&mut self, departure: Departure, context: &mut StepContext) {
        let czxid = departure.node.czxid;
        self.departures.push(departure);
        self.check_departure(czxid, context);
    }

    fn send_departure(&mut self, czxid: Zxid, context: &mut StepContext) {
        let Some(departure) = self.departures.iter().find(|d| d.node.czxid == czxid) else { return };
        let node = departure.node;
        let request = match departure.marker {
            Some((marker, version)) => Request::Release { node, marker, version },
            None if departure.write_first => Request::Withdraw(node),
            None => Request::Delete(node),
        };
        self.send(Purpose::Leave(czxid), request, context);
    }

    pub(crate) fn is_departing(&self, node: Node) -> bool {
        self.departures.iter().any(|departure| departure.node == node)
    }

    pub(super) fn left(&mut self, czxid: Zxid, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let blind = !self.on(Rule::NoBlindDelete);
        let stubborn = !self.on(Rule::ReleaseWithoutRecord);
        let Some(departure) = self.departures.iter_mut().find(|d| d.node.czxid == czxid) else { return };
        match outcome {
            Ok(_) => self.departed(czxid, Departed::Clean, context),
            Err(Failure::NoNode) => self.found_gone(czxid, context),
            Err(Failure::Unknown) => {
                departure.repeated = true;
                if blind { self.send_departure(czxid, context) } else { self.check_departure(czxid, context) }
            }
            Err(Failure::Throttled) => self.pause_departure(czxid, context),
            Err(failure) if departure.marker.is_some() => {
                if stubborn {
                    return self.departed(czxid, Departed::Refused(failure), context);
                }
                // We may not write the record, or another client has written it. Our successors will list.
                // The refusal does not prove that the znode of that name is still ours, so check first.
                (departure.marker, departure.undo) = (None, None);
                self.check_departure(czxid, context);
            }
            // A znode that we may not write may still be deletable.
            Err(_) if std::mem::take(&mut departure.write_first) => self.check_departure(czxid, context),
            Err(failure) => {
                if std::mem::take(&mut departure.report) {
                    context.actions.push(Action::Released(Departed::Refused(failure)));
                }
                self.pause_departure(czxid, context);
            }
        }
    }

    fn pause_departure(&mut self, czxid: Zxid, context: &mut StepContext) {
        let wait = self.backoff();
        self.send(Purpose::LeavePause(czxid), Request::Sleep(wait), context);
    }

    /// Checks that the znode of that name is still ours, before a delete.
    pub(super) fn check_departure(&mut self, czxid: Zxid, context: &mut StepContext) {
        let Some(departure) = self.departures.iter().find(|d| d.node.czxid == czxid) else { return };
        let (node, undo) = (departure.node, departure.undo);
        if let Some(Undo { marker, version }) = undo {
            // A barrier: the earlier write cannot arrive after it.
            let (node, marker) = (Some(node), node.beginning_in(marker.directory));
            self.send(Purpose::LeaveBarrier(czxid), Request::Hold { node, marker, version }, context);
        }
        self.send(Purpose::LeaveSync(czxid), Request::Sync, context);
        if undo.is_some() {
            self.send(Purpose::LeaveRead(czxid), Request::ReadDirectory, context);
        }
        self.send(Purpose::LeaveCheck(czxid), Request::Exists(node), context);
    }

    /// Handles the answer to the barrier. Any answer of the leader is enough.
    pub(super) fn left_barrier(
        &mut self,
        czxid: Zxid,
        outcome: Result<Reply, Failure>,
        context: &mut StepContext,
    ) {
        if let Err(Failure::Unknown | Failure::Throttled) = outcome {
            self.check_departure_later(czxid, context);
        }
    }

    /// Handles the answer to the sync. A check without a successful sync does not allow a delete.
    pub(super) fn left_synced(
        &mut self,
        czxid: Zxid,
        outcome: Result<Reply, Failure>,
        context: &mut StepContext,
    ) {
        if outcome.is_err() {
            self.check_departure_later(czxid, context);
        }
    }

    /// Handles the record, in which we may have written that we begin.
    pub(super) fn left_read(
        &mut self,
        czxid: Zxid,
        outcome: Result<Reply, Failure>,
        context: &mut StepContext,
    ) {
        let Some(at) = self.departures.iter().position(|d| d.node.czxid == czxid) else { return };
        let Departure { node, undo, .. } = self.departures[at];
        let marker = match outcome {
            Ok(Reply::Directory(Directory { record, version, .. })) => undo
                .filter(|undo| record == Record::Marker(node.beginning_in(undo.marker.directory)))
                .map(|undo| (undo.marker, Some(version))),
            // A contender that may not read the record must still delete its znode.
            Ok(_) | Err(Failure::NoNode | Failure::Refused(_)) => None,
            Err(_) => return self.check_departure_later(czxid, context),
        };
        self.departures[at].marker = marker;
    }

    fn check_departure_later(&mut self, czxid: Zxid, context: &mut StepContext) {
        for (_, purpose) in &mut self.pending {
            match *purpose {
                Purpose::LeaveSync(of) | Purpose::LeaveRead(of) | Purpose::LeaveCheck(of) if of == czxid => {
                    *purpose = Purpose::Void;
                }
                _ => {}
            }
        }
        self.pause_departure(czxid, context);
    }

    pub(super) fn left_checked(
        &mut self,
        czxid: Zxid,
        outcome: Result<Reply, Failure>,
        context: &mut StepContext,
    ) {
        let Some(departure) = self.departures.iter().find(|d| d.node.czxid == czxid) else { return };
        match self.still_mine(departure.node, &outcome) {
            Some(true) => self.send_departure(czxid, context),
            Some(false) => self.found_gone(czxid, context),
            None => self.pause_departure(czxid, context),
        }
    }

    /// Handles a missing znode. If none of our deletes may have deleted it, another client has.
    fn found_gone(&mut self, czxid: Zxid, context: &mut StepContext) {
        let ours = self.departures.iter().any(|d| d.node.czxid == czxid && d.repeated);
        let how = if ours { Departed::Clean } else { Departed::Lost(Loss::Broken) };
        self.departed(czxid, how, context);
    }

    fn departed(&mut self, czxid: Zxid, how: Departed, context: &mut StepContext) {
        let Some(at) = self.departures.iter().position(|d| d.node.czxid == czxid) else { return };
        if self.departures.remove(at).report {
            context.actions.push(Action::Released(how));
        }
    }
}
