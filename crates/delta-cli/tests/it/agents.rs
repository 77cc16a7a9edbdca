//! `delta-ci agents`, `drain` and `undrain`, with an agent that says what it is told to.

use delta_grpc::dial;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AgentFrame, AgentMessage, Capabilities, DrainComplete, RegisterRequest, ServerMessage,
};
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::support::Place;

fn frame(said: Said) -> AgentFrame {
    AgentFrame {
        messages: vec![AgentMessage {
            message: Some(said),
        }],
    }
}

/// An agent without work: it answers every drain, until its session ends.
async fn agent(url: String, token: String) {
    let (frames, sent) = mpsc::channel(8);
    let register = RegisterRequest {
        agent_name: "builder".into(),
        protocol_version: "1.0".into(),
        instance: "i".into(),
        capabilities: Some(Capabilities {
            max_parallel: 2,
            os: "linux".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    frames.send(frame(Said::Register(register))).await.unwrap();
    let stream = TcpStream::connect(url.trim_start_matches("http://")).await;
    let dialed = dial::open(stream.unwrap(), url.parse().unwrap(), Some(&token), sent);
    let mut received = dialed.await.unwrap().received;
    while let Ok(Some(some)) = received.message().await {
        for bytes in some.messages {
            let told = ServerMessage::decode(bytes).unwrap().message;
            if let Some(Say::Drain(drain)) = told {
                let drain_id = drain.drain_id;
                let done = Said::DrainComplete(DrainComplete { drain_id });
                frames.send(frame(done)).await.unwrap();
            }
        }
    }
}

#[test]
fn an_agent_is_listed_shown_drained_undrained_and_revoked() {
    // EP-24, EP-25, A50
    let place = Place::new();
    let server = place.server(&[]);
    let say = |line: &str| place.say(&format!("{line} --data data"));
    let none = say("agents").expect(0);
    assert_eq!(none.stderr.trim(), "no agents");
    let made = say("token create --role runner").expect(0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let token = made.stdout.trim().to_owned();
    let session = runtime.spawn(agent(server.url.clone(), token));
    let listed = delta_testkit::wait::eventually(crate::support::PATIENCE, "it is there", || {
        let listed = say("agents list").expect(0).stdout;
        if listed.contains("IDLE") {
            Ok(listed)
        } else {
            Err(listed)
        }
    });
    assert!(
        listed.contains("builder") && listed.contains("0/2"),
        "{listed}"
    );
    let shown = say("agents show builder").expect(0).stdout;
    assert!(
        shown.contains("is IDLE") && shown.contains("offers     linux"),
        "{shown}"
    );
    let drained = say("drain builder --wait --timeout 1m").expect(0);
    assert!(
        drained.stderr.contains("builder is drained"),
        "{}",
        drained.stderr
    );
    let view = say("--json agents show builder").expect(0).json();
    assert_eq!(view["status"], "DRAINING");
    say("undrain builder").expect(0);
    let id = view["agent_id"].as_str().unwrap();
    let missing = say("agents drain nobody").expect(5);
    assert!(missing.stderr.contains("agents list"), "{}", missing.stderr);
    say(&format!("agents revoke {id}")).expect(0);
    runtime.block_on(session).unwrap();
    assert_eq!(say("agents").expect(0).stderr.trim(), "no agents");
    let all = say("agents list --all").expect(0).stdout;
    assert!(all.contains("REVOKED"), "{all}");
}
