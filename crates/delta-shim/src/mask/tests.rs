//! Masking against a plain reference, and against encoders that are not ours.
//!
//! `cargo xtask storm masks` tries as many secrets as are promised; without it, a tenth.

use base64::Engine as _;
use base64::engine::general_purpose as engines;

use super::*;

/// Secrets tried without being asked for more.
const SECRETS: u64 = 1000;

/// Numbers that are the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }

    fn text(&mut self, letters: &str, length: usize) -> String {
        let letters: Vec<char> = letters.chars().collect();
        let pick = (0..length).map(|_| letters[self.below(letters.len())]);
        pick.collect()
    }

    /// A secret of one of the kinds people have.
    fn secret(&mut self) -> String {
        let letters = [
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-",
            "abc",
            "aA1 !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\t",
            "pä≠🦀ß\"\\/ é\u{7}",
            "0123456789abcdef\n\"'/+",
        ];
        let letters = letters[self.below(letters.len())];
        loop {
            let length = 6 + self.below(60);
            let secret = self.text(letters, length);
            if secret.trim().len() >= forms::MIN_BYTES {
                return secret;
            }
        }
    }
}

fn patterns(secrets: &[&str]) -> Arc<Patterns> {
    Arc::new(Patterns::of(secrets.iter().copied()).expect("something to mask"))
}

/// Masks a stream in pieces of random sizes.
fn in_pieces(patterns: &Arc<Patterns>, stream: &[u8], random: &mut Random) -> Vec<u8> {
    let mut masker = Masker::new(Some(Arc::clone(patterns)));
    let (mut out, mut rest) = (Vec::new(), stream);
    let most = [1, 2, 7, 40, 4096, 40_000][random.below(6)];
    while !rest.is_empty() {
        let length = (1 + random.below(most)).min(rest.len());
        let (piece, later) = rest.split_at(length);
        out.extend(masker.push(piece).concat());
        rest = later;
    }
    out.extend_from_slice(masker.finish());
    out
}

/// The meaning of masking, with no thought of speed: every byte of every occurrence.
fn reference(patterns: &Patterns, stream: &[u8]) -> Vec<u8> {
    let mut masked = vec![false; stream.len()];
    for place in 0..stream.len() {
        let rest = &stream[place..];
        for form in patterns.all() {
            let cut = form.starts_with(rest) && rest.len() >= forms::MIN_BYTES;
            if rest.starts_with(form) || cut {
                let end = place + form.len().min(rest.len());
                masked[place..end].fill(true);
            }
        }
    }
    let mut out = Vec::new();
    for (place, byte) in stream.iter().enumerate() {
        match (masked[place], place > 0 && masked[place - 1]) {
            (true, false) => out.extend_from_slice(MASK),
            (true, true) => {}
            (false, _) => out.push(*byte),
        }
    }
    out
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|it| it == part)
}

/// T6. What Go, browsers and others write when they print an address they connect to.
#[test]
fn a_password_inside_an_address_is_masked() {
    let patterns = Arc::new(Patterns::of(["p@ss$w0/rd&more,x"]).expect("a pattern"));
    for written in [
        "p%40ss$w0%2Frd&more,x",
        "p%40ss%24w0%2Frd%26more%2Cx",
        "p@ss$w0%2Frd&more%2Cx",
    ] {
        let line = format!("postgres://user:{written}@db.example/app");
        let masked = Masker::text(&patterns, &line);
        assert_eq!(masked, "postgres://user:***@db.example/app");
    }
}

/// T6. What libraries of several languages write into XML and HTML: a report of tests holds what a
/// test printed.
#[test]
fn a_secret_in_a_report_is_masked() {
    let patterns = patterns(&["p<a>s\"s&w'ord"]);
    for written in [
        "p&lt;a&gt;s&quot;s&amp;w&#x27;ord",
        "p&lt;a&gt;s&quot;s&amp;w&#39;ord",
        "p&lt;a&gt;s&quot;s&amp;w&#039;ord",
        "p&lt;a&gt;s&quot;s&amp;w&apos;ord",
        "p&lt;a&gt;s&#34;s&amp;w&#39;ord",
        "p&lt;a&gt;s&quot;s&amp;w'ord",
        "p&lt;a>s&quot;s&amp;w'ord",
        "p&lt;a&gt;s\"s&amp;w'ord",
        "p&lt;a>s\"s&amp;w'ord",
        "p&amp;lt;a&amp;gt;s&amp;quot;s&amp;amp;w&amp;#39;ord",
    ] {
        let line = format!("<failure message=\"{written}\">{written}</failure>");
        let masked = Masker::text(&patterns, &line);
        assert_eq!(
            masked, "<failure message=\"***\">***</failure>",
            "{written}"
        );
    }
}

#[test]
fn a_secret_is_masked_wherever_the_stream_is_cut() {
    // T6: split at every byte boundary, and at every two.
    let secret = "s3cret-value";
    let patterns = patterns(&[secret]);
    let stream = format!("before {secret}{secret} after {secret}\n").into_bytes();
    for first in 0..stream.len() {
        for second in first..stream.len() {
            let mut masker = Masker::new(Some(Arc::clone(&patterns)));
            let mut out = Vec::new();
            for piece in [&stream[..first], &stream[first..second], &stream[second..]] {
                out.extend(masker.push(piece).concat());
            }
            out.extend_from_slice(masker.finish());
            assert_eq!(out, b"before *** after ***\n", "{first} {second}");
        }
    }
}

#[test]
fn bytes_are_held_only_while_they_could_begin_a_secret() {
    // D8
    let mut masker = Masker::new(Some(patterns(&["s3cret-value"])));
    assert_eq!(masker.push(b"a line\n").concat(), b"a line\n");
    assert_eq!(masker.push(b"it is s3c").concat(), b"it is ");
    assert_eq!(masker.push(b"r").concat(), b"");
    assert_eq!(masker.push(b"eam\n").concat(), b"s3cream\n");
    assert_eq!(masker.push(b"s3cr").concat(), b"");
    assert_eq!(masker.finish(), b"s3cr", "too short to tell anything");
    assert_eq!(masker.push(b"s3cret-v").concat(), b"");
    assert_eq!(masker.finish(), b"***", "most of a secret is a secret");
    assert_eq!(masker.finish(), b"");
}

#[test]
fn long_secrets_in_lines_are_masked_to_the_last() {
    // T6: what YAML, JSON and encoders make of certificates and of long tokens.
    let mut random = Random(11);
    let one_line = random.text("abcXYZ019_-.", 5200);
    let lines: Vec<String> = (0..50).map(|_| random.text("AbC123+/", 64)).collect();
    for secret in [one_line, lines.join("\n")] {
        let patterns = patterns(&[&secret]);
        for before in ["user:", "u", ""] {
            let mut all = Vec::new();
            wrapped(&secret, before, &mut all);
            let mut masked: (Vec<u8>, Vec<u8>) = Default::default();
            for (stream, own) in all {
                if masked.0 != stream {
                    let out = Masker::whole(&patterns, &stream);
                    masked = (stream, out);
                }
                assert!(!holds(&masked.1, &own), "{}", String::from_utf8_lossy(&own));
            }
        }
    }
}

#[test]
fn secrets_in_lines_and_whole_ones_stand_side_by_side() {
    let secret = "a-secret-that-is-long-enough-for-lines";
    let patterns = patterns(&[secret]);
    let text = engines::STANDARD.encode(secret);
    let lines: Vec<&[u8]> = text.as_bytes().chunks(20).collect();
    let mut once = lines.join(&b'\n');
    once.extend_from_slice(b"\n- ");
    // Many of one kind before the first of the other, and the other way round.
    for (broken, whole) in [(1, 1), (30, 1), (1, 30)] {
        let mut stream = once.repeat(broken);
        stream.extend(format!("{secret}\n- ").repeat(whole).into_bytes());
        let stream = stream.repeat(5);
        let expected = b"***\n- ".repeat(5 * (broken + whole));
        assert_eq!(Masker::whole(&patterns, &stream), expected);
        for seed in 0..20 {
            let out = in_pieces(&patterns, &stream, &mut Random(seed));
            assert_eq!(out, expected, "seed {seed}");
        }
    }
}

#[test]
fn white_space_without_end_is_not_held_without_end() {
    let secret = "a-secret-that-is-long-enough-for-lines";
    let mut masker = Masker::new(Some(patterns(&[secret])));
    let text = engines::STANDARD.encode(secret);
    let shown = masker.push(&text.as_bytes()[..20]).concat().len();
    assert_eq!(shown, 0, "it may be one");
    masker.push(b"\n");
    assert!(!masker.push(&[b' '; 100]).concat().is_empty());
}

#[test]
fn without_secrets_nothing_is_touched() {
    let mut masker = Masker::new(Patterns::of([]).map(Arc::new));
    assert_eq!(masker.push(b"anything").concat(), b"anything");
    assert_eq!(masker.finish(), b"");
}

#[test]
fn the_quick_way_means_what_the_plain_way_means() {
    // Few letters, so that secrets overlap, nest, repeat and end one in the other.
    for seed in 0..3000 {
        let mut random = Random(seed);
        let count = 1 + random.below(4);
        let secrets: Vec<String> = (0..count)
            .map(|_| {
                let length = 6 + random.below(6);
                random.text("ab", length)
            })
            .collect();
        let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
        let patterns = patterns(&secrets);
        let length = random.below(200);
        let mut stream = random.text("ab", length);
        if random.below(2) == 0 {
            stream.push_str(&secrets[0][..random.below(secrets[0].len())]);
        }
        let expected = reference(&patterns, stream.as_bytes());
        let out = in_pieces(&patterns, stream.as_bytes(), &mut random);
        assert_eq!(out, expected, "seed {seed}: {secrets:?} in {stream:?}");
    }
}

#[test]
fn long_pieces_mean_the_same() {
    // Longer than the blocks that are gone through at once, with secrets across their edges.
    for seed in 0..40 {
        let mut random = Random(seed);
        // The shortest decides how far the steps are.
        let other = match random.below(2) {
            0 => random.text("ab", 6),
            _ => random.secret(),
        };
        let secrets = [random.secret(), other];
        let patterns = patterns(&[&secrets[0], &secrets[1]]);
        let length = 4000 + random.below(12_000);
        let mut stream = random.text("abcdefgh \n", length).into_bytes();
        for _ in 0..random.below(6) {
            let secret = secrets[random.below(2)].as_bytes();
            let near = [random.below(stream.len()), 4096 - 3, 1024 - 3, 8192 + 2][random.below(4)];
            let at = near.min(stream.len());
            stream.splice(at..at, secret.iter().copied());
        }
        let expected = reference(&patterns, &stream);
        let out = in_pieces(&patterns, &stream, &mut random);
        assert!(out == expected, "seed {seed}");
        let whole = Masker::whole(&patterns, &stream);
        assert!(whole == expected, "seed {seed} in one piece");
    }
}

/// In lines of base64, behind something of any length: what of it is in one line must not be seen,
/// unless that is too little to tell anything.
fn wrapped(secret: &str, before: &str, all: &mut Vec<(Vec<u8>, Vec<u8>)>) {
    let text = engines::STANDARD.encode(format!("{before}{secret}"));
    let (begin, end) = (before.len() * 8, (before.len() + secret.len()) * 8);
    let own = begin.div_ceil(6)..end / 6;
    for (columns, newline) in [
        (76, "\n"),
        (76, "\r\n"),
        (64, "\n    "),
        (64, "\\n"),
        (76, "\r\n\t"),
        (20, "\\r\\n"),
    ] {
        let lines: Vec<&[u8]> = text.as_bytes().chunks(columns).collect();
        let stream = lines.join(newline.as_bytes());
        for (line, begin) in lines.iter().zip((0..).step_by(columns)) {
            let (from, to) = (own.start.max(begin), own.end.min(begin + line.len()));
            if from + forms::MIN_BYTES <= to {
                all.push((stream.clone(), line[from - begin..to - begin].to_vec()));
            }
        }
    }
}

/// What other programs make of a secret: the stream, and the part that must not be seen.
fn encoded(secret: &str, random: &mut Random) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = vec![(secret.as_bytes().to_vec(), secret.as_bytes().to_vec())];
    let quoted = serde_json::to_string(secret).expect("JSON");
    let inner = &quoted.as_bytes()[1..quoted.len() - 1];
    all.push((quoted.as_bytes().to_vec(), inner.to_vec()));
    let single = format!("'{}'", secret.replace('\'', "'\\''"));
    all.push((
        single.clone().into_bytes(),
        single[1..single.len() - 1].into(),
    ));
    let url: String = secret
        .bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect();
    all.push((url.clone().into_bytes(), url.into_bytes()));
    // Somewhere in something larger, in any alphabet.
    for engine in [
        engines::STANDARD,
        engines::STANDARD_NO_PAD,
        engines::URL_SAFE,
        engines::URL_SAFE_NO_PAD,
    ] {
        let (before, after) = (random.below(7), random.below(7));
        let (before, after) = (random.text("user:", before), random.text("\n@host", after));
        let text = engine.encode(format!("{before}{secret}{after}"));
        let (begin, end) = (before.len() * 8, (before.len() + secret.len()) * 8);
        let own = text.as_bytes()[begin.div_ceil(6)..end / 6].to_vec();
        all.push((text.into_bytes(), own));
    }
    let before = random.below(150);
    wrapped(secret, &random.text("user:", before), &mut all);
    for line in secret.lines().filter(|line| line.len() >= forms::MIN_BYTES) {
        all.push((
            format!("> {line}\r\n").into_bytes(),
            line.as_bytes().to_vec(),
        ));
    }
    all
}

#[test]
fn no_secret_leaks_in_any_form_in_any_pieces() {
    // T6, EP-18
    let storm = std::env::var("DELTA_STORM").is_ok_and(|it| it == "1");
    let asked = std::env::var("DELTA_STORM_MASKS").ok().filter(|_| storm);
    let count = asked.and_then(|it| it.parse().ok()).unwrap_or(SECRETS);
    let (mut streams, mut leaks) = (0, 0);
    for seed in 0..count {
        let mut random = Random(seed ^ 0x5ec2_e751);
        let (secret, other) = (random.secret(), random.secret());
        let patterns = patterns(&[&secret, &other]);
        for (text, own) in encoded(&secret, &mut random) {
            let length = random.below(300);
            let noise = random.text("the quick brown fox\n{}[]=+/", length);
            let cut = random.below(noise.len() + 1);
            let mut stream = noise.as_bytes()[..cut].to_vec();
            stream.extend_from_slice(&text);
            stream.extend_from_slice(&noise.as_bytes()[cut..]);
            let out = in_pieces(&patterns, &stream, &mut random);
            streams += 1;
            // What stands around a mask may happen to make the same bytes again.
            let leaked = holds(&out, &own) && !holds(MASK, &own);
            leaks += u32::from(leaked);
            assert!(!leaked, "seed {seed}: {secret:?} as {own:?}");
        }
    }
    println!("{count} secrets, {streams} streams, {leaks} leaks");
}

#[test]
fn what_a_shell_makes_of_a_secret_is_masked() {
    let secret = "it's $HOME, \"really\" \\o/ & more";
    let patterns = patterns(&[secret]);
    let script = r#"
        printf '%s\n' "$S" "${S@Q}"; printf '%q\n' "$S"; base64 <<<"$S"; printf %s "$S" | base64
        printf 'user:%s' "$S" | base64 -w0; set -x; : "$S""#;
    let output = std::process::Command::new("bash")
        .args(["-c", script])
        .env("S", secret)
        .output()
        .expect("bash");
    let text = [output.stdout, output.stderr].concat();
    let masked = Masker::whole(&patterns, &text);
    let masked = String::from_utf8_lossy(&masked);
    for part in ["HOME", "really", "more", "SE9NR", "hPTU", "IT01F"] {
        assert!(!masked.contains(part), "{part} in {masked}");
    }
}

#[test]
fn a_key_is_masked_as_a_whole_by_lines_and_wrapped() {
    let mut random = Random(7);
    let lines: Vec<String> = (0..20).map(|_| random.text("AbC123+/", 70)).collect();
    let body = lines.join("\n");
    let key = format!("-----BEGIN KEY-----\n{body}\nend\n-----END KEY-----\n");
    let patterns = patterns(&[&key]);
    assert_eq!(Masker::whole(&patterns, key.as_bytes()), b"***");
    let indented: String = lines.iter().map(|it| format!("    {it}\r\n")).collect();
    let masked = Masker::whole(&patterns, indented.as_bytes());
    assert_eq!(masked, b"    ***\r\n".repeat(20));
    let wrapped = engines::STANDARD.encode(&key);
    let wrapped: Vec<&[u8]> = wrapped.as_bytes().chunks(76).collect();
    let masked = Masker::whole(&patterns, &wrapped.join(&b'\n'));
    assert!(
        masked.iter().all(|byte| b"*\n".contains(byte)),
        "{masked:?}"
    );
}
