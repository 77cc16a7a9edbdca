//! Secrets: rows outside any batch, found by what they are good for.

use delta_core::{Millis, Text};
use delta_store::secrets::{SecretAbout, SecretId, SecretPlace, SecretRow};

use super::Fixture;
use super::bench::Bench;

fn id(name: &str, repository: &str, environment: &str) -> SecretId {
    let (repository, branch) = repository.split_once('@').unwrap_or((repository, ""));
    SecretId {
        name: name.into(),
        repository: repository.into(),
        branch: branch.into(),
        environment: environment.into(),
    }
}

fn row(id: SecretId, version: u64) -> SecretRow {
    SecretRow {
        about: SecretAbout {
            id,
            kind: "plain".into(),
            version,
            key: "k1".into(),
            created_at: Millis(5),
            updated_at: Millis(6),
            updated_by: "ann".into(),
        },
        sealed: vec![0, 255, version as u8],
    }
}

pub fn secrets_are_kept_replaced_and_removed(make: &dyn Fn() -> Fixture) {
    let bench = Bench::new(make);
    let first = row(id("TOKEN", "", ""), 7);
    assert!(bench.tables.put_secret(&first, None).unwrap());
    let bench = bench.reopen();
    let reader = &bench.reader;
    let tables = &bench.tables;
    assert_eq!(reader.secret(&first.about.id).unwrap().unwrap(), first);
    let mut second = row(id("TOKEN", "", ""), 8);
    second.about.kind = "token".into();
    second.about.key = "k2".into();
    second.about.created_at = Millis(99);
    second.about.updated_by = "bob\0".into();
    assert!(!tables.put_secret(&second, None).unwrap(), "there is one");
    assert!(!tables.put_secret(&second, Some(6)).unwrap(), "another one");
    assert_eq!(reader.secret(&first.about.id).unwrap().unwrap(), first);
    assert!(tables.put_secret(&second, Some(7)).unwrap());
    second.about.created_at = Millis(5);
    assert_eq!(reader.secret(&first.about.id).unwrap().unwrap(), second);
    assert_eq!(reader.secrets().unwrap(), [second.about.clone()]);
    assert!(tables.remove_secret(&first.about.id).unwrap());
    assert!(!tables.remove_secret(&first.about.id).unwrap());
    let third = row(id("TOKEN", "", ""), 9);
    let late = tables.put_secret(&third, Some(8)).unwrap();
    assert!(!late, "what was removed does not come back");
    assert!(reader.secrets().unwrap().is_empty());
}

pub fn secrets_are_found_by_what_they_are_good_for(make: &dyn Fn() -> Fixture) {
    let bench = Bench::new(make);
    let all = [
        id("A", "", ""),
        id("A", "", "production"),
        id("A", "r1", ""),
        id("A", "r1", "production"),
        id("A", "r1@main", ""),
        id("A", "r2", ""),
        id("B", "r1", "staging"),
        id("C", "", ""),
    ];
    for id in &all {
        assert!(bench.tables.put_secret(&row(id.clone(), 1), None).unwrap());
    }
    let listed: Vec<SecretId> = bench
        .reader
        .secrets()
        .unwrap()
        .into_iter()
        .map(|about| about.id)
        .collect();
    assert_eq!(listed, all, "in order");
    let names: Vec<Text> = vec!["A".into(), "B".into(), "D".into()];
    let found = |repository: &str, environment: &str| {
        let (repository, branch) = repository.split_once('@').unwrap_or((repository, ""));
        let place = SecretPlace {
            repository,
            branch,
            environment,
        };
        let rows = bench.reader.secrets_for(&names, place);
        let mut ids: Vec<SecretId> = rows.unwrap().into_iter().map(|row| row.about.id).collect();
        ids.sort();
        ids
    };
    assert_eq!(found("r1", "production"), all[..4]);
    assert_eq!(found("r1", ""), [all[0].clone(), all[2].clone()]);
    assert_eq!(found("r1", "staging"), [0, 2, 6].map(|n| all[n].clone()));
    assert_eq!(found("r1@main", "production"), all[..5]);
    assert_eq!(found("r1@main", ""), [0, 2, 4].map(|n| all[n].clone()));
    assert_eq!(found("r1@other", "production"), all[..4]);
    assert_eq!(found("", "production"), all[..2]);
    assert_eq!(found("r9", ""), all[..1]);
}
