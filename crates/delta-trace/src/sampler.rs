//! Which traces are kept, in the words of `OTEL_TRACES_SAMPLER`.
//!
//! A trace that came from somebody is kept where they keep it, unless the sampler's name says that
//! nobody else is asked. The choice for our own is made by the trace's id, so that everybody who
//! makes it makes the same.

use crate::context::TraceContext;

/// The bits of a trace's id that are random by W3C's word, however it was made.
const RANDOM_BITS: u32 = 56;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sampler {
    /// Of our own traces, from 0 to 1.
    share: f64,
    ask_parent: bool,
}

impl Sampler {
    pub const USUAL: Sampler = Sampler {
        share: 1.0,
        ask_parent: true,
    };

    /// By the names of the specification; `argument` is that of the ratio, 1 when absent.
    pub fn named(name: &str, argument: Option<f64>) -> Option<Sampler> {
        let (ask_parent, root) = match name.strip_prefix("parentbased_") {
            Some(root) => (true, root),
            None => (false, name),
        };
        let share = match root {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => argument.unwrap_or(1.0),
            _ => return None,
        };
        Some(Sampler { share, ask_parent })
    }

    pub fn keeps(self, parent: Option<TraceContext>, trace: u128) -> bool {
        match parent {
            Some(parent) if self.ask_parent => parent.sampled,
            _ => {
                let all = 1u128 << RANDOM_BITS;
                // Whole numbers: as a fraction the largest would be 1, and no share has it.
                let kept = (self.share * all as f64) as u128;
                trace % all < kept
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_asked_where_the_name_says_so() {
        let parent = |sampled| {
            let (trace, span) = (u128::MAX, 1);
            Some(TraceContext {
                trace,
                span,
                sampled,
            })
        };
        let keeps = |name, parent| Sampler::named(name, None).unwrap().keeps(parent, u128::MAX);
        assert!(keeps("parentbased_always_off", parent(true)));
        assert!(!keeps("parentbased_always_on", parent(false)));
        assert!(keeps("always_on", parent(false)));
        assert!(!keeps("always_off", parent(true)));
        assert!(keeps("parentbased_always_on", None));
        assert!(!keeps("parentbased_always_off", None));
        assert_eq!(
            Sampler::named("parentbased_always_on", None),
            Some(Sampler::USUAL)
        );
        assert_eq!(Sampler::named("jaeger_remote", None), None);
    }

    #[test]
    fn a_ratio_keeps_about_its_share_of_ids_that_are_made_of_time_and_chance() {
        let sampler = Sampler::named("traceidratio", Some(0.25)).unwrap();
        // What the run ids of one millisecond have in common, and a spread over the rest.
        let common = 0x0197_f3c4_0000_7000_8000_0000_0000_0000_u128;
        let spread = (0..10_000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
        let kept = spread
            .filter(|rest| sampler.keeps(None, common | u128::from(*rest)))
            .count();
        assert!((2_300..2_700).contains(&kept), "{kept}");
        let all = Sampler::named("traceidratio", Some(1.0)).unwrap();
        assert!(all.keeps(None, u128::MAX));
        let none = Sampler::named("traceidratio", Some(0.0)).unwrap();
        assert!(!none.keeps(None, 1 << 60));
    }
}
