//! Tests of the example `fenced_sql`, and of the SQL in the guide.

#[path = "../examples/fenced_sql/scenarios.rs"]
mod scenarios;
#[path = "../examples/fenced_sql/table.rs"]
mod table;

use rusqlite::Connection;
use scenarios::{End, between_read_and_write, late_write, wiped_ensemble};
use table::{Reports, Write};

fn end(late: Write, body: &str) -> End {
    End { late, body: body.to_owned() }
}

#[tokio::test]
async fn late_write_is_refused() {
    let table = Reports::with_one_row().expect("table created");
    assert_eq!(late_write(&table, Reports::update).await.expect("scenario ended"), end(Write::Refused, "B"));
}

#[tokio::test]
async fn late_write_succeeds_without_token_comparison() {
    let table = Reports::with_one_row().expect("table created");
    let unfenced = late_write(&table, Reports::update_unfenced).await.expect("scenario ended");
    assert_eq!(unfenced, end(Write::Done, "A"), "the unfenced write was refused");
}

#[tokio::test]
async fn late_first_write_is_refused() {
    let table = Reports::empty().expect("table created");
    assert_eq!(late_write(&table, Reports::put).await.expect("scenario ended"), end(Write::Refused, "B"));
}

#[tokio::test]
async fn only_a_claim_refuses_writes_after_newer_read() {
    let claimed = between_read_and_write(true).await.expect("scenario ended");
    assert_eq!(claimed, end(Write::Refused, "1"));
    let unclaimed = between_read_and_write(false).await.expect("scenario ended");
    assert_eq!(unclaimed, end(Write::Done, "1"), "one of two additions is lost");
}

#[tokio::test]
async fn writes_after_wipe_need_higher_token_epoch() {
    assert_eq!(wiped_ensemble(0).await.expect("scenario ended"), end(Write::Refused, "old"));
    assert_eq!(wiped_ensemble(1).await.expect("scenario ended"), end(Write::Done, "new"));
}

#[tokio::test]
async fn holder_may_write_repeatedly() {
    let server = zoolock::TestServer::start().await.expect("server started");
    let zl = server.connect().await.expect("connected");
    let guard = zl.mutex("nightly").lock().await.expect("lock granted");
    let table = Reports::empty().expect("table created");
    assert_eq!(
        table.update("early", guard.token()).expect("statement executed"),
        Write::Refused,
        "the row does not exist"
    );
    for write in [Reports::put, Reports::put, Reports::update, Reports::update] {
        assert_eq!(write(&table, "again", guard.token()).expect("statement executed"), Write::Done);
    }
    assert_eq!(table.claim(guard.token()).expect("statement executed"), Write::Done);
    assert_eq!(table.body().expect("statement executed").as_deref(), Some("again"));
}

/// Returns the SQL blocks of a page.
fn sql(page: &str) -> Vec<String> {
    let page = format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(page).expect("page read");
    let blocks = text.split("\n```sql\n").skip(1);
    blocks.map(|rest| rest.split("\n```").next().expect("a block has an end").to_owned() + "\n").collect()
}

/// Splits a block into its statements, each with the number of rows that the comment below it names.
fn statements(block: &str) -> Vec<(String, Option<usize>)> {
    let (mut all, mut statement) = (Vec::<(String, Option<usize>)>::new(), String::new());
    for line in block.lines() {
        let rows = line.strip_prefix("-- ").and_then(|comment| comment.split_once(" row"));
        if let Some((count, _)) = rows {
            all.last_mut().expect("a statement precedes the comment").1 = count.parse::<usize>().ok();
        } else if !line.is_empty() && !line.starts_with("--") {
            statement += &format!("{line}\n");
            if line.split("--").next().is_some_and(|code| code.trim_end().ends_with(';')) {
                all.push((std::mem::take(&mut statement), None));
            }
        }
    }
    // The last statement of a block may end without a semicolon.
    all.extend((!statement.is_empty()).then_some((statement, None)));
    all
}

/// Runs the statements without parameters and compares the rows that they change. Compiles the others.
fn run(database: &Connection, blocks: &[String]) {
    assert!(!blocks.is_empty());
    for (statement, rows) in blocks.iter().flat_map(|block| statements(block)) {
        let mut prepared =
            database.prepare(&statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        if prepared.parameter_count() > 0 {
            assert_eq!(rows, None, "{statement} has parameters and is not run");
            continue;
        }
        let changed = prepared.execute([]).unwrap_or_else(|error| panic!("{statement}: {error}"));
        assert!(rows.is_none_or(|rows| rows == changed), "{statement} changed {changed} rows");
    }
}

#[test]
fn sql_of_the_guide_runs() {
    run(&Connection::open_in_memory().expect("database opened"), &sql("guide/src/fencing.md"));
}

#[test]
#[should_panic(expected = "changed 0 rows")]
fn wrong_number_of_rows_is_found() {
    let block = "CREATE TABLE a (b TEXT);\nUPDATE a SET b = 'c';\n-- 1 row\n".to_owned();
    run(&Connection::open_in_memory().expect("database opened"), &[block]);
}
