//! The numbers of results, by which an open page learns of a newer result.

use super::clock::now_ms;

/// Data for the script that updates a page.
pub(super) struct News {
    /// URL of the event stream.
    pub(super) events: String,
    /// Number of the result on the page. An event has the number of a newer result.
    pub(super) number: u64,
    /// Set if the last read failed. The page is then not live, although its event stream is open.
    pub(super) is_outage: bool,
}

/// Returns the number of the result that follows the result with the number `last`, which is 0 if there is none.
///
/// A number begins as the current time. So results of another task or process, which counts anew, have other numbers, and
/// an open page does not take an old result for a new one.
pub(super) fn next_number(last: u64) -> u64 {
    now_ms().max(last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_new_count_are_new() {
        let first = next_number(0);
        assert!(first > 1_700_000_000_000, "{first}");
        assert!(next_number(first) > first);
        assert_eq!(next_number(first + 60_000_000), first + 60_000_001);
    }
}
