use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use std::time::Duration;
use zoolock::admin::OwnerKind;

use super::super::model::ReadResult;
use super::super::samples::{at, contender, deadlock, lock, model, pace, read, read_queue, setting, token};
use super::*;
use crate::observe::LockList;

/// Returns the screen as text, without blanks at the ends of lines.
fn screen(model: &mut ScreenModel, columns: u16, lines: u16) -> String {
    model.resize(columns, lines);
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("test backend works");
    terminal.draw(|frame| draw(frame, model, false)).expect("test backend works");
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..lines {
        let mut line = String::new();
        let mut x = 0;
        while x < columns {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            x += u16::try_from(width(symbol).max(1)).expect("width fits into u16");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn keys(model: &mut ScreenModel, text: &str) {
    for c in text.chars() {
        assert_eq!(model.handle_key(KeyCode::Char(c)), None);
    }
}

fn no_answer(why: &str) -> ReadResult {
    ReadResult::Failed(ReadFailure::Unreachable(why.to_owned()))
}

fn same(seen: &str, expected: &str) {
    let expected = expected.trim_start_matches('\n');
    assert!(seen == expected, "the screen is:\n{seen}\nexpected:\n{expected}");
}

#[test]
fn list_of_locks_is_drawn() {
    same(&screen(&mut model(), 80, 24), LIST);
}

const LIST: &str = "
zoolock top · zk1:2181 · /locks                                         03:04:07
4 locks, 3 held, 3 waiting · read 03:04:07 in 12ms, every 1s
[1 waiting]  2 longest   3 rate   4 held
   LOCK     WAITING LONGEST     HELD HOLDER
>  db/main        2   1m02s    3m06s web1 pid 4001 (backup.sh)
   nightly        1   1h56m    2h00m web4 pid 4004 (backup.sh)
   deploys        0       -        - -
   reports        0       -       3s web6 pid 4006 (backup.sh)















enter queue w why s order R reverse / filter r revoke b break ? help q quit
";

#[test]
fn queue_of_a_lock_is_drawn() {
    let mut model = model();
    let mut contenders = vec![contender(1, 184), contender(2, 60), contender(3, 5)];
    contenders[0].note = Some("database move, call Ann".to_owned());
    contenders[0].revoked = true;
    let mut main = lock("db/main", &contenders);
    main.rate = Some(0.25);
    model.handle_key(KeyCode::Enter);
    let last_event = Some("2026-01-02 03:00:00 broken: number 100; ann on ops-1".to_owned());
    model.handle_read(ReadResult::Queue(Box::new(main), last_event, pace()));
    same(&screen(&mut model, 80, 24), QUEUE);
    // A contender without a note shows its znode.
    model.handle_key(KeyCode::Down);
    let text = screen(&mut model, 80, 24);
    assert!(
        text.contains("\nznode   _c_2-lock-0000000002\n") && text.contains("\n>     1    1m02s"),
        "{text}"
    );
}

const QUEUE: &str = "
zoolock top · zk1:2181 · /locks                                         03:04:07
read 03:04:07 in 12ms, every 1s
/locks/db/main: 1 hold, 2 wait, 0.25 hand-overs/s, last recorded end: clean
last: 2026-01-02 03:00:00 broken: number 100; ann on ops-1
      #      FOR  TOKEN      CONTENDER
> holds    3m06s  500000101  web1, asked to release: database move, call Ann
      1    1m02s  500000102  web2 pid 4002 (backup.sh)
      2       7s  500000103  web3 pid 4003 (backup.sh)









────────────────────────────────────────────────────────────────────────────────
host    web1                            mode    exclusive, asked to release
process 4001 (backup.sh)                since   2026-01-02 03:01:01
token   00000000-0000000500000101-00000000
note    database move, call Ann

esc back  w why  space read now  r revoke  b break  ? help  q quit
";

#[test]
fn positions_of_visible_rows_are_shown() {
    let mut model = model();
    let locks = (0..100).map(|n| lock(&format!("job{n:03}"), &[])).collect();
    model.handle_read(read(locks));
    let order = |model: &mut ScreenModel| {
        screen(model, 80, 24).lines().nth(2).map(str::to_owned).expect("a line with the order")
    };
    assert!(order(&mut model).ends_with(" 1-18 of 100"), "{}", order(&mut model));
    model.handle_key(KeyCode::End);
    keys(&mut model, "/job");
    let line = order(&mut model);
    assert!(line.contains(" /job_ (100) ") && line.ends_with(" 83-100 of 100"), "{line}");
    model.handle_key(KeyCode::Enter);
    model.handle_key(KeyCode::Enter);
    let contenders: Vec<_> = (1..=25).map(|number| contender(number, 60)).collect();
    model.handle_read(read_queue(lock("job099", &contenders)));
    let text = screen(&mut model, 80, 24);
    assert!(text.contains("─ 1-12 of 25 \n") || text.contains("─ 1-12 of 25\n"), "{text}");
}

#[test]
fn confirmations_name_lock_holder_and_token() {
    let mut model = model();
    keys(&mut model, "r");
    let text = screen(&mut model, 80, 24);
    let window = |text: &str| {
        text.lines().filter(|line| line.contains('│')).map(str::to_owned).collect::<Vec<_>>().join("\n")
            + "\n"
    };
    same(&window(&text), REVOKE);
    keys(&mut model, "nb");
    keys(&mut model, "bre");
    same(&window(&screen(&mut model, 80, 24)), BREAK);
    model.handle_read(read(vec![lock("db/main", &[contender(2, 60)])]));
    let text = screen(&mut model, 80, 24);
    assert!(text.contains("! it has left the queue") && text.contains(&token(1)), "{text}");
}

const REVOKE: &str = "
│ Ask the holder to release?                                                   │
│ lock   /locks/db/main                                                        │
│ client web1 pid 4001 (backup.sh)                                             │
│ token  00000000-0000000500000101-00000000, held for 3m06s                    │
│                                                                              │
│ y: ask it; any other key: cancel                                             │
";

const BREAK: &str = "
│ Remove the holder from the queue?                                            │
│ lock   /locks/db/main                                                        │
│ client web1 pid 4001 (backup.sh)                                             │
│ token  00000000-0000000500000101-00000000, held for 3m06s                    │
│ ! it may not notice at once, and continue as if it held the lock             │
│ type break and enter, or esc: bre_                                           │
";

#[test]
fn outage_is_shown_and_ages_freeze() {
    let mut model = model();
    model.tick(at(20));
    model.handle_read(no_answer("no answer"));
    model.tick(at(62));
    let text = screen(&mut model, 80, 24);
    assert_eq!(text.lines().nth(1), Some("4 locks, 3 held, 3 waiting · old rows, read 03:04:07, 1m00s ago"));
    assert_eq!(text.lines().nth(2), Some("! no answer since 03:04:07, for 1m00s: zk1:2181: no answer"));
    assert!(text.contains("1m02s    3m06s"), "{text}");
}

#[test]
fn unknown_time_of_the_grant_is_a_maximum() {
    let mut model = model();
    let mut main = lock("db/main", &[contender(1, 184), contender(2, 60)]);
    let holder = main.lock.holder.as_mut().expect("a holder");
    holder.held_since = holder.since.map(|since| since + Duration::from_secs(180));
    model.handle_read(read(vec![main.clone()]));
    assert!(screen(&mut model, 80, 24).contains("1m02s       6s web1"), "the wait does not count");
    main.lock.holder.as_mut().expect("a holder").held_since = None;
    model.handle_read(read(vec![main.clone()]));
    assert!(screen(&mut model, 80, 24).contains("  ≤3m06s web1"));
    keys(&mut model, "b");
    assert!(screen(&mut model, 80, 24).contains("held for at most 3m06s"));
    model.handle_key(KeyCode::Esc);
    model.handle_key(KeyCode::Enter);
    model.handle_read(read_queue(main));
    let text = screen(&mut model, 80, 24);
    assert!(text.contains("since   after 2026-01-02 03:01:01") && text.contains("holds   ≤3m06s"), "{text}");
}

#[test]
fn first_screen_shows_reading() {
    let mut model = ScreenModel::new(setting(), at(0));
    let text = screen(&mut model, 80, 24);
    assert!(text.contains("reading") && !text.contains("no locks"), "{text}");
    model.handle_read(read(Vec::new()));
    assert!(screen(&mut model, 80, 24).contains("no locks"));
}

#[test]
fn filter_is_shown_with_match_count() {
    let mut model = model();
    keys(&mut model, "/night");
    let text = screen(&mut model, 80, 24);
    assert!(text.contains("/night_ (1)") && text.contains("enter keeps it"), "{text}");
    keys(&mut model, "x");
    assert!(screen(&mut model, 80, 24).contains("no lock has this"));
}

#[test]
fn problems_have_signs() {
    let mut model = model();
    let mut clash = lock("a", &[contender(1, 5), contender(2, 5)]);
    clash.lock.clash = Some("kazoo does not see zoolock; use --naming kazoo".to_owned());
    let mut hidden = lock("b", &[contender(3, 5)]);
    hidden.lock.unread = vec!["/locks/b/leases".to_owned()];
    model.handle_read(read(vec![clash.clone(), hidden]));
    let text = screen(&mut model, 80, 24);
    assert!(text.contains("\n>! a ") && text.contains("\n ? b "), "{text}");
    model.handle_key(KeyCode::Enter);
    model.handle_read(read_queue(clash));
    assert!(screen(&mut model, 80, 24).contains("\n! kazoo does not see zoolock"));
}

#[test]
fn foreign_text_stays_in_its_column() {
    let mut evil = contender(1, 5);
    evil.program = Some("夜間\x1b[2J\u{202e}\u{301}pid".to_owned());
    evil.note = Some("\r\n\x1b]0;gone\x07 夜".to_owned());
    evil.host = Some("host\u{200f}\u{9b}31m".to_owned());
    let mut model = model();
    let held = lock("夜/\x1b[31m\t\u{202e}x", std::slice::from_ref(&evil));
    let plain = lock("plain", &[contender(2, 5)]);
    model.handle_read(read(vec![held.clone(), plain]));
    let list = screen(&mut model, 80, 24);
    // Both rows have the age in the same column.
    let column = |line: usize| {
        let line = list.lines().nth(line).expect("a row");
        width(&line[..line.find("7s").expect("an age")])
    };
    assert_eq!(column(4), column(5), "{list}");
    model.handle_key(KeyCode::Enter);
    model.handle_read(read_queue(held));
    let queue = screen(&mut model, 80, 24);
    keys(&mut model, "b");
    let confirmation = screen(&mut model, 80, 24);
    for text in [&list, &queue, &confirmation] {
        assert!(!text.contains(['\x1b', '\x07', '\r', '\t', '\u{9b}', '\u{202e}', '\u{200f}']), "{text:?}");
        assert!(text.contains("\\u{1b}"), "{text}");
        assert!(text.lines().all(|line| width(line) <= 80), "{text}");
    }
}

#[test]
fn small_screen_shows_minimum_size() {
    let mut model = model();
    model.handle_key(KeyCode::Enter);
    keys(&mut model, "b");
    for (columns, lines) in [(0, 0), (1, 1), (20, 2), (59, 24), (80, 15), (60, 16), (61, 17), (200, 60)] {
        let text = screen(&mut model, columns, lines);
        let small = columns < 60 || lines < 16;
        assert_eq!(text.contains("type break"), !small, "{columns}×{lines}:\n{text}");
    }
    assert!(screen(&mut model, 40, 10).starts_with("terminal too small: 40×10\nneeds 60×16; q quits\n"));
}

#[test]
fn smallest_screen_shows_keys_and_help_fits() {
    let mut model = model();
    let text = screen(&mut model, 60, 16);
    assert!(text.contains("q quit") && text.contains("db/main") && text.contains("1m02s"), "{text}");
    keys(&mut model, "?");
    let text = screen(&mut model, 80, 24);
    let cut = text.lines().any(|line| line.contains('│') && line.contains('…'));
    assert!(text.contains("┌ help ") && !cut, "{text}");
    model.setting.read_only = true;
    keys(&mut model, " ");
    assert!(!screen(&mut model, 80, 24).contains("revoke"));
}

#[test]
fn color_is_redundant() {
    let mut model = model();
    model.handle_read(no_answer("no answer"));
    let colors = |color| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("test backend works");
        terminal.draw(|frame| draw(frame, &model, color)).expect("test backend works");
        let buffer = terminal.backend().buffer().clone();
        let text = buffer.content.iter().map(|cell| cell.symbol().to_owned()).collect::<String>();
        (buffer.content.iter().any(|cell| cell.fg != Color::Reset), text)
    };
    let ((plain, without), (colored, with)) = (colors(false), colors(true));
    assert!(!plain && colored);
    assert_eq!(without, with);
}

/// Only visible rows are drawn, so a thousand times as many locks must take about the same time.
#[test]
fn drawing_time_is_independent_of_lock_count() {
    let took = |count: u32| {
        let mut model = ScreenModel::new(setting(), at(0));
        let locks = (0..count).map(|n| lock(&format!("job{n:06}"), &[contender(n, 5)])).collect();
        model.handle_read(read(locks));
        model.handle_key(KeyCode::End);
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("test backend works");
        crate::base::test_snapshots::least_cpu_time(20, || {
            terminal.draw(|frame| draw(frame, &model, false)).expect("test backend works");
        })
    };
    let (few, many) = (took(100), took(100_000));
    assert!(many < few * 10 + Duration::from_millis(1), "{few:?} and {many:?}");
}

fn noted_locks() -> Vec<ListedLock> {
    let noted = |number, ago, note: &str| {
        let mut entry = contender(number, ago);
        entry.note = Some(note.to_owned());
        entry
    };
    let mut main =
        lock("db/main", &[noted(1, 184, "database move, call Ann"), contender(2, 60), contender(3, 5)]);
    main.lock.holder.as_mut().expect("a holder").revoked = true;
    let mut config = lock("config", &[contender(7, 40)]);
    config.lock.beside.push(contender(8, 900));
    let mut nightly = lock("nightly", &[contender(4, 7205), contender(5, 7000)]);
    nightly.lock.waiters[0].revoked = true;
    let payments = noted(6, 1, "payments migration of the third quarter, do not break, call Ann 555 0199");
    let reports = lock("payments/eu-west/ledger-migration", &[payments]);
    let mut locks = vec![config, main, nightly, reports];
    for (lock, rate) in locks.iter_mut().zip([Some(0.25), None, Some(0.0), Some(12.5)]) {
        lock.rate = rate;
    }
    locks
}

#[test]
fn notes_and_requests_are_visible_at_80_columns() {
    let mut model = model();
    model.handle_read(read(noted_locks()));
    same(&screen(&mut model, 80, 24), NOTES);
    // The line above the keys has the whole note of the selected lock.
    keys(&mut model, "G");
    let text = screen(&mut model, 80, 24);
    let note = "> web6: payments migration of the third quarter, do not break, call Ann 555 0199";
    assert!(text.contains(&format!("\n{note}\n")), "{text}");
    let text = screen(&mut model, 200, 50);
    assert!(
        text.contains("quarter, do not break, call Ann 555 0199\n") && !text.contains("> web6"),
        "{text}"
    );
    assert!(text.contains("RATE/S"), "{text}");
    // The key 3 shows the rate on a narrow screen.
    keys(&mut model, "3");
    let text = screen(&mut model, 80, 24);
    assert!(text.contains("RATE/S") && !text.contains("LONGEST") && text.contains("  12.5 "), "{text}");
}

const NOTES: &str = "
zoolock top · zk1:2181 · /locks                                         03:04:07
4 locks, 4 held, 3 waiting · read 03:04:07 in 12ms, every 1s
[1 waiting]  2 longest   3 rate   4 held
   LOCK                 WAITING LONGEST     HELD HOLDER
>  db/main                    2   1m02s    3m06s web1, asked to release: databa…
   nightly                    1   1h56m    2h00m web4; 1 waiter asked to release
   config                     0       -  ≤15m02s web8 pid 4008 and 1 more
   …st/ledger-migration       0       -       3s web6: payments migration of th…














> web1 pid 4001 (backup.sh), asked to release: database move, call Ann
enter queue w why s order R reverse / filter r revoke b break ? help q quit
";

#[test]
fn waiter_asked_to_release_is_marked() {
    let mut model = model();
    let mut main = lock("db/main", &[contender(1, 184), contender(2, 60)]);
    main.lock.waiters[0].revoked = true;
    model.handle_key(KeyCode::Enter);
    model.handle_read(read_queue(main));
    let text = screen(&mut model, 80, 24);
    assert!(text.contains("web2 pid 4002 (backup.sh), asked to release\n"), "{text}");
    assert!(text.contains("web1 pid 4001 (backup.sh)\n"), "{text}");
}

#[test]
fn deadlock_is_shown_with_its_locks() {
    let banner = |model: &mut ScreenModel, deadlocks: Vec<Deadlock>, y: usize| {
        let locks = model.list.locks.clone();
        model.handle_read(ReadResult::Locks(LockList { locks, deadlocks: deadlocks.into() }, pace()));
        screen(model, 80, 24).lines().nth(y).expect("a line").to_owned()
    };
    let mut model = model();
    let one = vec![deadlock(&["db/main", "nightly"], OwnerKind::Owner)];
    assert_eq!(
        banner(&mut model, one.clone(), 2),
        "! 1 deadlock: db/main → nightly → db/main; see zoolock deadlocks"
    );
    // The rows are below the banner.
    assert!(screen(&mut model, 80, 24).lines().nth(5).is_some_and(|line| line.starts_with(">  db/main ")));
    let unsure = vec![deadlock(&["a", "b"], OwnerKind::Session)];
    assert_eq!(banner(&mut model, unsure, 2), "! 1 possible deadlock: a → b → a; see zoolock deadlocks");
    let names = ["a-team/of-many/locks-with-long-names", "b-team/of-many/locks-with-long-names"];
    let two = vec![deadlock(&["a", "b"], OwnerKind::Owner), deadlock(&names, OwnerKind::Session)];
    assert_eq!(banner(&mut model, two, 2), "! 2 deadlocks: a → b → a, 2 owners; see zoolock deadlocks");
    // During an outage, the banner has the time of the last read.
    banner(&mut model, one, 2);
    model.handle_read(no_answer("zk1:2181: no session in time"));
    let text = screen(&mut model, 80, 24);
    let lines: Vec<_> = text.lines().skip(1).take(3).collect();
    assert_eq!(
        lines,
        [
            "4 locks, 3 held, 3 waiting · old rows, read 03:04:07, 0s ago",
            "! no answer since 03:04:07, for 0s: zk1:2181: no session in time",
            "! 1 deadlock at 03:04:07: db/main → nightly → db/main; see zoolock deadlocks",
        ]
    );
    model.handle_key(KeyCode::Enter);
    let text = screen(&mut model, 60, 16);
    assert!(text.contains("! no answer since") && text.contains("see zoolock deadlocks"), "{text}");
    assert!(text.contains("/locks/db/main: 1 hold") && text.contains("> holds"), "{text}");
}

#[test]
fn long_circles_are_counted_and_not_cut() {
    let deadlocks = [deadlock(&["a", "b"], OwnerKind::Owner), deadlock(&["c", "d", "e"], OwnerKind::Owner)];
    for (columns, text) in [
        (24, "a → b → a, c → d → e → c"),
        (23, "a → b → a, 3 owners"),
        (18, "2 owners, 3 owners"),
        (17, "5 owners"),
    ] {
        assert_eq!(fit_circles(&deadlocks, "/locks", columns), text);
    }
}

#[test]
fn old_rows_are_dim() {
    let mut model = model();
    model.handle_read(no_answer("no answer"));
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("test backend works");
    let mut is_dim = |model: &ScreenModel, y| {
        terminal.draw(|frame| draw(frame, model, false)).expect("test backend works");
        terminal.backend().buffer()[(3, y)].modifier.contains(Modifier::DIM)
    };
    assert!(is_dim(&model, 5));
    model.handle_read(ReadResult::Alive);
    assert!(!is_dim(&model, 4));
}

#[test]
fn why_window_shows_chain_and_time() {
    let mut model = model();
    assert!(model.handle_key(KeyCode::Char('w')).is_some());
    let window = |model: &mut ScreenModel| {
        let text = screen(model, 80, 24);
        let lines = text.lines().filter(|line| line.starts_with(['┌', '│'])).map(str::to_owned);
        lines.collect::<Vec<_>>().join("\n") + "\n"
    };
    assert!(window(&mut model).contains("│ reading all locks …"));
    model.show_why("/locks/db/main", Ok(CHAIN.to_owned()));
    same(&window(&mut model), WHY);
    // A long chain is scrolled.
    let chain = (0..40).map(|n| format!("link {n}\n")).collect::<String>();
    model.why.as_mut().expect("the window is open").answer = None;
    model.show_why("/locks/db/main", Ok(chain));
    assert!(window(&mut model).contains("as of 03:04:07; lines 1–19 of 40, ↑ ↓ scroll; esc closes this"));
    model.handle_key(KeyCode::End);
    let text = window(&mut model);
    assert!(text.contains("lines 22–40 of 40") && text.contains("│ link 39 "), "{text}");
    model.show_why("/locks/db/main", Err("zk1:2181: no session in time".to_owned()));
    assert!(window(&mut model).contains("│ ! zk1:2181: no session in time"));
}

const CHAIN: &str = "\
db/main is held by web1 pid 4001 (backup.sh): database move, call Ann, for 3m06s
  who waits for nightly (exclusive), for 1m02s
  which is held by web4 pid 4004 (backup.sh), for 2h00m
  it waits for no lock that zoolock sees: it is busy, stuck or dead
  look at: process 4004 on web4
  ask it:  zoolock revoke nightly --token 00000000-0000000500000104-00000000
";

const WHY: &str = "
┌ why db/main ─────────────────────────────────────────────────────────────────┐
│ db/main is held by web1 pid 4001 (backup.sh): database move, call Ann, for   │
│     3m06s                                                                    │
│   who waits for nightly (exclusive), for 1m02s                               │
│   which is held by web4 pid 4004 (backup.sh), for 2h00m                      │
│   it waits for no lock that zoolock sees: it is busy, stuck or dead          │
│   look at: process 4004 on web4                                              │
│   ask it:  zoolock revoke nightly --token                                    │
│     00000000-0000000500000104-00000000                                       │
│ as of 03:04:07; any key closes this                                          │
";
