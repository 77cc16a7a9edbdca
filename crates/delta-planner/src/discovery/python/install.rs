//! How a Python project's tools come to be there: uv, poetry, pip into `.venv`, or not at all.

use super::super::found::Cache;
use super::super::shell::quoted;
use super::declared::Declared;
use crate::tree::{Tree, join};

pub enum Install {
    /// The folder of the lock file, and whether it is a workspace's.
    Uv(String, bool),
    Poetry(String),
    /// Into a folder of its own.
    Venv,
    /// The Python that is there.
    None,
}

/// What must be named so that a project's tools come to be there.
pub struct Needs<'a> {
    extra: Option<&'a str>,
    /// The group, where uv does not take it by itself.
    group: Option<&'a str>,
    /// The group, where poetry does not take it by itself.
    optional: Option<&'a str>,
    /// Tools that nobody declared.
    undeclared: Vec<&'a str>,
}

impl<'a> Needs<'a> {
    /// Of a project, and of the workspace that it is installed with.
    pub fn of(
        own: &'a Declared,
        workspace: &'a Declared,
        install: &Install,
        tools: &[&'a str],
    ) -> Needs<'a> {
        let either = |of: fn(&'a Declared) -> Option<&'a str>| of(own).or_else(|| of(workspace));
        let asked = |tool: &&&str| {
            if install.is_locked() {
                own.asks.contains(**tool) || workspace.asks.contains(**tool)
            } else {
                own.pip_brings(tool)
            }
        };
        Needs {
            extra: either(|it| it.extra.as_deref()),
            group: either(|it| it.group.as_deref().filter(|name| !it.uv_takes(name))),
            optional: either(|it| it.optional.as_deref()),
            undeclared: tools.iter().filter(|it| !asked(it)).copied().collect(),
        }
    }
}

fn push(command: &mut String, flag: &str, name: Option<&str>) {
    if let Some(name) = name {
        command.push_str(&format!(" {flag} {}", quoted(name)));
    }
}

impl Install {
    pub fn of(tree: &Tree, folder: &str, root: &str, declared: &Declared) -> Install {
        if tree.has(&join(root, "uv.lock")) {
            return Install::Uv(join(root, "uv.lock"), root != folder);
        }
        if tree.has(&join(folder, "poetry.lock")) {
            return Install::Poetry(join(folder, "poetry.lock"));
        }
        let asked = declared.group.is_some() || !declared.requirements.is_empty();
        if declared.installs || asked {
            Install::Venv
        } else {
            Install::None
        }
    }

    /// The steps before anything can run.
    pub fn steps(&self, declared: &Declared, needs: &Needs<'_>) -> Vec<String> {
        match self {
            // `uv run` installs by itself.
            Install::Uv(..) | Install::None => Vec::new(),
            Install::Poetry(_) => {
                let mut install = "poetry install".to_owned();
                for (flag, name) in [("--with", needs.optional), ("--extras", needs.extra)] {
                    push(&mut install, flag, name);
                }
                let mut steps = vec![install];
                if !needs.undeclared.is_empty() {
                    let tools = needs.undeclared.join(" ");
                    steps.push(format!("poetry run python -m pip install {tools}"));
                }
                steps
            }
            Install::Venv => {
                let mut pip = ".venv/bin/python -m pip install".to_owned();
                for file in &declared.requirements {
                    push(&mut pip, "-r", Some(file));
                }
                if declared.installs {
                    let extra = declared.extra.as_ref().map(|it| format!("[{it}]"));
                    let here = format!(".{}", extra.unwrap_or_default());
                    push(&mut pip, "-e", Some(&here));
                }
                push(&mut pip, "--group", declared.group.as_deref());
                for tool in &needs.undeclared {
                    pip.push_str(&format!(" {tool}"));
                }
                vec!["python3 -m venv .venv".to_owned(), pip]
            }
        }
    }

    /// A command that begins with `python`, with the Python that has the project's packages.
    pub fn run(&self, command: &str, needs: &Needs<'_>) -> String {
        let rest = command.strip_prefix("python ").unwrap_or(command);
        match self {
            Install::Uv(_, workspace) => {
                let mut uv = "uv run --locked".to_owned();
                if *workspace {
                    uv.push_str(" --all-packages");
                }
                push(&mut uv, "--extra", needs.extra);
                push(&mut uv, "--group", needs.group);
                for tool in &needs.undeclared {
                    push(&mut uv, "--with", Some(tool));
                }
                format!("{uv} {command}")
            }
            Install::Poetry(_) => format!("poetry run {command}"),
            Install::Venv => format!(".venv/bin/python {rest}"),
            Install::None => format!("python3 {rest}"),
        }
    }

    /// Whether the lock file has a package of this name; true where there is none to ask.
    pub fn locks(&self, tree: &Tree, tool: &str) -> bool {
        let (Install::Uv(lock, _) | Install::Poetry(lock)) = self else {
            return true;
        };
        let wanted = format!("name = \"{tool}\"");
        let text = tree.text(lock);
        // One that is too long to be read is believed.
        text.map_or(true, |text| text.lines().any(|line| line.trim() == wanted))
    }

    pub fn is_locked(&self) -> bool {
        matches!(self, Install::Uv(..) | Install::Poetry(_))
    }

    /// Steps that run a tool of the project: locked where it is, else brought along.
    pub fn tool(&self, tree: &Tree, own: &Declared, tool: &str, command: &str) -> Vec<String> {
        match self {
            Install::Uv(..) if self.locks(tree, tool) => {
                let mut uv = "uv run --locked".to_owned();
                push(&mut uv, "--group", own.uv_group_of(tool));
                vec![format!("{uv} {command}")]
            }
            // Projects that are locked by uv have tox install with uv.
            Install::Uv(..) if tool == "tox" => vec![format!("uvx --with tox-uv {command}")],
            Install::Uv(..) => vec![format!("uvx {command}")],
            Install::Poetry(_) if self.locks(tree, tool) => {
                vec!["poetry install".to_owned(), format!("poetry run {command}")]
            }
            _ => vec![
                "python3 -m venv .venv".to_owned(),
                format!(".venv/bin/python -m pip install {tool}"),
                format!(".venv/bin/{command}"),
            ],
        }
    }

    pub fn cache(&self) -> Option<Cache> {
        match self {
            Install::Uv(lock, _) => Cache::locked("uv", lock, &["~/.cache/uv"]),
            Install::Poetry(lock) => Cache::locked("poetry", lock, &["~/.cache/pypoetry"]),
            Install::Venv | Install::None => None,
        }
    }
}
