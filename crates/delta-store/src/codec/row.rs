//! Cold columns: parts of a row that are read whole or not at all, each one JSON text.

use delta_core::attempt::{AttemptCancel, Progress, Report};
use delta_core::run::{RunCancel, RunHeader};
use delta_core::{Place, Policy};
use serde::{Deserialize, Serialize};

use super::corrupt;
use super::part::{
    AttemptCancelPart, PlacePart, PolicyPart, ProgressPart, ReportPart, RunCancelPart,
    RunHeaderPart,
};
use crate::StoreError;

macro_rules! json_column {
    ($encode:ident, $decode:ident, $type:ty, $part:literal, $what:literal) => {
        #[doc = concat!("The JSON text of ", $what, ".")]
        pub fn $encode(value: &$type) -> String {
            #[derive(Serialize)]
            struct Shown<'a>(#[serde(with = $part)] &'a $type);
            serde_json::to_string(&Shown(value)).expect("a row is always JSON")
        }

        #[doc = concat!("Reads back the JSON text of ", $what, ".")]
        pub fn $decode(text: &str) -> Result<$type, StoreError> {
            #[derive(Deserialize)]
            struct Read(#[serde(with = $part)] $type);
            let Read(value) = serde_json::from_str(text).map_err(|e| corrupt($what, e))?;
            Ok(value)
        }
    };
}

json_column!(
    encode_policy,
    decode_policy,
    Policy,
    "PolicyPart",
    "a job's policy"
);
json_column!(
    encode_header,
    decode_header,
    RunHeader,
    "RunHeaderPart",
    "a run's header"
);
json_column!(
    encode_report,
    decode_report,
    Report,
    "ReportPart",
    "a report"
);
json_column!(
    encode_progress,
    decode_progress,
    Progress,
    "ProgressPart",
    "progress"
);
json_column!(
    encode_run_cancel,
    decode_run_cancel,
    RunCancel,
    "RunCancelPart",
    "a run's cancel"
);
json_column!(
    encode_attempt_cancel,
    decode_attempt_cancel,
    AttemptCancel,
    "AttemptCancelPart",
    "an attempt's cancel"
);

json_column!(
    encode_place,
    decode_place,
    Place,
    "PlacePart",
    "a place in a line"
);

/// Numbers of jobs, as `[1,2]`.
pub fn encode_numbers(numbers: &[u32]) -> String {
    serde_json::to_string(numbers).expect("numbers are always JSON")
}

pub fn decode_numbers(text: &str) -> Result<Vec<u32>, StoreError> {
    serde_json::from_str(text).map_err(|e| corrupt("a list of job numbers", e))
}
