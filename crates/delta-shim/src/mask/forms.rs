//! The forms in which a secret is looked for: as it is, and as programs print it by habit (T6).
//!
//! Base64 in both alphabets, wherever the secret stands in what was encoded; percent-encoded as the
//! usual libraries do it; escaped as in JSON, XML and HTML; quoted for a shell; and each line of a
//! secret of several lines in all of these. Whoever sets out to print a secret in another form can:
//! this is for accidents.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::lines::Line;

/// What is shorter is not looked for: it would be found in half of all words.
pub(crate) const MIN_BYTES: usize = 6;

/// Every form of a secret, each once.
pub(super) fn of(value: &str) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::new();
    for text in parts(value) {
        all.insert(text.as_bytes().to_vec());
        all.extend(json(text).into_iter().map(String::into_bytes));
        all.extend(shell(text).into_iter().map(String::into_bytes));
        all.extend(markup(text).into_iter().map(String::into_bytes));
        all.extend(percent(text.as_bytes()));
        base64(text.as_bytes(), &mut all);
        // What `echo` hands to an encoder.
        base64(format!("{text}\n").as_bytes(), &mut all);
    }
    all.retain(|form| form.len() >= MIN_BYTES);
    all
}

/// The whole, also without the white space at its ends that shells take away, and each line.
fn parts(value: &str) -> BTreeSet<&str> {
    let lines = value.lines().flat_map(|line| [line, line.trim()]);
    let wholes = [value, value.trim_end(), value.trim()];
    let all = lines.chain(wholes);
    all.filter(|part| part.len() >= MIN_BYTES).collect()
}

/// As it stands in a JSON text, and in a JSON text inside a JSON text.
fn json(text: &str) -> [String; 7] {
    let escape = |text: &str, ascii: bool, upper: bool, more: &str| {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            let short = match c {
                '"' => Some("\\\""),
                '\\' => Some("\\\\"),
                '\n' => Some("\\n"),
                '\r' => Some("\\r"),
                '\t' => Some("\\t"),
                '\u{8}' => Some("\\b"),
                '\u{c}' => Some("\\f"),
                '/' if more.contains('/') => Some("\\/"),
                _ => None,
            };
            let coded = c < ' ' || (ascii && !c.is_ascii()) || more.contains(c);
            match short {
                Some(short) => out.push_str(short),
                None if !coded => out.push(c),
                None => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&if upper {
                            format!("\\u{unit:04X}")
                        } else {
                            format!("\\u{unit:04x}")
                        });
                    }
                }
            }
        }
        out
    };
    let plain = escape(text, false, false, "");
    [
        escape(&plain, false, false, ""),
        escape(text, true, false, ""),
        escape(text, true, true, ""),
        // As Go and others do for pages.
        escape(text, false, false, "<>&"),
        escape(text, false, false, "<>&'+"),
        // As PHP does.
        escape(text, true, false, "/"),
        plain,
    ]
}

/// As it stands in XML and HTML: reports of tests are XML. By what the usual libraries write for
/// `"`, `'` and `>`; they agree on the rest.
fn markup(text: &str) -> [String; 10] {
    const WAYS: [(&str, &str, &str); 9] = [
        // Between tags, thorough and not.
        ("\"", "'", "&gt;"),
        ("\"", "'", ">"),
        // Inside of an attribute.
        ("&quot;", "'", "&gt;"),
        ("&quot;", "'", ">"),
        // Java, JavaScript, Python, PHP, and Go with others.
        ("&quot;", "&apos;", "&gt;"),
        ("&quot;", "&#39;", "&gt;"),
        ("&quot;", "&#x27;", "&gt;"),
        ("&quot;", "&#039;", "&gt;"),
        ("&#34;", "&#39;", "&gt;"),
    ];
    let escape = |(quote, apostrophe, greater): (&str, &str, &str)| {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str(greater),
                '"' => out.push_str(quote),
                '\'' => out.push_str(apostrophe),
                c => out.push(c),
            }
        }
        out
    };
    let mut all = [const { String::new() }; 10];
    for (place, way) in all.iter_mut().zip(WAYS) {
        *place = escape(way);
    }
    // As a page is written into a page.
    all[9] = escape(WAYS[5]).replace('&', "&amp;");
    all
}

/// What stands between the quotes, or with backslashes before what a shell gives a meaning.
fn shell(text: &str) -> [String; 6] {
    let before = |specials: &str, first: &str| {
        let mut out = String::with_capacity(text.len());
        for (place, c) in text.char_indices() {
            if specials.contains(c) || (place == 0 && first.contains(c)) {
                out.push('\\');
            }
            out.push(c);
        }
        out
    };
    const WORDS: &str = " \t!\"$&'()*;<>?[\\]^`{|}";
    [
        text.replace('\'', r"'\''"),
        text.replace('\'', "'\"'\"'"),
        before("\"$`\\", ""),
        before(WORDS, "~#"),
        before(&format!("{WORDS},"), "~#"),
        ansi_c(text),
    ]
}

/// As bash writes what has control characters: `$'…'`.
fn ansi_c(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{1b}' => out.push_str("\\E"),
            c if c.is_ascii_control() => out.push_str(&format!("\\{:03o}", c as u32)),
            c => out.push(c),
        }
    }
    out
}

/// Percent-encoded, by what the usual libraries leave alone.
fn percent(bytes: &[u8]) -> Vec<Vec<u8>> {
    let encode = |kept: &str, space: &str, upper: bool| {
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes {
            let plain = byte.is_ascii_alphanumeric() || kept.as_bytes().contains(byte);
            match byte {
                b' ' if !space.is_empty() => out.extend_from_slice(space.as_bytes()),
                byte if plain => out.push(*byte),
                byte if upper => out.extend(format!("%{byte:02X}").into_bytes()),
                byte => out.extend(format!("%{byte:02x}").into_bytes()),
            }
        }
        out
    };
    let mut all = Vec::new();
    for upper in [true, false] {
        for kept in ["-._~", "-._~/", "-._"] {
            all.push(encode(kept, "", upper));
            all.push(encode(kept, "+", upper));
        }
    }
    // Of forms, and of JavaScript's encodeURIComponent and encodeURI.
    all.push(encode("*-._", "+", true));
    all.push(encode("-._~!'()*", "", true));
    all.push(encode("-._~!'()*;,/?:@&=+$#", "", true));
    // Of the user's part and the path of an address, as Go and as browsers write them.
    all.push(encode("-._~$&+,;=", "", true));
    all.push(encode("-._~$&+:=@", "", true));
    all.push(encode("-._~!$&'()*+,%", "", true));
    all.push(encode("-._~!$&'()*+,;=:", "", true));
    all
}

/// In both alphabets, at each of the three places where a secret may begin within a group.
///
/// The characters that the secret alone decides are looked for; at its edges up to four bits of it
/// stand in characters that it shares with its neighbours.
fn base64(bytes: &[u8], all: &mut BTreeSet<Vec<u8>>) {
    let mut add = |text: &str| {
        all.insert(text.as_bytes().to_vec());
        all.insert(text.replace('+', "-").replace('/', "_").into_bytes());
    };
    for before in 0..3 {
        let text = STANDARD_NO_PAD.encode([&[0; 2][..before], bytes].concat());
        let bits = 8 * (before + bytes.len());
        let begin = (8 * before).div_ceil(6);
        let padding = &"=="[..(3 - (before + bytes.len()) % 3) % 3];
        add(&text[begin..bits / 6]);
        // Where nothing follows it.
        add(&text[begin..]);
        add(&format!("{}{padding}", &text[begin..]));
        let own = &text[begin..bits / 6];
        // So short that no part of it is looked for alone: broken into lines at any place.
        let short = own.len() < 2 * MIN_BYTES;
        for first in (1..own.len()).filter(|_| short) {
            let (first, rest) = own.split_at(first);
            add(&format!("{first}\n{rest}"));
            add(&format!("{first}\r\n{rest}"));
        }
    }
}

/// The texts of base64 that may be broken into lines: from the first character that the secret
/// alone decides, up to the padding where nothing follows it.
pub(super) fn in_lines(value: &str) -> Vec<Line> {
    let mut all = BTreeSet::new();
    for text in parts(value) {
        for bytes in [text.to_owned(), format!("{text}\n")].map(String::into_bytes) {
            for before in 0..3 {
                let whole = STANDARD.encode([&[0; 2][..before], &bytes].concat());
                let begin = (8 * before).div_ceil(6);
                let own = 8 * (before + bytes.len()) / 6 - begin;
                all.insert((whole.as_bytes()[begin..].to_vec(), own));
            }
        }
    }
    all.into_iter()
        .map(|(text, own)| Line { text, own })
        .collect()
}
