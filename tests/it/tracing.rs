//! Traces with everything real: producers, server, agent and runners in two languages, each with
//! its own exporter, and a collector that speaks OTLP.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use delta_testkit::process::Process;
use delta_testkit::python::{OPENTELEMETRY, PYTHON, packages};
use serde_json::{Value, json};

use crate::faults_agent::{agent_with, only_job, run_of};
use crate::harness::collector::{Collector, Seen};
use crate::harness::server::finish;
use crate::harness::{Options, Person, Server, delta_ci, secret_in, until};

/// An application in Python with OpenTelemetry set up as its documentation says.
const SET_UP: &str = r#"
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("app")
"#;

const HANDLERS: &str = r#"
from delta_runner import App, Context, Retry

app = App()

@app.handler
async def later(context: Context, secret: str) -> int:
    # What is raised inside of a span of the application's own, that would tell.
    with tracer.start_as_current_span("app.step"):
        pass
    if context.attempt == 1:
        raise Retry("canary-message", after=0.05)
    return context.attempt

@app.handler
def later_blocking(context: Context, secret: str) -> int:
    with tracer.start_as_current_span("app.step"):
        return context.attempt
"#;

const PRODUCER: &str = r#"
import sys
from delta_runner import Client

client = Client()
with tracer.start_as_current_span("app.request") as span:
    call = client.enqueue(sys.argv[1], {"secret": "canary-param"}, queue="mail")
    print(f"{span.get_span_context().trace_id:032x}")
print(client.result(call.id, timeout=60))
provider.shutdown()
"#;

/// What our own spans may say; anything else would have to be thought about first.
const WORDS: [&str; 13] = [
    "delta.agent",
    "delta.attempt",
    "delta.cause",
    "delta.existing",
    "delta.function",
    "delta.job",
    "delta.job_id",
    "delta.lease_epoch",
    "delta.outcome",
    "delta.queue",
    "delta.run_id",
    "delta.runner",
    "service.name",
];

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn python_path(more: &Path) -> String {
    let packages = packages(OPENTELEMETRY).expect("OpenTelemetry for Python");
    let sdk = repository().join("sdk/python");
    let paths = [packages, sdk, more.to_owned()];
    let paths = paths.map(|it| it.display().to_string());
    paths.join(":")
}

/// A server that exports there; absent, one that exports nothing.
fn server(endpoint: Option<&str>) -> Server {
    let options = Options::patient();
    Server::start(match endpoint {
        Some(url) => options
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", url)
            .env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=for%20the%20collector"),
        None => options,
    })
}

/// An agent with a pool in each language, all of them with the same collector.
fn agent(server: &Server, endpoint: &str) -> Process {
    let jobs = format!("{SET_UP}{HANDLERS}");
    std::fs::write(server.folder().join("jobs.py"), jobs).unwrap();
    let env = format!(
        "OTEL_EXPORTER_OTLP_ENDPOINT: '{endpoint}', OTEL_BSP_SCHEDULE_DELAY: '100', \
         OTEL_SERVICE_NAME: runner"
    );
    let pools = format!(
        "pools:\n  py:\n    command: [{PYTHON}, -m, delta_runner, 'jobs:app']\n    \
         env: {{PYTHONPATH: '{path}', PYTHONDONTWRITEBYTECODE: '1', {env}}}\n  \
         rs:\n    command: ['{rust}']\n    env: {{{env}}}\n",
        path = python_path(server.folder()),
        rust = rust_runner().display(),
    );
    let file = server.folder().join("runners.yaml");
    std::fs::write(&file, pools).unwrap();
    let more = ["--runners", file.to_str().expect("a readable path")];
    let traces = ["--otlp-endpoint", endpoint];
    let named: &[&str] = if endpoint.is_empty() { &[] } else { &traces };
    agent_with(server, server.addr(), "ant", &[&more, named].concat())
}

fn rust_runner() -> PathBuf {
    let tests = std::env::current_exe().expect("this test's own place");
    let built = tests.parent().and_then(Path::parent).expect("target/debug");
    built.join("examples/traced_runner")
}

/// Calls a function from an application in Python; the trace of that.
fn produce(server: &Server, collector: &Collector, function: &str, result: &str) -> String {
    let output = Command::new(PYTHON)
        .args(["-c", &format!("{SET_UP}{PRODUCER}"), function])
        .env("PYTHONPATH", python_path(server.folder()))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("DELTA_SERVER", format!("http://{}", server.addr()))
        .env("DELTA_TOKEN", server.token("user"))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url())
        .env("OTEL_SERVICE_NAME", "web")
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    let (trace, got) = said
        .split_once('\n')
        .unwrap_or_else(|| panic!("{said} {error}"));
    assert_eq!(got.trim(), result, "{error}");
    trace.to_owned()
}

fn named<'a>(spans: &'a [Seen], name: &str) -> Vec<&'a Seen> {
    spans.iter().filter(|it| it.name == name).collect()
}

#[track_caller]
fn whole(collector: &Collector, trace: &str, spans: usize) -> Vec<Seen> {
    let found = until(
        "the trace is there",
        || collector.trace(trace),
        |found| found.len() >= spans,
    );
    assert_eq!(found.len(), spans, "{found:#?}");
    found
}

/// A call that fails once and then succeeds, from the producer's span to the function's own.
#[track_caller]
fn check_chain(spans: &[Seen], function: &str) {
    let only = |name: &str| match named(spans, name)[..] {
        [one] => one,
        ref other => panic!("one {name}: {other:#?}"),
    };
    let (request, enqueue) = (only("app.request"), only("delta.enqueue"));
    assert_eq!(
        (request.service.as_str(), request.parent.as_str()),
        ("web", "")
    );
    assert_eq!(enqueue.service, "delta-ci-server");
    assert_eq!(enqueue.parent, request.id);
    assert_eq!(enqueue.word("delta.existing"), "false");
    let (waits, calls) = (named(spans, "delta.wait"), named(spans, "delta.call"));
    let (runs, steps) = (named(spans, "rrq.runner"), named(spans, "app.step"));
    assert_eq!(
        (waits.len(), calls.len(), runs.len()),
        (2, 2, 2),
        "{spans:#?}"
    );
    let outcomes = ["failed", "succeeded"];
    for (n, outcome) in outcomes.into_iter().enumerate() {
        let (wait, call, run, step) = (waits[n], calls[n], runs[n], steps[n]);
        assert_eq!((&wait.parent, &call.parent), (&enqueue.id, &enqueue.id));
        assert_eq!((&run.parent, &step.parent), (&call.id, &run.id));
        assert_eq!(
            (wait.service.as_str(), call.service.as_str()),
            ("delta-ci-server", "delta-ci-agent")
        );
        assert_eq!(
            (run.service.as_str(), step.service.as_str()),
            ("runner", "runner")
        );
        for span in [wait, call] {
            assert_eq!(span.word("delta.attempt"), (n + 1).to_string());
            assert_eq!(
                span.word("delta.lease_epoch"),
                run.word("delta.lease_epoch")
            );
        }
        assert_eq!(call.word("delta.outcome"), outcome);
        assert_eq!(call.word("delta.agent"), "ant");
        assert_eq!(
            call.word("delta.runner"),
            function.split_once('#').unwrap().0
        );
        assert!(wait.time.0 <= wait.time.1 && call.time.0 <= call.time.1);
        assert_eq!(run.word("rrq.job_id"), call.word("delta.job_id"));
        assert_eq!(run.word("rrq.attempt"), call.word("delta.attempt"));
    }
    let reasons = [calls[0], calls[1]].map(|it| (it.word("delta.cause"), it.failed.as_deref()));
    assert_eq!(reasons, [("user_exit", Some("user_exit")), ("", None)]);
    assert_eq!(
        [runs[0], runs[1]].map(|it| it.word("rrq.status")),
        ["retry", "success"]
    );
    for span in [&[enqueue][..], &waits, &calls].concat() {
        assert_eq!(span.word("delta.run_id"), enqueue.word("delta.run_id"));
        assert_eq!(span.word("delta.function"), function);
        assert_eq!(span.word("delta.queue"), "mail");
        let strange = span
            .attributes
            .keys()
            .find(|it| !WORDS.contains(&it.as_str()));
        assert_eq!(strange, None);
    }
}

#[test]
fn one_trace_goes_from_the_producer_to_the_handler_in_two_languages() {
    // RQ-28
    let collector = Collector::start();
    let server = server(Some(&collector.url()));
    let agent = agent(&server, &collector.url());
    for function in ["py#later", "rs#later"] {
        let trace = produce(&server, &collector, function, "2");
        // The producer's, one for the request, and for each of two attempts four.
        check_chain(&whole(&collector, &trace, 10), function);
    }
    for function in ["py#later_blocking", "rs#later_blocking"] {
        let trace = produce(&server, &collector, function, "1");
        let spans = whole(&collector, &trace, 6);
        let (run, step) = (named(&spans, "rrq.runner")[0], named(&spans, "app.step")[0]);
        assert_eq!(step.parent, run.id, "it is current on a thread, too");
    }
    // Nobody's parameters, words or credentials.
    let raw = collector.raw();
    assert!(raw.contains("for the collector"), "the headers are sent");
    for canary in ["canary-param", "canary-message"] {
        assert!(!raw.contains(canary), "{canary} was exported");
    }
    assert_eq!(secret_in(&raw), None);
    agent.terminate().expect("SIGTERM");
    server.check();
}

fn enqueue(person: &Person, headers: &[(&str, &str)], body: &Value) -> Value {
    let body = body.to_string();
    let sent = person
        .http
        .send("POST", "/api/v1/functions", headers, body.as_bytes());
    sent.expect("an answer").expect(201).body
}

#[track_caller]
fn ended(person: &Person, made: &Value) -> Value {
    let path = format!("/api/v1/functions/{}", made["id"].as_str().expect("an id"));
    let over = |call: &Value| call.get("ended_at").is_some();
    until("the call has ended", || person.get(&path), over)
}

#[test]
fn a_request_hands_its_trace_on_and_what_is_malformed_is_ignored() {
    // RQ-28
    let collector = Collector::start();
    let server = server(Some(&collector.url()));
    let person = server.person();
    let _agent = agent(&server, &collector.url());
    let call = json!({"function": "rs#trace"});
    let sampled = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let state = ("tracestate", "vendor=1");
    let made = enqueue(&person, &[("traceparent", &sampled), state], &call);
    let got = ended(&person, &made)["result"].clone();
    let spans = whole(&collector, TRACE, 4);
    let find = |name: &str| named(&spans, name)[0];
    assert_eq!(find("delta.enqueue").parent, "00f067aa0ba902b7");
    let call_id = &find("delta.call").id;
    assert_eq!(got["traceparent"], format!("00-{TRACE}-{call_id}-01"));
    assert_eq!(got["tracestate"], "vendor=1");
    // What the call itself names counts before what its request does.
    let other = "5".repeat(32);
    let own = json!({"function": "rs#trace", "trace_context":
        {"traceparent": format!("00-{other}-00f067aa0ba902b7-01"), "baggage": "a=1"}});
    let made = enqueue(&person, &[("traceparent", &sampled)], &own);
    assert_eq!(ended(&person, &made)["result"]["baggage"], "a=1");
    whole(&collector, &other, 4);
    // Nobody wants to see it: it is handed on as it came.
    let quiet = format!("00-{}-00f067aa0ba902b7-00", "6".repeat(32));
    let made = enqueue(&person, &[("traceparent", &quiet)], &call);
    assert_eq!(ended(&person, &made)["result"]["traceparent"], json!(quiet));
    // Malformed: as if it were not there, so the trace is the run's own.
    let made = enqueue(&person, &[("traceparent", "00-garbage-01"), state], &call);
    let got = ended(&person, &made)["result"].clone();
    let run = made["id"].as_str().unwrap().strip_prefix("run_").unwrap();
    assert!(got["traceparent"].as_str().unwrap().contains(run), "{got}");
    assert_eq!(got.get("tracestate"), None);
    let spans = whole(&collector, run, 4);
    assert_eq!(named(&spans, "delta.enqueue")[0].parent, "");
    assert!(collector.trace(&"6".repeat(32)).is_empty(), "not sampled");
    server.check();
}

#[test]
fn without_a_collector_named_a_trace_is_handed_on_and_nothing_is_exported() {
    // RQ-28
    let server = server(None);
    let person = server.person();
    let _agent = agent(&server, "");
    let call = json!({"function": "rs#trace"});
    let sampled = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let made = enqueue(&person, &[("traceparent", &sampled)], &call);
    assert_eq!(
        ended(&person, &made)["result"],
        json!({"traceparent": sampled})
    );
    for bad in [
        "garbage",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
    ] {
        let made = enqueue(&person, &[("traceparent", bad)], &call);
        assert_eq!(ended(&person, &made)["result"], json!({}), "{bad}");
    }
    // A program that is itself in a trace.
    let data = server.data();
    let spawn = delta_ci()
        .args(["enqueue", "rs#trace", "--wait", "--data"])
        .arg(&data)
        .env("TRACEPARENT", &sampled);
    let done = finish(spawn);
    assert!(done.stdout.contains(&sampled), "{done:?}");
    let metrics = person.http.get("/metrics").expect("metrics").text;
    assert!(metrics.contains("delta_spans_sent 0"), "{metrics}");
    assert!(metrics.contains("delta_spans_lost 0"), "{metrics}");
    server.check();
}

#[test]
fn a_collector_that_is_gone_or_never_answers_costs_spans_and_nothing_else() {
    // A port that nobody listens on any more, and one whose listener never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let gone = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let gone_at = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    let silent_at = format!("http://{}", silent.local_addr().unwrap());
    let options = Options::patient()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &silent_at)
        .env("OTEL_EXPORTER_OTLP_TIMEOUT", "500");
    let server = Server::start(options);
    let person = server.person();
    let agent = agent(&server, &gone_at);
    let call = json!({"function": "rs#trace"});
    let lost = || {
        let text = person.http.get("/metrics").expect("metrics").text;
        let line = text
            .lines()
            .find_map(|it| it.strip_prefix("delta_spans_lost "));
        line.and_then(|it| it.parse().ok()).unwrap_or(0)
    };
    for _ in 0..2 {
        let before: u64 = lost();
        let done = ended(&person, &enqueue(&person, &[], &call));
        assert_eq!(done["state"], "SUCCEEDED", "{done}");
        until("they are counted", lost, |now| *now > before);
    }
    let said = |text: &str| text.matches("spans are lost").count();
    until(
        "the agent says it, too",
        || said(&agent.stderr()),
        |times| *times > 0,
    );
    assert_eq!((said(&agent.stderr()), said(&server.log())), (1, 1), "once");
    // Nor does it hold up the end.
    agent.terminate().expect("SIGTERM");
    let status = agent
        .wait(std::time::Duration::from_secs(60))
        .expect("it ends");
    assert_eq!(status.code(), Some(0));
    server.check();
}

#[test]
fn steps_are_told_the_trace_of_their_attempt() {
    let collector = Collector::start();
    let server = server(None);
    let person = server.person();
    let url = collector.url();
    let agent = agent_with(&server, server.addr(), "ant", &["--otlp-endpoint", &url]);
    let file = server.folder().join("seen");
    let run = person.create(&run_of(&format!(
        "echo $TRACEPARENT > {}; exit 3",
        file.display()
    )));
    let spans = whole(&collector, run.strip_prefix("run_").unwrap(), 1);
    let span = &spans[0];
    assert_eq!(
        (span.name.as_str(), span.parent.as_str()),
        ("delta.attempt", "")
    );
    assert_eq!(span.word("delta.job_id"), only_job(&person, &run));
    assert_eq!(
        (span.word("delta.outcome"), span.word("delta.cause")),
        ("failed", "user_exit")
    );
    let told = std::fs::read_to_string(&file).expect("the step ran");
    assert_eq!(told.trim(), format!("00-{}-{}-01", span.trace, span.id));
    agent.terminate().expect("SIGTERM");
    server.check();
}

#[test]
fn what_cannot_be_used_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let start = |name: &str, value: &str, more: &[&str]| {
        let spawn = delta_ci().args(["server", "--listen", "127.0.0.1:0", "--data"]);
        finish(spawn.arg(folder.path()).args(more).env(name, value))
    };
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
    for (name, value, more, words) in [
        (endpoint.0, "collector:4317", &[][..], "http://HOST:4317"),
        (
            endpoint.0,
            "",
            &["--otlp-endpoint", "nonsense"],
            "--otlp-endpoint",
        ),
        (
            "OTEL_TRACES_SAMPLER",
            "some",
            &["--otlp-endpoint", endpoint.1],
            "always_on",
        ),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "hunter2",
            &["--otlp-endpoint", endpoint.1],
            "name=value",
        ),
    ] {
        let done = start(name, value, more);
        assert_eq!(done.code, Some(2), "{done:?}");
        assert!(done.stderr.contains(words), "{done:?}");
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
    }
}
