//! What other systems call the facts of a trigger, their functions and their machines.

/// What people ask about a trigger elsewhere.
pub(crate) struct Asked {
    pub names: &'static [&'static str],
    /// What a condition calls it; empty where none can ask.
    pub fact: &'static str,
    /// What steps have it as; empty where they have not.
    pub variable: &'static str,
}

const ASKED: &[Asked] = &[
    Asked {
        names: &[
            "github.ref",
            "GITHUB_REF",
            "CI_COMMIT_REF",
            "BUILD_SOURCEBRANCH",
        ],
        fact: "ref",
        variable: "DELTA_REF",
    },
    Asked {
        names: &[
            "github.ref_name",
            "GITHUB_REF_NAME",
            "CI_COMMIT_BRANCH",
            "CI_COMMIT_REF_NAME",
            "CI_BRANCH",
            "BUILDKITE_BRANCH",
            "CIRCLE_BRANCH",
            "DRONE_BRANCH",
            "TRAVIS_BRANCH",
            "build.branch",
            "pipeline.git.branch",
        ],
        fact: "branch",
        variable: "DELTA_BRANCH",
    },
    Asked {
        names: &[
            "CI_COMMIT_TAG",
            "BUILDKITE_TAG",
            "CIRCLE_TAG",
            "DRONE_TAG",
            "build.tag",
        ],
        fact: "tag",
        variable: "DELTA_TAG",
    },
    Asked {
        names: &[
            "github.event_name",
            "GITHUB_EVENT_NAME",
            "CI_PIPELINE_SOURCE",
            "CI_PIPELINE_EVENT",
            "DRONE_BUILD_EVENT",
            "build.source",
        ],
        fact: "event",
        variable: "DELTA_EVENT",
    },
    Asked {
        names: &[
            "github.head_ref",
            "GITHUB_HEAD_REF",
            "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME",
            "CI_COMMIT_SOURCE_BRANCH",
        ],
        fact: "source",
        variable: "",
    },
    Asked {
        names: &[
            "github.base_ref",
            "GITHUB_BASE_REF",
            "CI_MERGE_REQUEST_TARGET_BRANCH_NAME",
            "CI_COMMIT_TARGET_BRANCH",
            "BUILDKITE_PULL_REQUEST_BASE_BRANCH",
        ],
        fact: "target",
        variable: "",
    },
    Asked {
        names: &[
            "github.sha",
            "GITHUB_SHA",
            "CI_COMMIT_SHA",
            "BUILDKITE_COMMIT",
            "CIRCLE_SHA1",
            "DRONE_COMMIT",
        ],
        fact: "",
        variable: "DELTA_COMMIT",
    },
    Asked {
        names: &[
            "github.workspace",
            "GITHUB_WORKSPACE",
            "CI_PROJECT_DIR",
            "CI_WORKSPACE",
        ],
        fact: "",
        variable: "DELTA_WORKSPACE",
    },
];

/// What stands here for something that is asked about elsewhere.
pub(crate) fn asked(name: &str) -> Option<&'static Asked> {
    let same = |it: &&str| it.eq_ignore_ascii_case(name);
    ASKED.iter().find(|asked| asked.names.iter().any(same))
}

/// What to write for a name that a condition does not know.
pub(crate) fn in_condition(name: &str) -> Option<String> {
    for before in ["github.event.inputs.", "github.inputs."] {
        if let Some(input) = name.strip_prefix(before) {
            return Some(format!("did you mean `inputs.{input}`?"));
        }
    }
    let asked = asked(name)?;
    Some(match asked.fact {
        "" => {
            let variable = asked.variable;
            format!("no condition asks for it; steps have it as `${variable}`")
        }
        fact => format!("did you mean `{fact}`?"),
    })
}

/// Functions of other languages of conditions, and what they are here.
const FUNCTIONS: &[(&str, &str)] = &[
    (
        "startsWith",
        "compare with a pattern: `ref =~ \"refs/tags/*\"`",
    ),
    ("endsWith", "compare with a pattern: `branch =~ \"*-fix\"`"),
    ("contains", "compare with a pattern: `branch =~ \"*fix*\"`"),
    ("hashFiles", "ask what changed: `changed(\"Cargo.lock\")`"),
    (
        "cancelled",
        "after a cancel nothing begins any more; remove it",
    ),
    (
        "canceled",
        "after a cancel nothing begins any more; remove it",
    ),
];

/// What to write for a name that is called like a function.
pub(crate) fn function(name: &str, step: bool) -> String {
    let known = FUNCTIONS.iter().find(|(it, _)| *it == name);
    match (known, name) {
        (Some((_, advice)), _) => (*advice).to_owned(),
        (None, "success" | "failure" | "always") if step => format!("write `{name}` alone"),
        (None, "success") => "a job runs when its needs ended well; leave it out".to_owned(),
        (None, "failure" | "always") => {
            "a step may ask for it: `{run: …, if: always}`; a job runs when its needs ended well"
                .to_owned()
        }
        (None, _) => "there is one function: `changed(\"src/**\")`".to_owned(),
    }
}

/// What machines are called elsewhere, by how the word begins, and what agents find out here.
const MACHINES: &[(&str, &str)] = &[
    ("ubuntu", "linux"),
    ("debian", "linux"),
    ("alpine", "linux"),
    ("saas-linux", "linux"),
    ("macos-", "macos"),
    ("windows-", "windows"),
    ("x64", "x86_64"),
    ("self-hosted", ""),
    ("self_hosted", ""),
];

/// What an agent would find out of a machine that is called so elsewhere: nothing where every agent
/// is one.
pub(crate) fn machine(label: &str) -> Option<&'static str> {
    let known = MACHINES
        .iter()
        .find(|(begins, _)| label.starts_with(begins));
    known.map(|(_, here)| *here)
}
