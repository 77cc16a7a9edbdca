//! Pieces of schemas for what readers insist on: lengths, ranges and patterns.
//!
//! Patterns are written so that every dialect of regular expressions reads them alike: white space
//! is spelled out, since `\s` differs from one to the next.

use serde_json::{Value, json};

use crate::job_spec::SHELLS_OWN;
use crate::seconds::Seconds;

/// What `char::is_control` says.
const CONTROL: &str = r"\u0000-\u001f\u007f-\u009f";
/// What `char::is_whitespace` says beside control characters.
const WHITE: &str = r"\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000";
/// White space among the control characters.
const WHITE_CONTROL: &str = r"\u0009-\u000d\u0085";
/// What a word of a requirement is made of.
const WORD: &str = "[A-Za-z0-9._:/-]+";
/// What a queue, a runner or a handler's runner is made of.
const NAME: &str = "[A-Za-z0-9._-]";

/// 1 to `most` characters.
pub fn text(most: usize) -> Value {
    json!({"minLength": 1, "maxLength": most})
}

fn matched(most: usize, pattern: String) -> Value {
    json!({"minLength": 1, "maxLength": most, "pattern": pattern})
}

/// Without control characters and white space.
pub fn printable(most: usize) -> Value {
    matched(most, format!("^[^{CONTROL}{WHITE}]+$"))
}

/// Without control characters.
pub fn line(most: usize) -> Value {
    matched(most, format!("^[^{CONTROL}]+$"))
}

/// Without control characters, and not only white space.
pub fn said_line(most: usize) -> Value {
    matched(
        most,
        format!("^[^{CONTROL}]*[^{CONTROL}{WHITE}][^{CONTROL}]*$"),
    )
}

/// Any text without NUL that is not only white space.
pub fn script(most: usize) -> Value {
    let seen = format!("[^\\u0000{WHITE_CONTROL}{WHITE}]");
    matched(most, format!("^[^\\u0000]*{seen}[^\\u0000]*$"))
}

/// At least `least` characters from the first that is no white space to the last, without NUL.
pub fn filled(least: usize, most: usize) -> Value {
    let seen = format!("[^\\u0000{WHITE_CONTROL}{WHITE}]");
    let between = least.saturating_sub(2);
    let pattern = format!("^[^\\u0000]*{seen}[^\\u0000]{{{between},}}{seen}[^\\u0000]*$");
    json!({"minLength": least, "maxLength": most, "pattern": pattern})
}

/// Without white space.
pub fn unspaced() -> Value {
    json!({"pattern": format!("^[^{WHITE_CONTROL}{WHITE}]*$")})
}

/// Letters and digits with these marks, and a space only inside.
pub fn marked(most: usize, marks: &str) -> Value {
    // A hyphen stands last, where it means itself.
    let marks: String = marks.chars().filter(|it| !" -".contains(*it)).collect();
    let (edge, inner) = (
        format!("[A-Za-z0-9{marks}-]"),
        format!("[A-Za-z0-9{marks} -]"),
    );
    matched(most, format!("^{edge}(?:{inner}*{edge})?$"))
}

/// A queue's name, or a runner's.
pub fn name(most: usize) -> Value {
    matched(most, format!("^{NAME}+$"))
}

/// `handler` or `runner#handler`.
pub fn function(most: usize, runner: usize) -> Value {
    let handler = format!("[^{CONTROL}]*[^{CONTROL}{WHITE}][^{CONTROL}]*");
    let alone = format!("[^#{CONTROL}]*[^#{CONTROL}{WHITE}][^#{CONTROL}]*");
    let pattern = format!("^(?:{NAME}{{1,{runner}}}#{handler}|{alone})$");
    matched(most, pattern)
}

/// A pool or a zone.
pub fn word(most: usize) -> Value {
    matched(most, format!("^{WORD}$"))
}

/// `gpu`, `team=blue`, or `*` for any.
pub fn label(most: usize) -> Value {
    matched(most, format!("^(?:\\*|{WORD}(?:={WORD})?)$"))
}

/// `linux`, `zone=eu`, `python>=3.11`, `memory>=2GiB`. Numbers are shorter here than they may be:
/// a schema cannot say where 64 bits end.
pub fn requirement(most: usize) -> Value {
    let size = "[0-9]{1,7}(?:KiB|MiB|GiB|TiB)";
    let version = "[0-9]{1,9}(?:\\.[0-9]{1,9})*";
    let quantity = format!("(?:{size}|{version})");
    matched(most, format!("^{WORD}(?:={WORD}|>={quantity})?$"))
}

/// The id of an agent.
pub fn agent(most: usize) -> Value {
    matched(most, "^[A-Za-z0-9._:-]+$".to_owned())
}

/// A part of an address: small letters, digits and some marks.
pub fn address_part(most: usize) -> Value {
    matched(most, "^[a-z0-9][a-z0-9._-]*$".to_owned())
}

/// An address without a password in it.
pub fn address(most: usize) -> Value {
    let password = "(?!.*://[^/?#]*:[^/?#]*@)";
    matched(most, format!("^{password}[^{CONTROL}{WHITE}]+$"))
}

/// A branch's name, as people write it.
pub fn branch(most: usize) -> Value {
    matched(most, format!("^(?!refs/)[^{CONTROL}{WHITE}]+$"))
}

/// The name of a variable that neither a shell nor an agent keeps for itself.
pub fn variable(most: usize) -> Value {
    let own = SHELLS_OWN.join("|");
    let pattern = format!("^(?!DELTA_|BASH|(?:{own})$)[A-Za-z_][A-Za-z0-9_]*$");
    matched(most, pattern)
}

/// An environment that secrets are chosen by.
pub fn environment(most: usize) -> Value {
    matched(most, "^[A-Za-z0-9._/-]+$".to_owned())
}

/// A path that stays inside the workspace.
pub fn inside(most: usize) -> Value {
    let up = "(?!/)(?!(?:[^\\u0000]*/)?\\.\\.(?:/|$))";
    matched(most, format!("^{up}[^\\u0000]+$"))
}

/// A path of a cache: of the workspace or of the job's own HOME, and not all of it.
pub fn saved(most: usize) -> Value {
    let up = "(?!/)(?!~//)(?!(?:[^\\u0000]*/)?\\.\\.(?:/|$))";
    let all = "(?!(?:~/)?(?:\\.?/)*\\.?$)";
    matched(most, format!("^{up}{all}[^\\u0000]+$"))
}

/// The key of a cache. Its reader also takes braces inside of a pattern.
pub fn key(most: usize) -> Value {
    let file = "(?!/)(?!(?:[^{}]*/)?\\.\\.(?:/|\\}))[^{}\\u0000]*";
    let word = format!("\\{{(?:os|arch|lock_hash|hash:{file})\\}}");
    matched(most, format!("^(?:[^{{]|{word})+$"))
}

/// An absolute path of a container.
pub fn target(most: usize) -> Value {
    let up = "(?!(?:[^\\u0000]*/)?\\.\\.(?:/|$))";
    matched(most, format!("^{up}/[^,:\"\\u0000]*$"))
}

/// A reference of an image.
pub fn image(most: usize) -> Value {
    matched(most, "^[A-Za-z0-9][A-Za-z0-9._/:@-]*$".to_owned())
}

/// The name of a host.
pub fn host(most: usize) -> Value {
    matched(most, "^[a-z0-9][a-z0-9-]*$".to_owned())
}

/// `USER`, or `UID:GID`.
pub fn user(most: usize) -> Value {
    matched(most, "^[A-Za-z0-9_.:][A-Za-z0-9_.:-]*$".to_owned())
}

/// Text of any length from nothing on, without NUL.
pub fn unbroken(most: usize) -> Value {
    json!({"maxLength": most, "pattern": "^[^\\u0000]*$"})
}

/// A SHA-256.
pub fn sha256() -> Value {
    json!({"pattern": "^[0-9a-f]{64}$"})
}

/// The name of a token's user: no colon, which ends it where it is sent.
pub fn username(most: usize) -> Value {
    matched(most, format!("^[^:{CONTROL}]+$"))
}

/// Lines of text.
pub fn lines(most: usize) -> Value {
    let any = r"[^\u0000-\u0008\u000b-\u001f\u007f-\u009f]";
    let seen = format!("[^{CONTROL}{WHITE}]");
    matched(most, format!("^{any}*{seen}{any}*$"))
}

pub fn whole(least: i64, most: i64) -> Value {
    json!({"minimum": least, "maximum": most})
}

pub fn seconds(least: Seconds, most: Seconds) -> Value {
    json!({"minimum": least, "maximum": most})
}

/// More than nothing.
pub fn positive(most: u64) -> Value {
    json!({"exclusiveMinimum": 0, "maximum": most})
}

pub fn items(least: usize, most: usize) -> Value {
    json!({"minItems": least, "maxItems": most})
}

/// A list whose items are such texts.
pub fn items_of(least: usize, most: usize, item: &Value) -> Value {
    json!({"minItems": least, "maxItems": most, "items": item})
}

/// An object whose names and values are texts.
pub fn map(most: usize, name: &Value, value: &Value) -> Value {
    json!({"maxProperties": most, "propertyNames": name, "additionalProperties": value})
}
