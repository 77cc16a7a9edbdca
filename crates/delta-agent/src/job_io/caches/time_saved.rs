//! How much time the caches of a job have saved: measured, not guessed.
//!
//! It is the time that the steps of the same job took in the attempt that saved the cache, less
//! what they took now, less what restoring took. What else was different is not known, so it is
//! `about`; and several caches of a job have saved it together.

use std::time::Duration;

use super::{Hit, Looked};

/// A line for the log, where there is anything to compare with.
pub(super) fn saved(looked: &[Looked], now: Duration) -> Option<String> {
    let hits: Vec<&Hit> = looked.iter().filter_map(|it| it.hit.as_ref()).collect();
    // The oldest of them is from a time when the others were not there either.
    let then = hits.iter().filter_map(|it| it.work).max()?;
    let restoring: Duration = hits.iter().map(|it| it.restored_in).sum();
    let of = format!(
        "the work took {:.1}s when they were saved, {:.1}s now, and {:.1}s went into restoring",
        then.as_secs_f64(),
        now.as_secs_f64(),
        restoring.as_secs_f64()
    );
    Some(match then.checked_sub(now + restoring) {
        Some(saved) if saved >= Duration::from_millis(50) => {
            format!("caches: saved about {:.1}s: {of}", saved.as_secs_f64())
        }
        _ => format!("caches: saved no time: {of}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(work: Option<u64>, restored_in: u64) -> Looked {
        let hit = Hit {
            work: work.map(Duration::from_millis),
            restored_in: Duration::from_millis(restored_in),
        };
        Looked {
            key: "key".to_owned(),
            exact: true,
            blocked: false,
            hit: Some(hit),
        }
    }

    #[test]
    fn the_time_saved_is_what_was_measured_and_never_more() {
        let miss = Looked {
            key: "key".to_owned(),
            exact: false,
            blocked: false,
            hit: None,
        };
        let now = Duration::from_millis(12_400);
        let both = [
            hit(Some(41_200), 800),
            hit(Some(30_000), 1_000),
            miss.clone(),
        ];
        let line = saved(&both, now).expect("a line");
        assert_eq!(
            line,
            "caches: saved about 27.0s: the work took 41.2s when they were saved, 12.4s now, \
             and 1.8s went into restoring"
        );
        let slow = saved(&[hit(Some(12_000), 800)], now).expect("a line");
        assert!(slow.starts_with("caches: saved no time: "), "{slow}");
        assert_eq!(saved(&[hit(None, 800), miss], now), None, "of another job");
    }
}
