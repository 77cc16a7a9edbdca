//! What a function answered: its result, or the error it ended with (RQ-29 … RQ-38). Untrusted, and
//! bounded; JSON that nobody between the handler and its caller reads.

use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::agent::proto;
use crate::fields::{Fields, Node};
use crate::invalid::Invalid;

/// Bytes of a result: an answer for a program, stored with the attempt. What is larger belongs into
/// an object store, and its address into the result.
pub const MAX_RESULT_BYTES: usize = 256 << 10;
/// Bytes of an error's message.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Bytes of an error's type and of its code.
pub const MAX_NAME_BYTES: usize = 200;
/// Bytes of an error's details.
pub const MAX_DETAILS_BYTES: usize = 16 << 10;
/// The longest delay that a function may ask for.
pub const MAX_RETRY_AFTER_MS: u64 = 24 * 3600 * 1000;

/// A JSON text, kept byte for byte (RQ-30).
#[derive(Clone, PartialEq, Eq)]
pub struct JsonText(String);

impl JsonText {
    /// Nothing when it is no JSON.
    pub fn new(text: String) -> Option<JsonText> {
        let raw = RawValue::from_string(text).ok()?;
        Some(JsonText(String::from(Box::<str>::from(raw))))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for JsonText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(S::Error::custom)?;
        raw.serialize(to)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        Ok(JsonText(raw.get().to_owned()))
    }
}

/// The answer of one attempt at a function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionAnswer {
    /// What the handler returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub result: Option<JsonText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<FunctionError>,
    /// How long it asked to be left alone before the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// What went wrong, in the words of the handler or of its runner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionError {
    pub message: String,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub details: Option<JsonText>,
}

impl FunctionAnswer {
    pub fn is_empty(&self) -> bool {
        *self == FunctionAnswer::default()
    }

    fn read(node: Node<'_>) -> Result<FunctionAnswer, Invalid> {
        let mut f = node.object()?;
        let answer = FunctionAnswer {
            result: f.may("result", |it| json(it, MAX_RESULT_BYTES))?,
            error: f.may("error", FunctionError::read)?,
            retry_after_ms: f.may("retry_after_ms", Node::count)?.map(clamp),
        };
        f.close();
        Ok(answer)
    }

    /// What an agent said; what is beyond the bounds is left out, and says so.
    pub fn of_agent(said: &proto::FunctionAnswer) -> FunctionAnswer {
        let bounded = |text: &String, most: usize| {
            let fits = !text.is_empty() && text.len() <= most;
            fits.then(|| JsonText::new(text.clone())).flatten()
        };
        FunctionAnswer {
            result: bounded(&said.result, MAX_RESULT_BYTES),
            error: said.error.as_ref().map(|error| FunctionError {
                message: cut(&error.message, MAX_MESSAGE_BYTES),
                kind: named(&error.r#type),
                code: named(&error.code),
                details: bounded(&error.details, MAX_DETAILS_BYTES),
            }),
            retry_after_ms: said.retry_after_ms.map(clamp),
        }
    }
}

impl FunctionError {
    fn read(node: Node<'_>) -> Result<FunctionError, Invalid> {
        let mut f = node.object()?;
        let error = FunctionError {
            message: f.must("message", |it| it.cut(MAX_MESSAGE_BYTES))?,
            kind: f.may("type", |it| it.cut(MAX_NAME_BYTES))?,
            code: f.may("code", |it| it.cut(MAX_NAME_BYTES))?,
            details: f.may("details", |it| json(it, MAX_DETAILS_BYTES))?,
        };
        f.close();
        Ok(error)
    }
}

impl From<FunctionAnswer> for proto::FunctionAnswer {
    fn from(answer: FunctionAnswer) -> proto::FunctionAnswer {
        let text = |json: Option<JsonText>| json.map(|it| it.0).unwrap_or_default();
        proto::FunctionAnswer {
            result: text(answer.result),
            error: answer.error.map(|error| proto::FunctionError {
                message: error.message,
                r#type: error.kind.unwrap_or_default(),
                code: error.code.unwrap_or_default(),
                details: text(error.details),
            }),
            retry_after_ms: answer.retry_after_ms,
        }
    }
}

/// The answer in a result.
pub(crate) fn answer(f: &mut Fields<'_>) -> Result<Option<FunctionAnswer>, Invalid> {
    Ok(f.may("answer", FunctionAnswer::read)?
        .filter(|it| !it.is_empty()))
}

fn json(node: Node<'_>, most: usize) -> Result<JsonText, Invalid> {
    let text = node.raw().get();
    if text.len() <= most {
        Ok(JsonText(text.to_owned()))
    } else {
        Err(Invalid::here(format!("has more than {most} bytes")))
    }
}

fn clamp(millis: u64) -> u64 {
    millis.min(MAX_RETRY_AFTER_MS)
}

fn named(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| cut(text, MAX_NAME_BYTES))
}

fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_kept_byte_for_byte() {
        // RQ-30
        let text = r#"{ "b" : 1.50, "a":"\u00e9", "n":12345678901234567890123 }"#;
        let said = proto::FunctionAnswer {
            result: text.to_owned(),
            ..Default::default()
        };
        let answer = FunctionAnswer::of_agent(&said);
        let kept = serde_json::to_string(&answer).unwrap();
        assert_eq!(kept, format!(r#"{{"result":{text}}}"#));
        let back: FunctionAnswer = serde_json::from_str(&kept).unwrap();
        assert_eq!(back, answer);
        assert_eq!(proto::FunctionAnswer::from(back), said);
    }

    #[test]
    fn what_an_agent_says_is_bounded() {
        // RQ-36, RQ-38, A48
        let said = proto::FunctionAnswer {
            result: "nonsense".to_owned(),
            error: Some(proto::FunctionError {
                message: "é".repeat(MAX_MESSAGE_BYTES),
                r#type: "t".repeat(MAX_NAME_BYTES + 1),
                code: String::new(),
                details: format!("\"{}\"", "d".repeat(MAX_DETAILS_BYTES)),
            }),
            retry_after_ms: Some(u64::MAX),
        };
        let answer = FunctionAnswer::of_agent(&said);
        assert_eq!(answer.result, None);
        assert_eq!(answer.retry_after_ms, Some(MAX_RETRY_AFTER_MS));
        let error = answer.error.unwrap();
        assert_eq!(error.message.len(), MAX_MESSAGE_BYTES);
        assert_eq!(error.kind.unwrap().len(), MAX_NAME_BYTES);
        assert_eq!((error.code, error.details), (None, None));
    }
}
