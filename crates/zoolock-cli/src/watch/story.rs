//! What happened to a lock: the difference of two looks at it, told as far as it is known.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use zoolock::{Entry, Snapshot};

use crate::rates::number;

/// Something that happened.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Event {
    /// What; `docs/JSON.md` lists the words.
    pub(super) event: &'static str,
    pub(super) lock: String,
    /// When it was seen.
    pub(super) at_ms: u64,
    /// To whom.
    pub(super) contender: Option<Entry>,
    /// Where it stands among those who wait, from 1 on.
    pub(super) place: Option<usize>,
    /// How many wait now.
    pub(super) waiting: usize,
    /// How long it waited and held, as far as that was seen.
    pub(super) waited_ms: Option<u64>,
    pub(super) held_ms: Option<u64>,
    /// Whether it had begun before we looked, so that it was longer than that.
    pub(super) at_least: bool,
    /// How many came and went unseen, at most.
    pub(super) count: Option<u32>,
    pub(super) message: Option<String>,
}

/// What may happen.
const WORDS: [&str; 13] = [
    "holds", "waits", "queued", "granted", "released", "panicked", "crashed", "broken", "gone", "left",
    "unseen", "lost", "back",
];

/// When a look was, by the clock of the day and by one that does not jump.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) unix_ms: u64,
    pub(super) at: Instant,
}

impl Moment {
    pub(super) fn now() -> Moment {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { unix_ms: ms(unix), at: Instant::now() }
    }
}

/// One lock, as it was seen last.
#[derive(Debug)]
pub(super) struct Story {
    path: String,
    /// In the order of their turns, those who hold first.
    stands: Vec<Stand>,
    /// When the directory was made that the numbers are of.
    made: Option<i64>,
    /// The highest number that the service has given to a contender.
    last_number: Option<u32>,
    /// How many numbers after that were taken by nodes that were only renamed.
    renamed: u32,
    waiting: usize,
    sight: Sight,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// Nothing was seen yet.
    None,
    Lost,
    Clear,
}

/// Somebody in the queue.
#[derive(Debug, Clone)]
struct Stand {
    entry: Entry,
    /// Since when it holds, where it does.
    holds: Option<Since>,
    came: Since,
}

#[derive(Debug, Clone, Copy)]
struct Since {
    at: Instant,
    /// It was so before we looked.
    at_least: bool,
}

impl Story {
    pub(super) fn new(path: &str) -> Story {
        let path = path.to_owned();
        let (stands, sight) = (Vec::new(), Sight::None);
        Story { path, stands, made: None, last_number: None, renamed: 0, waiting: 0, sight }
    }

    /// That nothing can be seen, once.
    pub(super) fn lose_sight(&mut self, why: &str, now: Moment) -> Option<Event> {
        if std::mem::replace(&mut self.sight, Sight::Lost) == Sight::Lost {
            return None;
        }
        Some(Event { message: Some(why.to_owned()), ..self.event("lost", now) })
    }

    /// What has happened since the last look: first who went, then who came. `made`: when the directory was.
    pub(super) fn see(&mut self, lock: &Snapshot, made: Option<i64>, now: Moment) -> Vec<Event> {
        self.waiting = lock.waiting;
        let sight = std::mem::replace(&mut self.sight, Sight::Clear);
        let unseen_before = sight != Sight::Clear;
        let back = (sight == Sight::Lost).then(|| self.event("back", now));
        let holders: Vec<&Entry> = lock.holder.iter().chain(&lock.beside).collect();
        let everybody = || holders.iter().copied().chain(&lock.waiters);
        let here: HashMap<Key, usize> = everybody().enumerate().map(|(at, entry)| (key(entry), at)).collect();
        let mut before = std::mem::take(&mut self.stands);
        let mut events: Vec<Event> = back.into_iter().collect();
        if let (Some(last), Some(made)) = (self.made, made)
            && last != made
        {
            // Nobody of the old directory is in the new one, whatever their names are, and its record tells of others.
            events.extend(self.leavers(&before, &HashMap::new(), 0, None, now));
            (before, self.last_number, self.renamed) = (Vec::new(), None, 0);
        }
        self.made = made.or(self.made);
        events.extend(self.leavers(&before, &here, holders.len(), how_one_left(lock), now));
        let count = self.unseen(lock, &before);
        if count > 0 {
            events.push(Event { count: Some(count), ..self.event("unseen", now) });
        }
        let mut before: HashMap<Key, Stand> =
            before.into_iter().map(|stand| (key(&stand.entry), stand)).collect();
        for (at, entry) in everybody().enumerate() {
            let (known, new) = match before.remove(&key(entry)) {
                Some(known) => (known, false),
                None => {
                    let came = Since { at: now.at, at_least: unseen_before };
                    (Stand { entry: entry.clone(), holds: None, came }, true)
                }
            };
            let (is_holder, held) = (at < holders.len(), known.holds.is_some());
            let begins = Since { at: now.at, at_least: unseen_before };
            // Who holds goes on to, also where there are fewer permits now than are held.
            let holds = known.holds.or_else(|| is_holder.then_some(begins));
            let stand = Stand { entry: entry.clone(), holds, came: known.came };
            if is_holder && !held {
                let event = if new && unseen_before { "holds" } else { "granted" };
                let waited = (!new).then_some(stand.came);
                let waited_ms = waited.map(|since| since.until(now));
                let at_least = waited.is_some_and(|since| since.at_least);
                events.push(Event { waited_ms, at_least, ..self.event_of(event, entry, now) });
            } else if new && !is_holder {
                let event = if unseen_before { "waits" } else { "queued" };
                let place = Some(at - holders.len() + 1);
                events.push(Event { place, ..self.event_of(event, entry, now) });
            }
            self.stands.push(stand);
        }
        events
    }

    /// Who is not there any more, and how that came, as far as somebody wrote it.
    fn leavers(
        &self,
        before: &[Stand],
        here: &HashMap<Key, usize>,
        holders: usize,
        written: Option<(&'static str, u32)>,
        now: Moment,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let is_here = |stand: &Stand| here.contains_key(&key(&stand.entry));
        let made_room = before.iter().any(|stand| stand.holds.is_some() && !is_here(stand));
        let holds_on: Vec<&Entry> = before
            .iter()
            .filter(|stand| stand.holds.is_some() && is_here(stand))
            .map(|stand| &stand.entry)
            .collect();
        // Who wants it alone does not get it beside others; beside its own reader, one that writes meanwhile does.
        let is_alone = |entry: &Entry| {
            let is_own = |other: &&Entry| other.owner.is_some() && other.owner == entry.owner;
            entry.role != "exclusive" || holds_on.iter().all(is_own)
        };
        // Whether nobody has been passed over who stood before it and waits still.
        let mut next = true;
        for stand in before {
            if let Some(at) = here.get(&key(&stand.entry)) {
                next &= *at < holders;
                continue;
            }
            let how = written.filter(|(_, of)| number(&stand.entry.node) == Some(*of)).map(|(how, _)| how);
            let entry = &stand.entry;
            let waited = Event {
                waited_ms: Some(stand.came.until(now)),
                at_least: stand.came.at_least,
                ..self.event_of("left", entry, now)
            };
            match (stand.holds, how) {
                (Some(since), how) => events.push(Event {
                    held_ms: Some(since.until(now)),
                    at_least: since.at_least,
                    ..self.event_of(how.unwrap_or("gone"), entry, now)
                }),
                // It had its turn between two looks.
                (None, Some(how)) => {
                    events.push(Event { event: "granted", ..waited });
                    events.push(self.event_of(how, entry, now));
                }
                // It may have had it.
                (None, None) if made_room && next && is_alone(entry) => {
                    events.push(Event { event: "gone", ..waited })
                }
                (None, None) => events.push(waited),
            }
        }
        events
    }

    /// How many came and went between two looks, by the numbers that the service gave: it gives some to directories, too,
    /// and one to a writer that goes on as a reader, which keeps the number of its name.
    fn unseen(&mut self, lock: &Snapshot, before: &[Stand]) -> u32 {
        let everybody = || lock.holder.iter().chain(&lock.beside).chain(&lock.waiters);
        let known: HashMap<u32, &str> = before
            .iter()
            .filter_map(|stand| Some((number(&stand.entry.node)?, stand.entry.node.as_str())))
            .collect();
        let (mut new, mut highest) = (0_u32, lock.previous_number);
        for entry in everybody() {
            let Some(number) = number(&entry.node) else { continue };
            highest = highest.max(Some(number));
            match known.get(&number) {
                Some(node) => self.renamed += u32::from(*node != entry.node),
                None => new += 1,
            }
        }
        let Some(last) = self.last_number else {
            self.last_number = highest;
            return 0;
        };
        self.last_number = Some(last).max(highest);
        let given = highest.unwrap_or(0).saturating_sub(last).saturating_sub(new);
        // The others were given after that, and are missing later.
        let of_renamed = given.min(self.renamed);
        self.renamed -= of_renamed;
        given - of_renamed
    }

    fn event(&self, event: &'static str, now: Moment) -> Event {
        debug_assert!(WORDS.contains(&event), "{event} is a new word");
        Event {
            event,
            lock: self.path.clone(),
            at_ms: now.unix_ms,
            contender: None,
            place: None,
            waiting: self.waiting,
            waited_ms: None,
            held_ms: None,
            at_least: false,
            count: None,
            message: None,
        }
    }

    fn event_of(&self, event: &'static str, entry: &Entry, now: Moment) -> Event {
        Event { contender: Some(entry.clone()), ..self.event(event, now) }
    }
}

impl Since {
    fn until(self, now: Moment) -> u64 {
        ms(now.at.saturating_duration_since(self.at))
    }
}

/// How the holder with this number left, where somebody wrote that.
fn how_one_left(lock: &Snapshot) -> Option<(&'static str, u32)> {
    let number = lock.previous_number?;
    match lock.previous {
        "unknown" => None,
        "clean" => Some(("released", number)),
        how => Some((how, number)),
    }
}

/// The same node, and not another one that was given its name later.
type Key = (String, Option<String>);

fn key(entry: &Entry) -> Key {
    (entry.node.clone(), entry.token.clone())
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{entry, lock};

    const PATH: &str = "/locks/x";

    /// A lock with these numbers in its queue, of which the first holds.
    fn queue(numbers: &[u32]) -> Snapshot {
        let mut all = numbers.iter().map(|n| entry(&format!("lock-{n:010}"), &format!("0.{n}")));
        lock(PATH, all.next(), all.collect())
    }

    fn after(previous: &'static str, of: u32, numbers: &[u32]) -> Snapshot {
        let mut lock = queue(numbers);
        (lock.previous, lock.previous_number) = (previous, Some(of));
        lock
    }

    /// The words of what these looks show, a second apart; each with the number it is about.
    fn words(looks: &[Snapshot]) -> Vec<Vec<String>> {
        words_of(looks.iter().map(|look| (look, 1)))
    }

    /// The same, where each is of the directory that was made then.
    fn words_of<'a>(looks: impl IntoIterator<Item = (&'a Snapshot, i64)>) -> Vec<Vec<String>> {
        let (mut story, mut now) = (Story::new(PATH), Moment::now());
        let mut told = Vec::new();
        for (look, made) in looks {
            now.at += Duration::from_secs(1);
            let word = |event: Event| match event.contender {
                Some(contender) => {
                    format!("{} {}", event.event, number(&contender.node).expect("a number"))
                }
                None => format!("{} {}", event.event, event.count.expect("a count")),
            };
            told.push(story.see(look, Some(made), now).into_iter().map(word).collect());
        }
        told
    }

    /// As `queue`: the first `holders` of these hold.
    fn held(holders: usize, names: &[(&'static str, u32)]) -> Snapshot {
        let mut all = names.iter().map(|(role, number)| {
            let prefix = match *role {
                "shared" => "__READ__",
                "permit" => "permit-1-",
                _ => "__WRIT__",
            };
            let mut entry = entry(&format!("{prefix}{number:010}"), &format!("0.{number}"));
            (entry.role, entry.owner) = (role, Some(format!("owner {number}")));
            entry
        });
        let first = all.next();
        let beside = all.by_ref().take(holders.saturating_sub(1)).collect();
        let mut lock = lock(PATH, first, all.collect());
        lock.beside = beside;
        lock
    }

    #[test]
    fn every_word_is_documented() {
        let docs = include_str!("../../../../docs/JSON.md");
        let section = docs.split("\n## ").find(|section| section.starts_with("watch")).expect("a section");
        let row = section.lines().find(|line| line.starts_with("| `event`")).expect("a row");
        for word in WORDS {
            assert!(row.contains(&format!("`{word}`")), "{word} is not in docs/JSON.md");
        }
    }

    #[test]
    fn what_two_looks_differ_in_has_happened() {
        let told = words(&[
            queue(&[1, 2]),
            queue(&[1, 2, 3]),
            after("clean", 1, &[2, 3]),
            after("clean", 1, &[2]),
            after("crashed", 2, &[]),
        ]);
        let expected = [
            &["holds 1", "waits 2"][..],
            &["queued 3"],
            &["released 1", "granted 2"],
            &["left 3"],
            &["crashed 2"],
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn how_somebody_went_is_told_where_it_was_written_of_that_one() {
        // Of the one before.
        assert_eq!(words(&[after("clean", 1, &[2]), after("clean", 1, &[])])[1], ["gone 2"]);
        assert_eq!(words(&[queue(&[2]), queue(&[])])[1], ["gone 2"]);
        assert_eq!(words(&[queue(&[2]), after("broken", 2, &[3])])[1], ["broken 2", "granted 3"]);
    }

    #[test]
    fn who_had_a_turn_between_two_looks_is_told_as_far_as_it_is_known() {
        // The record names the second one.
        let told = words(&[queue(&[1, 2, 3]), after("clean", 2, &[3])]);
        assert_eq!(told[1], ["gone 1", "granted 2", "released 2", "granted 3"]);
        // It may have had its turn, or not.
        assert_eq!(words(&[queue(&[1, 2, 3]), queue(&[3])])[1], ["gone 1", "gone 2", "granted 3"]);
        // Nobody can have it before the holder went, and those who stood before.
        assert_eq!(words(&[queue(&[1, 2, 3]), queue(&[1, 3])])[1], ["left 2"]);
        assert_eq!(words(&[queue(&[1, 2, 3, 4]), queue(&[2, 3])])[1], ["gone 1", "left 4", "granted 2"]);
    }

    #[test]
    fn who_came_and_went_unseen_is_counted() {
        assert_eq!(words(&[queue(&[1]), queue(&[5, 6])])[1], ["gone 1", "unseen 3", "granted 5", "queued 6"]);
        assert_eq!(words(&[queue(&[1]), queue(&[]), after("clean", 3, &[])])[2], ["unseen 2"]);
    }

    #[test]
    fn a_directory_that_was_made_again_has_numbers_and_a_record_of_its_own() {
        let told = words_of([(&queue(&[7]), 1), (&queue(&[0]), 2), (&queue(&[0, 1]), 2)]);
        assert_eq!(told[1..], [vec!["gone 7", "granted 0"], vec!["queued 1"]]);
        // Nobody there came and went unseen, though its numbers have come as far by now; nor is it told how the old one went.
        let told = words_of([(&queue(&[2]), 1), (&after("broken", 2, &[9]), 2)]);
        assert_eq!(told[1], ["gone 2", "granted 9"]);
        let mut same = queue(&[2]);
        same.holder.as_mut().expect("one holds").token = None;
        let told = words_of([(&same, 1), (&same, 2)]);
        assert_eq!(told[1], ["gone 2", "granted 2"]);
    }

    #[test]
    fn a_writer_that_goes_on_as_a_reader_takes_a_number_and_is_nobody_else() {
        let (writes, reads) = (("exclusive", 1), ("shared", 1));
        let mut down = held(1, &[reads]);
        (down.previous, down.previous_number) = ("clean", Some(1));
        let told = words(&[held(1, &[writes]), down, held(2, &[reads, ("shared", 3)])]);
        assert_eq!(told[1..], [vec!["released 1", "granted 1"], vec!["granted 3"]]);
        // The number after that one.
        let told =
            words(&[held(1, &[writes]), held(2, &[reads, ("shared", 2)]), held(2, &[reads, ("shared", 5)])]);
        assert_eq!(told[2], ["gone 2", "unseen 1", "granted 5"]);
    }

    #[test]
    fn a_writer_cannot_have_held_beside_a_reader_of_somebody_else() {
        let (reads, writes) = (|number| ("shared", number), ("exclusive", 3));
        let both = held(2, &[reads(1), reads(2), writes]);
        assert_eq!(words(&[both.clone(), held(1, &[reads(2)])])[1], ["gone 1", "left 3"]);
        assert_eq!(words(&[both.clone(), held(1, &[])])[1], ["gone 1", "gone 2", "gone 3"]);
        // It is the reader that wanted to write, and may have.
        let mut upgrades = both;
        upgrades.waiters[0].owner = Some("owner 2".to_owned());
        assert_eq!(words(&[upgrades, held(1, &[reads(2)])])[1], ["gone 1", "gone 3"]);
    }

    #[test]
    fn who_holds_a_permit_is_granted_it_once_however_few_there_are() {
        let permits = [("permit", 1), ("permit", 2)];
        let told = words(&[held(2, &permits), held(1, &permits), held(2, &permits), held(1, &permits[..1])]);
        assert_eq!(told[1..], [vec![], vec![], vec!["gone 2".to_owned()]]);
    }

    #[test]
    fn times_are_those_that_were_seen() {
        let (mut story, mut now) = (Story::new(PATH), Moment::now());
        let mut see = |look: &Snapshot| {
            now.at += Duration::from_secs(1);
            story.see(look, Some(1), now)
        };
        see(&queue(&[1, 2]));
        let events = see(&after("clean", 1, &[2]));
        assert_eq!((events[0].held_ms, events[0].at_least), (Some(1_000), true));
        assert_eq!((events[1].waited_ms, events[1].at_least), (Some(1_000), true));
        let events = see(&queue(&[2, 3]));
        assert_eq!((events[0].place, events[0].waiting), (Some(1), 1));
        let events = see(&after("clean", 2, &[3]));
        assert_eq!((events[0].held_ms, events[0].at_least), (Some(2_000), false));
        assert_eq!((events[1].waited_ms, events[1].at_least), (Some(1_000), false));
    }

    #[test]
    fn lost_sight_is_told_once_and_what_is_found_after_it_was_there_before() {
        let (mut story, now) = (Story::new(PATH), Moment::now());
        story.see(&queue(&[1]), Some(1), now);
        assert_eq!(story.lose_sight("no answer", now).map(|event| event.event), Some("lost"));
        assert!(story.lose_sight("no answer", now).is_none());
        let events = story.see(&queue(&[1, 2]), Some(1), now);
        let words: Vec<_> = events.iter().map(|event| event.event).collect();
        assert_eq!(words, ["back", "waits"]);
        assert_eq!(story.see(&queue(&[1, 2]), Some(1), now).len(), 0);
    }
}
