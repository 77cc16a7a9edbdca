//! The machine of one lease as a matrix: every state that an agent can bring it to, and every event
//! in it, beside the table that was read and accepted.

use std::fmt::Write as _;
use std::time::Instant;

use delta_core::Millis;

use super::super::results::TestsBlamed;
use super::*;

/// The accepted table. `DELTA_BLESS=1` writes it anew: read its difference line by line.
const TABLE: &str = include_str!("held_lease.txt");
const TABLE_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sessions/held_lease.txt");

const UNTIL: Millis = Millis(1_000);

type Lease = HeldLease<&'static str>;
type Event = LeaseEvent<&'static str>;

/// With nothing in it: what it says is the session's business.
const CLAIM: ResultsClaim = ResultsClaim {
    counts: None,
    tests: TestsBlamed::No,
};

fn word(claim: Claim, log: Belongs, results: Belongs, artifacts: u32) -> LastWord<&'static str> {
    let results = (results == Belongs::Yes).then_some(CLAIM);
    LastWord {
        message: "word",
        instead: None,
        claim,
        log_length: 7,
        artifacts,
        log,
        results,
    }
}

fn said(word: LastWord<&'static str>) -> Event {
    LeaseEvent::LastWord(Box::new(word))
}

fn listed(whole: Option<usize>) -> Event {
    let now = Millis(UNTIL.0 - 1);
    LeaseEvent::ArtifactsListed { whole, now }
}

fn canceled() -> Event {
    let cancel = word(Claim::Other, Belongs::No, Belongs::No, 0);
    said(LastWord {
        instead: Some(Box::new("instead")),
        ..cancel
    })
}

fn accepted_final(at: Instant) -> Event {
    LeaseEvent::Judged(Judgement::Final { late_log_until: at })
}

/// Each event by name.
fn events(at: Instant) -> Vec<(&'static str, Event)> {
    use Belongs::{No, Yes};
    use Claim::{Other, Success};
    let judged = |judgement| LeaseEvent::Judged(judgement);
    vec![
        ("accepted", LeaseEvent::Accepted),
        ("artifact sent", LeaseEvent::ArtifactSent),
        ("word", said(word(Success, No, No, 0))),
        ("word with log", said(word(Success, Yes, No, 0))),
        ("word with results", said(word(Success, No, Yes, 0))),
        ("word with log, results", said(word(Success, Yes, Yes, 0))),
        ("word with 2 artifacts", said(word(Success, No, No, 2))),
        ("failure, 2 artifacts", said(word(Other, No, No, 2))),
        ("cancel acknowledged", canceled()),
        ("log stored", LeaseEvent::LogStored),
        ("results stored", LeaseEvent::ResultsStored(Blame::AsSaid)),
        (
            "flaky results stored",
            LeaseEvent::ResultsStored(Blame::FlakyTests),
        ),
        ("2 artifacts listed", listed(Some(2))),
        ("1 artifact listed", listed(Some(1))),
        ("artifacts unknown", listed(None)),
        ("judged final", accepted_final(at)),
        (
            "judged not acknowledged",
            judged(Judgement::NotAcknowledged),
        ),
        ("judged not done", judged(Judgement::NotDone)),
        ("judged unasked", judged(Judgement::Unasked)),
        ("judged already final", judged(Judgement::AlreadyFinal)),
        ("judged stale", judged(Judgement::Stale)),
        ("renewal", LeaseEvent::Renewal("renewal")),
        ("renewal answered", LeaseEvent::RenewalAnswered),
        ("cancel told", LeaseEvent::CancelTold),
        ("lost", LeaseEvent::Lost { late_log_until: at }),
    ]
}

/// Each state by name, and the events that lead to it.
fn states(at: Instant) -> Vec<(&'static str, Vec<Event>)> {
    use Belongs::{No, Yes};
    use Claim::{Other, Success};
    let success = |log, results, artifacts| said(word(Success, log, results, artifacts));
    let with = |event| vec![LeaseEvent::Accepted, event];
    let failure = said(word(Other, No, No, 2));
    let ended = || vec![LeaseEvent::Accepted, success(No, No, 0), accepted_final(at)];
    let ended_and = |event| ended().into_iter().chain([event]).collect();
    let canceled_by_server = vec![LeaseEvent::Accepted, LeaseEvent::CancelTold];
    let renewing = ["first", "second"].map(LeaseEvent::Renewal);
    let renewing = [LeaseEvent::Accepted].into_iter().chain(renewing).collect();
    vec![
        ("offered", vec![]),
        ("accepted", vec![LeaseEvent::Accepted]),
        ("accepted, has artifact", with(LeaseEvent::ArtifactSent)),
        ("accepted, told to cancel", canceled_by_server),
        ("accepted, renewing, next", renewing),
        ("settling log", with(success(Yes, No, 0))),
        ("settling results", with(success(No, Yes, 0))),
        ("settling log, results", with(success(Yes, Yes, 0))),
        ("settling artifacts", with(success(No, No, 2))),
        ("settling failure", with(failure)),
        ("submitted", with(success(No, No, 0))),
        ("submitted cancel", with(canceled())),
        ("ended", ended()),
        ("ended, settling log", ended_and(success(Yes, No, 0))),
        ("ended, settling artifacts", ended_and(success(No, No, 2))),
        ("ended, submitted", ended_and(success(No, No, 0))),
    ]
}

fn lease(events: Vec<Event>) -> Lease {
    let mut lease = HeldLease::new(
        1,
        "a/1".into(),
        [0; 32],
        Standing::Offered,
        UNTIL,
        Origin::Granted,
    );
    for event in events {
        lease.step(event);
    }
    lease
}

fn shown(lease: &Lease) -> String {
    let mut text = match lease.standing {
        Standing::Offered => "offered".to_owned(),
        Standing::Accepted => "accepted".to_owned(),
        Standing::Ended(window) if window.log_length == u64::MAX => "ended, all log".to_owned(),
        Standing::Ended(window) => format!("ended, log of {}", window.log_length),
    };
    match &lease.word {
        WordState::Awaited => {}
        WordState::Settling(_) => text.push_str(", settling"),
        WordState::Submitted { instead: None } => text.push_str(", submitted"),
        WordState::Submitted { instead: Some(_) } => text.push_str(", submitted or instead"),
    }
    for (name, awaited) in [
        ("log", lease.log_awaited),
        ("results", lease.results_awaited),
    ] {
        match awaited {
            0 => {}
            1 => write!(text, ", {name} awaited").unwrap(),
            more => write!(text, ", {name} awaited {more} times").unwrap(),
        }
    }
    match &lease.renewal {
        RenewalState::Idle => {}
        RenewalState::Submitted => text.push_str(", renewing"),
        RenewalState::SubmittedWithNext(next) => {
            let _ = write!(text, ", renewing, then {next}");
        }
    }
    if lease.artifacts == ArtifactState::Some {
        text.push_str(", artifacts");
    }
    if lease.cancel == CancelState::Told {
        text.push_str(", cancel");
    }
    text
}

fn action_shown(action: &LeaseAction<&'static str>) -> String {
    match action {
        LeaseAction::SettleResults(_) => "SettleResults".to_owned(),
        action => format!("{action:?}"),
    }
}

#[test]
fn every_event_in_every_state_is_as_the_table_says() {
    let at = Instant::now();
    let mut table = String::new();
    for (state, before) in states(at) {
        let _ = writeln!(table, "{state}");
        for (event, happened) in events(at) {
            let mut lease = lease(before.clone());
            let was = shown(&lease);
            let actions: Vec<String> = lease
                .step(happened)
                .into_iter()
                .flatten()
                .map(|action| action_shown(&action))
                .collect();
            let now = shown(&lease);
            let becomes = if was == now { "·" } else { now.as_str() };
            let line = format!("  {event:24}  {becomes:46}  {}", actions.join(", "));
            let _ = writeln!(table, "{}", line.trim_end());
        }
    }
    if std::env::var_os("DELTA_BLESS").is_some() {
        std::fs::write(TABLE_PATH, &table).unwrap();
        return;
    }
    assert_eq!(
        table, TABLE,
        "read the difference; DELTA_BLESS=1 cargo test -p delta-server held_lease accepts it"
    );
}

// EP-16: acknowledged means on disk, whatever comes first.
#[test]
fn a_last_word_is_passed_on_once_everything_of_it_is_on_disk() {
    use Belongs::Yes;
    let is_passed_on = |actions: &LeaseActions<&str>| {
        matches!(actions, [Some(LeaseAction::Submit("word", _)), None])
    };
    for results_first in [true, false] {
        let mut lease = lease(vec![LeaseEvent::Accepted]);
        let actions = lease.step(said(word(Claim::Success, Yes, Yes, 1)));
        assert_eq!(
            actions,
            [
                Some(LeaseAction::StoreLog),
                Some(LeaseAction::SettleResults(CLAIM)),
            ]
        );
        let mut stored = [
            LeaseEvent::LogStored,
            LeaseEvent::ResultsStored(Blame::AsSaid),
        ];
        if results_first {
            stored.reverse();
        }
        let [first, second] = stored;
        assert_eq!(lease.step(first), [None, None]);
        assert_eq!(lease.step(second), [Some(LeaseAction::ListArtifacts), None]);
        assert!(lease.has_last_word());
        assert!(is_passed_on(&lease.step(listed(Some(1)))));
        assert!(lease.has_last_word(), "until it is answered");
    }
}

// EP-16: an agent that says its last word twice is not answered for what came between the two.
#[test]
fn a_word_that_came_again_waits_for_the_last_of_what_was_asked_for() {
    let mut lease = lease(vec![LeaseEvent::Accepted]);
    let again = said(word(Claim::Success, Belongs::Yes, Belongs::No, 0));
    lease.step(again.clone());
    assert_eq!(lease.step(again), [Some(LeaseAction::StoreLog), None]);
    assert_eq!(lease.step(LeaseEvent::LogStored), [None, None]);
    let submit = LeaseAction::Submit("word", Blame::AsSaid);
    assert_eq!(lease.step(LeaseEvent::LogStored), [Some(submit), None]);
}
