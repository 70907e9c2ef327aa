use super::super::samples::{
    START_MS, at, contender, deadlock, lock, model, pace, read, read_queue, setting, ticket,
};
use zoolock::admin::{Family, OwnerKind};

use super::*;

fn keys(model: &mut ScreenModel, text: &str) {
    for c in text.chars() {
        assert_eq!(model.handle_key(KeyCode::Char(c)), None, "{c}");
    }
}

fn names(model: &ScreenModel) -> Vec<&str> {
    model.rows.iter().map(|place| model.name(&model.list.locks[*place].lock.path)).collect()
}

fn selected(model: &ScreenModel) -> &str {
    model.selected_lock().map_or("", |lock| model.name(&lock.lock.path))
}

fn message(model: &ScreenModel) -> &str {
    model.message.as_ref().map_or("", |message| message.text.as_str())
}

fn locks(count: usize) -> Vec<ListedLock> {
    (0..count).map(|n| lock(&format!("job{n:03}"), &[])).collect()
}

/// Returns a read of one lock and this number of deadlocks.
fn with_deadlocks(count: usize) -> ReadResult {
    let deadlocks = vec![deadlock(&["db/main", "nightly"], OwnerKind::Owner); count];
    ReadResult::Locks(LockList { locks: locks(1), deadlocks: deadlocks.into() }, pace())
}

/// Returns a failure of a read without an answer.
fn no_answer() -> ReadResult {
    ReadResult::Failed(ReadFailure::Unreachable("no answer".to_owned()))
}

#[test]
fn keys_change_the_order() {
    let mut model = model();
    assert_eq!(names(&model), ["db/main", "nightly", "deploys", "reports"]);
    keys(&mut model, "2");
    assert_eq!(names(&model), ["nightly", "db/main", "deploys", "reports"]);
    keys(&mut model, "s");
    assert_eq!(names(&model), ["reports", "db/main", "nightly", "deploys"]);
    keys(&mut model, "s");
    assert_eq!(names(&model), ["nightly", "db/main", "reports", "deploys"]);
    keys(&mut model, "s");
    assert_eq!(model.order, ListOrder::Waiting);
    keys(&mut model, "4R");
    assert_eq!(names(&model), ["reports", "db/main", "nightly", "deploys"]);
    keys(&mut model, "R");
    assert_eq!(names(&model), ["nightly", "db/main", "reports", "deploys"]);
}

#[test]
fn cursor_follows_its_lock_when_rows_move() {
    let mut model = model();
    keys(&mut model, "j");
    assert_eq!((selected(&model), model.cursor.at), ("nightly", 1));
    model.handle_read(read(vec![lock("a", &[]), lock("nightly", &[contender(1, 9), contender(2, 9_000)])]));
    assert_eq!((selected(&model), model.cursor.at), ("nightly", 0));
    model.handle_read(read(vec![lock("a", &[contender(1, 9), contender(2, 9_000)]), lock("nightly", &[])]));
    assert_eq!((selected(&model), model.cursor.at), ("nightly", 1));
    // The lock was deleted, and another lock is in its row.
    model.handle_read(read(vec![lock("a", &[]), lock("b", &[]), lock("c", &[])]));
    assert_eq!((selected(&model), model.cursor.at), ("b", 1));
    model.handle_read(read(Vec::new()));
    assert_eq!((selected(&model), model.cursor.at), ("", 0));
    for key in [KeyCode::Down, KeyCode::End, KeyCode::Enter, KeyCode::Char('r'), KeyCode::PageUp] {
        assert_eq!(model.handle_key(key), None);
    }
}

#[test]
fn new_order_shows_the_start_of_the_list() {
    let mut model = ScreenModel::new(setting(), at(0));
    model.handle_read(read(locks(100)));
    for order in ["2", "s", "R"] {
        assert_eq!(model.handle_key(KeyCode::End), None);
        assert_eq!(model.cursor.at, 99);
        keys(&mut model, order);
        assert_eq!((model.cursor.at, model.cursor.first), (0, 0), "{order}");
    }
}

#[test]
fn cursor_on_first_row_stays_on_first_row() {
    let mut model = model();
    keys(&mut model, "jk3");
    assert_eq!((selected(&model), model.cursor.at), ("reports", 0));
}

#[test]
fn holder_that_cannot_be_asked_is_named() {
    let mut model = ScreenModel::new(setting(), at(0));
    let mut kazoo = contender(1, 5);
    (kazoo.family, kazoo.identifier) = (Family::Kazoo, Some("host-7".to_owned()));
    (kazoo.host, kazoo.pid, kazoo.program) = (None, None, None);
    kazoo.unrevocable = Some("its client library does not read requests to release");
    model.handle_read(read(vec![lock("x", &[kazoo])]));
    keys(&mut model, "r");
    let refusal = "x: kazoo: host-7 cannot be asked to release: its client library does not read requests to release; b \
                   breaks the lock";
    assert_eq!((model.confirmation.is_none(), message(&model)), (true, refusal));
    keys(&mut model, "b");
    assert!(model.confirmation.is_some());
}

#[test]
fn scrolling_keeps_the_cursor_visible() {
    let mut model = ScreenModel::new(setting(), at(0));
    model.handle_read(read(locks(100)));
    let visible_rows = model.visible_rows();
    assert_eq!(visible_rows, 18);
    for (key, at, first) in [
        (KeyCode::PageDown, visible_rows, 1),
        (KeyCode::PageDown, 2 * visible_rows, visible_rows + 1),
        (KeyCode::Up, 2 * visible_rows - 1, visible_rows + 1),
        (KeyCode::End, 99, 100 - visible_rows),
        (KeyCode::PageUp, 99 - visible_rows, 99 - visible_rows),
        (KeyCode::Home, 0, 0),
        (KeyCode::PageUp, 0, 0),
        (KeyCode::Char('G'), 99, 100 - visible_rows),
    ] {
        assert_eq!(model.handle_key(key), None);
        assert_eq!((model.cursor.at, model.cursor.first), (at, first), "{key:?}");
    }
    // A larger screen leaves no gap below the last row. A smaller screen keeps the cursor visible.
    model.resize(80, 56);
    assert_eq!(model.cursor.first, 50);
    model.resize(80, 16);
    assert_eq!(model.cursor.first, 90);
}

#[test]
fn filter_is_typed_kept_and_restored() {
    let mut model = model();
    keys(&mut model, "/QN");
    assert!(names(&model).is_empty());
    assert_eq!(model.handle_key(KeyCode::Backspace), None);
    assert_eq!(model.handle_key(KeyCode::Backspace), None);
    keys(&mut model, "night");
    assert_eq!(names(&model), ["nightly"]);
    assert_eq!(model.handle_key(KeyCode::Enter), None);
    // Letters are commands again.
    keys(&mut model, "j2");
    assert_eq!((names(&model), model.order), (vec!["nightly"], ListOrder::Longest));
    keys(&mut model, "/x");
    assert_eq!(model.handle_key(KeyCode::Esc), None);
    assert_eq!(model.filter, "night");
    assert_eq!(model.handle_key(KeyCode::Esc), None);
    assert_eq!(names(&model).len(), 4);
    keys(&mut model, "/");
    keys(&mut model, &"x".repeat(1000));
    assert!(model.filter.len() < 100);
}

#[test]
fn queue_is_opened_read_and_left() {
    let mut model = model();
    assert_eq!(model.subject(), ReadScope::All);
    assert_eq!(model.handle_key(KeyCode::Enter), None);
    assert_eq!(model.subject(), ReadScope::One("/locks/db/main".to_owned()));
    keys(&mut model, "jj");
    let on = |model: &ScreenModel| model.queue.as_ref().expect("the queue is open").cursor.at;
    assert_eq!(on(&model), 2);
    // The holder has left. The cursor follows the selected waiter to index 1.
    let result = read_queue(lock("db/main", &[contender(2, 60), contender(3, 5)]));
    model.handle_read(result);
    assert_eq!(on(&model), 1);
    // A late read of another queue is ignored.
    model.handle_read(read_queue(lock("nightly", &[])));
    assert_eq!(model.selected_lock().map(|lock| lock.lock.waiting), Some(1));
    assert_eq!(model.handle_key(KeyCode::Esc), None);
    assert_eq!(model.subject(), ReadScope::All);
    assert_eq!(model.handle_key(KeyCode::Char('q')), Some(TopCommand::Quit));
}

#[test]
fn holder_is_asked_only_after_yes() {
    let request = ActionRequest {
        action: AdminAction::Revoke,
        path: "/locks/db/main".to_owned(),
        name: "db/main".to_owned(),
        token: ticket(1),
    };
    let mut model = model();
    for no in [KeyCode::Char('n'), KeyCode::Enter, KeyCode::Esc, KeyCode::Char('q'), KeyCode::Down] {
        keys(&mut model, "r");
        assert_eq!(model.handle_key(no), None);
        assert!(message(&model).contains("no request sent"), "{:?}", model.message);
    }
    keys(&mut model, "r");
    assert_eq!(model.handle_key(KeyCode::Char('y')), Some(TopCommand::Do(request)));
    assert!(model.confirmation.is_none());
    model.show_action_result(Ok("db/main: asked it".to_owned()));
    assert!(message(&model).contains("asked it"));
    model.show_action_result(Err("it is not there".to_owned()));
    assert!(model.message.as_ref().is_some_and(|message| message.bad && message.text == "it is not there"));
}

#[test]
fn lock_is_broken_only_by_whole_word() {
    let mut model = model();
    for wrong in ["", "y", "brea", "breaks", "Break"] {
        keys(&mut model, "b");
        keys(&mut model, wrong);
        assert_eq!(model.handle_key(KeyCode::Enter), None);
        assert!(message(&model).contains("nothing was broken"), "{wrong}");
    }
    keys(&mut model, "b");
    keys(&mut model, "brek");
    assert_eq!(model.handle_key(KeyCode::Backspace), None);
    // A read during the confirmation does not change the contender of the confirmation, although
    // that contender has left the queue.
    model.handle_read(read(vec![lock("db/main", &[contender(2, 60)])]));
    assert!(!model.is_still_queued(&model.confirmation.clone().expect("a confirmation is open")));
    keys(&mut model, "ak");
    let Some(TopCommand::Do(request)) = model.handle_key(KeyCode::Enter) else { panic!("the word confirms") };
    assert_eq!((request.action, request.token), (AdminAction::Break, ticket(1)));
    assert_eq!(model.handle_key(INTERRUPT), Some(TopCommand::Quit));
}

#[test]
fn waiter_is_broken_by_its_token() {
    let mut model = model();
    assert_eq!(model.handle_key(KeyCode::Enter), None);
    assert_eq!(model.handle_key(KeyCode::End), None);
    keys(&mut model, "b");
    let confirmation = model.confirmation.clone().expect("a confirmation is open");
    assert_eq!((confirmation.request.token, confirmation.holds), (ticket(3), false));
    assert!(model.is_still_queued(&confirmation));
    model.handle_read(read_queue(lock("db/main", &[contender(1, 184)])));
    assert!(!model.is_still_queued(&confirmation));
}

#[test]
fn action_needs_one_readable_contender() {
    let mut model = model();
    keys(&mut model, "jjb");
    assert_eq!((selected(&model), model.confirmation.is_none()), ("deploys", true));
    assert!(message(&model).contains("no holder"));
    // With several holders, the user must select one. An unreadable contender has no token.
    let mut shared = lock("db/main", &[contender(1, 9)]);
    shared.lock.beside.push(contender(2, 8));
    shared.lock.beside[0].token = None;
    model.handle_read(read(vec![shared]));
    keys(&mut model, "gr");
    assert!(
        model.confirmation.is_none() && message(&model).contains("2 hold db/main"),
        "{:?}",
        model.message
    );
    assert_eq!(model.handle_key(KeyCode::Enter), None);
    keys(&mut model, "jr");
    assert!(
        model.confirmation.is_none() && message(&model).contains("cannot be read"),
        "{:?}",
        model.message
    );
    keys(&mut model, "kr");
    assert!(model.confirmation.is_some());
}

#[test]
fn read_only_does_nothing_to_locks() {
    let mut model = model();
    model.setting.read_only = true;
    for key in ["r", "b"] {
        keys(&mut model, key);
        assert!(model.confirmation.is_none() && message(&model).contains("--read-only"));
    }
}

#[test]
fn outage_counts_from_last_answer() {
    let mut model = model();
    model.tick(at(12));
    model.handle_read(ReadResult::Alive);
    model.tick(at(20));
    model.handle_read(no_answer());
    model.tick(at(30));
    model.handle_read(ReadResult::Failed(ReadFailure::Refused("no credentials".to_owned())));
    let Outage { since, failure } = model.outage.clone().expect("reading fails");
    assert_eq!(since.unix_ms, at(12).unix_ms);
    assert_eq!(failure, ReadFailure::Refused("no credentials".to_owned()));
    // Ages stay as they were at the last read.
    assert_eq!(model.age_reference_ms(), START_MS + 2000);
    model.handle_read(read(locks(1)));
    assert!(model.outage.is_none());
    assert_eq!(model.age_reference_ms(), START_MS + 30_000);
}

#[test]
fn message_expires_or_ends_with_next_key() {
    let mut model = model();
    model.show_message("done".to_owned());
    model.tick(at(31));
    assert_eq!(message(&model), "done");
    model.tick(at(32));
    assert_eq!(message(&model), "");
    model.show_message("done".to_owned());
    keys(&mut model, "j");
    assert_eq!(message(&model), "");
}

#[test]
fn small_screen_ignores_keys() {
    let mut model = model();
    model.resize(40, 5);
    keys(&mut model, "rby");
    assert!(model.confirmation.is_none());
    assert_eq!(model.handle_key(KeyCode::Char('q')), Some(TopCommand::Quit));
    model.resize(80, 24);
    keys(&mut model, "r");
    model.resize(40, 5);
    assert_eq!(model.handle_key(KeyCode::Char('y')), None);
    model.resize(80, 24);
    assert!(model.confirmation.is_some());
}

#[test]
fn why_window_shows_answer_for_its_lock() {
    let mut model = model();
    let path = "/locks/db/main".to_owned();
    assert_eq!(model.handle_key(KeyCode::Char('w')), Some(TopCommand::Explain(path.clone())));
    model.show_why("/locks/nightly", Ok("wrong lock".to_owned()));
    let answer = |model: &ScreenModel| model.why.as_ref().map(|why| why.answer.is_some());
    assert_eq!(answer(&model), Some(false));
    model.show_why(&path, Ok("busy".to_owned()));
    assert_eq!(answer(&model), Some(true));
    // Keys of the list do not act on locks behind the window.
    keys(&mut model, "b");
    assert!(model.why.is_none() && model.confirmation.is_none());
    // An answer that arrives after the window was closed is ignored.
    model.show_why(&path, Ok("busy".to_owned()));
    assert_eq!(answer(&model), None);
    // The queue of a lock has the same key. An empty list has no lock to ask about.
    assert_eq!(model.handle_key(KeyCode::Enter), None);
    assert_eq!(model.handle_key(KeyCode::Char('w')), Some(TopCommand::Explain(path)));
    let mut empty = ScreenModel::new(setting(), at(0));
    keys(&mut empty, "w");
}

#[test]
fn overdue_read_makes_rows_old() {
    let mut model = model();
    // The read was at 2 s, and the next one is due a second later.
    model.tick(at(4));
    assert!(!model.has_old_rows());
    assert_eq!(model.age_reference_ms(), START_MS + 4_000);
    model.tick(at(5));
    assert!(model.has_old_rows());
    assert_eq!(model.age_reference_ms(), START_MS + 2_000);
}

#[test]
fn deadlocks_stay_until_the_next_read() {
    let mut model = model();
    model.handle_read(with_deadlocks(1));
    assert_eq!((model.list.deadlocks.len(), model.visible_rows()), (1, 17));
    assert!(model.old_deadlocks_at().is_none());
    model.handle_read(no_answer());
    assert_eq!((model.list.deadlocks.len(), model.visible_rows()), (1, 16));
    assert_eq!(model.old_deadlocks_at().map(|at| at.unix_ms), Some(START_MS + 2_000));
    model.handle_read(with_deadlocks(0));
    assert_eq!((model.list.deadlocks.len(), model.visible_rows()), (0, 18));
}

#[test]
fn any_key_only_closes_help() {
    let mut model = model();
    keys(&mut model, "?");
    assert!(model.help);
    keys(&mut model, "q");
    assert!(!model.help);
}

#[test]
fn keys_are_safe_in_any_order() {
    let all = [
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Backspace,
        REDRAW,
        STOP,
    ];
    let all = all.into_iter().chain("1234RwsjkrbyG/?x é夜".chars().map(KeyCode::Char)).collect::<Vec<_>>();
    let mut model = model();
    // A pseudo-random walk with a fixed seed.
    let mut state = 1_u64;
    for step in 0..20_000_u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = usize::try_from(state >> 33).expect("31 bits");
        model.handle_key(all[pick % all.len()]);
        match pick % 97 {
            0 => model.handle_read(read(locks(pick % 50))),
            1 => model.resize(
                u16::try_from(pick % 120).expect("below 120"),
                u16::try_from(pick % 40).expect("below 40"),
            ),
            2 => model.handle_read(no_answer()),
            4 => model.handle_read(with_deadlocks(pick % 2)),
            5 => model.show_why("/locks/job001", Ok("busy\n".repeat(pick % 40))),
            3 => {
                if let ReadScope::One(path) = model.subject() {
                    let lock = lock(path.trim_start_matches("/locks/"), &vec![contender(1, 1); pick % 30]);
                    model.handle_read(read_queue(lock));
                }
            }
            _ => {}
        }
        model.tick(at(step));
        let (cursor, count) = match &model.queue {
            Some(queue) => (&queue.cursor, queue.lock.lock.queue().count()),
            None => (&model.cursor, model.rows.len()),
        };
        assert!(cursor.at == 0 || cursor.at < count);
        assert!(cursor.first <= cursor.at && cursor.at < cursor.first + model.visible_rows());
    }
}
