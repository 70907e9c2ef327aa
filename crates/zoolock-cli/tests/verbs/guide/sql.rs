//! Statements, in SQLite.

use rusqlite::Connection;

use crate::guide::book::{Block, Page};

/// What the blocks of a page share.
pub(crate) struct Database {
    connection: Connection,
}

impl Database {
    pub(crate) fn for_page(page: &Page) -> Self {
        let connection = Connection::open_in_memory().expect("SQLite is built in");
        if page.path == "README.md" {
            // The README shows the statement alone.
            let account =
                "CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER NOT NULL, token TEXT NOT NULL)";
            connection.execute_batch(account).expect("a new table");
        }
        Self { connection }
    }

    /// Runs what has no parameters; what has some is compiled against the tables.
    pub(crate) fn run(&mut self, block: &Block) {
        for (statement, rows) in statements(&block.text) {
            let place = format!("{}: {statement}", block.place);
            let mut prepared =
                self.connection.prepare(&statement).unwrap_or_else(|error| panic!("{place}: {error}"));
            if prepared.parameter_count() > 0 {
                assert_eq!(rows, None, "{place}: it is not run, and changes no rows");
                continue;
            }
            let changed = prepared.execute([]).unwrap_or_else(|error| panic!("{place}: {error}"));
            if let Some(rows) = rows {
                assert_eq!(changed, rows, "{place}: rows changed");
            }
        }
    }
}

/// Each with the number of rows that a comment behind it names.
fn statements(text: &str) -> Vec<(String, Option<usize>)> {
    let mut found: Vec<(String, Option<usize>)> = Vec::new();
    let mut statement = String::new();
    for line in text.lines() {
        let expected = line.strip_prefix("-- ").and_then(|comment| {
            let (count, rest) = comment.split_once(' ')?;
            rest.starts_with("row").then(|| count.parse::<usize>().ok())?
        });
        match (expected, found.last_mut()) {
            (Some(count), Some((_, rows))) if statement.is_empty() => *rows = Some(count),
            _ if line.is_empty() || line.starts_with("--") => {}
            _ => {
                statement.push_str(line);
                statement.push('\n');
                // The README ends its statement with a comment.
                let code = line.split("--").next().unwrap_or_default().trim_end();
                if code.ends_with(';') {
                    found.push((std::mem::take(&mut statement), None));
                }
            }
        }
    }
    if !statement.is_empty() {
        found.push((statement, None));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(sql: &str) {
        let page = Page::of("p.md", &format!("```sql\n{sql}```\n"));
        let mut database = Database::for_page(&page);
        page.blocks().iter().for_each(|block| database.run(block));
    }

    #[test]
    fn statements_are_run_and_their_rows_counted() {
        run(
            "CREATE TABLE a (b TEXT);\n-- why\nINSERT INTO a\n VALUES ('c');\n-- 1 row\nUPDATE a SET b = :b;\n",
        );
    }

    #[test]
    #[should_panic(expected = "rows changed")]
    fn another_number_of_rows_is_found() {
        run("CREATE TABLE a (b TEXT);\nUPDATE a SET b = 'c';\n-- 1 row\n");
    }

    #[test]
    #[should_panic(expected = "no such column")]
    fn a_column_that_is_not_there_is_found() {
        run("CREATE TABLE a (b TEXT);\nUPDATE a SET c = :c;\n");
    }
}
