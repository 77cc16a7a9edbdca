//! Which tools a script calls, as requirements: a plan that needs `uv` says so, and an agent
//! without it never gets the job. Told by the first word of each command; a word that is no known
//! tool asks for nothing.

use delta_core::tool;

/// Programs that come with a tool of another name.
const WITH: [(&str, &str); 3] = [("uvx", "uv"), ("npx", "npm"), ("pnpx", "pnpm")];

/// Subcommands of cargo that are programs of their own.
const CARGO: [(&str, &str); 2] = [("nextest", "cargo-nextest"), ("deny", "cargo-deny")];

/// The tools of a script, each once, in the order of their first call.
pub fn of_script(script: &str) -> Vec<&'static str> {
    let mut tools = Vec::new();
    for command in script.split(['\n', ';', '|', '&', '{', '(', ')']) {
        if let Some(tool) = of_command(command)
            && !tools.contains(&tool)
        {
            tools.push(tool);
        }
    }
    tools
}

fn of_command(command: &str) -> Option<&'static str> {
    let mut words = command.split_whitespace();
    // `CI=1 make`, `@make`, `exec make`
    let plain =
        |word: &&str| !word.contains('=') && !matches!(*word, "exec" | "time" | "env" | "!");
    let program = words.find(plain)?.trim_start_matches(['@', '-', '+']);
    let name = match program {
        "cargo" => {
            let inner = words.find(|word| !word.starts_with(['+', '-']))?;
            CARGO.iter().find(|(word, _)| *word == inner)?.1
        }
        program => {
            let other = WITH.iter().find(|(word, _)| *word == program);
            other.map_or(program, |(_, tool)| tool)
        }
    };
    tool::named(name).map(|it| it.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_each_command_is_what_it_calls() {
        for (script, wanted) in [
            ("uv run --locked pytest", &["uv"][..]),
            ("uvx tox run", &["uv"]),
            ("cargo test", &[]),
            ("cargo nextest run", &["cargo-nextest"]),
            ("cargo +nightly nextest run", &["cargo-nextest"]),
            ("CI=1 make test && pnpm install", &["make", "pnpm"]),
            ("cd x\ngo test -json || { code=$?; cat x; }", &[]),
            ("echo uv make", &[]),
            (".venv/bin/python -m tox run", &[]),
            ("@clang-tidy a.c | cat", &["clang-tidy"]),
            ("", &[]),
        ] {
            assert_eq!(of_script(script), wanted, "{script}");
        }
    }
}
