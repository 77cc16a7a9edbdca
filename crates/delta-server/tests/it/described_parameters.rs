//! Parameters of people's requests: what the document says that each may be is what its reader
//! takes.

use serde_json::Value;

use crate::bench::Bench;
use crate::described::{document, operations};

/// Where a reader takes more than the document promises, and what it makes of it.
const TAKES_MORE: [(&str, &str, &str); 1] = [(
    "/api/v1/functions/{id}",
    "wait",
    "longer is as long as may be: whoever asks again does not mind",
)];

/// What a schema allows of a parameter, and what it does not, at its bounds.
#[derive(Default)]
struct Probes {
    inside: Vec<String>,
    outside: Vec<String>,
}

fn probes(document: &Value, schema: &Value) -> Probes {
    let mut probes = Probes::default();
    let text = schema.to_string();
    if let Some((_, rest)) = text.split_once("#/components/") {
        let name = rest.split('"').next().unwrap_or_default();
        let words = document["components"].pointer(&format!("/{name}"));
        let words = words.and_then(|it| it["enum"].as_array()).expect("words");
        let words = words.iter().filter_map(Value::as_str).map(str::to_owned);
        probes.inside.extend(words);
        probes.outside.push("nonsense".to_owned());
    }
    let bound = |name: &str| schema[name].as_i64().map(i128::from);
    for (bound, beyond) in [(bound("minimum"), -1), (bound("maximum"), 1)] {
        if let Some(bound) = bound {
            probes.inside.push(bound.to_string());
            probes.outside.push((bound + beyond).to_string());
            probes.outside.push("x".to_owned());
        }
    }
    let length = |name: &str| {
        schema[name]
            .as_u64()
            .and_then(|it| usize::try_from(it).ok())
    };
    if let Some(most) = length("maxLength") {
        probes.inside.push("x".repeat(most));
        probes.outside.push("x".repeat(most + 1));
    }
    if length("minLength") == Some(1) {
        probes.outside.push(String::new());
    }
    if schema["pattern"].is_string() {
        probes.inside.clear();
        probes.outside.push("!".to_owned());
    }
    probes
}

#[tokio::test]
async fn what_a_parameter_may_be_is_what_its_reader_takes() {
    let bench = Bench::patient().await;
    let document = document(&bench).await;
    let (run, job) = bench.create_one().await;
    let (mut wrong, mut asked) = (Vec::new(), 0);
    let reads = operations(&document).into_iter();
    for (_, path, operation) in reads.filter(|(method, ..)| *method == "get") {
        let known = operation["parameters"].as_array().into_iter().flatten();
        let known: Vec<&Value> = known.filter(|it| it["in"] == "query").collect();
        let id = if path.contains("/jobs/") { &job } else { &run };
        let address = path.replace("{id}", id).replace("{name}", "x");
        for parameter in &known {
            let name = parameter["name"].as_str().expect("a name");
            let needed = known.iter().filter(|it| it["required"] == true);
            let needed = needed.filter_map(|it| it["name"].as_str());
            let needed = needed.filter(|it| *it != name);
            let address = needed.fold(format!("{address}?"), |all, it| format!("{all}{it}=x&"));
            let probes = probes(&document, &parameter["schema"]);
            let takes_more = TAKES_MORE.iter().any(|it| (it.0, it.1) == (path, name));
            let outside = probes.outside.iter().map(|it| (it, false));
            for (value, good) in probes.inside.iter().map(|it| (it, true)).chain(outside) {
                let answer = bench.get(&format!("{address}{name}={value}")).await;
                let said: Value = serde_json::from_str(&answer.text).unwrap_or_default();
                let status = answer.status.as_u16();
                let refused = status == 422 && said["field"] == name;
                let more = takes_more && value.parse::<u64>().is_ok();
                if status >= 500 || (refused == good && !more) {
                    let value: String = value.chars().take(40).collect();
                    wrong.push(format!("{path} {name}={value}: {status} {}", answer.text));
                }
                asked += 1;
            }
        }
    }
    assert!(asked > 60, "{asked} values");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
