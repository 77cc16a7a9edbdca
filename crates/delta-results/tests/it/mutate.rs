//! Mutations of real reports, from a seed: what a reader must survive. The same for the tests,
//! which make a few of them, and for `examples/fuzz.rs`, which goes on for as long as it is told.

use std::io::BufReader;
use std::path::Path;

use delta_results::{Case, Format, Limits, read};

/// Small, so that a mutation reaches them.
const LIMITS: Limits = Limits {
    bytes: 256 * 1024,
    cases: 2_000,
    depth: 64,
    name: 256,
    message: 512,
    trace: 2_048,
    metadata: 8,
};
/// Bytes of an input: beyond it only the bound on bytes is tested, again and again.
const MAX_INPUT: usize = 300 * 1024;

/// Pieces that mean something to one reader or another.
const PIECES: [&str; 26] = [
    "<",
    "</",
    "/>",
    "<!DOCTYPE a>",
    "<![CDATA[",
    "]]>",
    "&amp;",
    "&#0;",
    "<testcase name=\"",
    "<testsuite>",
    "<UnitTestResult testId=\"t1\" outcome=\"Failed\" testName=\"",
    "<InnerResults>",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\u0000",
    "1e999",
    "-1",
    "ok 1",
    "not ok",
    "1..0",
    "  ---\n",
    "  ...\n",
    "\n{\"type\":\"test\",\"event\":\"ok\",\"name\":\"n\"}\n",
];

pub struct Rng(pub u64);

impl Rng {
    fn next(&mut self) -> u64 {
        // xorshift64*: spread well enough, the same everywhere.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most.max(1) as u64) as usize
    }
}

/// Readers as people call their formats: the one of JUnit reads .trx with code of its own.
pub const READERS: [&str; 6] = ["junit", "trx", "jest", "playwright", "tap", "json"];

/// Reports of real tools for this reader.
pub fn corpus(reader: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/real");
    let ending = match reader {
        "jest" | "playwright" => format!(".{reader}.json"),
        _ => format!(".{reader}"),
    };
    let files = std::fs::read_dir(folder).expect("a corpus").flatten();
    let mut paths: Vec<_> = files.map(|file| file.path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(&ending));
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).expect("a report"))
        .collect()
}

/// One input, made of the corpus.
pub fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = corpus[rng.below(corpus.len())].clone();
    for _ in 0..=rng.below(8) {
        let at = rng.below(bytes.len() + 1);
        let end = (at + rng.below(64)).min(bytes.len());
        match rng.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let piece = bytes[at..end].to_vec();
                let to = rng.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            3 => {
                let piece = PIECES[rng.below(PIECES.len())].repeat(1 + rng.below(200));
                bytes.splice(at..at, piece.into_bytes());
            }
            4 => {
                let other = &corpus[rng.below(corpus.len())];
                let from = rng.below(other.len());
                bytes.splice(at..end, other[from..].iter().copied());
            }
            _ => {
                for byte in &mut bytes[at..end] {
                    *byte = rng.next() as u8;
                }
            }
        }
        bytes.truncate(MAX_INPUT);
    }
    bytes
}

/// Reads it, and sees that everything is within its bounds and the same however it comes.
pub fn check(format: Format, bytes: &[u8], rng: &mut Rng) {
    let (whole, problem) = cases(format, bytes, 64 * 1024);
    for case in &whole {
        let texts = [
            (Some(&case.name), LIMITS.name),
            (Some(&case.suite), LIMITS.name),
        ];
        let more = [
            (case.message.as_ref(), LIMITS.message),
            (case.trace.as_ref(), LIMITS.trace),
        ];
        for (text, most) in texts.into_iter().chain(more) {
            assert!(text.is_none_or(|text| text.len() <= most), "{text:?}");
        }
        assert!(case.metadata.len() <= LIMITS.metadata);
    }
    let (pieces, problem_of_pieces) = cases(format, bytes, 1 + rng.below(100));
    assert_eq!(whole, pieces, "it depends on how it is read");
    assert_eq!(problem, problem_of_pieces);
}

fn cases(format: Format, bytes: &[u8], size: usize) -> (Vec<Case>, bool) {
    let mut found = Vec::new();
    let input = BufReader::with_capacity(size, bytes);
    let report = read(format, input, "/build/app", &LIMITS, &mut |case| {
        found.push(case)
    });
    assert_eq!(report.totals.seen.total(), found.len() as u64);
    assert!(found.len() as u64 <= LIMITS.cases);
    (found, report.problem.is_some())
}
