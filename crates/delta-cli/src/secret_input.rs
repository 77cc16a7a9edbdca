//! Secret values that a person gives: from a file or a pipe, never as an argument, which every
//! process on the machine could read. Never more than a bound, whatever the file is. And paths,
//! which mean the same wherever they are handed on to.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;

/// Bytes that are read: more than a value may have, so that the server can say so.
const MAX_READ_BYTES: u64 = 256 * 1024;

/// A path as seen from the folder this process was started in, whoever reads it from where.
/// Nothing is looked up: it need not exist, and links stay. `-` is standard input or output, and no
/// path.
pub fn whole_path(path: PathBuf) -> PathBuf {
    if path.as_os_str() == "-" {
        path
    } else {
        std::path::absolute(&path).unwrap_or(path)
    }
}

/// A path as somebody in this folder would type it.
pub fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    match path.strip_prefix(&here) {
        Ok(inside) if inside.as_os_str().is_empty() => ".".to_owned(),
        Ok(inside) => inside.display().to_string(),
        Err(_) => path.display().to_string(),
    }
}

/// The path that a variable names, if it is set.
pub fn path_of(variable: &str) -> Option<PathBuf> {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty())?;
    Some(whole_path(value.into()))
}

/// The value in a file, or on standard input, without the end of its line. `again` is what to type
/// when it is empty.
pub fn value(file: Option<&Path>, again: &str, terminal: &Terminal) -> Result<String, Failure> {
    let text = match file {
        Some(path) => text_of(path)?,
        None => {
            let input = std::io::stdin().lock();
            if input.is_terminal() {
                terminal.say("reading the value from this terminal; end it with Ctrl-D");
            }
            read(input, "standard input")?
        }
    };
    let text = without_line_end(text);
    if text.trim().is_empty() {
        Err(Failure::new(Exit::Usage, "the value is empty").next(again))
    } else {
        Ok(text)
    }
}

/// A whole file as text.
pub fn text_of(path: &Path) -> Result<String, Failure> {
    let what = shown(path);
    match std::fs::File::open(path) {
        Ok(file) => read(file, &what),
        Err(error) => Err(unreadable(&what, &error)),
    }
}

fn read(from: impl Read, what: &str) -> Result<String, Failure> {
    let mut text = String::new();
    match from.take(MAX_READ_BYTES).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(unreadable(what, &error)),
    }
}

/// Editors and `echo` put a newline behind a line.
fn without_line_end(mut text: String) -> String {
    for end in ['\n', '\r'] {
        if text.ends_with(end) {
            text.pop();
        }
    }
    text
}

fn unreadable(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Usage, format!("{what} cannot be read as text"))
        .because(error)
        .next("name a file that is there and holds text, or give the value on standard input")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::When;

    #[test]
    fn a_value_is_what_is_in_the_file_but_for_the_end_of_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        let terminal = Terminal::new(true, When::Never);
        let given = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            value(Some(&path), "type it again", &terminal)
        };
        assert_eq!(given(b" a b \r\n").unwrap(), " a b ");
        assert_eq!(given(b"a\n\n").unwrap(), "a\n");
        let failure = given(b"\n").unwrap_err();
        assert!(failure.text().contains("type it again"));
        assert!(given(b"\xff\xfe").is_err());
        assert_eq!(given(&[b'x'; 300_000]).unwrap().len(), 256 * 1024);
        let nowhere = text_of(&folder.path().join("none")).unwrap_err();
        assert!(nowhere.text().contains("cannot be read as text"));
    }
}
