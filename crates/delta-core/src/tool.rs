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

/// Sorted by name. Words that people would call a machine by are none. Each of them answers to
/// `--version`, which is how an agent finds out that it works.
pub static TOOLS: [Tool; 66] = [
    tool("actionlint", "install it as its documentation says"),
    tool("ansible-lint", "pip install ansible-lint"),
    tool("bandit", "pip install bandit"),
    tool("bats", "apt install bats"),
    tool("bazel", "install it as its documentation says"),
    tool("biome", "npm install -g @biomejs/biome"),
    tool("black", "pip install black"),
    tool("buf", "install it as its documentation says"),
    tool("bun", "npm install -g bun"),
    tool("bundle", "gem install bundler"),
    tool("cargo-deny", "cargo install cargo-deny"),
    tool("cargo-nextest", "cargo install --locked cargo-nextest"),
    tool("clang-format", "apt install clang-format"),
    tool("clang-tidy", "apt install clang-tidy"),
    tool("cmake", "apt install cmake"),
    tool("codespell", "pip install codespell"),
    tool("composer", "apt install composer"),
    tool("cppcheck", "apt install cppcheck"),
    tool("cpplint", "pip install cpplint"),
    tool("doxygen", "apt install doxygen"),
    tool("eslint", "npm install -g eslint"),
    tool("flake8", "pip install flake8"),
    versioned("golangci-lint", "install it as its documentation says"),
    tool("gotestsum", "install it as its documentation says"),
    tool("gradle", "install it as its documentation says"),
    tool("hadolint", "install it as its documentation says"),
    tool("hatch", "pip install hatch"),
    tool("isort", "pip install isort"),
    tool("just", "cargo install just"),
    tool("make", "apt install make"),
    tool("markdownlint", "npm install -g markdownlint-cli"),
    tool("meson", "pip install meson"),
    tool("mkdocs", "pip install mkdocs"),
    tool("mvn", "apt install maven"),
    tool("mypy", "pip install mypy"),
    tool("ninja", "pip install ninja"),
    tool("nox", "pip install nox"),
    tool("npm", "install Node.js with npm"),
    tool("pdm", "pip install pdm"),
    tool("pipenv", "pip install pipenv"),
    tool("pnpm", "npm install -g pnpm"),
    tool("poetry", "pip install poetry"),
    tool("pre-commit", "pip install pre-commit"),
    tool("prettier", "npm install -g prettier"),
    tool("protoc", "apt install protobuf-compiler"),
    tool("pylint", "pip install pylint"),
    tool("pyright", "pip install pyright"),
    tool("rake", "gem install rake"),
    tool("rspec", "gem install rspec"),
    tool("rubocop", "gem install rubocop"),
    tool("ruff", "pip install ruff"),
    tool("shellcheck", "apt install shellcheck"),
    tool("shfmt", "apt install shfmt"),
    tool("sphinx-build", "pip install sphinx"),
    tool("sqlfluff", "pip install sqlfluff"),
    tool("staticcheck", "install it as its documentation says"),
    tool("stylelint", "npm install -g stylelint"),
    tool("terraform", "install it as its documentation says"),
    tool("tflint", "install it as its documentation says"),
    tool("tox", "pip install tox"),
    tool("tsc", "npm install -g typescript"),
    versioned("uv", "pip install uv"),
    tool("valgrind", "apt install valgrind"),
    tool("vitest", "npm install -g vitest"),
    tool("yamllint", "pip install yamllint"),
    tool("yarn", "npm install -g yarn"),
];

/// Package managers with which a project installs tools for itself alone.
const BRINGERS: [&str; 3] = ["gem", "npm", "pip"];

/// Those that install what a project asks for are there before it.
const INSTALLERS: [&str; 9] = [
    "bun", "bundle", "hatch", "pdm", "pipenv", "pnpm", "poetry", "uv", "yarn",
];

impl Tool {
    /// Which package manager brings it, where a project may have it among what it installs: `pip`,
    /// `npm`, `gem`.
    pub fn brought_by(&self) -> Option<&'static str> {
        let mut words = self.install.split(' ');
        let manager = words.next().filter(|it| BRINGERS.contains(it))?;
        (!INSTALLERS.contains(&self.name)).then_some(manager)
    }
}

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
        assert_eq!(advice("ruff"), Some("pip install ruff"));
        let bringer = |name: &str| named(name).and_then(Tool::brought_by);
        assert_eq!((bringer("ruff"), bringer("uv")), (Some("pip"), None));
    }
}
