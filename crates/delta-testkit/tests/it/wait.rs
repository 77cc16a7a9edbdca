//! Waiting: comes back as soon as it is true, and says what it saw when it never is.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use delta_testkit::wait::{eventually, eventually_async};

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(60);

fn words_of(panic: Box<dyn std::any::Any + Send>) -> String {
    *panic.downcast::<String>().expect("a panic with words")
}

#[test]
fn eventually_returns_the_value_once_it_is_there() {
    let mut looks = 0;
    let started = Instant::now();
    let value = eventually(LONG, "the fifth look", || {
        looks += 1;
        if looks == 5 { Ok("here") } else { Err(looks) }
    });
    assert_eq!(value, "here");
    assert!(started.elapsed() < LONG);
}

#[test]
fn eventually_says_what_it_saw_last() {
    let never = AssertUnwindSafe(|| eventually(SHORT, "three apples", || Err::<(), _>("two")));
    let words = words_of(catch_unwind(never).unwrap_err());
    assert!(
        words.contains("three apples") && words.contains("two"),
        "{words}"
    );
}

#[tokio::test]
async fn eventually_async_returns_the_value_once_it_is_there() {
    let mut looks = 0;
    let value = eventually_async(LONG, "the third look", async || {
        looks += 1;
        tokio::task::yield_now().await;
        if looks == 3 { Ok(looks) } else { Err(looks) }
    });
    assert_eq!(value.await, 3);
}

#[test]
fn a_look_that_hangs_is_cut_at_the_deadline() {
    let mut looks = 0;
    let waiting = eventually_async(SHORT, "an answer", async || {
        looks += 1;
        if looks > 1 {
            std::future::pending::<()>().await;
        }
        Err::<(), _>("silence")
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let hanging = AssertUnwindSafe(|| runtime.block_on(waiting));
    let words = words_of(catch_unwind(hanging).unwrap_err());
    assert!(
        words.contains("an answer") && words.contains("silence"),
        "{words}"
    );
}
