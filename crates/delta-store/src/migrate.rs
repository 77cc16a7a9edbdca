//! Migrations: numbered SQL texts, each applied once, in order, together with its number.
//!
//! Owns the order and the refusals; a [`Target`] knows its database. A store made by a newer
//! program is refused, never guessed at.

use crate::StoreError;

/// What becomes of a store whose schema is older than this program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    /// It is brought up to date, and made where there is none.
    Migrate,
    /// It is refused: nothing is changed by opening it.
    AsItIs,
}

/// One step of the schema. A step that was released never changes.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    pub version: u32,
    pub sql: &'static str,
}

/// A database that can be brought up to date.
pub trait Target {
    /// The version it has; 0 when it is empty.
    fn version(&mut self) -> Result<u32, StoreError>;
    /// Called once before an existing store changes: the moment for a copy.
    fn before_change(&mut self, from: u32) -> Result<(), StoreError>;
    /// Applies one step and notes its version, both or neither.
    fn step(&mut self, migration: &Migration) -> Result<(), StoreError>;
}

/// Brings the target to the last version of the list. The caller holds whatever lock keeps another
/// process from doing the same.
pub fn migrate(target: &mut dyn Target, list: &[Migration]) -> Result<(), StoreError> {
    let known = list.last().map_or(0, |last| last.version);
    let found = target.version()?;
    if found > known {
        return Err(StoreError::TooNew { found, known });
    }
    let mut missing = list.iter().filter(|m| m.version > found).peekable();
    if found > 0 && missing.peek().is_some() {
        target.before_change(found)?;
    }
    for migration in missing {
        target.step(migration)?;
    }
    Ok(())
}

/// Whether the target is of the last version of the list; nothing is changed.
pub fn check(target: &mut dyn Target, list: &[Migration]) -> Result<(), StoreError> {
    let known = list.last().map_or(0, |last| last.version);
    match target.version()? {
        0 => Err(StoreError::Unavailable(
            "this database holds no store of Delta CI".into(),
        )),
        found if found > known => Err(StoreError::TooNew { found, known }),
        found if found < known => Err(StoreError::TooOld { found, known }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Fake {
        version: u32,
        copied_at: Option<u32>,
        ran: Vec<&'static str>,
    }

    impl Target for Fake {
        fn version(&mut self) -> Result<u32, StoreError> {
            Ok(self.version)
        }

        fn before_change(&mut self, from: u32) -> Result<(), StoreError> {
            self.copied_at = Some(from);
            Ok(())
        }

        fn step(&mut self, migration: &Migration) -> Result<(), StoreError> {
            self.version = migration.version;
            self.ran.push(migration.sql);
            Ok(())
        }
    }

    const LIST: [Migration; 2] = [
        Migration {
            version: 1,
            sql: "one",
        },
        Migration {
            version: 2,
            sql: "two",
        },
    ];

    #[test]
    fn a_new_store_gets_every_step_and_no_copy() {
        let mut fake = Fake::default();
        migrate(&mut fake, &LIST).unwrap();
        assert_eq!((fake.version, fake.copied_at), (2, None));
        assert_eq!(fake.ran, ["one", "two"]);
    }

    #[test]
    fn an_older_store_is_copied_and_gets_the_rest() {
        let mut fake = Fake {
            version: 1,
            ..Fake::default()
        };
        migrate(&mut fake, &LIST).unwrap();
        assert_eq!(fake.copied_at, Some(1));
        assert_eq!(fake.ran, ["two"]);
    }

    #[test]
    fn a_store_that_is_up_to_date_is_left_alone() {
        let mut fake = Fake {
            version: 2,
            ..Fake::default()
        };
        migrate(&mut fake, &LIST).unwrap();
        assert_eq!(fake.copied_at, None);
        assert!(fake.ran.is_empty());
    }

    #[test]
    fn a_newer_store_is_refused() {
        let mut fake = Fake {
            version: 3,
            ..Fake::default()
        };
        let refused = migrate(&mut fake, &LIST);
        assert!(matches!(
            refused,
            Err(StoreError::TooNew { found: 3, known: 2 })
        ));
        assert!(fake.ran.is_empty());
    }
}
