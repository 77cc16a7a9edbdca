//! Walls inside a crate: which module may not be imported by its neighbours.
//!
//! Owns the table of such modules. A module that stands above the others imports them, and nobody
//! imports it but who is named here; crates have a table of their own in `deps.rs`. It reads paths
//! of code, `crate::room` and `super::room`, alone or in braces, tests included.

use anyhow::{Result, ensure};

use crate::scan;
use crate::source::{self, File};

/// A module and who may import it.
struct Wall {
    /// The crate's sources, with a `/` at the end.
    sources: &'static str,
    /// The module, by its name below the crate's root.
    room: &'static str,
    /// Files of the crate that may import it beside its own, below `sources`.
    may: &'static [&'static str],
}

const WALLS: [Wall; 1] = [Wall {
    // HTTP says in its own words what the rooms below it do; they know no request and no answer.
    sources: "crates/delta-server/src/",
    room: "http",
    may: &["lib.rs"],
}];

/// Imports against the direction.
pub fn findings() -> Result<Vec<String>> {
    let files = source::files(&[".rs"])?;
    let mut findings = Vec::new();
    for wall in &WALLS {
        let own = format!("{}{}/", wall.sources, wall.room);
        let inside = files.iter().any(|file| file.path.starts_with(&own));
        ensure!(
            inside,
            "{own} is gone: correct the table in xtask/src/rooms.rs"
        );
        for file in &files {
            findings.extend(breach(wall, file));
        }
    }
    Ok(findings)
}

fn breach(wall: &Wall, file: &File) -> Option<String> {
    let place = file.path.strip_prefix(wall.sources)?;
    let own = place.strip_prefix(wall.room);
    let own = own.is_some_and(|rest| rest.starts_with(['/', '.']));
    if own || wall.may.contains(&place) {
        return None;
    }
    let code = scan::code_only(&file.text);
    let at = import(&code, wall.room)?;
    let line = code[..at].matches('\n').count() + 1;
    let (path, room) = (&file.path, wall.room);
    Some(format!(
        "{path}:{line}: imports `{room}`, which stands above it"
    ))
}

/// Where a path that names the room begins.
fn import(code: &str, room: &str) -> Option<usize> {
    let of = |root: &str| {
        let mut starts = code.match_indices(root).map(|(at, _)| at);
        starts.find(|at| names(&code[at + root.len()..]).contains(&room))
    };
    of("crate::").or_else(|| of("super::"))
}

/// The first names of a path: one, or each of those in braces.
fn names(path: &str) -> Vec<&str> {
    let path = path.trim_start();
    let Some(list) = path.strip_prefix('{') else {
        return vec![first_word(path)];
    };
    let (mut found, mut depth, mut begins) = (Vec::new(), 1, true);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => begins = true,
            letter if begins && !letter.is_whitespace() => {
                found.push(first_word(&list[at..]));
                begins = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn first_word(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breach_in(path: &str, text: &str) -> Option<String> {
        let path = format!("crates/delta-server/src/{path}");
        let text = text.to_owned();
        breach(&WALLS[0], &File { path, text })
    }

    #[test]
    fn a_room_below_that_imports_the_one_above_is_named_with_its_line() {
        let found = breach_in("sessions/call.rs", "use a::b;\nuse crate::http::App;\n");
        let found = found.expect("a breach");
        assert!(found.ends_with("sessions/call.rs:2: imports `http`, which stands above it"));
        for text in [
            "use crate::{audit, http::{self, App}};\n",
            "use crate::{\n    audit::{done, ended},\n    http,\n};\n",
            "fn a() { crate::http::ready() }\n",
            "use super::http::App;\n",
            "use super::{App, http};\n",
            "pub(in crate::http) fn a() {}\n",
        ] {
            assert!(breach_in("trace.rs", text).is_some(), "{text}");
        }
    }

    #[test]
    fn the_room_itself_and_who_starts_the_server_may() {
        let text = "use crate::http::App;\n";
        for path in ["http/mod.rs", "http/people/runs.rs", "http.rs", "lib.rs"] {
            assert_eq!(breach_in(path, text), None, "{path}");
        }
        for text in [
            "use axum::http::HeaderMap;\n",
            "use crate::https::A;\nuse crate::{audit::http, app::App};\n",
            "// use crate::http::App;\nconst A: &str = \"crate::http\";\n",
        ] {
            assert_eq!(breach_in("trace.rs", text), None, "{text}");
        }
        assert!(breach_in("httpd.rs", "use crate::http;\n").is_some());
    }
}
