//! The SQL statements.

use rusqlite::{Connection, OptionalExtension, Result};
use zoolock::FencingToken;

/// A table whose rows refuse the writes of former holders.
///
/// The text of a token has a fixed width of 34 characters, so texts compare as the tokens do. A write with the stored
/// token succeeds, so a holder can write more than once.
///
/// *A row refuses older tokens only after its first write with a newer token.* A holder that reads
/// before it writes should [`claim`](Reports::claim) the row before it reads. If a lock protects
/// many rows or tables, give the lock a row of its own (`fence (name, token)`). Begin each
/// transaction with the `UPDATE` of that row, and roll back if it changes no row. Then the other
/// tables need no column for the token. A deleted row loses its token: mark rows as deleted
/// instead, or use such a `fence` row.
///
/// **PostgreSQL**: the same statements, with `$1`. Declare `token text COLLATE "C" NOT NULL`, because other collations do
/// not compare bytes. In READ COMMITTED, an `UPDATE` that waited for a locked row checks its `WHERE` again. In REPEATABLE
/// READ and SERIALIZABLE it fails with 40001: repeat the transaction, and the `WHERE` decides. A holder that is paused
/// within a transaction keeps its row locks: set `idle_in_transaction_session_timeout`.
///
/// **MySQL**: `token CHAR(34) CHARACTER SET ascii COLLATE ascii_bin NOT NULL`. The `UPDATE` is the same, but the server
/// counts the rows that it *changed*. A holder that writes the same values twice seems to be refused, unless the client
/// connects with CLIENT_FOUND_ROWS. `ON DUPLICATE KEY UPDATE` accepts no `WHERE`: send `INSERT IGNORE` and then the
/// `UPDATE`, in one transaction.
pub(crate) struct Reports {
    db: Connection,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// The row has the new values.
    Done,
    /// No row changed, because a newer holder has written. Stop, and do not retry.
    Refused,
}

impl Reports {
    /// The id of the row.
    pub(crate) const ID: &str = "nightly";

    /// Creates a table without rows.
    pub(crate) fn empty() -> Result<Self> {
        let db = Connection::open_in_memory()?;
        db.execute_batch(
            "CREATE TABLE report (id TEXT PRIMARY KEY, body TEXT NOT NULL, token TEXT NOT NULL)",
        )?;
        Ok(Self { db })
    }

    /// Creates a table with a row that has no token yet. The empty text is lower than any token.
    pub(crate) fn with_one_row() -> Result<Self> {
        let table = Self::empty()?;
        table.db.execute("INSERT INTO report (id, body, token) VALUES (?1, '0', '')", [Self::ID])?;
        Ok(table)
    }

    /// Writes to an existing row.
    pub(crate) fn update(&self, body: &str, token: FencingToken) -> Result<Write> {
        let update = "UPDATE report SET body = ?3, token = ?1 WHERE id = ?2 AND token <= ?1";
        self.db.execute(update, (token.to_string(), Self::ID, body)).map(written)
    }

    /// Writes to a row, and creates the row if it does not exist.
    ///
    /// This is one statement, because a newer holder could write between a `SELECT` and an `INSERT`
    /// or `UPDATE`.
    pub(crate) fn put(&self, body: &str, token: FencingToken) -> Result<Write> {
        let put = "INSERT INTO report (id, body, token) VALUES (?2, ?3, ?1) \
                   ON CONFLICT (id) DO UPDATE SET body = excluded.body, token = excluded.token \
                   WHERE report.token <= excluded.token";
        self.db.execute(put, (token.to_string(), Self::ID, body)).map(written)
    }

    /// Writes the token to the row, and nothing else. Creates the row with the body 0 if it does not exist. From now on,
    /// older holders are refused. Call this before the first read: otherwise an older holder can write after the read.
    pub(crate) fn claim(&self, token: FencingToken) -> Result<Write> {
        let claim = "INSERT INTO report (id, body, token) VALUES (?2, '0', ?1) \
                     ON CONFLICT (id) DO UPDATE SET token = excluded.token WHERE report.token <= excluded.token";
        self.db.execute(claim, (token.to_string(), Self::ID)).map(written)
    }

    /// Writes the token without a comparison. A bad example: no write is refused.
    pub(crate) fn update_unfenced(&self, body: &str, token: FencingToken) -> Result<Write> {
        let update = "UPDATE report SET body = ?3, token = ?1 WHERE id = ?2";
        self.db.execute(update, (token.to_string(), Self::ID, body)).map(written)
    }

    /// Returns the body of the row, or `None` if the row does not exist.
    pub(crate) fn body(&self) -> Result<Option<String>> {
        let select = "SELECT body FROM report WHERE id = ?1";
        self.db.query_row(select, [Self::ID], |row| row.get(0)).optional()
    }
}

fn written(rows: usize) -> Write {
    if rows == 0 { Write::Refused } else { Write::Done }
}
