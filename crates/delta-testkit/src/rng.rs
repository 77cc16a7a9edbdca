//! A small seeded generator, so that every fault can be replayed from one number.
//!
//! Refuses to be anything but reproducible: it never reads the clock, except in [`fresh_seed`],
//! which is where a test gets its number from. Not for secrets.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The variable that replays a seed: `DELTA_TEST_SEED=42 cargo nextest run …`.
pub const SEED_VARIABLE: &str = "DELTA_TEST_SEED";

/// What everyday runs use: a change is judged by itself, not by the luck of a draw. Storms draw.
const EVERYDAY_SEED: u64 = 42;

/// The seed named in [`SEED_VARIABLE`], a new one in a storm (`DELTA_STORM`), or always the same.
/// Print it when the test fails.
pub fn fresh_seed() -> u64 {
    if let Ok(text) = std::env::var(SEED_VARIABLE) {
        return text
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("{SEED_VARIABLE}={text:?} is not a whole number"));
    }
    if std::env::var_os("DELTA_STORM").is_none() {
        return EVERYDAY_SEED;
    }
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mixed = since_epoch.as_nanos() as u64 ^ (u64::from(std::process::id()) << 40);
    // Short enough to retype from a failure message.
    Rng::new(mixed).below(1_000_000_000)
}

/// SplitMix64: one word of state, equally good for any seed, including 0.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator of its own for one part (a connection, a direction), independent of how much
    /// the other parts have drawn: what happens there does not depend on the interleaving.
    pub fn part(seed: u64, part: u64) -> Self {
        let mut mixer = Self::new(seed);
        let mixed = mixer.next_u64() ^ part.wrapping_mul(0xd134_2543_de82_ef95);
        Self::new(Self::new(mixed).next_u64())
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number in `0..bound`; 0 when the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a 128 bit product: no division, and a bias too small for tests to see.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number of the range; its start when the range is empty.
    pub fn between(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// True with this probability: never for 0.0, always for 1.0.
    pub fn chance(&mut self, probability: f64) -> bool {
        let unit = (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        unit < probability
    }

    pub fn duration(&mut self, range: Range<Duration>) -> Duration {
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        Duration::from_nanos(self.between(nanos(range.start)..nanos(range.end)))
    }

    /// One of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        assert!(!items.is_empty(), "nothing to pick from");
        &items[self.below(items.len() as u64) as usize]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
