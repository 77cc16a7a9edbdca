//! Artifacts over the Execution Protocol: in messages, by uploads, as inputs of other jobs; fenced,
//! whole or not there, and served as bytes to keep.

use std::path::PathBuf;

use aws_lc_rs::digest::{SHA256, digest};
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    Artifact, AssignWork, CreateUpload, ProtocolError, RunComplete, RunStatus, UploadCreated,
};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::bench::{Answer, Bench, text};
use crate::uploads::put_bytes;

fn hash(bytes: &[u8]) -> String {
    let hash = digest(&SHA256, bytes);
    hash.as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn artifact(name: &str, data: &[u8]) -> Artifact {
    Artifact {
        name: name.into(),
        path: name.into(),
        content_type: "text/plain".into(),
        data: data.to_vec().into(),
        kind: "report".into(),
        ..Default::default()
    }
}

fn upload(work: &AssignWork, name: &str, bytes: &[u8]) -> Said {
    Said::CreateUpload(CreateUpload {
        run_id: work.run_id.clone(),
        lease: work.lease.clone(),
        name: name.into(),
        size: bytes.len() as u64,
        sha256: hash(bytes),
        kind: "package".into(),
    })
}

impl Agent {
    async fn stored(&mut self) -> UploadCreated {
        self.hears(|say| match say {
            Say::UploadCreated(created) => Some(created.clone()),
            Say::ProtocolError(error) => panic!("{error:?}"),
            _ => None,
        })
        .await
    }

    async fn refusal(&mut self) -> ProtocolError {
        self.hears(|say| match say {
            Say::ProtocolError(error) => Some(error.clone()),
            _ => None,
        })
        .await
    }

    async fn settles(&mut self, work: &AssignWork, artifacts: u32) {
        let complete = RunComplete {
            status: RunStatus::Success.into(),
            artifacts,
            ..Default::default()
        };
        self.say([self.result(work, Payload::RunComplete(complete))])
            .await;
        let done = self.hears(|say| match say {
            Say::CompleteAck(ack) => Some(ack.accepted),
            _ => None,
        });
        assert!(done.await);
    }

    async fn keeps(&mut self, work: &AssignWork, name: &str, data: &[u8]) {
        self.say([self.result(work, Payload::Artifact(artifact(name, data)))])
            .await;
        let stored = self.stored().await;
        assert_eq!((stored.name.as_str(), stored.url.as_str()), (name, ""));
    }
}

async fn names(bench: &Bench, path: &str) -> Vec<String> {
    let list = bench
        .get(&format!("/api/v1/{path}/artifacts"))
        .await
        .expect(200);
    let list = list["artifacts"].as_array().unwrap().clone();
    list.iter().map(|it| text(&it["name"])).collect()
}

#[tokio::test]
async fn small_and_large_artifacts_are_seen_when_their_lease_has_won() {
    // EP-13, EP-46, A49, A18
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let (run, jobs) = bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    agent.keeps(&work, "out/small.txt", b"small").await;
    // Said again, because the answer was lost.
    agent.keeps(&work, "out/small.txt", b"small").await;
    agent.keeps(&work, "empty", b"").await;
    let large = vec![7; 3_000_000];
    agent.say([upload(&work, "large.bin", &large)]).await;
    let created = agent.stored().await;
    assert!(
        !created.url.contains(&work.lease),
        "no token in a URL (A24)"
    );
    let put = put_bytes(&bench, &created.url, &work.lease, 0, large.clone()).await;
    put.expect(200);
    let mut refers = artifact("large.bin", b"");
    refers.upload_url = created.uri;
    agent
        .say([agent.result(&work, Payload::Artifact(refers))])
        .await;
    assert_eq!(agent.stored().await.name, "large.bin");
    agent.say([upload(&work, "large.bin", &large)]).await;
    assert_eq!(
        agent.stored().await.url,
        "",
        "there is nothing to send any more"
    );
    assert_eq!(names(&bench, &format!("jobs/{}", jobs[0])).await, [""; 0]);
    agent.settles(&work, 3).await;
    // A18: the same again is answered the same.
    agent.settles(&work, 3).await;
    let all = ["empty", "large.bin", "out/small.txt"];
    assert_eq!(names(&bench, &format!("jobs/{}", jobs[0])).await, all);
    assert_eq!(names(&bench, &format!("runs/{run}")).await, all);
    let view = bench.show_job(&jobs[0]).await;
    let first = &view["attempts"][0]["artifacts"][1];
    assert_eq!(
        (&first["type"], &first["external"]),
        (&json!("package"), &json!(false))
    );
    served(&bench, &jobs[0], &large).await;
}

/// What is downloaded is the very bytes, and nothing a browser acts on.
async fn served(bench: &Bench, job: &str, large: &[u8]) {
    // RP-56, T21
    let path = format!("{}/api/v1/jobs/{job}/artifacts/large.bin", bench.base);
    let get = |name: &'static str, value: String| {
        let request = bench.client.get(&path).bearer_auth(&bench.user);
        request.header(name, value).send()
    };
    let whole = get("accept", "*/*".into()).await.unwrap();
    let tag = format!("\"{}\"", hash(large));
    for (name, value) in [
        ("etag", tag.as_str()),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; sandbox"),
        (
            "content-disposition",
            "attachment; filename*=UTF-8''large.bin",
        ),
        ("content-length", "3000000"),
        ("accept-ranges", "bytes"),
    ] {
        assert_eq!(whole.headers()[name], value, "{name}");
    }
    assert_eq!(whole.bytes().await.unwrap(), large);
    let part = get("range", "bytes=5-9".into()).await.unwrap();
    assert_eq!(part.status().as_u16(), 206);
    assert_eq!(part.headers()["content-range"], "bytes 5-9/3000000");
    assert_eq!(part.bytes().await.unwrap(), &large[5..10]);
    assert_eq!(
        get("range", "bytes=3000000-".into())
            .await
            .unwrap()
            .status()
            .as_u16(),
        416
    );
    assert_eq!(
        get("if-none-match", tag).await.unwrap().status().as_u16(),
        304
    );
}

#[tokio::test]
async fn an_artifact_has_its_bytes_or_its_place_and_nothing_else() {
    // EP-13, EP-39, EP-46
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    let neither = Artifact {
        name: "a".into(),
        ..Default::default()
    };
    let mut both = artifact("a", b"x");
    both.upload_url = "delta:x".into();
    let mut foreign = artifact("a", b"");
    foreign.upload_url = "https://169.254.169.254/latest".into();
    for (said, field) in [
        (neither, "artifact.data"),
        (both, "artifact.upload_url"),
        (foreign, "artifact.upload_url"),
        (artifact("", b"x"), "name"),
        (artifact("../x", b"x"), "name"),
        (artifact("/etc/passwd", b"x"), "name"),
        (artifact("a\nb", b"x"), "name"),
        (artifact("big", &vec![0; 1024 * 1024 + 1]), "artifact.data"),
    ] {
        agent
            .say([agent.result(&work, Payload::Artifact(said))])
            .await;
        let refusal = agent.refusal().await;
        assert_eq!(
            (refusal.field.as_str(), refusal.message_type.as_str()),
            (field, "Artifact")
        );
    }
    let mut huge = upload(&work, "huge", b"");
    if let Said::CreateUpload(wanted) = &mut huge {
        wanted.size = u64::MAX;
    }
    agent.say([huge]).await;
    assert_eq!(agent.refusal().await.field, "size");
    // Other bytes under the same name.
    agent.keeps(&work, "a", b"x").await;
    agent
        .say([agent.result(&work, Payload::Artifact(artifact("a", b"y")))])
        .await;
    assert_eq!(agent.refusal().await.code, "CONFLICT");
    agent.say([upload(&work, "a", b"z")]).await;
    assert_eq!(agent.refusal().await.code, "CONFLICT");
}

#[tokio::test]
async fn a_torn_upload_is_not_there_and_the_next_try_is() {
    // F3, F45
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let (_, jobs) = bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    let bytes = vec![1; 500_000];
    agent.say([upload(&work, "x.bin", &bytes)]).await;
    let url = agent.stored().await.url;
    let short = put_bytes(&bench, &url, &work.lease, 0, bytes[1..].to_vec()).await;
    assert_eq!(short.expect(422)["field"], "size");
    let mut other = bytes.clone();
    other[7] = 2;
    let other = put_bytes(&bench, &url, &work.lease, 0, other).await;
    assert_eq!(other.expect(422)["field"], "sha256");
    let mut refers = artifact("x.bin", b"");
    refers.upload_url = format!("delta:{}", url.rsplit('/').next().unwrap());
    agent
        .say([agent.result(&work, Payload::Artifact(refers))])
        .await;
    assert_eq!(agent.refusal().await.field, "upload_url");
    put_bytes(&bench, &url, &work.lease, 0, bytes)
        .await
        .expect(200);
    agent.settles(&work, 1).await;
    assert_eq!(names(&bench, &format!("jobs/{}", jobs[0])).await, ["x.bin"]);
    let late = put_bytes(&bench, &url, &work.lease, 0, vec![9]).await;
    assert_eq!(
        late.status.as_u16(),
        409,
        "the lease is over, and its place with it"
    );
}

/// The folder in which a lease's uploads are: the deepest of the run's.
fn uploads_of(bench: &Bench, run: &str) -> PathBuf {
    let mut folder = bench.data.path().join("objects").join(run);
    while let Some(inner) = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir())
    {
        folder = inner;
    }
    folder
}

#[tokio::test]
async fn no_success_counts_artifacts_that_are_not_here() {
    // EP-46, F44, D4
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let (run, jobs) = bench.run_with(2).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    agent.keeps(&work, "one", b"1").await;
    let complete = |status: RunStatus, artifacts| {
        Payload::RunComplete(RunComplete {
            status: status.into(),
            artifacts,
            ..Default::default()
        })
    };
    let two = complete(RunStatus::Success, 2);
    agent.say([agent.result(&work, two)]).await;
    let refusal = agent.refusal().await;
    assert_eq!(
        (refusal.field.as_str(), refusal.retryable),
        ("run_complete.artifacts", false)
    );
    // The disk is in trouble: nobody knows what there is.
    let folder = uploads_of(&bench, &run);
    let away = folder.with_extension("away");
    std::fs::rename(&folder, &away).unwrap();
    std::fs::write(&folder, "").unwrap();
    let one = complete(RunStatus::Success, 1);
    agent.say([agent.result(&work, one)]).await;
    let refusal = agent.refusal().await;
    assert_eq!(
        (refusal.code.as_str(), refusal.retryable),
        ("UNAVAILABLE", true)
    );
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&away, &folder).unwrap();
    agent.settles(&work, 1).await;
    assert_eq!(names(&bench, &format!("jobs/{}", jobs[0])).await, ["one"]);
    // Any other result stands without them.
    let work = agent.work().await;
    agent.accepts(&work).await;
    let failed = complete(RunStatus::Error, 5);
    agent.say([agent.result(&work, failed)]).await;
    let done = agent.hears(|say| match say {
        Say::CompleteAck(ack) => Some(ack.accepted),
        _ => None,
    });
    assert!(done.await);
}

async fn inputs(bench: &Bench, work: &AssignWork) -> Answer {
    let path = format!("{}/api/v1/runner/jobs/{}/inputs", bench.base, work.job_id);
    get(bench, &path, &work.lease).await
}

pub async fn get(bench: &Bench, url: &str, lease: &str) -> Answer {
    let request = bench.client.get(url).bearer_auth(&bench.runner);
    Answer::of(request.header("Delta-Lease", lease).send().await.unwrap()).await
}

fn job(name: &str, needs: &[&str], inputs: &[&str]) -> Value {
    json!({ "name": name, "needs": needs,
        "job_spec": { "steps": ["true"], "inputs": inputs } })
}

#[tokio::test]
async fn an_input_that_is_out_of_reach_is_not_told_as_one_that_was_never_left() {
    // D10, F44
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let jobs = [job("build", &[], &[]), job("use", &["build"], &["build"])];
    let run = text(&bench.create(json!(jobs)).await["run_id"]);
    let work = agent.work().await;
    agent.accepts(&work).await;
    agent.keeps(&work, "dist/app", b"built").await;
    agent.settles(&work, 1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    let list = inputs(&bench, &work).await.expect(200);
    assert_eq!(list["inputs"][0]["name"], "dist/app", "{list}");
    let id = text(&list["inputs"][0]["id"]);
    let one = format!(
        "{}/api/v1/runner/jobs/{}/inputs/{id}",
        bench.base, work.job_id
    );
    // What the first job left, as on a disk that is not mounted.
    let folder = bench.data.path().join("objects").join(&run).join("1");
    let away = folder.with_extension("away");
    std::fs::rename(&folder, &away).unwrap();
    for answer in [
        inputs(&bench, &work).await,
        get(&bench, &one, &work.lease).await,
    ] {
        let trouble = answer.expect(500);
        assert_eq!(trouble["retryable"], true, "{trouble}");
    }
    std::fs::rename(&away, &folder).unwrap();
    assert_eq!(inputs(&bench, &work).await.expect(200), list);
    assert_eq!(get(&bench, &one, &work.lease).await.text, "built");
}

#[tokio::test]
async fn a_job_is_told_which_of_those_it_needs_did_not_succeed() {
    // D10
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let mut build = job("build", &[], &[]);
    build["required"] = json!(false);
    bench
        .create(json!([build, job("use", &["build"], &["build"])]))
        .await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    agent
        .say([agent.completed(&work, RunStatus::Failure)])
        .await;
    let work = agent.work().await;
    assert_eq!(work.job_name, "use");
    agent.accepts(&work).await;
    let list = inputs(&bench, &work).await.expect(200);
    assert_eq!(list, json!({ "inputs": [], "not_succeeded": ["build"] }));
}

#[tokio::test]
async fn a_job_gets_the_artifacts_of_those_it_needs_and_of_no_others() {
    // T8
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let wrong = json!({ "jobs": [job("build", &[], &[]), job("use", &[], &["build"])] });
    let refused = bench.ask("/runs", wrong).await.expect(422);
    assert_eq!(refused["field"], "jobs[1].job_spec.inputs[0].job");
    let jobs = [
        job("build", &[], &[]),
        job("other", &[], &[]),
        job("use", &["build"], &["build"]),
    ];
    let run = text(&bench.create(json!(jobs)).await["run_id"]);
    let mut others = String::new();
    for (name, bytes) in [("build", b"built"), ("other", b"other")] {
        let work = agent.work().await;
        assert_eq!(work.job_name, name);
        agent.accepts(&work).await;
        agent.keeps(&work, &format!("dist/{name}"), bytes).await;
        let none = inputs(&bench, &work).await.expect(200);
        assert_eq!(none["inputs"], json!([]));
        agent.settles(&work, 1).await;
        let list = bench
            .get(&format!("/api/v1/jobs/{}", work.job_id))
            .await
            .expect(200);
        others = text(&list["attempts"][0]["artifacts"][0]["uri"]).replace("delta:", "");
    }
    let work = agent.work().await;
    agent.accepts(&work).await;
    let list = inputs(&bench, &work).await.expect(200)["inputs"].clone();
    assert_eq!(list.as_array().unwrap().len(), 1, "{list}");
    assert_eq!(
        (&list[0]["job"], &list[0]["name"]),
        (&json!("build"), &json!("dist/build"))
    );
    let base = format!("{}/api/v1/runner/jobs/{}/inputs", bench.base, work.job_id);
    let one = format!("{base}/{}", text(&list[0]["id"]));
    assert_eq!(get(&bench, &one, &work.lease).await.text, "built");
    let log = text(&list[0]["id"]);
    let log = format!("{}-log", log.rsplit_once('-').unwrap().0);
    for other in [others.as_str(), &log, "strange"] {
        let other = format!("{base}/{other}");
        get(&bench, &other, &work.lease).await.expect(404);
    }
    get(&bench, &one, "no-lease-at-all").await.expect(409);
    agent
        .say([agent.completed(&work, RunStatus::Failure)])
        .await;
    bench
        .until(&format!("/runs/{run}"), "/outcome", "FAILED")
        .await;
    // What succeeded is not run again, and its artifacts are still there.
    let again = bench
        .ask(
            &format!("/runs/{run}/rerun"),
            json!({ "failed_only": true }),
        )
        .await;
    let again = again.expect(201);
    let path = format!("/api/v1/runs/{}/artifacts", text(&again["run_id"]));
    let list = bench.get(&path).await.expect(200)["artifacts"].clone();
    assert!(
        list.as_array()
            .unwrap()
            .iter()
            .any(|it| it["name"] == "dist/build"),
        "{list}"
    );
    let work = agent.work().await;
    agent.accepts(&work).await;
    let list = inputs(&bench, &work).await.expect(200)["inputs"].clone();
    assert_eq!(list[0]["name"], "dist/build", "{list}");
}
