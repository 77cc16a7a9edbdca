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

impl Install {
    pub fn of(tree: &Tree, folder: &str, root: &str, declared: &Declared) -> Install {
        if tree.has(&join(root, "uv.lock")) {
            return Install::Uv(join(root, "uv.lock"), root != folder);
        }
        if tree.has(&join(folder, "poetry.lock")) {
            return Install::Poetry(join(folder, "poetry.lock"));
        }
        let asked = declared.group.is_some() || !declared.requirements.is_empty();
        match declared.installs || asked {
            true => Install::Venv,
            false => Install::None,
        }
    }

    /// The steps before anything can run; `tools` are brought where nobody declared them.
    pub fn steps(&self, declared: &Declared, tools: &[&str]) -> Vec<String> {
        match self {
            // `uv run` installs by itself.
            Install::Uv(..) | Install::None => Vec::new(),
            Install::Poetry(_) => vec!["poetry install".to_owned()],
            Install::Venv => {
                let mut pip = ".venv/bin/python -m pip install".to_owned();
                for file in &declared.requirements {
                    pip.push_str(&format!(" -r {}", quoted(file)));
                }
                if declared.installs {
                    let extra = declared.extra.as_ref().map(|it| format!("[{it}]"));
                    let here = format!(".{}", extra.unwrap_or_default());
                    pip.push_str(&format!(" -e {}", quoted(&here)));
                }
                if let Some(group) = &declared.group {
                    pip.push_str(&format!(" --group {}", quoted(group)));
                }
                for tool in tools.iter().filter(|it| !declared.asks.contains(**it)) {
                    pip.push_str(&format!(" {tool}"));
                }
                vec!["python3 -m venv .venv".to_owned(), pip]
            }
        }
    }

    /// A command that begins with `python`, with the Python that has the project's packages.
    pub fn run(&self, command: &str) -> String {
        let rest = command.strip_prefix("python ").unwrap_or(command);
        match self {
            Install::Uv(_, true) => format!("uv run --locked --all-packages {command}"),
            Install::Uv(_, false) => format!("uv run --locked {command}"),
            Install::Poetry(_) => format!("poetry run {command}"),
            Install::Venv => format!(".venv/bin/python {rest}"),
            Install::None => format!("python3 {rest}"),
        }
    }

    /// Steps that bring a tool which makes its own environments.
    pub fn tool(&self, tool: &str) -> Vec<String> {
        match self {
            Install::Uv(..) => Vec::new(),
            _ => vec![
                "python3 -m venv .venv".to_owned(),
                format!(".venv/bin/python -m pip install {tool}"),
            ],
        }
    }

    pub fn run_tool(&self, command: &str) -> String {
        match self {
            Install::Uv(..) => format!("uvx {command}"),
            _ => format!(".venv/bin/python -m {command}"),
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
