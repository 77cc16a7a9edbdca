//! Words that people bring from elsewhere (GitHub Actions, GitLab, Woodpecker, Buildkite, CircleCI
//! and their kin), each with what to write here: keys of a file and its jobs, keys of what stands
//! around the work, and what conditions and expressions ask about.
//!
//! Nothing here is accepted: it is only answered better than by a list of names.

mod around;
mod facts;
mod jobs;

use crate::fields::Foreign;

pub(crate) use self::around::{
    ARTIFACT, CACHE, CONTAINER, INPUT, NO_VALUES, READY, RESULTS, SECRET, SERVICE, of_secret,
};
pub(crate) use self::facts::{asked, function, in_condition, machine};
pub(crate) use self::jobs::{
    BRANCHES, CONCURRENCY, DEFAULTS, FILE, JOB, ON, STEP, of_file, of_step,
};

/// A word in the place of `means`.
const fn word(word: &'static str, means: &'static str, advice: &'static str) -> Foreign {
    Foreign {
        word,
        means,
        advice,
        idle: false,
    }
}

/// A key that changes nothing: passed over, with a warning.
const fn idle(word: &'static str, advice: &'static str) -> Foreign {
    Foreign {
        word,
        means: "",
        advice,
        idle: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{concurrency, job, on, read, steps};

    /// A word that is a key already would never be looked up.
    #[test]
    fn no_word_of_the_table_is_a_key_and_each_stands_once() {
        let tables = [
            (FILE, read::FILE_KEYS.known),
            (JOB, job::JOB_KEYS.known),
            (DEFAULTS, job::DEFAULTS_KEYS.known),
            (STEP, steps::STEP_KEYS.known),
            (ON, on::ON_KEYS.known),
            (BRANCHES, on::BRANCH_KEYS.known),
            (CONCURRENCY, concurrency::KEYS.known),
        ];
        for (table, known) in tables {
            for (at, foreign) in table.iter().enumerate() {
                let word = foreign.word;
                assert!(!known.contains(&word), "`{word}` is a key");
                assert!(
                    !table[..at].iter().any(|it| it.word == word),
                    "`{word}` twice"
                );
                let means = foreign.means;
                let stands_for = means.is_empty() || known.contains(&means);
                let beside = table.iter().any(|it| it.word == means);
                assert!(stands_for || beside, "`{word}` stands for `{means}`");
            }
        }
    }

    #[test]
    fn what_is_asked_elsewhere_is_answered_with_the_name_here() {
        let said = |name| in_condition(name).unwrap();
        assert_eq!(said("github.ref"), "did you mean `ref`?");
        assert_eq!(said("CI_COMMIT_BRANCH"), "did you mean `branch`?");
        assert_eq!(
            said("github.event.inputs.level"),
            "did you mean `inputs.level`?"
        );
        assert!(said("github.sha").contains("$DELTA_COMMIT"));
        assert_eq!(in_condition("colour"), None);
    }
}
