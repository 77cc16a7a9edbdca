//! Programs that plans ask for beside language runtimes: what a job's requirement calls each, and
//! how people get it. A closed list, so that an agent knows what to look for and a server what it
//! may be told without having granted it. What a program does is not known here.

/// A program that a job may require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    /// As requirements and programs call it.
    pub name: &'static str,
    /// What somebody types who does not have it.
    pub install: &'static str,
    /// Projects ask for a version of it, so that agents find it out.
    pub versioned: bool,
}

const fn tool(name: &'static str, install: &'static str) -> Tool {
    Tool {
        name,
        install,
        versioned: false,
    }
}

const fn versioned(name: &'static str, install: &'static str) -> Tool {
    Tool {
        name,
        install,
        versioned: true,
    }
}

/// Sorted by name. Each of them answers to `--version`, which is how an agent finds out that it
/// works.
pub static TOOLS: [Tool; 26] = [
    tool("bun", "npm install -g bun"),
    tool("cargo-deny", "cargo install cargo-deny"),
    tool("cargo-nextest", "cargo install --locked cargo-nextest"),
    tool("clang-format", "apt install clang-format"),
    tool("clang-tidy", "apt install clang-tidy"),
    tool("cmake", "apt install cmake"),
    tool("cppcheck", "apt install cppcheck"),
    versioned("golangci-lint", "install it as its documentation says"),
    tool("gotestsum", "install it as its documentation says"),
    tool("hatch", "pip install hatch"),
    tool("make", "apt install make"),
    tool("meson", "pip install meson"),
    tool("ninja", "pip install ninja"),
    tool("nox", "pip install nox"),
    tool("npm", "install Node.js with npm"),
    tool("pdm", "pip install pdm"),
    tool("pnpm", "npm install -g pnpm"),
    tool("poetry", "pip install poetry"),
    tool("pre-commit", "pip install pre-commit"),
    tool("shellcheck", "apt install shellcheck"),
    tool("staticcheck", "install it as its documentation says"),
    tool("tox", "pip install tox"),
    versioned("uv", "pip install uv"),
    tool("valgrind", "apt install valgrind"),
    tool("yamllint", "pip install yamllint"),
    tool("yarn", "npm install -g yarn"),
];

/// The tool of this name.
pub fn named(name: &str) -> Option<&'static Tool> {
    let at = TOOLS.binary_search_by(|tool| tool.name.cmp(name));
    at.ok().map(|at| &TOOLS[at])
}

/// How somebody gets what a requirement asks for, where it is a tool: `uv`, `uv>=0.5`.
pub fn advice(requirement: &str) -> Option<&'static str> {
    let end = requirement.find(['=', '>']);
    let name = &requirement[..end.unwrap_or(requirement.len())];
    named(name).map(|it| it.install)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requirement::Requirement;

    #[test]
    fn every_tool_is_found_by_a_name_that_a_job_may_require() {
        for tool in &TOOLS {
            assert_eq!(named(tool.name), Some(tool), "the list is sorted");
            let wanted = Ok(Requirement::Has(tool.name.to_owned()));
            assert_eq!(Requirement::parse(tool.name), wanted);
            assert!(advice(&format!("{}>=1.2", tool.name)).is_some());
        }
        assert_eq!(advice("uv"), Some("pip install uv"));
        assert_eq!(advice("python>=3.11"), None);
    }
}
