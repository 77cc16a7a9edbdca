//! What a runner saw when the work ended, beside its word for it (D10): enough for a person to
//! believe the cause. Information only; untrusted, and bounded.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::proto;
use crate::fields::{Fields, Node};
use crate::invalid::Invalid;

/// Last lines that are kept: a compiler's message or a stack fits.
pub const MAX_LAST_LINES: usize = 20;
/// Bytes of one of them.
pub const MAX_LINE_BYTES: usize = 500;

/// What was seen at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Evidence {
    /// The signal that ended the work or a program in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = 9)]
    pub signal: Option<i32>,
    /// Processes that the kernel ended for want of memory meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Bytes that were free where the work wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// The last lines of the log: untrusted text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_lines: Vec<String>,
}

impl Evidence {
    pub fn is_empty(&self) -> bool {
        *self == Evidence::default()
    }

    fn read(node: Node<'_>) -> Result<Evidence, Invalid> {
        let mut f = node.object()?;
        let signal = f.may("signal", |it| it.whole(1, i64::from(i32::MAX)))?;
        let lines = f.may("last_lines", |it| {
            it.each(MAX_LAST_LINES, |line| line.cut(MAX_LINE_BYTES))
        })?;
        let evidence = Evidence {
            signal: signal.and_then(|it| i32::try_from(it).ok()),
            oom_kills: f.may("oom_kills", Node::count)?,
            free_bytes: f.may("free_bytes", Node::count)?,
            last_lines: lines.unwrap_or_default(),
        };
        f.close();
        Ok(evidence)
    }

    /// What an agent said; what is beyond the bounds is left out.
    pub fn of_agent(said: &proto::Evidence) -> Evidence {
        let line = |line: &String| line[..line.floor_char_boundary(MAX_LINE_BYTES)].to_owned();
        let skipped = said.last_lines.len().saturating_sub(MAX_LAST_LINES);
        Evidence {
            signal: said.signal,
            oom_kills: said.oom_kills,
            free_bytes: said.free_bytes,
            last_lines: said.last_lines.iter().skip(skipped).map(line).collect(),
        }
    }
}

impl From<Evidence> for proto::Evidence {
    fn from(evidence: Evidence) -> proto::Evidence {
        proto::Evidence {
            signal: evidence.signal,
            oom_kills: evidence.oom_kills,
            free_bytes: evidence.free_bytes,
            last_lines: evidence.last_lines,
        }
    }
}

/// The evidence of a result.
pub(crate) fn evidence(f: &mut Fields<'_>) -> Result<Option<Evidence>, Invalid> {
    Ok(f.may("evidence", Evidence::read)?
        .filter(|it| !it.is_empty()))
}
