//! Pipeline files changed at random: text cut, repeated, swapped, and words of the language thrown
//! in. What must hold of whatever comes out.

use delta_planner::{Changed, Facts, MAX_DIAGNOSTICS, parse, plan};

/// Words that mean something somewhere.
const WORDS: [&str; 43] = [
    "jobs:",
    "on:",
    "steps:",
    "needs:",
    "matrix:",
    "include:",
    "exclude:",
    "extends:",
    "defaults:",
    "templates:",
    "if: ",
    "env:",
    "timeout: 5m",
    "concurrency: ",
    "{matrix.a}",
    "{branch}",
    "&a ",
    "*a",
    "- ",
    "  ",
    "\n",
    "\t",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "|",
    ">",
    "!",
    "!!map ",
    "<<: *a",
    "branch == \"x\"",
    "changed(\"**\")",
    "&& ",
    "|| ",
    "(((((",
    "---\n",
    "${{ matrix.a }}",
    "secrets: {A: b}",
    "caches: [a]",
    "\u{0}",
];

pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most.max(1) as u64) as usize
    }
}

pub fn corpus() -> Vec<Vec<u8>> {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        here.join("tests/corpus/bad"),
        here.join("tests/corpus/warned"),
        here.join("../../examples/pipelines"),
    ];
    let entries = folders
        .iter()
        .flat_map(|it| std::fs::read_dir(it).expect("a folder"));
    let mut paths: Vec<_> = entries.map(|it| it.expect("an entry").path()).collect();
    paths.sort();
    paths
        .iter()
        .map(|it| std::fs::read(it).expect("a file"))
        .collect()
}

pub fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = corpus[rng.below(corpus.len())].clone();
    for _ in 0..=rng.below(12) {
        let at = rng.below(bytes.len() + 1);
        let end = (at + rng.below(40)).min(bytes.len());
        match rng.below(6) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let copy = bytes[at..end].repeat(1 + rng.below(30));
                bytes.splice(at..at, copy);
            }
            2 => {
                let other = &corpus[rng.below(corpus.len())];
                let from = rng.below(other.len());
                let to = (from + rng.below(200)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            3 if at < bytes.len() => bytes[at] = rng.next() as u8,
            _ => {
                let word = WORDS[rng.below(WORDS.len())];
                bytes.splice(at..at, word.bytes());
            }
        }
        bytes.truncate(100_000);
    }
    bytes
}

/// Whatever the bytes are: a pipeline that the API takes, or faults that can be shown.
pub fn check(bytes: &[u8]) {
    match parse("f.yaml", bytes) {
        Ok(pipeline) => {
            for changed in [Changed::All, Changed::files(["a".to_owned()])] {
                let Ok(plan) = plan(&pipeline, &Facts::push("main", changed)) else {
                    continue;
                };
                assert_eq!(plan.jobs.len() + plan.omitted.len(), pipeline.jobs.len());
                if plan.jobs.is_empty() {
                    continue;
                }
                let request = plan.to_request().to_string();
                let read = delta_wire::api::CreateRun::parse(request.as_bytes());
                assert!(read.is_ok(), "{read:?}");
            }
        }
        Err(found) => {
            assert!(!found.items.is_empty() && found.items.len() <= MAX_DIAGNOSTICS);
            let shown = found.to_string();
            assert!(!shown.contains(['\u{1b}', '\u{0}', '\u{202e}']), "{shown}");
        }
    }
}
