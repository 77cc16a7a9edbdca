//! What is sealed opens for nobody else, and keys can be changed.

use std::os::unix::fs::PermissionsExt;

use super::*;

const ONE: &str = "0101010101010101010101010101010101010101010101010101010101010101";
const TWO: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

fn ring(text: &str) -> Keyring {
    Keyring::parse(text).unwrap()
}

fn wanted(name: &str, repository: &str, environment: &str, value: &str) -> SetSecret {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    SetSecret {
        name: name.into(),
        value: value.into(),
        repository: some(repository),
        branch: None,
        environment: some(environment),
        kind: SecretKind::Token,
        username: Some("git".into()),
        known_hosts: None,
    }
}

fn put(sides: &StoreSides, keys: &Keyring, request: &SetSecret, at: i64) -> SecretAbout {
    set(sides, keys, request, &"ann".into(), Millis(at)).unwrap()
}

fn value(sides: &StoreSides, keys: &Keyring, repository: &str, environment: &str) -> String {
    let (repository, branch) = repository.split_once('@').unwrap_or((repository, ""));
    let place = SecretPlace {
        repository,
        branch,
        environment,
    };
    match fetch(&*sides.reader, keys, &["T".into()], place).unwrap() {
        Fetched::All(values) => values[0].value.clone(),
        Fetched::Missing(name) => format!("no {name}"),
    }
}

#[test]
fn the_narrowest_secret_wins() {
    let sides = StoreSides::in_memory();
    let keys = ring(ONE);
    assert_eq!(value(&sides, &keys, "r", "e"), "no T");
    let expected = [
        (("", ""), "for all"),
        (("", "e"), "for the environment"),
        (("r", ""), "for the repository"),
        (("r", "e"), "for both"),
    ];
    for ((repository, environment), text) in expected {
        put(
            &sides,
            &keys,
            &wanted("T", repository, environment, text),
            1,
        );
        assert_eq!(value(&sides, &keys, "r", "e"), text);
    }
    assert_eq!(value(&sides, &keys, "other", "other"), "for all");
    assert_eq!(value(&sides, &keys, "", "e"), "for the environment");
    assert_eq!(value(&sides, &keys, "r", ""), "for the repository");
    let of_main = SetSecret {
        branch: Some("main".into()),
        ..wanted("T", "r", "", "for main")
    };
    let about = put(&sides, &keys, &of_main, 1);
    assert_eq!(value(&sides, &keys, "r@main", "e"), "for main");
    assert_eq!(value(&sides, &keys, "r@other", "e"), "for both");
    assert_eq!(value(&sides, &keys, "r", "e"), "for both");
    // Moved to another branch by hand, it does not open.
    let mut row = sides.reader.secret(&about.id).unwrap().unwrap();
    row.about.id.branch = "other".into();
    assert!(seal::open(&keys, &row).is_err());
    row.about.id.branch = "".into();
    assert!(seal::open(&keys, &row).is_err());
}

#[test]
fn what_is_stored_is_sealed_and_bound_to_its_row() {
    // Whoever can write to the store cannot make one secret pass for another.
    let sides = StoreSides::in_memory();
    let keys = ring(ONE);
    let about = put(&sides, &keys, &wanted("T", "r", "", "canary-value"), 5);
    let row = sides.reader.secret(&about.id).unwrap().unwrap();
    let clear = |bytes: &[u8]| bytes.windows(6).any(|it| it == b"canary");
    assert!(!clear(&row.sealed));
    assert_eq!(seal::open(&keys, &row).unwrap().value, "canary-value");
    type Change = fn(&mut SecretRow);
    let changes: [Change; 7] = [
        |row| row.about.id.name = "U".into(),
        |row| row.about.id.repository = "".into(),
        |row| row.about.id.environment = "production".into(),
        |row| row.about.kind = "plain".into(),
        |row| row.about.version += 1,
        |row| row.sealed[20] ^= 1,
        |row| row.sealed.truncate(9),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut row = row.clone();
        change(&mut row);
        let opened = seal::open(&keys, &row);
        assert!(matches!(opened, Err(SecretError::Damaged(_))), "{n}");
    }
    let twice = put(&sides, &keys, &wanted("T", "r", "", "canary-value"), 5);
    assert!(twice.version > about.version);
    assert_ne!(
        sides.reader.secret(&about.id).unwrap().unwrap().sealed,
        row.sealed
    );
}

#[test]
fn keys_are_changed_one_after_the_other() {
    let sides = StoreSides::in_memory();
    let (old, new) = (ring(ONE), ring(TWO));
    let both = ring(&format!(
        "# the new one\n{TWO}\n{ONE} # until all is rotated\n"
    ));
    put(&sides, &old, &wanted("T", "", "", "first value"), 1);
    assert!(matches!(
        fetch(&*sides.reader, &new, &["T".into()], SecretPlace::default()),
        Err(SecretError::OtherKey { .. })
    ));
    assert_eq!(value(&sides, &both, "", ""), "first value");
    put(&sides, &both, &wanted("T", "r", "", "second value"), 2);
    assert_eq!(rotate(&sides, &both, Millis(3)).unwrap(), (1, 2));
    assert_eq!(rotate(&sides, &both, Millis(4)).unwrap(), (0, 2));
    assert_eq!(value(&sides, &new, "", ""), "first value");
    assert_eq!(value(&sides, &new, "r", ""), "second value");
    let none = Keyring::open(&KeySource::None, std::path::Path::new("/")).unwrap();
    let refused = rotate(&sides, &none, Millis(5));
    assert!(matches!(refused, Err(SecretError::NoKey)));
}

#[test]
fn a_key_is_made_once_and_for_its_owner_alone() {
    let data = tempfile::tempdir().unwrap();
    let id = || {
        let keys = Keyring::open(&KeySource::Own, data.path()).unwrap();
        keys.first().unwrap().id.clone()
    };
    assert_eq!(id(), id());
    let file = data.path().join("secret.key");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let readable = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&file, readable).unwrap();
    let refused = Keyring::open(&KeySource::File(file), data.path());
    assert!(matches!(refused, Err((_, KeyError::Open))));
}

#[test]
fn what_is_no_key_is_refused_without_repeating_it() {
    for bad in ["", "# nothing\n", "canary", &ONE[2..], "AgIC"] {
        let error = Keyring::parse(bad).unwrap_err().to_string();
        assert!(!error.contains("canary"), "{error}");
    }
    assert!(!format!("{:?}", KeyText::new("canary".into())).contains("canary"));
}

#[test]
fn an_untrusted_run_gets_nothing_and_a_trusted_one_what_it_names() {
    // T5, A51
    let request = delta_wire::api::CreateRun::parse(
        br#"{"jobs":[{"name":"a","job_spec":{"steps":["x"],"secrets":["T"]}}]}"#,
    );
    let asked = crate::new_run::Asked {
        by: "u".into(),
        idempotency: None,
    };
    let settings = delta_core::Settings::recommended();
    let (new, _) =
        crate::new_run::new_run(delta_core::RunId(1), &request.unwrap(), asked, &settings).unwrap();
    let policy = &new.jobs.as_ref().unwrap()[0].policy;
    let mut run = new.header.clone();
    assert_eq!(may_fetch(&run, policy, &["T".into()]), Ok(()));
    let other = may_fetch(&run, policy, &["T".into(), "U".into()]);
    assert_eq!(other, Err(NotGranted::NotNamed("U".into())));
    run.trusted = false;
    let fork = may_fetch(&run, policy, &["T".into()]);
    assert_eq!(fork, Err(NotGranted::Untrusted));
}
