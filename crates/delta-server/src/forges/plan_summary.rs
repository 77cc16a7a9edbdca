//! What is kept of what a planner said: a reason for each job, or what is wrong. Bounded, because
//! it is a stranger's word; what does not fit is counted, and never looks like a fault.

use serde_json::{Map, Value, json};

/// Bytes that are kept of one run.
const MAX_PLAN: usize = 256 * 1024;
/// Bytes of each of the three lists, and of what is wrong, whatever has to be escaped. Where
/// something is wrong, the lists share what that leaves.
const MAX_PART: usize = 80 * 1024;
/// Bytes of the lists' names, and of how many were cut.
const AROUND: usize = 1024;
/// Characters of a reason where not all of them fit whole.
const MAX_REASON: usize = 160;

/// What was said, as far as it is kept: whole, or with shorter reasons, or with fewer of them.
pub fn text(said: Value) -> String {
    let whole = said.to_string();
    if whole.len() <= MAX_PLAN {
        return whole;
    }
    let (mut kept, mut left) = (Map::new(), MAX_PLAN - AROUND);
    if let Some(error) = said["error"].as_str() {
        let error = Value::from(fitting(error));
        left -= error.to_string().len();
        kept.insert("error".into(), error);
    }
    let room = MAX_PART.min(left / 3);
    let mut left_out = Map::new();
    for name in ["jobs", "omitted", "remarks"] {
        let Some(items) = said[name].as_array() else {
            continue;
        };
        let short = cut(items, room);
        if let more @ 1.. = items.len() - short.len() {
            left_out.insert(name.to_owned(), more.into());
        }
        kept.insert(name.to_owned(), short.into());
    }
    if !left_out.is_empty() {
        kept.insert("cut".into(), left_out.into());
    }
    Value::Object(kept).to_string()
}

/// The first ones, as many as fit.
fn cut(items: &[Value], mut room: usize) -> Vec<Value> {
    let short = items.iter().map(|item| {
        let word = |name: &str| shortened(item[name].as_str().unwrap_or_default());
        json!({"name": word("name"), "reason": word("reason")})
    });
    let fits = |item: &Value| {
        let size = item.to_string().len() + 1;
        room = room.saturating_sub(size);
        room > 0
    };
    short.take_while(fits).collect()
}

fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_REASON).collect();
    if text.chars().nth(MAX_REASON).is_some() {
        short.push('…');
    }
    short
}

/// The beginning of a text, as much of it as fits when it is written down.
fn fitting(text: &str) -> String {
    let mut room = MAX_PART;
    let fits = |c: &char| {
        // A character that has to be escaped takes six bytes at most, and any other four.
        room = room.saturating_sub(if c.is_control() { 6 } else { 4 });
        room > 0
    };
    let short: String = text.chars().take_while(fits).collect();
    short + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(said: Value) -> Value {
        let text = text(said);
        assert!(text.len() <= MAX_PLAN, "{}", text.len());
        serde_json::from_str(&text).unwrap()
    }

    fn items(count: usize, reason: &str) -> Value {
        let item = |n| json!({"name": format!("job {n}"), "reason": reason});
        (0..count).map(item).collect()
    }

    #[test]
    fn what_fits_is_kept_as_it_is() {
        let said = json!({"jobs": items(500, "it has no condition"), "omitted": items(3, "x")});
        assert_eq!(read(said.clone()), said);
    }

    #[test]
    fn what_does_not_fit_is_shorter_or_counted_and_no_fault() {
        // Reasons first.
        let said = json!({"jobs": items(10, "x"), "omitted": items(300, &"ä".repeat(600))});
        let kept = read(said);
        let there = kept["omitted"].as_array().unwrap().len();
        assert!((200..300).contains(&there), "{there}");
        assert_eq!(kept["cut"], json!({"omitted": 300 - there}));
        assert_eq!(kept["jobs"].as_array().unwrap().len(), 10);
        let reason = kept["omitted"][0]["reason"].as_str().unwrap();
        assert!(
            reason.starts_with("ää") && reason.ends_with('…'),
            "{reason}"
        );
        assert_eq!(kept["error"], Value::Null);
        // Then how many there are; whatever is in them.
        let kept = read(
            json!({"jobs": items(9_000, "\u{1}"), "omitted": items(9_000, &"\"".repeat(400))}),
        );
        let counted = |name: &str| {
            let cut = kept["cut"][name].as_u64().unwrap();
            kept[name].as_array().unwrap().len() as u64 + cut
        };
        assert_eq!((counted("jobs"), counted("omitted")), (9_000, 9_000));
    }

    #[test]
    fn everything_at_once_fits() {
        let list = || items(9_000, &"x".repeat(400));
        let kept = read(json!({"error": "\u{1}".repeat(400_000), "jobs": list(),
            "omitted": list(), "remarks": list()}));
        for name in ["jobs", "omitted", "remarks"] {
            assert!(kept["cut"][name].as_u64() > Some(0), "{name}");
        }
        assert!(kept["error"].is_string());
    }

    #[test]
    fn a_fault_without_end_is_cut() {
        for text in ["x", "\u{1}", "\"", "ä", "😀"] {
            let kept = read(json!({"error": text.repeat(400_000)}));
            assert!(kept["error"].as_str().unwrap().starts_with(text));
        }
        assert_eq!(read(json!({"odd": "x".repeat(400_000)})), json!({}));
    }
}
