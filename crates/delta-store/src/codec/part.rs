//! Mirrors of the core's structs that are stored as JSON: in a fact, in a column, or in both.

use std::collections::BTreeSet;
use std::sync::Arc;

use delta_core::attempt::{AttemptCancel, Progress, Report};
use delta_core::lease::{Closing, ClosingKind};
use delta_core::policy::{Backoff, RetryOn};
use delta_core::run::{RunCancel, RunHeader, RunSettings, Unique};
use delta_core::{Cause, Concurrency, Digest, Millis, Place, Policy, RunId, Span, Text};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::primitives::{self, is_default};

#[derive(Serialize, Deserialize)]
#[serde(remote = "RunHeader")]
pub struct RunHeaderPart {
    #[serde(with = "primitives::text")]
    project: Text,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    repository: Option<Text>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    git_ref: Option<Text>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    commit: Option<Text>,
    #[serde(default, skip_serializing_if = "is_default")]
    trusted: bool,
    run_attempt: u32,
    #[serde(
        with = "primitives::run_id::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    rerun_of: Option<RunId>,
    #[serde(default, skip_serializing_if = "is_default")]
    priority: i32,
    #[serde(default, skip_serializing_if = "is_default")]
    fail_fast: bool,
    #[serde(with = "concurrency", default, skip_serializing_if = "Option::is_none")]
    concurrency: Option<Concurrency>,
    #[serde(default, skip_serializing_if = "is_default")]
    needs_report: bool,
    #[serde(with = "primitives::span")]
    run_timeout: Span,
    #[serde(with = "primitives::span")]
    wait_timeout: Span,
    #[serde(with = "primitives::span")]
    planning_timeout: Span,
    #[serde(with = "primitives::text")]
    created_by: Text,
    #[serde(with = "key", default, skip_serializing_if = "Option::is_none")]
    idempotency: Option<(Digest, Digest)>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    queue: Option<Text>,
    #[serde(default, skip_serializing_if = "is_default")]
    unjudged: bool,
    #[serde(with = "unique", default, skip_serializing_if = "Option::is_none")]
    unique: Option<Unique>,
    #[serde(
        with = "primitives::span::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    keep: Option<Span>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    trigger: Option<Text>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RunSettings")]
pub struct RunSettingsPart {
    #[serde(default, skip_serializing_if = "is_default")]
    priority: i32,
    #[serde(default, skip_serializing_if = "is_default")]
    fail_fast: bool,
    #[serde(with = "primitives::span")]
    run_timeout: Span,
    #[serde(with = "concurrency", default, skip_serializing_if = "Option::is_none")]
    concurrency: Option<Concurrency>,
}

/// A group, its key, and whether older ones are ended.
pub mod concurrency {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Shown(
        #[serde(with = "primitives::text")] Text,
        #[serde(with = "primitives::digest")] Digest,
        bool,
    );

    pub fn serialize<S: Serializer>(value: &Option<Concurrency>, to: S) -> Result<S::Ok, S::Error> {
        let shown = |concurrency: &Concurrency| {
            Shown(
                concurrency.group.clone(),
                concurrency.key,
                concurrency.cancel_older,
            )
        };
        value.as_ref().map(shown).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Concurrency>, D::Error> {
        let read = Option::<Shown>::deserialize(from)?;
        Ok(read.map(|Shown(group, key, cancel_older)| Concurrency {
            group,
            key,
            cancel_older,
        }))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Place")]
pub struct PlacePart {
    #[serde(with = "primitives::millis")]
    since: Millis,
    #[serde(
        with = "primitives::millis::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    taken_at: Option<Millis>,
}

/// An option of a place.
pub mod place {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Inner(#[serde(with = "PlacePart")] Place);

    pub fn serialize<S: Serializer>(value: &Option<Place>, to: S) -> Result<S::Ok, S::Error> {
        value.map(Inner).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Place>, D::Error> {
        Ok(Option::<Inner>::deserialize(from)?.map(|Inner(place)| place))
    }
}

/// A key, and until when nobody else may have it.
mod unique {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Shown(
        #[serde(with = "primitives::digest")] Digest,
        #[serde(with = "primitives::millis")] Millis,
    );

    pub fn serialize<S: Serializer>(value: &Option<Unique>, to: S) -> Result<S::Ok, S::Error> {
        value
            .map(|value| Shown(value.key, value.until))
            .serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Unique>, D::Error> {
        let read = Option::<Shown>::deserialize(from)?;
        Ok(read.map(|Shown(key, until)| Unique { key, until }))
    }
}

/// An idempotency key and the digest of its request.
mod key {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Key(
        #[serde(with = "primitives::digest")] Digest,
        #[serde(with = "primitives::digest")] Digest,
    );

    pub fn serialize<S: Serializer>(
        value: &Option<(Digest, Digest)>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(|(key, request)| Key(key, request)).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<(Digest, Digest)>, D::Error> {
        Ok(Option::<Key>::deserialize(from)?.map(|Key(key, request)| (key, request)))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Policy")]
pub struct PolicyPart {
    required: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    needs: Vec<u32>,
    max_attempts: u32,
    #[serde(with = "primitives::span")]
    timeout: Span,
    #[serde(with = "primitives::text")]
    requires: Text,
    #[serde(default, skip_serializing_if = "is_default")]
    priority: i32,
    #[serde(default, skip_serializing_if = "is_default")]
    once: bool,
    #[serde(with = "retry_on")]
    retry_on: BTreeSet<RetryOn>,
    #[serde(with = "texts", default, skip_serializing_if = "Vec::is_empty")]
    secrets: Vec<Text>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    environment: Option<Text>,
    #[serde(
        with = "primitives::millis::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    not_before: Option<Millis>,
    #[serde(with = "backoff", default, skip_serializing_if = "Option::is_none")]
    backoff: Option<Backoff>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    fail_fast_group: Option<Text>,
    #[serde(with = "concurrency", default, skip_serializing_if = "Option::is_none")]
    concurrency: Option<Concurrency>,
}

/// Base and cap.
mod backoff {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Shown(
        #[serde(with = "primitives::span")] Span,
        #[serde(with = "primitives::span")] Span,
    );

    pub fn serialize<S: Serializer>(value: &Option<Backoff>, to: S) -> Result<S::Ok, S::Error> {
        value
            .map(|value| Shown(value.base, value.cap))
            .serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Backoff>, D::Error> {
        let read = Option::<Shown>::deserialize(from)?;
        Ok(read.map(|Shown(base, cap)| Backoff { base, cap }))
    }
}

mod texts {
    use super::*;

    pub fn serialize<S: Serializer>(value: &[Text], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(value.iter().map(|text| &**text))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Text>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        Ok(texts.into_iter().map(Text::from).collect())
    }
}

mod retry_on {
    use super::*;

    pub fn serialize<S: Serializer>(value: &BTreeSet<RetryOn>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(value.iter().map(|on| on.name()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<RetryOn>, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        let read = |name: &String| {
            RetryOn::from_name(name)
                .ok_or_else(|| D::Error::custom(format!("unknown name `{name}`")))
        };
        names.iter().map(read).collect()
    }
}

/// A policy behind its shared pointer.
pub mod policy {
    use super::*;

    pub fn serialize<S: Serializer>(value: &Arc<Policy>, to: S) -> Result<S::Ok, S::Error> {
        PolicyPart::serialize(value, to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Policy>, D::Error> {
        PolicyPart::deserialize(from).map(Arc::new)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RunCancel")]
pub struct RunCancelPart {
    #[serde(with = "primitives::millis")]
    at: Millis,
    #[serde(with = "primitives::cause")]
    cause: Cause,
    #[serde(with = "primitives::text")]
    by: Text,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "AttemptCancel")]
pub struct AttemptCancelPart {
    #[serde(with = "primitives::cause")]
    cause: Cause,
    #[serde(with = "primitives::text")]
    by: Text,
    #[serde(with = "primitives::millis")]
    requested_at: Millis,
    #[serde(with = "primitives::span")]
    grace: Span,
    #[serde(with = "primitives::millis")]
    force_at: Millis,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Report")]
pub struct ReportPart {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_code: Option<i64>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    summary: Option<Text>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    artifacts: Option<Text>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    steps: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    confirmed: Option<bool>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    evidence: Option<Text>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    answer: Option<Text>,
    #[serde(
        with = "primitives::span::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    retry_after: Option<Span>,
    #[serde(with = "log", default, skip_serializing_if = "Option::is_none")]
    log: Option<(u64, Digest)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log_dropped: Option<u64>,
    #[serde(
        with = "primitives::millis::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    started_at: Option<Millis>,
    #[serde(
        with = "primitives::millis::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    finished_at: Option<Millis>,
}

/// Length and hash of a log.
mod log {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Log(u64, #[serde(with = "primitives::digest")] Digest);

    pub fn serialize<S: Serializer>(
        value: &Option<(u64, Digest)>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(|(length, hash)| Log(length, hash)).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<(u64, Digest)>, D::Error> {
        Ok(Option::<Log>::deserialize(from)?.map(|Log(length, hash)| (length, hash)))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Progress")]
pub struct ProgressPart {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    percent: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step_index: Option<u32>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    current_step: Option<Text>,
    #[serde(
        with = "primitives::text::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    message: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log_bytes: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ClosingKind", rename_all = "snake_case")]
pub enum ClosingKindPart {
    Complete,
    CancelAck,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Closing")]
pub struct ClosingPart {
    #[serde(with = "ClosingKindPart")]
    kind: ClosingKind,
    #[serde(with = "primitives::digest")]
    digest: Digest,
}

/// An option of a closing.
pub mod closing {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Inner(#[serde(with = "ClosingPart")] Closing);

    pub fn serialize<S: Serializer>(value: &Option<Closing>, to: S) -> Result<S::Ok, S::Error> {
        value.map(Inner).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Closing>, D::Error> {
        Ok(Option::<Inner>::deserialize(from)?.map(|Inner(closing)| closing))
    }
}

/// An option of a run's cancel.
pub mod run_cancel {
    use super::*;

    #[derive(Serialize)]
    struct Shown<'a>(#[serde(with = "RunCancelPart")] &'a RunCancel);

    #[derive(Deserialize)]
    struct Read(#[serde(with = "RunCancelPart")] RunCancel);

    pub fn serialize<S: Serializer>(value: &Option<RunCancel>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(Shown).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RunCancel>, D::Error> {
        Ok(Option::<Read>::deserialize(from)?.map(|Read(cancel)| cancel))
    }
}
