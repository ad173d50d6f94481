//! All data about a user in the service's two files, for that user (`gshare report --mine --raw`).

use gshare_proto::{StoredPlace, StoredView};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, params};
use serde_json::{Map, Value};

use super::store::{LEVELS, Store};

/// Maximum number of rows in an answer, and bytes after which it ends.
const ROWS: usize = 500;
const BYTES: usize = 1 << 20;

/// A table with rows about users.
struct Table {
    name: &'static str,
    /// Condition for rows about the user ?1 with the name ?2.
    whose: &'static str,
    columns: &'static str,
    /// Columns that rows are ordered by.
    key: [&'static str; 2],
}

const fn table(name: &'static str, whose: &'static str) -> Table {
    Table {
        name,
        whose,
        columns: "*",
        key: ["rowid", "0"],
    }
}

macro_rules! of_record {
    () => {
        "CASE WHEN json_valid(record) THEN json_extract(record, '$.uid') = ?1 END"
    };
}

const JOURNAL: [Table; 9] = [
    table("claim", of_record!()),
    table(
        "queue",
        concat!("id IN (SELECT id FROM claim WHERE ", of_record!(), ")"),
    ),
    table("unread", of_record!()),
    table("ended", "uid = ?1"),
    table("event", "uid = ?1"),
    table("quota", "party = 'user:' || ?2"),
    table("drain", "by = ?2"),
    // Their acts as administrators, and acts on their claims and guarantee.
    table(
        "audit",
        "uid = ?1 OR target = 'user:' || ?2 OR substr(target, -length(?2) - 4) = ' of ' || ?2",
    ),
    // Recent use, which the scheduler divides by.
    Table {
        columns: "key, json_extract(value, '$.past.\"' || ?1 || '\"') AS past",
        ..table(
            "meta",
            "CASE WHEN json_valid(value) THEN json_extract(value, '$.past.\"' || ?1 || '\"') IS NOT NULL END",
        )
    },
];

const HISTORY: [Table; 6] = [
    table("series", "uid = ?1"),
    table("face", "uid = ?1"),
    table("run", "uid = ?1"),
    sums(LEVELS[0].table),
    sums(LEVELS[1].table),
    sums(LEVELS[2].table),
];

const fn sums(name: &'static str) -> Table {
    Table {
        key: ["at", "series"],
        ..table(name, "series IN (SELECT id FROM series WHERE uid = ?1)")
    }
}

impl Store {
    /// The rows about a user from a position on, and where the next answer begins.
    pub(super) fn stored(
        &self,
        journal: &Connection,
        (uid, user): (u32, &str),
        after: Option<&StoredPlace>,
    ) -> rusqlite::Result<StoredView> {
        let all = JOURNAL.iter().map(|t| (journal, t));
        let all = all.chain(HISTORY.iter().map(|t| (&self.db, t)));
        let first = after.map_or(0, |place| place.table as usize);
        let mut key = after.map_or([i64::MIN; 2], |place| place.key);
        let mut view = StoredView::default();
        let mut bytes = 0;
        for (n, (db, table)) in all.enumerate().skip(first) {
            let [major, minor] = table.key;
            let mut rows = db.prepare_cached(&format!(
                "SELECT {major}, {minor}, {} FROM {} WHERE ({}) AND ({major}, {minor}) > (?3, ?4)
                 ORDER BY 1, 2",
                table.columns, table.name, table.whose
            ))?;
            let mut rows = rows.query(params![uid, user, key[0], key[1]])?;
            while let Some(row) = rows.next()? {
                if view.rows.len() == ROWS || bytes > BYTES {
                    let table = u32::try_from(n).unwrap_or(u32::MAX);
                    view.next = Some(StoredPlace { table, key });
                    return Ok(view);
                }
                key = [row.get(0)?, row.get(1)?];
                let line = shown(table.name, row)?;
                bytes += line.len();
                view.rows.push(line);
            }
            key = [i64::MIN; 2];
        }
        Ok(view)
    }
}

/// A row as one line of JSON. A document in it is included as JSON.
fn shown(table: &str, row: &rusqlite::Row<'_>) -> rusqlite::Result<String> {
    let mut line = Map::new();
    line.insert("table".to_owned(), Value::from(table));
    for (n, name) in row.as_ref().column_names().enumerate().skip(2) {
        let value = match row.get_ref(n)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => number.into(),
            ValueRef::Real(number) => number.into(),
            ValueRef::Text(text) | ValueRef::Blob(text) => {
                let document = serde_json::from_slice::<Value>(text).ok();
                let document = document.filter(|d| d.is_object() || d.is_array());
                document.unwrap_or_else(|| String::from_utf8_lossy(text).into_owned().into())
            }
        };
        line.insert(name.to_owned(), value);
    }
    Ok(Value::Object(line).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::journal::{ClaimRecord, Journal, reader};
    use gshare_core::ClaimId;

    /// A new table is either shown to the users in its rows, or listed here as one without users.
    #[test]
    fn every_table_is_shown_to_its_users_or_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gshare.db");
        let _journal = Journal::open(&path).unwrap();
        let store = Store::open(&dir.path().join("history.db"), 64 << 20).unwrap();
        let names = |db: &Connection| -> Vec<String> {
            let sql = "SELECT name FROM sqlite_master WHERE type = 'table'";
            let mut rows = db.prepare(sql).unwrap();
            rows.query_map([], |r| r.get(0))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap()
        };
        let known = |tables: &[Table], name: &String| {
            let none = ["overhead", "xid", "sqlite_sequence"];
            none.contains(&name.as_str()) || tables.iter().any(|t| t.name == name)
        };
        for (db, tables, none) in [
            (&reader(&path).unwrap(), &JOURNAL[..], ""),
            (&store.db, &HISTORY[..], "meta"),
        ] {
            let left: Vec<String> = names(db)
                .into_iter()
                .filter(|name| name != none && !known(tables, name))
                .collect();
            assert_eq!(left, [""; 0]);
        }
    }

    #[test]
    fn a_user_gets_what_administrators_did_to_their_claims_and_not_to_those_of_a_similar_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gshare.db");
        let mut writer = Journal::open(&path).unwrap();
        let acts = [
            "c1 of a_b",
            "c2 of axb",
            "user:a_b",
            "user:axb",
            "c3 of ca_b",
        ]
        .map(|target| gshare_proto::AuditEntry {
            target: target.into(),
            ..gshare_proto::AuditEntry::default()
        });
        writer.audited(&acts, |_| Ok(())).unwrap();
        let store = Store::open(&dir.path().join("history.db"), 64 << 20).unwrap();
        let journal = reader(&path).unwrap();
        let view = store.stored(&journal, (7, "a_b"), None).unwrap();
        let targets: Vec<Value> = view
            .rows
            .iter()
            .map(|row| serde_json::from_str::<Value>(row).unwrap()["target"].clone())
            .collect();
        assert_eq!(targets, ["c1 of a_b", "user:a_b"]);
    }

    #[test]
    fn a_user_gets_every_row_once_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gshare.db");
        let mut writer = Journal::open(&path).unwrap();
        for (id, uid) in [(1, 7), (2, 8), (3, 7)] {
            let record = ClaimRecord {
                id,
                uid,
                ..ClaimRecord::default()
            };
            writer.put(&record).unwrap();
        }
        for n in 0..1200 {
            let uid = 7 + n % 2;
            writer
                .add_event(u64::from(n), ClaimId(1), uid, &format!("event {n}"))
                .unwrap();
        }
        let past = r#"{"past":{"7":[1.5,2.0],"8":[9.0,9.0]}}"#;
        writer.set_meta("memory", past).unwrap();
        let store = Store::open(&dir.path().join("history.db"), 64 << 20).unwrap();
        let journal = reader(&path).unwrap();
        let (mut rows, mut after, mut answers) = (Vec::new(), None, 0);
        loop {
            let view = store.stored(&journal, (7, "ada"), after.as_ref()).unwrap();
            rows.extend(view.rows);
            answers += 1;
            after = view.next;
            if after.is_none() {
                break;
            }
        }
        let rows: Vec<Value> = rows
            .iter()
            .map(|r| serde_json::from_str(r).unwrap())
            .collect();
        let of = |name: &str| rows.iter().filter(|r| r["table"] == name).count();
        assert_eq!((of("claim"), of("event"), of("meta")), (2, 600, 1));
        assert_eq!((rows.len(), answers), (603, 2));
        assert_eq!(rows[0]["record"]["uid"], 7);
        let meta = rows.last().unwrap();
        assert_eq!(meta["past"], serde_json::json!([1.5, 2.0]), "{meta}");
    }
}
