//! The connection errors of the Execution Protocol, from the agent's side: what it waits for, what
//! it comes back from, and what ends it.

use std::time::Duration;

use delta_agent::{AgentError, TokenSource};
use delta_testkit::port::free_port;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{HeldLease, RunStatus};
use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::agent::{Agent, hex, job_number, server_settings, sha256, steps};
use crate::bench::{is_running, until};
use crate::fake_server::{FakeServer, State, TOKEN, bytes_of};

/// An address where nobody listens, nor will but whom the test starts there.
fn free_address() -> String {
    format!("127.0.0.1:{}", free_port().expect("a port"))
}

// EP-33, A35: a server that is not there is waited for.
#[tokio::test]
async fn a_refused_connection_is_tried_again_until_the_server_comes() {
    let address = free_address();
    let agent = Agent::start_at(server_settings(&format!("http://{address}")));
    // Long enough for a few refusals.
    sleep(Duration::from_secs(1)).await;
    let server = FakeServer::start_at(&[steps(&["true"])], &address).await;
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Success);
    agent.shut_down().await;
}

// EP-22, EP-26: work that comes in one frame with the answer to the registration is not lost.
#[tokio::test]
async fn work_in_the_frame_of_the_registration_is_done() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.hold.insert("Register");
    });
    let agent = Agent::start(&server);
    server.wait_for("Register", 1).await;
    server.change(|state| {
        let work = state.assignment(&steps(&["true"]));
        state.held.push(bytes_of(Say::AssignWork(work)));
        state.let_go();
    });
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Success);
    agent.shut_down().await;
}

/// Prints numbered lines, slowly enough to be cut in the middle.
const LINES: &str = "for i in $(seq 400); do echo line $i of a log; sleep 0.01; done";

// EP-29, EP-36, A26, A27, A35: it comes back at once as who it was, with what it holds, and goes on
// where the server is.
#[tokio::test]
async fn a_dropped_stream_is_taken_up_where_it_was_cut() {
    let server = FakeServer::start(&[steps(&[LINES])]).await;
    let agent = Agent::start(&server);
    server
        .wait_until(|state| state.last_log().len() > 1_000)
        .await;
    server.change(|state| {
        // What it had answered for and not kept is asked for again.
        state.executions[0].log.truncate(700);
        state.break_line();
    });
    server.wait_for("Register", 2).await;
    server
        .wait_until(|state| state.last_log().len() > 3_000)
        .await;
    server.break_line();
    let result = server.wait_results(1).await.remove(0);
    let again = server.registrations().remove(1);
    assert_eq!(again.agent_id, "agt_1");
    let held = HeldLease {
        run_id: "exe_1".to_owned(),
        lease: "lease_canary_1".to_owned(),
    };
    assert_eq!(again.leases, [held]);
    let first = &server.registrations()[0];
    assert_eq!(first.instance, again.instance, "the same process");
    assert_eq!(first.protocol_version, "1.0");
    let lines: String = (1..=400).map(|i| format!("line {i} of a log\n")).collect();
    let log = format!("--- step 1: {LINES}\n{lines}");
    assert_eq!(server.log(), log, "byte-equal, nothing twice");
    assert_eq!(hex(&result.log_sha256), sha256(log.as_bytes()));
    agent.shut_down().await;
}

// A26, A63, EP-29: another process on the same state folder is the same agent, and goes on with
// the work and its log.
#[tokio::test]
async fn an_agent_that_is_replaced_goes_on_where_it_was() {
    let server = FakeServer::start(&[steps(&[LINES])]).await;
    let agent = Agent::start(&server);
    server
        .wait_until(|state| state.last_log().len() > 1_000)
        .await;
    let agent = agent.replaced(&server).await;
    let result = server.wait_results(1).await.remove(0);
    let registrations = server.registrations();
    let (first, second) = (&registrations[0], &registrations[1]);
    assert_eq!(second.agent_id, "agt_1");
    assert_ne!(first.instance, second.instance, "another process");
    assert_eq!(second.leases[0].run_id, "exe_1");
    assert_eq!(result.status(), RunStatus::Success);
    let lines: String = (1..=400).map(|i| format!("line {i} of a log\n")).collect();
    assert_eq!(server.log(), format!("--- step 1: {LINES}\n{lines}"));
    let renewals = server.heartbeats().into_iter().flat_map(|it| it.leases);
    let seqs: Vec<u64> = renewals.filter_map(|it| it.seq).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    agent.shut_down().await;
}

// A27: a lease that is over on the server's side when the agent comes back is over.
#[tokio::test]
async fn a_lease_that_ended_meanwhile_is_given_up_at_the_return() {
    let server = FakeServer::start(&[steps(&["echo $$; sleep 600"])]).await;
    let agent = Agent::start(&server);
    let pid = job_number(&server).await;
    server.change(|state| {
        state.stale = true;
        state.break_line();
    });
    server.wait_idle().await;
    assert!(!is_running(&pid));
    agent.shut_down().await;
    assert!(server.results().is_empty());
}

// EP-35, A35: a refusal ends the agent, and it says why.
#[tokio::test]
async fn a_refused_credential_ends_the_agent() {
    for refusal in [
        Status::unauthenticated("revoked"),
        Status::permission_denied("revoked"),
    ] {
        let server = FakeServer::start(&[]).await;
        server.change(|state| state.refuse.push_back(refusal));
        let ended = Agent::start(&server).ended().await;
        let refused = matches!(&ended, Err(AgentError::Unauthorized(why)) if why == "revoked");
        assert!(refused, "{ended:?}");
        assert_eq!(server.count("Register"), 1);
    }
}

// EP-35, A35: a server that is only away does not.
#[tokio::test]
async fn an_unavailable_server_is_tried_again() {
    let server = FakeServer::start(&[steps(&["true"])]).await;
    server.change(|state| {
        state.refuse.push_back(Status::unavailable("starting"));
        state.refuse.push_back(Status::resource_exhausted("full"));
    });
    let agent = Agent::start(&server);
    server.wait_for("RunComplete", 1).await;
    server.change(|state| state.end_with(Status::unavailable("stopping")));
    server.wait_for("Register", 4).await;
    agent.shut_down().await;
}

// EP-35: a refused token that was replaced in its file meanwhile is tried.
#[tokio::test]
async fn a_token_that_was_replaced_meanwhile_is_tried() {
    let server = FakeServer::start(&[]).await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "an old token\n".replace(' ', "-")).expect("written");
    let path = file.path().to_owned();
    server.change(|state| {
        let replace = move || std::fs::write(&path, TOKEN).expect("written");
        state.on_wrong_token = Some(Box::new(replace));
    });
    let mut settings = server_settings(&server.address);
    settings.token = Some(TokenSource::File(file.path().to_owned()));
    let agent = Agent::start_at(settings);
    server.wait_for("Register", 1).await;
    agent.shut_down().await;
}

// EP-35: and one that was not replaced is not tried for ever.
#[tokio::test]
async fn a_token_that_is_refused_and_still_there_ends_the_agent() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| state.on_wrong_token = Some(Box::new(|| {})));
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "another").expect("written");
    let mut settings = server_settings(&server.address);
    settings.token = Some(TokenSource::File(file.path().to_owned()));
    let ended = Agent::start_at(settings).ended().await;
    let refused = matches!(ended, Err(AgentError::Unauthorized(_)));
    assert!(refused, "{ended:?}");
}

// EP-35: a file that is just being written is not the last word.
#[tokio::test]
async fn a_token_that_cannot_be_read_when_it_is_refused_is_waited_for() {
    let server = FakeServer::start(&[]).await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "an-old-token").expect("written");
    let path = file.path().to_owned();
    server.change(|state| {
        let empty = move || std::fs::write(&path, "").expect("written");
        state.on_wrong_token = Some(Box::new(empty));
    });
    let mut settings = server_settings(&server.address);
    settings.token = Some(TokenSource::File(file.path().to_owned()));
    let agent = Agent::start_at(settings);
    let length = || std::fs::metadata(file.path()).expect("a file").len();
    until("the old token was shown", || length() == 0).await;
    std::fs::write(file.path(), TOKEN).expect("written");
    server.wait_for("Register", 1).await;
    agent.shut_down().await;
}

// EP-35, D7: refused in the middle of a job, the agent ends at once. The job is left as by a crash:
// an agent with a better credential goes on with it.
#[tokio::test]
async fn a_credential_refused_during_work_leaves_the_work_to_the_next_agent() {
    let server = FakeServer::start(&[steps(&[LINES])]).await;
    let agent = Agent::start(&server);
    server
        .wait_until(|state| state.last_log().len() > 1_000)
        .await;
    server.change(|state| state.end_with(Status::permission_denied("revoked")));
    let (ended, folder) = agent.ended_in().await;
    assert!(
        matches!(ended, Err(AgentError::Unauthorized(_))),
        "{ended:?}"
    );
    assert!(server.results().is_empty());
    let agent = Agent::start_again(folder, &server);
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Success);
    let lines: String = (1..=400).map(|i| format!("line {i} of a log\n")).collect();
    assert_eq!(server.log(), format!("--- step 1: {LINES}\n{lines}"));
    agent.shut_down().await;
}

// EP-35, D7: and where none comes, it ends with its lease.
#[tokio::test]
async fn work_that_a_refused_agent_left_ends_with_its_lease() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        (state.ttl, state.interval) = (Duration::from_secs(3), Duration::from_millis(500));
        state.jobs.push_back(steps(&["echo $$; sleep 600"]));
    });
    let agent = Agent::start(&server);
    let pid = job_number(&server).await;
    server.change(|state| state.end_with(Status::permission_denied("revoked")));
    let (_, _folder) = agent.ended_in().await;
    until("it ends with its lease", || !is_running(&pid)).await;
}

// A29, EP-52: another protocol is not a matter of patience.
#[tokio::test]
async fn a_protocol_version_that_is_refused_ends_the_agent() {
    let why = "protocol version 1.0 is not spoken here; 2.0 is";
    let server = FakeServer::start(&[]).await;
    server.change(|state| state.refuse.push_back(Status::failed_precondition(why)));
    let ended = Agent::start(&server).ended().await;
    let told = matches!(&ended, Err(AgentError::Unauthorized(told)) if told == why);
    assert!(told, "{ended:?}");
}

// A26, A35: an agent that is unknown registers as a new one, and does not hammer the server when
// that is refused too.
#[tokio::test]
async fn an_agent_that_is_not_known_any_more_registers_anew() {
    let server = FakeServer::start(&[]).await;
    let agent = Agent::start(&server);
    server.wait_for("Heartbeat", 1).await;
    server.change(|state| {
        for _ in 0..2 {
            state.refuse.push_back(Status::not_found("no such agent"));
        }
        state.forget();
        state.break_line();
    });
    server.wait_for("Register", 2).await;
    let forgotten = Instant::now();
    server.wait_for("Register", 4).await;
    let ids: Vec<String> = server
        .registrations()
        .into_iter()
        .map(|it| it.agent_id)
        .collect();
    assert_eq!(ids, ["", "agt_1", "", ""]);
    // Two waits of some seconds at most, which are short by chance, yet never as short as this.
    let waited = forgotten.elapsed();
    assert!(waited > Duration::from_millis(15), "{waited:?}");
    agent.shut_down().await;
}

// F30, RP-58, D7: out of touch for a whole time to live, the holder stops by its own clock.
#[tokio::test]
async fn an_agent_out_of_touch_stops_by_its_own_clock() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        (state.ttl, state.interval) = (Duration::from_secs(6), Duration::from_millis(500));
        state.jobs.push_back(steps(&["echo $$; sleep 600"]));
    });
    let agent = Agent::start(&server);
    let pid = job_number(&server).await;
    let cut = Instant::now();
    server.go_away();
    agent
        .seen
        .wait_for("ended Failed { exit_code: None }")
        .await;
    assert!(!is_running(&pid));
    assert!(
        cut.elapsed() > Duration::from_secs(1),
        "{:?}",
        cut.elapsed()
    );
    agent.shut_down().await;
    assert!(server.results().is_empty());
}

// F31: heard and never answered is out of touch too.
#[tokio::test]
async fn an_agent_that_gets_no_answers_stops_by_its_own_clock() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        (state.ttl, state.interval) = (Duration::from_secs(6), Duration::from_millis(500));
        state.jobs.push_back(steps(&["echo $$; sleep 600"]));
    });
    let agent = Agent::start(&server);
    let pid = job_number(&server).await;
    server.change(|state: &mut State| state.mute = true);
    let renewals = server.count("Renewal");
    server.wait_idle().await;
    assert!(!is_running(&pid));
    assert!(server.count("Renewal") >= renewals + 3, "it went on trying");
    agent.shut_down().await;
    assert!(server.results().is_empty());
}
