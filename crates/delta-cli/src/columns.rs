//! The tables of all commands: their columns, and which of them are left out, in which order, where
//! a terminal is too narrow. docs/terminal.md says the same to people, and a test compares them.

/// The columns of one table.
#[derive(Debug)]
pub struct Columns {
    pub header: &'static [&'static str],
    /// Left out one after the other, the first first, until the rest fits.
    pub spare: &'static [&'static str],
}

pub const RUNS: Columns = Columns {
    header: &["RUN", "STATE", "CREATED", "TOOK", "SOURCE"],
    spare: &["TOOK", "CREATED"],
};

pub const JOBS: Columns = Columns {
    header: &["JOB", "STATE", "ATTEMPTS", "TOOK", "ID", "NOTE"],
    spare: &["ID", "ATTEMPTS", "TOOK"],
};

/// Those of `run` on a terminal, where nobody can ask for a job by its id.
pub const JOBS_HERE: Columns = Columns {
    header: &["JOB", "STATE", "ATTEMPTS", "TOOK", "NOTE"],
    spare: &["ATTEMPTS", "TOOK"],
};

pub const AGENTS: Columns = Columns {
    header: &["AGENT", "NAME", "STATUS", "WORK", "POOL", "SEEN", "OFFERS"],
    spare: &["OFFERS", "POOL", "SEEN"],
};

pub const TOKENS: Columns = Columns {
    header: &["TOKEN", "ROLE", "NAME", "GRANTS", "CREATED", "STANDING"],
    spare: &["CREATED", "GRANTS"],
};

pub const REPOSITORIES: Columns = Columns {
    header: &[
        "REPOSITORY",
        "FORGE",
        "URL",
        "STATUSES BY",
        "FORKS",
        "WEBHOOK",
    ],
    spare: &["FORKS", "STATUSES BY", "WEBHOOK"],
};

pub const SECRETS: Columns = Columns {
    header: &[
        "SECRET",
        "KIND",
        "REPOSITORY",
        "BRANCH",
        "ENVIRONMENT",
        "SET",
        "BY",
    ],
    spare: &["BY", "SET", "KIND"],
};

pub const ARTIFACTS: Columns = Columns {
    header: &["JOB", "ATTEMPT", "TYPE", "SIZE", "NAME"],
    spare: &["TYPE", "ATTEMPT"],
};

pub const CACHES: Columns = Columns {
    header: &["SIZE", "USED", "SAVES", "TRUST", "REF", "REPOSITORY", "KEY"],
    spare: &["SAVES", "TRUST", "USED"],
};

pub const TESTS: Columns = Columns {
    header: &["RESULT", "WHEN", "TOOK", "COMMIT", "REF", "SUITE", "JOB"],
    spare: &["JOB", "SUITE", "TOOK"],
};

pub const QUEUES: Columns = Columns {
    header: &[
        "QUEUE",
        "WAITING",
        "OLDEST",
        "IN/MIN",
        "DONE/MIN",
        "FAILED/MIN",
        "RUNNER",
        "NOTE",
    ],
    spare: &["RUNNER", "IN/MIN", "DONE/MIN"],
};

pub const DEAD_LETTERS: Columns = Columns {
    header: &[
        "ID", "FUNCTION", "QUEUE", "ENDED", "ATTEMPTS", "CAUSE", "ERROR",
    ],
    spare: &["ATTEMPTS", "QUEUE", "ENDED"],
};

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(&str, Columns); 12] = [
        ("`runs`", RUNS),
        ("`show RUN`", JOBS),
        ("`run`", JOBS_HERE),
        ("`agents list`", AGENTS),
        ("`token list`", TOKENS),
        ("`repo list`", REPOSITORIES),
        ("`secret list`", SECRETS),
        ("`artifacts`", ARTIFACTS),
        ("`caches`", CACHES),
        ("`tests --history NAME`", TESTS),
        ("`queues`", QUEUES),
        ("`dead-letters`", DEAD_LETTERS),
    ];

    #[test]
    fn people_are_told_which_columns_go_first() {
        let page = include_str!("../../../docs/terminal.md");
        for (command, columns) in ALL {
            let (header, spare) = (columns.header.join(", "), columns.spare.join(", "));
            let row = format!("| {command} | {header} | {spare} |");
            assert!(page.contains(&row), "{row}");
            let is_a_column = |name: &&str| columns.header.contains(name);
            assert!(columns.spare.iter().all(is_a_column), "{command}");
        }
    }
}
