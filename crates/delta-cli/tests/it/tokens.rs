//! `delta-ci token`: beside a running server and without one.

use crate::support::{Place, Ran};

fn secret(ran: &Ran) -> String {
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 1, "the token alone: {:?}", ran.stdout);
    assert!(!lines[0].contains(char::is_whitespace));
    lines[0].to_owned()
}

#[test]
fn the_first_token_is_made_before_the_first_server() {
    let place = Place::new();
    let made = place
        .say("token create --role user --name ann --data data")
        .expect(0);
    let said = "a new store was made in data";
    assert!(made.stderr.contains(said), "{}", made.stderr);
    let token = secret(&made);
    let again = place.say("token create --role user --data data").expect(0);
    assert!(again.stderr.is_empty(), "{}", again.stderr);
    let listed = place.say("token list --data data").expect(0);
    assert!(listed.stdout.contains("ann"), "{}", listed.stdout);
    assert!(
        !listed.stdout.contains(&token),
        "a list never shows a secret"
    );
    // It is good for the server that starts afterwards.
    let server = place.server(&[]);
    place.write("token", &format!("{token}\n"));
    let listing = ["runs", "--server", &server.url, "--token-file", "token"];
    place.delta(listing).expect(0);
}

#[test]
fn a_token_made_beside_a_running_server_works_until_it_is_revoked() {
    let place = Place::new();
    let server = place.server(&[]);
    let made = place
        .say("token create --role user --expires-in 30d --data data")
        .expect(0);
    place.write("token", &secret(&made));
    let listing = ["runs", "--server", &server.url, "--token-file", "token"];
    place.delta(listing).expect(0);
    let listed = place.say("--json token list --data data").expect(0).json();
    let id = listed[0]["token_id"].as_str().unwrap().to_owned();
    assert!(listed[0]["expires_at"].is_string(), "{listed}");
    place
        .delta(["token", "revoke", &id, "--data", "data"])
        .expect(0);
    let refused = place.delta(listing).expect(7);
    assert!(
        refused.stderr.contains("token create"),
        "{}",
        refused.stderr
    );
    let listed = place.say("token list --data data").expect(0);
    assert!(listed.stdout.contains("revoked"), "{}", listed.stdout);
}

#[test]
fn a_role_reaches_only_so_far() {
    let place = Place::new();
    let server = place.server(&[]);
    let made = place
        .say("token create --role runner --data data")
        .expect(0);
    place.write("token", &secret(&made));
    let target = ["--server", &server.url, "--token-file", "token"];
    place.delta(["runs"].iter().chain(&target)).expect(7);
    place
        .delta(["token", "list"].iter().chain(&target))
        .expect(7);
    // No token at all, and how to get one.
    let ran = place.delta(["runs", "--server", &server.url]).expect(7);
    assert!(
        ran.stderr.contains("--token-file or DELTA_TOKEN"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_token_that_does_not_exist_cannot_be_revoked() {
    let place = Place::new();
    place.say("token create --role user --data data").expect(0);
    let ran = place.say("token revoke tok_none --data data").expect(5);
    assert!(ran.stderr.contains("token list"), "{}", ran.stderr);
}

#[test]
fn a_folder_with_other_things_in_it_gets_no_store() {
    let place = Place::new();
    place.write("notes", "mine");
    let ran = place.say("token create --role user --data .").expect(8);
    assert!(ran.stderr.contains("holds other things"), "{}", ran.stderr);
    let ran = place.say("runs --data .").expect(5);
    assert!(ran.stderr.contains("holds no store"), "{}", ran.stderr);
    let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_file_without_a_token_is_named() {
    let place = Place::new();
    place.write("token", "two words\n");
    let ran = place
        .say("runs --server http://127.0.0.1:1 --token-file token")
        .expect(2);
    assert!(
        ran.stderr.contains("one token on one line"),
        "{}",
        ran.stderr
    );
}
