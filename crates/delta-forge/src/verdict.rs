//! What a forge's answer means: it is done, it is to be tried again, or it is refused.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// A forge that wants to be left alone longer than this is asked again all the same.
const LONGEST_PAUSE: Duration = Duration::from_secs(2 * 3600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The forge has it. `already`: it had it before we came. `rest`: that was the last request it
    /// takes for so long.
    Done {
        already: bool,
        rest: Option<Duration>,
    },
    /// Nothing is known to be wrong with it: later. `after`: not before, as the forge said.
    Again {
        after: Option<Duration>,
        why: String,
    },
    /// The forge will say the same again until somebody changes something.
    Refused { why: String },
}

impl Verdict {
    pub(crate) fn again(why: impl Into<String>) -> Verdict {
        Verdict::Again {
            after: None,
            why: why.into(),
        }
    }

    /// How long the forge wants to hear nothing more from whoever asked, where it says so.
    pub fn rest(&self) -> Option<Duration> {
        match self {
            Verdict::Done { rest, .. } => *rest,
            Verdict::Again { after, .. } => *after,
            Verdict::Refused { .. } => None,
        }
    }

    /// Of an answer that is a success.
    pub(crate) fn done(headers: &HeaderMap, now: i64) -> Verdict {
        Verdict::Done {
            already: false,
            rest: until_reset(headers, now),
        }
    }

    /// Of an answer that is no success. `now`: seconds since 1970, for limits that name a moment.
    pub(crate) fn of(status: StatusCode, headers: &HeaderMap, said: &str, now: i64) -> Verdict {
        let why = match said {
            "" => format!("the forge answered {status}"),
            said => format!("the forge answered {status}: {said}"),
        };
        let limited = matches!(status.as_u16(), 403 | 429);
        let pause = limited.then(|| pause(headers, now)).flatten();
        match status.as_u16() {
            429 => Verdict::Again { after: pause, why },
            403 if pause.is_some() => Verdict::Again { after: pause, why },
            408 | 425 => Verdict::again(why),
            500..=599 => Verdict::Again {
                after: seconds(headers, RETRY_AFTER.as_str()),
                why,
            },
            _ => Verdict::Refused { why },
        }
    }
}

/// How long a forge that counts requests wants to be left alone.
fn pause(headers: &HeaderMap, now: i64) -> Option<Duration> {
    if let Some(after) = seconds(headers, RETRY_AFTER.as_str()) {
        return Some(after);
    }
    until_reset(headers, now)
}

/// How long no request is left, by the forge's own count.
fn until_reset(headers: &HeaderMap, now: i64) -> Option<Duration> {
    let remaining: i64 = number(headers, "x-ratelimit-remaining")?;
    let reset: i64 = number(headers, "x-ratelimit-reset")?;
    // A second later: its clock and ours need not agree.
    let wait = u64::try_from(reset.saturating_sub(now)).unwrap_or(0) + 1;
    (remaining == 0).then(|| Duration::from_secs(wait).min(LONGEST_PAUSE))
}

fn seconds(headers: &HeaderMap, name: &str) -> Option<Duration> {
    let seconds: u64 = number(headers, name)?;
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

fn number<T: std::str::FromStr>(headers: &HeaderMap, name: &str) -> Option<T> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::HeaderValue;

    fn of(code: u16, headers: &[(&'static str, &'static str)]) -> Verdict {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_static(value));
        }
        Verdict::of(StatusCode::from_u16(code).unwrap(), &map, "", 1_000)
    }

    fn after(verdict: Verdict) -> Option<u64> {
        match verdict {
            Verdict::Again { after, .. } => after.map(|after| after.as_secs()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn limits_say_when() {
        // F47
        assert_eq!(after(of(429, &[("retry-after", "7")])), Some(7));
        assert_eq!(after(of(403, &[("retry-after", "7")])), Some(7));
        let reset = [
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1060"),
        ];
        assert_eq!(after(of(403, &reset)), Some(61));
        assert_eq!(after(of(429, &reset)), Some(61));
        assert_eq!(after(of(429, &[])), None);
        let past = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "10")];
        assert_eq!(after(of(403, &past)), Some(1));
        let least = [
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "-9223372036854775808"),
        ];
        assert_eq!(after(of(403, &least)), Some(1));
        let far = [("retry-after", "999999999")];
        assert_eq!(after(of(429, &far)), Some(LONGEST_PAUSE.as_secs()));
    }

    #[test]
    fn the_last_request_that_is_taken_says_so() {
        let done = |remaining: &'static str| {
            let mut map = HeaderMap::new();
            map.insert("x-ratelimit-remaining", HeaderValue::from_static(remaining));
            map.insert("x-ratelimit-reset", HeaderValue::from_static("1060"));
            Verdict::done(&map, 1_000).rest().map(|it| it.as_secs())
        };
        assert_eq!(done("0"), Some(61));
        assert_eq!(done("1"), None);
    }

    #[test]
    fn a_broken_forge_is_asked_again_and_a_clear_no_is_one() {
        for code in [500, 502, 503, 504, 408] {
            assert!(matches!(of(code, &[]), Verdict::Again { .. }), "{code}");
        }
        for code in [301, 302, 400, 401, 403, 404, 410, 422] {
            assert!(matches!(of(code, &[]), Verdict::Refused { .. }), "{code}");
        }
        // Not a limit: a token without the right.
        let left = [
            ("x-ratelimit-remaining", "4999"),
            ("x-ratelimit-reset", "1060"),
        ];
        assert!(matches!(of(403, &left), Verdict::Refused { .. }));
    }
}
