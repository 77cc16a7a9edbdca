//! Statuses against a recording forge, on good days and bad ones.

use std::time::Duration;

use delta_forge::{Client, Commit, Kind, Outgoing, Secret, Site, State, Status, Verdict};
use delta_testkit::forge::{Fault, RecordingForge, Speaks};

const COMMIT: &str = "6dcb09b5b57875f334f61aebed695e2e4193db5e";
const TOKEN: &str = "ghp_canary";
const CLONE: &str = "https://forge.example/team/app.git";

const DONE_NOW: Verdict = Verdict::Done {
    already: false,
    rest: None,
};
const DONE_BEFORE: Verdict = Verdict::Done {
    already: true,
    rest: None,
};

struct Setup {
    forge: RecordingForge,
    client: Client,
    site: Site,
}

fn setup(kind: Kind) -> Setup {
    let speaks = match kind {
        Kind::GitHub => Speaks::GitHub,
        Kind::Gitea => Speaks::Gitea,
        Kind::Forgejo => Speaks::Forgejo,
    };
    let forge = RecordingForge::start(speaks).unwrap();
    forge.require_token(TOKEN);
    let site = Site::new(kind, CLONE, Some(&forge.api()), None).unwrap();
    Setup {
        forge,
        client: Client::new(Duration::from_secs(5), |_| false).unwrap(),
        site,
    }
}

fn status(state: State, line: &str) -> Status {
    Status {
        commit: Commit::parse(COMMIT).unwrap(),
        context: "delta-ci/push".into(),
        state,
        description: Status::line(line),
        link: Some("https://ci.example/runs/run_1".into()),
    }
}

impl Setup {
    async fn publish(&self, status: &Status, look_first: bool) -> Verdict {
        let token = Secret::new(TOKEN);
        let now = 1_000;
        self.client
            .publish(&self.site, &token, status, look_first, now)
            .await
    }
}

#[tokio::test]
async fn a_status_is_published_to_each_forge() {
    for kind in Kind::ALL {
        let it = setup(kind);
        for state in [State::Pending, State::Failure] {
            let done = it.publish(&status(state, "3 tests failed"), false).await;
            assert_eq!(done, DONE_NOW, "{kind:?}");
        }
        assert_eq!(
            it.forge.states(COMMIT, "delta-ci/push"),
            ["pending", "failure"]
        );
        let last = it.forge.posted().pop().unwrap();
        assert_eq!(last.description, "3 tests failed");
        assert_eq!(last.target_url, "https://ci.example/runs/run_1");
        assert!(!it.forge.seen().contains(TOKEN), "a token in an address");
    }
}

#[tokio::test]
async fn whoever_does_not_know_looks_first_through_every_page() {
    // A44: published, and the answer lost.
    for kind in Kind::ALL {
        let it = setup(kind);
        let wanted = status(State::Success, "all well");
        it.forge.next([Fault::DoneUnanswered]);
        let lost = it.publish(&wanted, false).await;
        assert!(
            matches!(lost, Verdict::Again { after: None, .. }),
            "{lost:?}"
        );
        // Others have written since: it stands on a later page.
        for n in 0..7 {
            let context = format!("other/{n}");
            let other = Status {
                context,
                ..wanted.clone()
            };
            it.publish(&other, false).await;
        }
        it.forge.set_page_size(3);
        let again = it.publish(&wanted, true).await;
        assert_eq!(again, DONE_BEFORE);
        assert_eq!(it.forge.states(COMMIT, "delta-ci/push"), ["success"]);
        // Another line is another status.
        let fresh = it.publish(&status(State::Failure, "no"), true).await;
        assert_eq!(fresh, DONE_NOW);
        assert_eq!(
            it.forge.states(COMMIT, "delta-ci/push"),
            ["success", "failure"]
        );
    }
}

#[tokio::test]
async fn bad_days_have_their_verdicts() {
    // F47
    let it = setup(Kind::GitHub);
    let wanted = status(State::Pending, "queued");
    it.forge.next([
        Fault::Answer(500),
        Fault::Answer(503),
        Fault::RetryAfter(429, 30),
        Fault::RetryAfter(403, 60),
        Fault::Limited(1_090),
    ]);
    let mut pauses = Vec::new();
    for _ in 0..5 {
        match it.publish(&wanted, false).await {
            Verdict::Again { after, .. } => pauses.push(after.map(|after| after.as_secs())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pauses, [None, None, Some(30), Some(60), Some(91)]);
    for code in [401, 404, 422, 302] {
        it.forge.next([Fault::Answer(code)]);
        let refused = it.publish(&wanted, false).await;
        let Verdict::Refused { why } = refused else {
            panic!("{code}: {refused:?}");
        };
        assert!(why.contains(&code.to_string()), "{why}");
    }
    assert!(it.forge.posted().is_empty());
}

#[tokio::test]
async fn a_forge_that_is_silent_or_gone_is_asked_again() {
    let mut it = setup(Kind::Gitea);
    it.client = Client::new(Duration::from_millis(200), |_| false).unwrap();
    let wanted = status(State::Pending, "queued");
    it.forge.next([Fault::Silence(Duration::from_secs(1))]);
    let silent = it.publish(&wanted, false).await;
    assert!(matches!(silent, Verdict::Again { .. }), "{silent:?}");
    it.forge.set_down(true);
    let down = it.publish(&wanted, false).await;
    assert!(matches!(down, Verdict::Again { .. }), "{down:?}");
    it.forge.set_down(false);
    let again = it.publish(&wanted, true).await;
    assert_eq!(again, DONE_NOW);
}

// T17: the name is looked up by whoever judges it, and nobody looks it up again.
#[tokio::test]
async fn a_name_leads_nowhere_that_an_address_may_not() {
    let mut it = setup(Kind::Gitea);
    let api = it.forge.api().replace("127.0.0.1", "localhost");
    it.site = Site::new(Kind::Gitea, CLONE, Some(&api), None).unwrap();
    let wanted = status(State::Pending, "queued");
    let done = it.publish(&wanted, false).await;
    assert_eq!(done, DONE_NOW);
    let (timeout, before) = (Duration::from_secs(5), it.forge.seen());
    it.client = Client::new(timeout, |ip| ip.is_loopback()).unwrap();
    let refused = it.publish(&wanted, false).await;
    assert!(matches!(refused, Verdict::Again { .. }), "{refused:?}");
    assert_eq!(it.forge.seen(), before);
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_shown_nowhere() {
    let it = setup(Kind::GitHub);
    let wrong = Secret::new("ghp_wrong_canary");
    let wanted = status(State::Pending, "queued");
    let refused = it.client.publish(&it.site, &wrong, &wanted, false, 0).await;
    let shown = format!("{refused:?} {:?} {wrong:?} {}", it.client, it.forge.seen());
    assert!(matches!(refused, Verdict::Refused { .. }), "{shown}");
    assert!(!shown.contains("canary"), "{shown}");
    let odd = Secret::new("line\nbreak");
    let refused = it.client.publish(&it.site, &odd, &wanted, false, 0).await;
    assert!(matches!(refused, Verdict::Refused { .. }), "{refused:?}");
}

#[tokio::test]
async fn an_outgoing_webhook_can_be_believed() {
    let it = setup(Kind::GitHub);
    let secret = Secret::new("0123456789abcdef");
    let outgoing = Outgoing {
        id: "run_1",
        event: "run.ended",
        timestamp: 1_700_000_000,
        body: br#"{"run":"run_1"}"#,
    };
    let url = it.forge.hook_address().parse().unwrap();
    let done = it.client.deliver(&url, &secret, &outgoing).await;
    assert_eq!(done, DONE_NOW);
    let heard = it.forge.hooks().pop().unwrap();
    assert_eq!(
        (heard.delivery.as_str(), &*heard.body),
        ("run_1", outgoing.body)
    );
    let expected = delta_forge::sign_outgoing(&secret, 1_700_000_000, &heard.body);
    assert_eq!(heard.signature, expected);
}
