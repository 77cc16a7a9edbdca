//! Where a shell would stumble over `${{`: it stands for no variable, and a shell says "bad
//! substitution" of it. Between single quotes, behind a backslash and in a comment it is text.
//!
//! Told by the marks of a script alone. Behind a text that stands in it (`<<EOF`) nothing is said
//! any more: doubt is no warning.

/// What a shell cannot read begins with this.
pub(crate) const OPEN: &str = "${{";

/// Programs that read scripts as `sh` does.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "busybox"];

/// Whether a program reads scripts as `sh` does.
pub(crate) fn is_shell(program: &str) -> bool {
    SHELLS.contains(&program.rsplit('/').next().unwrap_or(program))
}

/// The first place of a script at which a shell would have to read `${{`.
pub(crate) fn first(script: &str) -> Option<usize> {
    // Whether each text that is open stands in double quotes; a substitution opens one that does
    // not, whatever it stands in.
    let mut open = vec![false];
    let mut before = ' ';
    let mut chars = script.char_indices();
    while let Some((at, mut c)) = chars.next() {
        let rest = &script[at..];
        let quotes = open.last() == Some(&true);
        match c {
            '\\' => {
                chars.next();
            }
            '\'' if !quotes => {
                chars.find(|(_, it)| *it == '\'');
            }
            '#' if !quotes && (before.is_whitespace() || ";(".contains(before)) => {
                chars.find(|(_, it)| *it == '\n');
                c = '\n';
            }
            '<' if !quotes && rest.starts_with("<<") && !rest.starts_with("<<<") => {
                return in_text_below(rest).map(|it| at + it);
            }
            '<' if rest.starts_with("<<<") => {
                chars.nth(1);
            }
            '$' if rest.starts_with(OPEN) => return Some(at),
            // The number of the process; a brace behind it is text.
            '$' if rest.starts_with("$$") => {
                chars.next();
            }
            '"' if !quotes => open.push(true),
            '(' if !quotes || before == '$' => open.push(false),
            '"' => {
                open.pop();
            }
            ')' if !quotes && open.len() > 1 => {
                open.pop();
            }
            _ => {}
        }
        before = c;
    }
    None
}

/// The place in the text that follows below `<<EOF`; a shell reads nothing in it where that word
/// stands in quotes.
fn in_text_below(rest: &str) -> Option<usize> {
    let word = rest.trim_start_matches(['<', '-', ' ']);
    let end = word.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let word = &word[..end.unwrap_or(word.len())];
    if word.is_empty() {
        return None;
    }
    let mut from = 0;
    for line in rest.split_inclusive('\n') {
        let mut found = line.match_indices(OPEN).map(|(at, _)| at);
        if let Some(at) = found.find(|at| !line[..*at].ends_with('\\')) {
            return Some(from + at);
        }
        if line.trim() == word {
            return None;
        }
        from += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_shell_would_read_is_unreadable() {
        for (script, wanted) in [
            ("echo ${{ x.y }}", true),
            ("echo \"a ${{}}\"", true),
            ("echo ${{ 'a' || 'b' }}", true),
            ("echo '#' it\\'s ${{ a }}", true),
            ("cat <<EOF\n${{ a }}\nEOF", true),
            ("echo \"it's ${{ a }}\"", true),
            ("echo \"$(cat a) ${{ a }}\"", true),
            ("# no ${{ a }}\necho a#${{ b }}", true),
            ("echo '${{ a }}'", false),
            ("echo \\${{ a }} \"\\${{ a }}\"", false),
            ("echo \"$(echo '${{ a }}')\"", false),
            ("cat <<'EOF'\n${{ a }}\nEOF", false),
            ("cat <<-\"EOF\"\n${{ a }}\nEOF", false),
            ("true # it's ${{ a }}", false),
            ("# it's\n# ${{ a }}", false),
            ("cat <<EOF\nit's \\${{ a }}\nEOF\necho '${{ a }}'", false),
            ("cat <<< \"${{ a }}\"", true),
            ("cat <<< '${{ a }}'", false),
            ("echo $${{ a }}", false),
            ("echo {{ a }} ${a}", false),
        ] {
            assert_eq!(first(script).is_some(), wanted, "{script}");
        }
    }
}
