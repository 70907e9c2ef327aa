//! Deleting what was ours: until it is gone, and never somebody else's.

use super::*;

/// A node of ours that is to go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Departure {
    node: Node,
    /// The marker to leave, and the version of the record it replaces.
    marker: Option<(Marker, Option<i32>)>,
    /// Whether the holder waits to hear of it.
    pub(super) report: bool,
    /// Whether whoever its end may grant is to look again, should it leave no marker.
    aloud: bool,
    /// Whether an earlier delete may have been carried out.
    repeated: bool,
    /// The mark of our beginning is to be taken back.
    undo: Option<Undo>,
}

impl Departure {
    fn new(node: Node, marker: Option<(Marker, Option<i32>)>) -> Departure {
        Departure { node, marker, report: false, aloud: false, repeated: false, undo: None }
    }
}

impl Contender {
    pub(super) fn depart(
        &mut self,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        report: bool,
        turn: &mut Turn,
    ) {
        let departure = self.departure(node, marker, report, false);
        self.departures.push(departure);
        // What is sent without a connection arrives who knows when: then the name may be somebody else's.
        if self.offline && self.on(Rule::NoBlindDelete) {
            self.check_departure(node.czxid, turn);
        } else {
            self.send_departure(node.czxid, turn);
        }
    }

    /// Like `depart`, for a node that was not heard of for so long that its name may be somebody else's by now.
    pub(super) fn depart_if_there(&mut self, node: Node, turn: &mut Turn) {
        self.depart_after(Departure::new(node, None), turn);
    }

    /// Like `depart_if_there`, for a holder that was told that it has lost the lock.
    pub(super) fn depart_doubtful(&mut self, node: Node, turn: &mut Turn) {
        let departure = self.departure(node, None, true, false);
        self.depart_after(Departure { report: false, ..departure }, turn);
    }

    /// Like `depart_if_there`, for one that may have written that it begins, and has not. A writer's node that belongs to
    /// a reader keeps nobody out once the reader's is gone: by then somebody may have held, and the record be that one's.
    pub(super) fn depart_undone(&mut self, node: Node, undo: Undo, turn: &mut Turn) {
        if !self.on(Rule::UndoWhatIsThere) {
            return self.depart_after(Departure::new(node, Some((undo.marker, None))), turn);
        }
        self.depart_after(Departure { undo: Some(undo), ..Departure::new(node, None) }, turn);
    }

    /// Like `depart`, for a node of a holder that may be the one that somebody else deleted.
    pub(super) fn depart_after_look(
        &mut self,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        turn: &mut Turn,
    ) {
        self.depart_after(self.departure(node, marker, true, false), turn);
    }

    /// Like `depart`, after a delete that may have been carried out.
    pub(super) fn depart_again(
        &mut self,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        turn: &mut Turn,
    ) {
        self.depart_after(self.departure(node, marker, true, true), turn);
    }

    fn departure(
        &self,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        report: bool,
        repeated: bool,
    ) -> Departure {
        let aloud = report && node.prefix.is_computable() && self.on(Rule::LeaveAloud);
        Departure { report, aloud, repeated, ..Departure::new(node, marker) }
    }

    /// Looks whether the node is still ours, and then deletes it.
    fn depart_after(&mut self, departure: Departure, turn: &mut Turn) {
        let czxid = departure.node.czxid;
        self.departures.push(departure);
        self.check_departure(czxid, turn);
    }

    fn send_departure(&mut self, czxid: Zxid, turn: &mut Turn) {
        let Some(departure) = self.departures.iter().find(|d| d.node.czxid == czxid) else { return };
        let node = departure.node;
        let request = match departure.marker {
            Some((marker, version)) => Request::Release { node, marker, version },
            None if departure.aloud => Request::Withdraw(node),
            None => Request::Delete(node),
        };
        self.send(Purpose::Leave(czxid), request, turn);
    }

    pub(crate) fn is_departing(&self, node: Node) -> bool {
        self.departures.iter().any(|departure| departure.node == node)
    }

    pub(super) fn left(&mut self, czxid: Zxid, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let blind = !self.on(Rule::NoBlindDelete);
        let stubborn = !self.on(Rule::ReleaseWithoutRecord);
        let Some(departure) = self.departures.iter_mut().find(|d| d.node.czxid == czxid) else { return };
        match outcome {
            Ok(_) => self.departed(czxid, Departed::Clean, turn),
            Err(Failure::NoNode) => self.found_gone(czxid, turn),
            Err(Failure::Unknown) => {
                departure.repeated = true;
                if blind { self.send_departure(czxid, turn) } else { self.check_departure(czxid, turn) }
            }
            Err(Failure::Throttled) => self.pause_departure(czxid, turn),
            Err(failure) if departure.marker.is_some() => {
                if stubborn {
                    return self.departed(czxid, Departed::Refused(failure), turn);
                }
                // The record is not ours to write, or was written by somebody else. Those behind us will list.
                // That it was refused does not say that the node of that name is still ours, so look first.
                (departure.marker, departure.undo) = (None, None);
                self.check_departure(czxid, turn);
            }
            // That our node cannot be written to does not say that it cannot be deleted.
            Err(_) if std::mem::take(&mut departure.aloud) => self.check_departure(czxid, turn),
            Err(failure) => {
                if std::mem::take(&mut departure.report) {
                    turn.actions.push(Action::Released(Departed::Refused(failure)));
                }
                self.pause_departure(czxid, turn);
            }
        }
    }

    fn pause_departure(&mut self, czxid: Zxid, turn: &mut Turn) {
        let wait = self.backoff();
        self.send(Purpose::LeavePause(czxid), Request::Sleep(wait), turn);
    }

    /// Before a delete is sent again: is the node of that name still the one that was ours?
    pub(super) fn check_departure(&mut self, czxid: Zxid, turn: &mut Turn) {
        let Some(departure) = self.departures.iter().find(|d| d.node.czxid == czxid) else { return };
        let (node, undo) = (departure.node, departure.undo);
        if let Some(Undo { marker, version }) = undo {
            // As a barrier: behind it the one that was sent before can no longer arrive.
            let (node, marker) = (Some(node), node.beginning_in(marker.directory));
            self.send(Purpose::LeaveBarrier(czxid), Request::Hold { node, marker, version }, turn);
        }
        self.send(Purpose::LeaveSync(czxid), Request::Sync, turn);
        if undo.is_some() {
            self.send(Purpose::LeaveRead(czxid), Request::ReadDirectory, turn);
        }
        self.send(Purpose::LeaveCheck(czxid), Request::Exists(node), turn);
    }

    /// Whatever the leader says of it will do; but it must have been there.
    pub(super) fn left_barrier(&mut self, czxid: Zxid, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        if let Err(Failure::Unknown | Failure::Throttled) = outcome {
            self.look_at_departure_later(czxid, turn);
        }
    }

    /// A look that is not known to be up to date is no ground for a delete.
    pub(super) fn left_synced(&mut self, czxid: Zxid, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        if outcome.is_err() {
            self.look_at_departure_later(czxid, turn);
        }
    }

    /// What the record says, of one that may have written there that it begins.
    pub(super) fn left_read(&mut self, czxid: Zxid, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Some(at) = self.departures.iter().position(|d| d.node.czxid == czxid) else { return };
        let Departure { node, undo, .. } = self.departures[at];
        let marker = match outcome {
            Ok(Reply::Directory(Directory { record, version, .. })) => undo
                .filter(|undo| record == Record::Marker(node.beginning_in(undo.marker.directory)))
                .map(|undo| (undo.marker, Some(version))),
            // Who may not read it any more must go all the same.
            Ok(_) | Err(Failure::NoNode | Failure::Refused(_)) => None,
            Err(_) => return self.look_at_departure_later(czxid, turn),
        };
        self.departures[at].marker = marker;
    }

    fn look_at_departure_later(&mut self, czxid: Zxid, turn: &mut Turn) {
        for (_, purpose) in &mut self.pending {
            match *purpose {
                Purpose::LeaveSync(of) | Purpose::LeaveRead(of) | Purpose::LeaveCheck(of) if of == czxid => {
                    *purpose = Purpose::Void;
                }
                _ => {}
            }
        }
        self.pause_departure(czxid, turn);
    }

    pub(super) fn left_checked(&mut self, czxid: Zxid, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Some(departure) = self.departures.iter().find(|d| d.node.czxid == czxid) else { return };
        match self.still_mine(departure.node, &outcome) {
            Some(true) => self.send_departure(czxid, turn),
            Some(false) => self.found_gone(czxid, turn),
            None => self.pause_departure(czxid, turn),
        }
    }

    /// Our node is not there. If no delete of ours may have done it, then somebody else deleted it before us.
    fn found_gone(&mut self, czxid: Zxid, turn: &mut Turn) {
        let ours = self.departures.iter().any(|d| d.node.czxid == czxid && d.repeated);
        let how = if ours { Departed::Clean } else { Departed::Lost(Loss::Broken) };
        self.departed(czxid, how, turn);
    }

    fn departed(&mut self, czxid: Zxid, how: Departed, turn: &mut Turn) {
        let Some(at) = self.departures.iter().position(|d| d.node.czxid == czxid) else { return };
        if self.departures.remove(at).report {
            turn.actions.push(Action::Released(how));
        }
    }
}
