//! Credentials: rows outside any batch, and the exchange that happens once.

use std::sync::{Arc, Barrier};
use std::thread;

use delta_core::{Millis, Text};
use delta_store::read::{Credential, Labels, Role, Scope};
use delta_store::side_tables::SideTables;

use super::Fixture;
use super::bench::{Bench, digest};

fn credential(n: u64, role: Role) -> Credential {
    Credential {
        id: format!("tok_{n}").into(),
        name: format!("token {n}").into(),
        role,
        hash: digest(n),
        created_at: Millis(5),
        expires_at: None,
        revoked_at: None,
        scope: Scope::least(),
        agent: None,
        used_at: None,
        used_by: None,
        reused_at: None,
    }
}

/// What an enrolment is exchanged for.
fn fresh(n: u64) -> Credential {
    Credential {
        agent: Some(format!("agent-{n}").into()),
        scope: gpu(),
        ..credential(n, Role::Runner)
    }
}

fn gpu() -> Scope {
    let set = |words: &[&str]| words.iter().map(|word| Text::from(*word)).collect();
    Scope {
        pool: "gpu".into(),
        zones: set(&["eu", "us"]),
        labels: Labels::Only(set(&["a100", "team=x"])),
    }
}

pub fn credentials_are_kept_and_revoked(make: &dyn Fn() -> Fixture) {
    let bench = Bench::new(make);
    let mut all = [
        credential(1, Role::Runner),
        credential(2, Role::User),
        credential(3, Role::Admin),
        credential(4, Role::Enrolment),
        fresh(5),
    ];
    all[0].expires_at = Some(Millis(99));
    all[1].scope = Scope::any_label();
    for credential in &all {
        bench.tables.put_credential(credential).unwrap();
    }
    let bench = bench.reopen();
    assert_eq!(bench.reader.credentials().unwrap(), all);
    let found = bench.reader.credential(&digest(2)).unwrap();
    assert_eq!(found.as_ref(), Some(&all[1]));
    assert_eq!(bench.reader.credential(&digest(9)).unwrap(), None);
    assert!(bench.tables.revoke_credential("tok_2", Millis(7)).unwrap());
    assert!(bench.tables.revoke_credential("tok_2", Millis(8)).unwrap());
    assert!(!bench.tables.revoke_credential("tok_9", Millis(7)).unwrap());
    let bench = bench.reopen();
    let revoked = bench.reader.credential(&digest(2)).unwrap().unwrap();
    assert_eq!(revoked.revoked_at, Some(Millis(7)), "the first one counts");
}

pub fn what_was_revoked_or_used_stays_so(make: &dyn Fn() -> Fixture) {
    // EP-30, T4
    let bench = Bench::new(make);
    let reader = &bench.reader;
    let tables = &bench.tables;
    let first = credential(1, Role::Runner);
    tables.put_credential(&first).unwrap();
    tables.revoke_credential("tok_1", Millis(7)).unwrap();
    let again = Credential {
        scope: gpu(),
        name: "again".into(),
        ..first
    };
    tables.put_credential(&again).unwrap();
    let found = reader.credential(&digest(1)).unwrap().unwrap();
    assert_eq!((found.scope, &*found.name), (gpu(), "again"));
    assert_eq!(found.revoked_at, Some(Millis(7)));
}

pub fn an_enrolment_is_exchanged_once(make: &dyn Fn() -> Fixture) {
    // T4
    let bench = Bench::new(make);
    let enrolment = Credential {
        expires_at: Some(Millis(100)),
        ..credential(1, Role::Enrolment)
    };
    bench.tables.put_credential(&enrolment).unwrap();
    let exchange = |at, n| {
        let tables = &bench.tables;
        tables
            .exchange_enrolment("tok_1", Millis(at), &fresh(n))
            .unwrap()
    };
    assert!(exchange(10, 2));
    assert!(!exchange(20, 3));
    assert!(!exchange(30, 4));
    let bench = bench.reopen();
    let used = bench.reader.credential(&digest(1)).unwrap().unwrap();
    assert_eq!(used.used_at, Some(Millis(10)));
    assert_eq!(used.used_by.as_deref(), Some("agent-2"));
    assert_eq!(used.reused_at, Some(Millis(30)));
    assert_eq!(bench.reader.credential(&digest(2)).unwrap(), Some(fresh(2)));
    for n in [3, 4] {
        assert_eq!(bench.reader.credential(&digest(n)).unwrap(), None);
    }
}

pub fn an_enrolment_that_is_over_is_not_exchanged(make: &dyn Fn() -> Fixture) {
    // T4
    let bench = Bench::new(make);
    let reader = &bench.reader;
    let tables = &bench.tables;
    let expired = Credential {
        expires_at: Some(Millis(10)),
        ..credential(1, Role::Enrolment)
    };
    for row in [
        &expired,
        &credential(2, Role::Enrolment),
        &credential(3, Role::Runner),
    ] {
        tables.put_credential(row).unwrap();
    }
    tables.revoke_credential("tok_2", Millis(5)).unwrap();
    for id in ["tok_1", "tok_2", "tok_3", "tok_none"] {
        let done = tables.exchange_enrolment(id, Millis(10), &fresh(9));
        assert!(!done.unwrap(), "{id}");
    }
    assert_eq!(reader.credential(&digest(9)).unwrap(), None);
    assert!(
        reader
            .credentials()
            .unwrap()
            .iter()
            .all(|row| row.used_at.is_none())
    );
}

pub fn of_many_exchanges_at_once_one_succeeds(make: &dyn Fn() -> Fixture) {
    // T4: on several servers where the store allows it.
    const CALLERS: u64 = 8;
    let bench = Bench::new(make);
    let enrolment = credential(1, Role::Enrolment);
    bench.tables.put_credential(&enrolment).unwrap();
    let own = |_| -> Arc<dyn SideTables> {
        if bench.fixture.shared {
            (bench.fixture.open)().2
        } else {
            bench.tables.clone()
        }
    };
    let servers: Vec<Arc<dyn SideTables>> = (0..CALLERS).map(own).collect();
    let together = Barrier::new(servers.len());
    let done: Vec<bool> = thread::scope(|scope| {
        let callers: Vec<_> = servers
            .iter()
            .zip(10..)
            .map(|(tables, n)| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    tables
                        .exchange_enrolment("tok_1", Millis(10), &fresh(n))
                        .unwrap()
                })
            })
            .collect();
        callers
            .into_iter()
            .map(|caller| caller.join().unwrap())
            .collect()
    });
    assert_eq!(done.iter().filter(|done| **done).count(), 1, "{done:?}");
    let rows = bench.reader.credentials().unwrap();
    assert_eq!(rows.len(), 2);
    let used = rows.iter().find(|row| row.role == Role::Enrolment).unwrap();
    let made = rows.iter().find(|row| row.role == Role::Runner).unwrap();
    assert_eq!(used.used_by, made.agent);
    assert!(used.reused_at.is_some());
}
