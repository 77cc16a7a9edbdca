//! What is handed on: W3C's trace context, as a header, in the body of a request, in a job's spec
//! and to a runner (RQ-28: one format everywhere).
//!
//! Owns reading and writing `traceparent`. What is malformed is read as nothing, and handed on to
//! nobody; what others carry beside it (`baggage`) passes as it is.

use std::fmt;

/// Names and values that travel with a call.
pub type Carrier = Vec<(String, String)>;

pub const TRACEPARENT: &str = "traceparent";
pub const TRACESTATE: &str = "tracestate";

/// Four times what W3C asks everybody to hand on.
const MAX_STATE_BYTES: usize = 2048;
/// As W3C has it.
const MAX_STATE_MEMBERS: usize = 32;
/// `00-` trace `-` span `-` flags.
const LENGTH: usize = 55;

/// Which trace, which span of it, and whether anybody wants to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: u128,
    pub span: u64,
    pub sampled: bool,
}

impl TraceContext {
    /// Reads a `traceparent`; nothing where W3C says that it is not to be used. Of a later version
    /// what this one knows is read.
    pub fn parse(text: &str) -> Option<TraceContext> {
        let known = text.get(..LENGTH)?;
        let mut parts = known.split('-');
        let mut part = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            let lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            let all = part.bytes().all(lower);
            u128::from_str_radix(part, 16).ok().filter(|_| all)
        };
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let rest = &text[LENGTH..];
        let whole = rest.is_empty() || (version > 0 && rest.starts_with('-'));
        let span = u64::try_from(span).ok()?;
        (whole && version != 0xff && trace != 0 && span != 0).then_some(TraceContext {
            trace,
            span,
            sampled: flags & 1 == 1,
        })
    }

    /// The context in a carrier, if there is one.
    pub fn of(carrier: &[(String, String)]) -> Option<TraceContext> {
        let mut found = carrier.iter().filter(|(name, _)| is(name, TRACEPARENT));
        match (found.next(), found.next()) {
            (Some((_, text)), None) => TraceContext::parse(text),
            _ => None,
        }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(f, "00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span)
    }
}

/// The carrier that hands this context on, with whatever else there was. Without a context nothing
/// of a trace is left, so that nobody after us stumbles over what we could not read.
pub fn carry(mut carrier: Carrier, context: Option<TraceContext>) -> Carrier {
    let came = TraceContext::of(&carrier);
    // The state is about a trace: it goes where that goes.
    let same =
        came.is_some() && came.map(|came| came.trace) == context.map(|context| context.trace);
    carrier.retain(|(name, value)| {
        if is(name, TRACESTATE) {
            same && is_state(value)
        } else {
            !is(name, TRACEPARENT)
        }
    });
    carrier.extend(context.map(|context| (TRACEPARENT.to_owned(), context.to_string())));
    carrier
}

/// Whether it can be a `tracestate`. Its members are others' words; their number and size are not.
fn is_state(text: &str) -> bool {
    let printable = |byte: u8| (b' '..=b'~').contains(&byte);
    text.len() <= MAX_STATE_BYTES
        && text.bytes().all(printable)
        && text.split(',').count() <= MAX_STATE_MEMBERS
}

fn is(name: &str, wanted: &str) -> bool {
    name.eq_ignore_ascii_case(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn carrier(pairs: &[(&str, &str)]) -> Carrier {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn what_is_read_is_written_again() {
        let context = TraceContext::parse(GOOD).unwrap();
        assert_eq!(context.trace, 0x4bf92f3577b34da6a3ce929d0e0e4736);
        assert_eq!((context.span, context.sampled), (0xf067aa0ba902b7, true));
        assert_eq!(context.to_string(), GOOD);
        let quiet = TraceContext::parse(&GOOD.replace("-01", "-00")).unwrap();
        assert!(!quiet.sampled);
        // Of a later version, and with flags that mean something one day.
        let later = format!("cc{}-what", &GOOD[2..]).replace("-01-", "-03-");
        assert_eq!(TraceContext::parse(&later).unwrap().to_string(), GOOD);
    }

    #[test]
    fn what_is_malformed_is_nothing() {
        // RQ-28
        let zeros = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        for bad in [
            "",
            "garbage",
            "00-a-b-01",
            zeros,
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",
            "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e47é6-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad:?}");
            let left = carry(carrier(&[("traceparent", bad), ("baggage", "a=1")]), None);
            assert_eq!(left, carrier(&[("baggage", "a=1")]));
        }
        let twice = carrier(&[("traceparent", GOOD), ("Traceparent", GOOD)]);
        assert_eq!(TraceContext::of(&twice), None, "which one?");
    }

    #[test]
    fn the_state_goes_with_its_trace() {
        let came = carrier(&[("Traceparent", GOOD), ("tracestate", "a=1,b=2"), ("x", "y")]);
        let mut context = TraceContext::of(&came).unwrap();
        context.span = 7;
        let gone = carry(came.clone(), Some(context));
        assert_eq!(TraceContext::of(&gone), Some(context));
        assert!(
            gone.contains(&("tracestate".into(), "a=1,b=2".into())),
            "{gone:?}"
        );
        context.trace = 9;
        let other = carry(came, Some(context));
        assert!(!other.iter().any(|(name, _)| name == "tracestate"));
        for bad in ["a=\n", &"a=1,".repeat(40), &"x".repeat(3000)] {
            let came = carrier(&[("traceparent", GOOD), ("tracestate", bad)]);
            let gone = carry(came.clone(), TraceContext::of(&came));
            assert_eq!(gone.len(), 1, "{gone:?}");
        }
    }
}
