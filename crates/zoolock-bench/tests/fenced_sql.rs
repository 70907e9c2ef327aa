//! What the example `fenced_sql` says of a late write is so.

#[path = "../examples/fenced_sql/story.rs"]
mod story;
#[path = "../examples/fenced_sql/table.rs"]
mod table;

use story::{End, between_read_and_write, late_write, wiped_ensemble};
use table::{Reports, Write};

fn end(late: Write, body: &str) -> End {
    End { late, body: body.to_owned() }
}

#[tokio::test]
async fn late_write_is_refused_and_the_newer_one_stands() {
    let table = Reports::with_one_row().expect("a table");
    assert_eq!(late_write(&table, Reports::update).await.expect("no error"), end(Write::Refused, "B"));
}

#[tokio::test]
async fn late_write_goes_through_where_nobody_compares_the_token() {
    let table = Reports::with_one_row().expect("a table");
    let unfenced = late_write(&table, Reports::update_unfenced).await.expect("no error");
    assert_eq!(unfenced, end(Write::Done, "A"), "or the other test proves nothing");
}

#[tokio::test]
async fn late_first_write_is_refused() {
    let table = Reports::empty().expect("a table");
    assert_eq!(late_write(&table, Reports::put).await.expect("no error"), end(Write::Refused, "B"));
}

#[tokio::test]
async fn late_write_after_a_newer_reading_is_refused_by_a_claim_only() {
    let claimed = between_read_and_write(true).await.expect("no error");
    assert_eq!(claimed, end(Write::Refused, "1"));
    let unclaimed = between_read_and_write(false).await.expect("no error");
    assert_eq!(unclaimed, end(Write::Done, "1"), "one of two additions is lost");
}

#[tokio::test]
async fn writes_go_on_after_a_wipe_with_a_higher_token_epoch_only() {
    assert_eq!(wiped_ensemble(0).await.expect("no error"), end(Write::Refused, "old"));
    assert_eq!(wiped_ensemble(1).await.expect("no error"), end(Write::Done, "new"));
}

#[tokio::test]
async fn a_holder_may_write_as_often_as_it_likes() {
    let server = zoolock::TestServer::start().await.expect("a server");
    let zl = server.connect().await.expect("a session");
    let guard = zl.mutex("nightly").lock().await.expect("free");
    let table = Reports::empty().expect("a table");
    assert_eq!(table.update("early", guard.token()).expect("no error"), Write::Refused, "there is no row");
    for write in [Reports::put, Reports::put, Reports::update, Reports::update] {
        assert_eq!(write(&table, "again", guard.token()).expect("no error"), Write::Done);
    }
    assert_eq!(table.claim(guard.token()).expect("no error"), Write::Done);
    assert_eq!(table.body().expect("no error").as_deref(), Some("again"));
}
