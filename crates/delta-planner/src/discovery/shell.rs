//! Names from a repository inside a step's script. They are data: what a shell could read anything
//! into is put between quotes, so that a folder called `$(id)` stays a folder.

/// A word as a shell takes it, whatever is in it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./@%+,:=".contains(c);
    match !word.is_empty() && word.chars().all(plain) && !word.starts_with('=') {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_shell_reads_back_what_was_meant() {
        for word in [
            "plain",
            "@scope/ui",
            "",
            "two words",
            "$(id)",
            "`id`",
            "a'b",
            "a\"b",
            "*",
            "~",
            "!x",
            "a;b",
            "a&b",
            "ü",
            "-n",
            "#",
            "a\\b",
            "{a,b}",
        ] {
            let script = format!("printf '%s|' {}", quoted(word));
            let output = Command::new("sh").args(["-c", &script]).output();
            let said = String::from_utf8(output.expect("sh").stdout).expect("text");
            assert_eq!(said, format!("{word}|"), "{script}");
        }
    }
}
