//! Values on their way in and out: rows turned into one array per column, and rows read field by
//! field in the order of their columns.
//!
//! A statement that writes takes one array per column (`unnest`), however many rows there are.

use std::borrow::Cow;

use delta_core::{AttemptId, Digest, JobId, Millis, RunId, Text};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql};
use uuid::Uuid;

use crate::StoreError;
use crate::codec::{column, corrupt};

/// One field of a row to be written.
pub(super) enum Value<'a> {
    Id(RunId),
    Int(i64),
    OptInt(Option<i64>),
    Bool(bool),
    Text(&'a str),
    OptText(Option<&'a str>),
    Json(Option<String>),
    Bytes(Option<&'a [u8]>),
}

/// The fields of one column, of the type its first value has.
enum Column<'a> {
    Id(Vec<Uuid>),
    Int(Vec<Option<i64>>),
    Bool(Vec<bool>),
    Text(Vec<Option<Cow<'a, str>>>),
    Bytes(Vec<Option<&'a [u8]>>),
}

/// Rows of one statement.
#[derive(Default)]
pub(super) struct Rows<'a> {
    columns: Vec<Column<'a>>,
    count: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn push(&mut self, row: impl IntoIterator<Item = Value<'a>>) {
        for (at, value) in row.into_iter().enumerate() {
            if at == self.columns.len() {
                self.columns.push(Column::like(&value));
            }
            self.columns[at].push(value);
        }
        self.count += 1;
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.columns.iter().map(Column::param).collect()
    }
}

impl<'a> Column<'a> {
    fn like(value: &Value<'a>) -> Column<'a> {
        match value {
            Value::Id(_) => Column::Id(Vec::new()),
            Value::Int(_) | Value::OptInt(_) => Column::Int(Vec::new()),
            Value::Bool(_) => Column::Bool(Vec::new()),
            Value::Text(_) | Value::OptText(_) | Value::Json(_) => Column::Text(Vec::new()),
            Value::Bytes(_) => Column::Bytes(Vec::new()),
        }
    }

    fn push(&mut self, value: Value<'a>) {
        match (self, value) {
            (Column::Id(ids), Value::Id(id)) => ids.push(uuid(id)),
            (Column::Int(ints), Value::Int(int)) => ints.push(Some(int)),
            (Column::Int(ints), Value::OptInt(int)) => ints.push(int),
            (Column::Bool(bools), Value::Bool(bool)) => bools.push(bool),
            (Column::Text(texts), Value::Text(text)) => texts.push(Some(escape(text))),
            (Column::Text(texts), Value::OptText(text)) => texts.push(text.map(escape)),
            (Column::Text(texts), Value::Json(json)) => texts.push(json.map(Cow::Owned)),
            (Column::Bytes(all), Value::Bytes(bytes)) => all.push(bytes),
            _ => unreachable!("the rows of one statement have the same shape"),
        }
    }

    fn param(&self) -> &(dyn ToSql + Sync) {
        match self {
            Column::Id(values) => values,
            Column::Int(values) => values,
            Column::Bool(values) => values,
            Column::Text(values) => values,
            Column::Bytes(values) => values,
        }
    }
}

/// What PostgreSQL's text cannot hold is NUL: it is written as SOH 0, and SOH itself as SOH 1.
pub(super) fn escape(text: &str) -> Cow<'_, str> {
    if text.contains(['\0', '\u{1}']) {
        Cow::Owned(text.replace('\u{1}', "\u{1}1").replace('\0', "\u{1}0"))
    } else {
        Cow::Borrowed(text)
    }
}

pub(super) fn unescape(text: &str) -> Text {
    if text.contains('\u{1}') {
        text.replace("\u{1}0", "\0")
            .replace("\u{1}1", "\u{1}")
            .into()
    } else {
        text.into()
    }
}

pub(super) fn uuid(id: RunId) -> Uuid {
    Uuid::from_u128(id.0)
}

/// Reads the fields of a row one after the other.
pub(super) struct Fields<'r> {
    row: &'r Row,
    at: usize,
}

impl<'r> Fields<'r> {
    pub(super) fn of(row: &'r Row) -> Fields<'r> {
        Fields { row, at: 0 }
    }

    fn next<T: FromSql<'r>>(&mut self) -> Result<T, StoreError> {
        let value = self.row.try_get(self.at);
        self.at += 1;
        value.map_err(|error| corrupt("a row", error))
    }

    pub(super) fn run(&mut self) -> Result<RunId, StoreError> {
        Ok(RunId(self.next::<Uuid>()?.as_u128()))
    }

    pub(super) fn job(&mut self) -> Result<JobId, StoreError> {
        Ok(self.run()?.job(self.small()?))
    }

    pub(super) fn attempt(&mut self) -> Result<AttemptId, StoreError> {
        Ok(self.job()?.attempt(self.small()?))
    }

    pub(super) fn truth(&mut self) -> Result<bool, StoreError> {
        self.next()
    }

    pub(super) fn int(&mut self) -> Result<i64, StoreError> {
        self.next()
    }

    pub(super) fn opt_int(&mut self) -> Result<Option<i64>, StoreError> {
        self.next()
    }

    pub(super) fn small(&mut self) -> Result<u32, StoreError> {
        column::small(self.next()?)
    }

    pub(super) fn unsigned(&mut self) -> Result<u64, StoreError> {
        Ok(column::unsigned(self.next()?))
    }

    pub(super) fn millis(&mut self) -> Result<Millis, StoreError> {
        Ok(Millis(self.next()?))
    }

    pub(super) fn opt_millis(&mut self) -> Result<Option<Millis>, StoreError> {
        Ok(self.opt_int()?.map(Millis))
    }

    /// Text as it was written by the codec or by a closed list of names.
    pub(super) fn plain(&mut self) -> Result<&'r str, StoreError> {
        self.next()
    }

    pub(super) fn opt_plain(&mut self) -> Result<Option<&'r str>, StoreError> {
        self.next()
    }

    /// Text from outside.
    pub(super) fn text(&mut self) -> Result<Text, StoreError> {
        Ok(unescape(self.plain()?))
    }

    pub(super) fn opt_text(&mut self) -> Result<Option<Text>, StoreError> {
        Ok(self.opt_plain()?.map(unescape))
    }

    pub(super) fn bytes(&mut self) -> Result<&'r [u8], StoreError> {
        self.next()
    }

    pub(super) fn opt_bytes(&mut self) -> Result<Option<&'r [u8]>, StoreError> {
        self.next()
    }

    pub(super) fn digest(&mut self) -> Result<Digest, StoreError> {
        column::digest(self.bytes()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_postgresql_refuses_reads_back_unchanged() {
        for text in [
            "",
            "plain",
            "a\0b",
            "\u{1}",
            "\u{1}0",
            "\u{1}1\0\u{1}",
            "\0\0",
        ] {
            let stored = escape(text);
            assert!(!stored.contains('\0'), "{text:?}");
            assert_eq!(&*unescape(&stored), text);
        }
    }
}
