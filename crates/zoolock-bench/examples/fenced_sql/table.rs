//! The statements.

use rusqlite::{Connection, OptionalExtension, Result};
use zoolock::FencingToken;

/// A table whose rows refuse those who are not the newest holder any more.
///
/// The text of a token has a fixed width (34 characters), so it compares as the token does. Equal is allowed, or a
/// holder could write only once.
///
/// *A row is protected from the moment it has seen the newer token.* A holder who first reads and then writes should
/// [`claim`](Reports::claim) before it reads. Where a lock protects many rows or tables, give it a row of its own
/// (`fence (name, token)`), and begin each transaction with the `UPDATE` of that row: no row, roll back. The other
/// tables need no column then. A row that is deleted forgets its token: mark it as deleted, or use such a fence.
///
/// **PostgreSQL**: the same statements, with `$1`; `token text COLLATE "C" NOT NULL`, since other collations are not
/// bound to the order of bytes. In READ COMMITTED an `UPDATE` that had to wait for another's row looks at its `WHERE`
/// again; in REPEATABLE READ and SERIALIZABLE it fails with 40001: begin again, and let the `WHERE` decide. Whoever
/// was stopped within a transaction keeps its row locks: set `idle_in_transaction_session_timeout`.
///
/// **MySQL**: `token CHAR(34) CHARACTER SET ascii COLLATE ascii_bin NOT NULL`. The `UPDATE` is the same, but the
/// server counts the rows that it *changed*: the same holder who writes the same twice looks refused, unless the
/// client connects with CLIENT_FOUND_ROWS. `ON DUPLICATE KEY UPDATE` takes no `WHERE`: send `INSERT IGNORE` and then
/// the `UPDATE`, in one transaction.
pub(crate) struct Reports {
    db: Connection,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// It stands.
    Done,
    /// No row was changed: somebody newer was here. Stop; do not look, do not try again.
    Refused,
}

impl Reports {
    /// The row that all this is about.
    pub(crate) const ID: &str = "nightly";

    /// A table without rows.
    pub(crate) fn empty() -> Result<Self> {
        let db = Connection::open_in_memory()?;
        db.execute_batch(
            "CREATE TABLE report (id TEXT PRIMARY KEY, body TEXT NOT NULL, token TEXT NOT NULL)",
        )?;
        Ok(Self { db })
    }

    /// A table with a row from the time before there was a lock: the empty text is lower than any token.
    pub(crate) fn with_one_row() -> Result<Self> {
        let table = Self::empty()?;
        table.db.execute("INSERT INTO report (id, body, token) VALUES (?1, '0', '')", [Self::ID])?;
        Ok(table)
    }

    /// Writes to a row that is there.
    pub(crate) fn update(&self, body: &str, token: FencingToken) -> Result<Write> {
        let update = "UPDATE report SET body = ?3, token = ?1 WHERE id = ?2 AND token <= ?1";
        self.db.execute(update, (token.to_string(), Self::ID, body)).map(written)
    }

    /// Writes to a row that may not be there yet.
    ///
    /// Not `SELECT` and then `INSERT` or `UPDATE`: somebody newer may come in between.
    pub(crate) fn put(&self, body: &str, token: FencingToken) -> Result<Write> {
        let put = "INSERT INTO report (id, body, token) VALUES (?2, ?3, ?1) \
                   ON CONFLICT (id) DO UPDATE SET body = excluded.body, token = excluded.token \
                   WHERE report.token <= excluded.token";
        self.db.execute(put, (token.to_string(), Self::ID, body)).map(written)
    }

    /// Shows the row our token and changes nothing else (a row that is not there yet begins with 0): nobody older can
    /// write from now on. Comes before the first reading, whose result could else be old when it is used.
    pub(crate) fn claim(&self, token: FencingToken) -> Result<Write> {
        let claim = "INSERT INTO report (id, body, token) VALUES (?2, '0', ?1) \
                     ON CONFLICT (id) DO UPDATE SET token = excluded.token WHERE report.token <= excluded.token";
        self.db.execute(claim, (token.to_string(), Self::ID)).map(written)
    }

    /// What not to do: the token is written, but nobody looks at it.
    pub(crate) fn update_unfenced(&self, body: &str, token: FencingToken) -> Result<Write> {
        let update = "UPDATE report SET body = ?3, token = ?1 WHERE id = ?2";
        self.db.execute(update, (token.to_string(), Self::ID, body)).map(written)
    }

    /// The row's body, if there is a row.
    pub(crate) fn body(&self) -> Result<Option<String>> {
        let select = "SELECT body FROM report WHERE id = ?1";
        self.db.query_row(select, [Self::ID], |row| row.get(0)).optional()
    }
}

fn written(rows: usize) -> Write {
    if rows == 0 { Write::Refused } else { Write::Done }
}
