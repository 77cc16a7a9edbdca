//! Producers: the clients in Python and in Rust, against a real server with real runners.

use std::process::Command;
use std::time::Duration;

use delta_runner::client::{Client, ClientError, NewCall};
use serde_json::{Value, json};

use super::{agent, repository};
use crate::harness::{Options, Server};

#[test]
fn the_python_client_calls_waits_and_is_told_why() {
    let server = Server::start(Options::patient());
    let _agent = agent(&server, "functions");
    let program = r#"
from delta_runner import Client, FunctionFailed
client = Client()
call = client.enqueue("py#note", {"n": 4, "path": "/dev/null"}, queue="mail")
print(client.result(call.id, timeout=60))
calls = client.enqueue_many([{"function": "rs#echo", "params": {"n": n}} for n in range(20)])
print(sum(client.result(call.id)["params"]["n"] for call in calls))
try:
    client.result(client.enqueue("py#fail", max_attempts=1).id, timeout=60)
except FunctionFailed as failed:
    print(failed, failed.type, failed.details, failed.call.dead_letter)
waits = client.enqueue("py#note", {"n": 1, "path": "/dev/null"}, delay_seconds=3600)
client.cancel(waits.id, reason="changed my mind")
print(client.wait(waits.id, timeout=60).state)
"#;
    let output = Command::new("/usr/bin/python3")
        .args(["-c", program])
        .env("PYTHONPATH", repository().join("sdk/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("DELTA_SERVER", format!("http://{}", server.addr()))
        .env("DELTA_TOKEN", server.token("user"))
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&output.stdout);
    let expected = "8\n190\nno address bad_address {'to': 1} True\nCANCELED\n";
    assert_eq!(
        said,
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    server.check();
}

/// What a test awaits, on a thread of its own.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

fn client(server: &Server) -> Client {
    let client = Client::new(&format!("http://{}", server.addr())).expect("an address");
    client.token(&server.token("user"))
}

#[test]
fn the_rust_client_calls_waits_and_is_told_why() {
    let server = Server::start(Options::patient());
    let _agent = agent(&server, "functions");
    let client = client(&server);
    let minute = Some(Duration::from_secs(60));
    block_on(async {
        let note = NewCall::new("py#note").params(json!({"n": 4, "path": "/dev/null"}));
        let call = client.enqueue(note.queue("mail")).await.expect("a call");
        assert_eq!((call.queue.as_str(), call.existing), ("mail", false));
        let double: u32 = client.result(&call.id, minute).await.expect("a result");
        assert_eq!(double, 8);
        let echoes = (0..20).map(|n| NewCall::new("rs#echo").params(json!({ "n": n })));
        let calls = client.enqueue_many(echoes).await.expect("calls");
        let mut sum = 0;
        for call in &calls {
            let echo: Value = client.result(&call.id, minute).await.expect("a result");
            sum += echo["params"]["n"].as_u64().expect("a number");
        }
        assert_eq!(sum, 190);
        let fail = NewCall::new("py#fail").max_attempts(1);
        let fail = client.enqueue(fail).await.expect("a call");
        let failed = match client.result::<Value>(&fail.id, minute).await {
            Err(ClientError::Failed(failed)) => failed,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed.to_string(), "no address");
        let error = failed.call.error.as_ref().expect("an error");
        let details = error.details.as_ref().expect("details").get();
        assert_eq!(
            (error.kind.as_deref(), details, failed.call.dead_letter),
            (Some("bad_address"), r#"{"to":1}"#, true)
        );
        let later = NewCall::new("rs#echo").delay(Duration::from_secs(3600));
        let waits = client.enqueue(later).await.expect("a call");
        let soon = Some(Duration::from_millis(50));
        let error = client.wait(&waits.id, soon).await.expect_err("it waits");
        assert!(matches!(error, ClientError::NotEnded(_)), "{error}");
        let why = Some("changed my mind");
        client.cancel(&waits.id, why).await.expect("a cancel");
        let ended = client.wait(&waits.id, minute).await.expect("its end");
        assert_eq!(ended.state, "CANCELED");
    });
    server.check();
}

#[test]
fn what_the_rust_client_says_is_what_the_handler_and_the_server_hear() {
    let server = Server::start(Options::patient());
    let _agent = agent(&server, "functions");
    let client = client(&server);
    block_on(async {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let call = || {
            NewCall::new("rs#echo")
                .params(json!({"a": [1]}))
                .queue("mail")
                .priority(3)
                .unique_key("k")
                .unique_for(Duration::from_secs(60))
                .max_attempts(5)
                .backoff(Duration::from_millis(50))
                .backoff_cap(Duration::from_secs(1))
                .timeout(Duration::from_secs(30))
                .result_ttl(Duration::from_secs(600))
                .trace_context([("traceparent", parent)])
        };
        let first = client.enqueue(call()).await.expect("a call");
        assert_eq!(first.max_attempts, 5);
        let again = client.enqueue(call()).await.expect("a call");
        assert_eq!((&again.id, again.existing), (&first.id, true), "its key");
        let wait = Some(Duration::from_secs(60));
        let echo: Value = client.result(&first.id, wait).await.expect("a result");
        assert_eq!(echo["params"], json!({"a": [1]}));
        assert_eq!(echo["queue"], "mail");
        // A key of the caller's own makes one call, and refuses another.
        let once = client.enqueue_once("order-17", "rs#echo").await;
        let twice = client.enqueue_once("order-17", "rs#echo").await;
        assert_eq!(once.expect("a call").id, twice.expect("the same").id);
        let other = client.enqueue_once("order-17", "py#fail").await;
        let code = match other {
            Err(ClientError::Refused {
                status: 409, code, ..
            }) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code.as_deref(), Some("IDEMPOTENCY_CONFLICT"));
        // What is wrong is named.
        let error = match client.enqueue(NewCall::new("f").max_attempts(0)).await {
            Err(error @ ClientError::Refused { status: 422, .. }) => error,
            other => panic!("{other:?}"),
        };
        assert!(error.to_string().contains("max_attempts"), "{error}");
        let nobody = Client::new(&format!("http://{}", server.addr())).expect("an address");
        let refused = nobody.get(&first.id).await.expect_err("no token");
        assert!(
            matches!(refused, ClientError::Refused { status: 401, .. }),
            "{refused}"
        );
    });
    server.check();
}

#[test]
fn a_call_made_while_the_server_restarts_is_made_once() {
    let mut server = Server::start(Options::patient());
    let client = client(&server);
    server.kill9();
    server
        .process()
        .wait(Duration::from_secs(20))
        .expect("its end");
    let asking = {
        let client = client.clone();
        std::thread::spawn(move || block_on(client.enqueue("py#note")))
    };
    server.start_again();
    let call = asking.join().expect("a thread").expect("a call");
    let list = server.person().get("/api/v1/functions");
    let ids: Vec<&str> = list["functions"]
        .as_array()
        .expect("calls")
        .iter()
        .filter_map(|it| it["id"].as_str())
        .collect();
    assert_eq!(ids, [call.id.as_str()]);
    server.check();
}
