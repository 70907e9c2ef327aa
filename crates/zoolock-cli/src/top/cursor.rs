//! The selected row of a list, and the visible part of the list.

/// Selected row and first visible row of a list.
#[derive(Debug, Default, Clone)]
pub(super) struct Cursor {
    pub(super) at: usize,
    pub(super) first: usize,
    /// Path or znode of the selected row, if the user has moved the cursor. When rows move, the cursor stays on this row.
    pub(super) on: Option<String>,
}

impl Cursor {
    /// Updates the cursor after rows have moved. `place` is the new index of the selected row, if it still exists.
    pub(super) fn follow(&mut self, place: Option<usize>, count: usize) {
        if place.is_none() {
            self.on = None;
        }
        self.at = place.unwrap_or(self.at).min(count.saturating_sub(1));
    }

    /// Formats the positions of the visible rows, such as `19-36 of 100`. `None` if all rows are visible.
    pub(super) fn positions(&self, visible_rows: usize, count: usize) -> Option<String> {
        let end = (self.first + visible_rows).min(count);
        (end.saturating_sub(self.first) < count).then(|| format!("{}-{end} of {count}", self.first + 1))
    }

    pub(super) fn scroll(&mut self, visible_rows: usize, count: usize) {
        self.first = self.first.min(count.saturating_sub(visible_rows)).min(self.at);
        if self.at >= self.first + visible_rows {
            self.first = self.at + 1 - visible_rows;
        }
    }
}
