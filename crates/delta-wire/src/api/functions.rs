//! `POST /api/v1/functions`: one call of a function, or up to a thousand in one commit; and what is
//! shown of calls, queues and dead letters.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::create_run::{DEFAULT_ATTEMPTS, MAX_ATTEMPTS, priority, timeout};
use super::requests::strict;
use super::views::AttemptView;
use crate::answer::{FunctionAnswer, FunctionError, JsonText};
use crate::fields::{Fields, Node, read_text};
use crate::invalid::{Invalid, Problems};
use crate::job_spec::{
    FunctionSpec, MAX_QUEUE, carrier, default_queue, function_name, is_name, no_params, params,
    queue_name,
};
use crate::seconds::Seconds;
use crate::states::JobState;
use crate::time::Millis;

/// Calls of one request.
pub const MAX_FUNCTIONS: usize = 1000;
/// How far ahead a call may be put: a year.
pub const MAX_DELAY: Seconds = Seconds::from_secs(365 * 24 * 3600);
/// The longest delay between two attempts.
pub const MAX_BACKOFF: Seconds = Seconds::from_secs(24 * 3600);
/// How long the key of a call is its own, when it does not say.
pub const DEFAULT_UNIQUE: Seconds = Seconds::from_secs(3600);
/// How long one attempt may take, when the call does not say.
pub const DEFAULT_TIMEOUT: Seconds = Seconds::from_secs(300);
/// How long a call may wait for an agent, when it does not say: what is put into a queue is meant
/// to be found there after a long weekend.
pub const DEFAULT_WAIT: Seconds = Seconds::from_secs(30 * 24 * 3600);
/// Characters of a unique key.
pub(crate) const MAX_UNIQUE_KEY: usize = 255;
/// Characters of an id or a cause that dead letters are chosen by.
pub(crate) const MAX_ID: usize = 64;
/// Dead letters that are named in one request.
pub const MAX_NAMED: usize = 1000;

/// One call of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CreateFunction {
    /// `handler`, or `runner#handler`.
    #[schema(example = "python#send_email")]
    pub function: String,
    /// An object.
    #[schema(required = false, value_type = Object)]
    pub params: JsonText,
    #[schema(required = false, default = "default")]
    pub queue: String,
    #[schema(required = false, default = 0)]
    pub priority: i32,
    /// Not before so many seconds have passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<Seconds>,
    /// Not before this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub not_before: Option<Millis>,
    /// While this key is somebody's, the call that has it is given back instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// For how long; an hour when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_seconds: Option<Seconds>,
    #[schema(required = false, default = 3)]
    pub max_attempts: u32,
    /// First delay between attempts; doubled each time, with jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_seconds: Option<Seconds>,
    /// Longest delay between attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_cap_seconds: Option<Seconds>,
    /// How long one attempt may take; five minutes when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<Seconds>,
    /// How long the result is kept after the end; as long as runs are when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_ttl_seconds: Option<Seconds>,
    /// The producer's trace, in W3C's words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false, value_type = Object)]
    pub trace_context: Vec<(String, String)>,
}

/// What a request holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateFunctions {
    One(Box<CreateFunction>),
    Several(Vec<CreateFunction>),
}

impl CreateFunctions {
    /// One call, or `{"functions": […]}`. Everything wrong is listed at once.
    pub fn parse(body: &[u8]) -> Result<CreateFunctions, Problems> {
        let mut problems = Problems::new();
        let read = read_text(body, |node| {
            let mut fields = node.object()?;
            if !fields.entries().any(|(name, _)| name == "functions") {
                let one = read_one(fields, &mut problems);
                return Ok(one.map(|one| CreateFunctions::One(Box::new(one))));
            }
            let nodes = problems.note(fields.must("functions", |it| it.list(MAX_FUNCTIONS)));
            fields.refuse_unknown(&mut problems);
            Ok(nodes.and_then(|nodes| read_several(&nodes, &mut problems)))
        });
        let made = problems.note(read).and_then(|(made, _)| made);
        made.filter(|_| problems.is_empty()).ok_or(problems)
    }
}

fn read_several(nodes: &[Node<'_>], p: &mut Problems) -> Option<CreateFunctions> {
    if nodes.is_empty() {
        p.push(Invalid::field("functions", "is empty"));
    }
    let mut all = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        let mut found = Problems::new();
        let fields = found.note(node.object());
        all.extend(fields.and_then(|fields| read_one(fields, &mut found)));
        p.extend_within(&format!("functions[{index}]"), found);
    }
    (all.len() == nodes.len()).then_some(CreateFunctions::Several(all))
}

fn read_one(mut f: Fields<'_>, p: &mut Problems) -> Option<CreateFunction> {
    let attempts = i64::from(MAX_ATTEMPTS);
    let function = p.note(f.must("function", function_name));
    let params = p.note(f.may("params", params));
    let queue = p.note(f.may("queue", queue_name));
    let priority = p.note(f.may("priority", priority));
    let delay_seconds = p.note(f.may("delay_seconds", |it| up_to(it, MAX_DELAY)));
    let not_before = p.note(f.may("not_before", moment));
    let unique_key = p.note(f.may("unique_key", unique_key));
    let unique_seconds = p.note(f.may("unique_seconds", |it| up_to(it, MAX_DELAY)));
    let max_attempts = p.note(f.may("max_attempts", |it| it.whole(1, attempts)));
    let backoff_seconds = p.note(f.may("backoff_seconds", |it| up_to(it, MAX_BACKOFF)));
    let cap = p.note(f.may("backoff_cap_seconds", |it| up_to(it, MAX_BACKOFF)));
    let timeout_seconds = p.note(f.may("timeout_seconds", timeout));
    let result_ttl = p.note(f.may("result_ttl_seconds", |it| up_to(it, MAX_DELAY)));
    let trace_context = p.note(f.may("trace_context", carrier));
    f.refuse_unknown(p);
    if matches!(
        (&delay_seconds, &not_before),
        (Some(Some(_)), Some(Some(_)))
    ) {
        let words = "is given beside delay_seconds; give one";
        p.push(Invalid::field("not_before", words));
    }
    if matches!((&unique_key, &unique_seconds), (Some(None), Some(Some(_)))) {
        let words = "says for how long a key is unique, and there is no unique_key";
        p.push(Invalid::field("unique_seconds", words));
    }
    let max_attempts = max_attempts?.and_then(|it| u32::try_from(it).ok());
    Some(CreateFunction {
        function: function?,
        params: params?.unwrap_or_else(no_params),
        queue: queue?.unwrap_or_else(default_queue),
        priority: priority?.unwrap_or(0),
        delay_seconds: delay_seconds?,
        not_before: not_before?,
        unique_key: unique_key?,
        unique_seconds: unique_seconds?,
        max_attempts: max_attempts.unwrap_or(DEFAULT_ATTEMPTS),
        backoff_seconds: backoff_seconds?,
        backoff_cap_seconds: cap?,
        timeout_seconds: timeout_seconds?,
        result_ttl_seconds: result_ttl?,
        trace_context: trace_context?.unwrap_or_default(),
    })
}

fn up_to(node: Node<'_>, most: Seconds) -> Result<Seconds, Invalid> {
    let seconds = node.seconds()?;
    if seconds <= most {
        Ok(seconds)
    } else {
        Err(Invalid::here(format!("must be at most {most} seconds")))
    }
}

fn moment(node: Node<'_>) -> Result<Millis, Invalid> {
    let text = node.text(64)?;
    let words = "must be a moment such as 2026-01-31T12:00:00Z";
    Millis::from_rfc3339(&text).ok_or_else(|| Invalid::here(words))
}

fn unique_key(node: Node<'_>) -> Result<String, Invalid> {
    let key = node.text(MAX_UNIQUE_KEY)?;
    if key.is_empty() {
        Err(Invalid::here("is empty"))
    } else {
        Ok(key)
    }
}

/// A call as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionView {
    /// The run that carries it out; what takes a run takes this.
    pub id: String,
    pub function: String,
    pub queue: String,
    pub state: JobState,
    /// It failed for good, and nobody has put it aside yet.
    #[serde(default)]
    pub dead_letter: bool,
    /// An earlier request with the same key had made it.
    #[serde(default)]
    pub existing: bool,
    pub attempts: u32,
    pub max_attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What the handler returned, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub result: Option<JsonText>,
    /// How the latest attempt that said something went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<FunctionError>,
    /// What its agent said of the latest attempt, where no handler said anything; where no agent
    /// did either, why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    pub created_at: Millis,
    /// Not before this moment is it tried, or tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
}

impl FunctionView {
    /// What went wrong, as its handler said, or else its agent.
    pub fn trouble(&self) -> Option<&str> {
        let error = self.error.as_ref().map(|it| it.message.as_str());
        error.or(self.summary.as_deref())
    }

    /// Nothing will happen to it by itself any more.
    pub fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }
}

/// The calls that a request made, in its order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionList {
    pub functions: Vec<FunctionView>,
    /// For the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A call with everything that is known of it. Read by [`FunctionDetail::parse`]: a text that is
/// kept byte for byte cannot be told from a part of something else.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FunctionDetail {
    #[serde(flatten)]
    pub view: FunctionView,
    #[schema(value_type = Object)]
    pub params: JsonText,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub trace_context: std::collections::BTreeMap<String, String>,
    /// Every attempt, in order, each with its answer.
    pub tries: Vec<FunctionTry>,
    /// The call that this one repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue_of: Option<String>,
}

/// One attempt at a call.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FunctionTry {
    #[serde(flatten)]
    pub attempt: AttemptView,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub result: Option<JsonText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<FunctionError>,
}

impl FunctionDetail {
    /// Reads what the server wrote.
    pub fn parse(text: &str) -> Result<FunctionDetail, serde_json::Error> {
        #[derive(Deserialize)]
        struct Rest<'a> {
            params: JsonText,
            #[serde(default)]
            trace_context: std::collections::BTreeMap<String, String>,
            #[serde(borrow)]
            tries: Vec<&'a RawValue>,
            requeue_of: Option<String>,
        }
        let rest: Rest<'_> = serde_json::from_str(text)?;
        let tries = rest.tries.iter().map(|text| {
            let answer: FunctionAnswer = serde_json::from_str(text.get())?;
            Ok(FunctionTry {
                attempt: serde_json::from_str(text.get())?,
                result: answer.result,
                error: answer.error,
            })
        });
        Ok(FunctionDetail {
            tries: tries.collect::<Result<_, serde_json::Error>>()?,
            view: serde_json::from_str(text)?,
            params: rest.params,
            trace_context: rest.trace_context,
            requeue_of: rest.requeue_of,
        })
    }

    /// What was asked for, out of the spec it was kept in.
    pub fn asked(spec: &FunctionSpec) -> (JsonText, std::collections::BTreeMap<String, String>) {
        let carried = spec.trace_context.iter().cloned();
        (spec.params.clone(), carried.collect())
    }
}

/// A queue as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    pub name: String,
    /// Calls that wait for an agent now.
    pub depth: u64,
    /// Since when the oldest of them waits, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_seconds: Option<f64>,
    /// Calls that came, succeeded and failed for good in the last minute, as this server saw it.
    pub enqueued_per_minute: u64,
    pub succeeded_per_minute: u64,
    pub failed_per_minute: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<PausedView>,
    /// The runner of functions that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PausedView {
    pub at: Millis,
    pub by: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueList {
    pub queues: Vec<QueueView>,
}

/// `PUT /api/v1/queues/{name}`: which runner serves functions that name none; null for nobody's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RouteQueue {
    pub runner: Option<String>,
}

impl RouteQueue {
    pub fn parse(body: &[u8]) -> Result<RouteQueue, Problems> {
        strict(body, |f, p| {
            let runner = p.note(f.may("runner", |it| {
                let name = it.text(MAX_QUEUE)?;
                if is_name(&name) {
                    Ok(name)
                } else {
                    Err(Invalid::here("must be letters, digits and . _ -"))
                }
            }));
            Some(RouteQueue { runner: runner? })
        })
    }
}

/// `POST /api/v1/dead-letters/requeue` and `…/purge`: these, or all that fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChooseDeadLetters {
    /// By id; everything that fits the rest when empty.
    #[schema(required = false)]
    pub ids: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// With or without its runner, as it was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Every one of them: said on purpose where nothing else chooses.
    #[schema(required = false, default = false)]
    pub all: bool,
    /// Only say which they are.
    #[schema(required = false, default = false)]
    pub dry_run: bool,
    /// Only those called before this one: the `next_before` of the answer before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

impl ChooseDeadLetters {
    pub fn parse(body: &[u8]) -> Result<ChooseDeadLetters, Problems> {
        strict(body, |f, p| {
            let ids = p.note(f.may("ids", |it| it.each(MAX_NAMED, |id| id.text(MAX_ID))));
            let queue = p.note(f.may("queue", queue_name));
            let function = p.note(f.may("function", function_name));
            let cause = p.note(f.may("cause", |it| it.text(MAX_ID)));
            let all = p.note(f.may("all", Node::boolean));
            let dry_run = p.note(f.may("dry_run", Node::boolean));
            let before = p.note(f.may("before", |it| it.text(MAX_ID)));
            let chosen = ChooseDeadLetters {
                ids: ids?.unwrap_or_default(),
                queue: queue?,
                function: function?,
                cause: cause?,
                all: all?.unwrap_or(false),
                dry_run: dry_run?.unwrap_or(false),
                before: before?,
            };
            let filters = [&chosen.queue, &chosen.function, &chosen.cause];
            let filtered = filters.iter().any(|it| it.is_some());
            if chosen.ids.is_empty() && !filtered && !chosen.all {
                let words = "is missing: give ids, a queue, a function or a cause, or all: true";
                p.push(Invalid::field("ids", words));
            }
            if !chosen.ids.is_empty() && (filtered || chosen.all) {
                p.push(Invalid::field("ids", "is given beside a filter; give one"));
            }
            Some(chosen)
        })
    }
}

/// What became of dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadLettersDone {
    pub dry_run: bool,
    /// Those that were meant, by id.
    pub chosen: Vec<String>,
    /// The calls that repeat them, in the same order; empty for a purge.
    #[serde(default)]
    pub requeued: Vec<String>,
    /// There are more: say it again, with `next_before` as `before`.
    #[serde(default)]
    pub more: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_before: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(body: &str) -> CreateFunction {
        match CreateFunctions::parse(body.as_bytes()).expect("a call") {
            CreateFunctions::One(one) => *one,
            CreateFunctions::Several(_) => panic!("several"),
        }
    }

    fn wrong(body: &str) -> String {
        CreateFunctions::parse(body.as_bytes())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_call_needs_a_function_and_nothing_else() {
        let call = one(r#"{"function":"python#send_email"}"#);
        assert_eq!(
            (call.queue.as_str(), call.params.as_str()),
            ("default", "{}")
        );
        assert_eq!((call.max_attempts, call.priority), (3, 0));
        let call = one(
            r#"{"function":"f","params":{"to":"x"},"queue":"mail","delay_seconds":1.5,
                "unique_key":"k","unique_seconds":60,"max_attempts":1,"backoff_seconds":2,
                "backoff_cap_seconds":30,"timeout_seconds":10,"result_ttl_seconds":60,
                "trace_context":{"traceparent":"00-aa-bb-01"}}"#,
        );
        assert_eq!(call.params.as_str(), r#"{"to":"x"}"#);
        assert_eq!(call.delay_seconds, Some(Seconds::from_millis(1500)));
    }

    #[test]
    fn everything_wrong_is_named_at_once() {
        let said = wrong(
            r#"{"functions":[{"function":"f"},{"function":"a#","params":[],"queu":"a",
                "delay_seconds":1,"not_before":"2026-01-31T12:00:00Z","unique_seconds":1,
                "max_attempts":0}]}"#,
        );
        for field in [
            "function",
            "params",
            "queu",
            "not_before",
            "unique_seconds",
            "max_attempts",
        ] {
            assert!(
                said.contains(&format!("functions[1].{field}")),
                "{field}: {said}"
            );
        }
        assert!(!said.contains("functions[0]"), "{said}");
        assert!(wrong(r#"{"functions":[]}"#).contains("functions"));
        assert!(wrong("{}").contains("function"));
        let many = format!(
            r#"{{"functions":[{}]}}"#,
            vec![r#"{"function":"f"}"#; MAX_FUNCTIONS + 1].join(",")
        );
        assert!(wrong(&many).contains("functions"));
    }

    #[test]
    fn a_call_reads_back_with_its_result_byte_for_byte() {
        let text = r#"{"id":"run_1","function":"f","queue":"default","state":"SUCCEEDED",
            "attempts":1,"max_attempts":3,"result":{ "a" : 1.0 },
            "created_at":"2026-01-31T12:00:00Z","ended_at":"2026-01-31T12:00:01Z","params":{"b":2 },
            "tries":[{"attempt":1,"state":"SUCCEEDED","created_at":"2026-01-31T12:00:00Z",
            "losses":0,"dispatches":0,"leases":[],"result":{ "a" : 1.0 },
            "error":{"message":"m","details":[ 1 ]}}]}"#;
        let detail = FunctionDetail::parse(text).expect("a call");
        let result = |json: &Option<JsonText>| json.as_ref().map(|it| it.as_str().to_owned());
        assert_eq!(
            result(&detail.view.result).as_deref(),
            Some(r#"{ "a" : 1.0 }"#)
        );
        assert_eq!(detail.params.as_str(), r#"{"b":2 }"#);
        assert!(detail.view.has_ended());
        let error = detail.tries[0].error.as_ref().expect("an error");
        assert_eq!(result(&error.details).as_deref(), Some("[ 1 ]"));
    }

    #[test]
    fn dead_letters_are_chosen_on_purpose() {
        for bad in ["{}", r#"{"ids":["run_1"],"queue":"mail"}"#, r#"{"ids":[]}"#] {
            assert!(ChooseDeadLetters::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        for good in [r#"{"all":true}"#, r#"{"queue":"mail","dry_run":true}"#] {
            assert!(ChooseDeadLetters::parse(good.as_bytes()).is_ok(), "{good}");
        }
    }
}
