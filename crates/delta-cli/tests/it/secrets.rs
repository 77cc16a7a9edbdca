//! `delta-ci secret`: values come from standard input or a file, and are never shown again.

use std::io::Write as _;
use std::process::Stdio;

use delta_testkit::process::Spawn;

use crate::support::{PATIENCE, Place, binary};

const VALUE: &str = "canary-55d0";

/// Sets a secret by standard input.
fn set(place: &Place, arguments: &str, value: &str) -> (i32, String) {
    let mut child = place
        .command()
        .args(arguments.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut input = child.stdin.take().expect("its input");
    input.write_all(value.as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(!said.contains("canary"), "{said}");
    (output.status.code().unwrap_or(-1), said)
}

#[test]
fn secrets_are_set_listed_removed_and_never_shown() {
    let place = Place::new();
    let (exit, said) = set(&place, "secret set TOKEN --data data", VALUE);
    assert_eq!(exit, 0, "{said}");
    place.write("value", &format!("{VALUE}\n"));
    place
        .say("secret set TOKEN --environment production --file value --data data")
        .expect(0);
    let listed = place.say("secret list --data data").expect(0);
    assert!(listed.stdout.contains("production"), "{}", listed.stdout);
    let json = place.say("--json secret list --data data").expect(0);
    assert_eq!(json.json().as_array().unwrap().len(), 2);
    for text in [&listed.stdout, &json.stdout] {
        assert!(!text.contains("canary"), "{text}");
    }
    place
        .say("secret rm TOKEN --environment production --data data")
        .expect(0);
    let again = place.say("secret rm TOKEN --environment production --data data");
    assert_ne!(again.exit, 0);
    let listed = place.say("secret list --data data").expect(0);
    assert!(!listed.stdout.contains("production"), "{}", listed.stdout);
}

#[test]
fn what_is_wrong_with_a_secret_is_said() {
    let place = Place::new();
    let (exit, said) = set(&place, "secret set TOKEN --data data", "12345\n");
    assert!(exit != 0 && said.contains("fewer than 6 bytes"), "{said}");
    let (exit, said) = set(&place, "secret set TOKEN --data data", "\n");
    assert!(exit == 2 && said.contains("the value is empty"), "{said}");
    let (exit, said) = set(&place, "secret set TOKEN --kind ssh-key --data data", VALUE);
    assert!(exit != 0 && said.contains("known_hosts"), "{said}");
    let (exit, said) = set(&place, "secret set 1TOKEN --data data", VALUE);
    assert!(exit != 0 && said.contains("begins with no digit"), "{said}");
}

#[test]
fn a_key_is_changed_by_a_rotation() {
    let place = Place::new();
    let (exit, said) = set(&place, "secret set TOKEN --data data", VALUE);
    assert_eq!(exit, 0, "{said}");
    let own = std::fs::read_to_string(place.path().join("data/secret.key")).unwrap();
    let key = |names: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        place.write("keys", names);
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(place.path().join("keys"), mode).unwrap();
    };
    let rotate = || {
        let mut command = place.command();
        command.env("DELTA_SECRET_KEY_FILE", "keys");
        let output = command
            .args(["--json", "secret", "rotate", "--data", "data"])
            .output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    let new = "5a".repeat(32);
    key(&new);
    let (good, said) = rotate();
    assert!(
        !good && said.contains("which this server does not have"),
        "{said}"
    );
    key(&format!("{new}\n{own}"));
    let (good, said) = rotate();
    assert!(good && said.contains("\"rotated\": 1"), "{said}");
    key(&new);
    let (good, said) = rotate();
    assert!(good && said.contains("\"rotated\": 0"), "{said}");
    key("not a key");
    let (good, said) = rotate();
    assert!(!good && said.contains("line 1 is no key"), "{said}");
}

/// A shell in the place, as a person has one, in which this program has its name.
fn shell(place: &Place, line: &str) -> Spawn {
    let folder = binary().parent().expect("a folder").to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    Spawn::new("/bin/sh")
        .args(["-c", &format!("umask 022; {line}")])
        .env("PATH", format!("{}:{path}", folder.display()))
        .current_dir(place.path())
}

#[test]
fn a_key_is_changed_by_what_the_help_says_as_it_is_typed() {
    let place = Place::new();
    let (exit, said) = set(&place, "secret set TOKEN --data data", VALUE);
    assert_eq!(exit, 0, "{said}");
    let help = place.say("secret rotate --help").expect(0).stdout;
    let examples = help.split("Examples").nth(1).expect("examples");
    let commands = examples.lines().filter_map(|line| {
        let line = line.strip_prefix("  ")?;
        let command = line.split("    ").next()?;
        (!command.is_empty()).then(|| command.to_owned())
    });
    let commands: Vec<String> = commands.collect();
    let [make, start, rotate] = &commands[..] else {
        panic!("three commands: {commands:?}");
    };
    let done = |line: &str| {
        let process = shell(&place, line).spawn().expect("a shell");
        let status = process.wait(PATIENCE).expect("it ends");
        (status.success(), process.stdout() + &process.stderr())
    };
    assert_eq!(done(make), (true, String::new()));
    let keys = std::fs::read_to_string(place.path().join("new.key")).unwrap();
    assert_eq!(keys.lines().count(), 2);
    let own = std::fs::read_to_string(place.path().join("data/secret.key")).unwrap();
    assert!(keys.ends_with(&own), "the old one is still there");
    let start = format!("exec {start} --listen 127.0.0.1:0");
    let server = shell(&place, &start).spawn().expect("a server");
    server
        .wait_for_line("listening", PATIENCE)
        .expect("it listens");
    let (good, said) = done(rotate);
    assert!(good && said.contains('1'), "{said}");
    // Typed again it keeps what is there.
    let (good, said) = done(make);
    assert!(!good, "{said}");
    assert_eq!(
        std::fs::read_to_string(place.path().join("new.key")).unwrap(),
        keys
    );
}

#[test]
fn a_key_that_others_may_read_is_closed_by_what_is_suggested() {
    let place = Place::new();
    let (exit, said) = set(&place, "secret set TOKEN --data data", VALUE);
    assert_eq!(exit, 0, "{said}");
    place.write("keys", &"5a".repeat(32));
    let list = "DELTA_SECRET_KEY_FILE=keys delta-ci secret list --data data";
    let refused = shell(&place, list).spawn().expect("a shell");
    assert!(!refused.wait(PATIENCE).expect("it ends").success());
    let said = refused.stderr();
    assert!(said.contains("others may read it"), "{said}");
    let next = said.lines().find_map(|line| line.split("next: ").nth(1));
    assert_eq!(next, Some("chmod 600 keys"), "{said}");
    let line = format!("{} && {list}", next.unwrap());
    let listed = shell(&place, &line).spawn().expect("a shell");
    assert!(listed.wait(PATIENCE).expect("it ends").success());
}
