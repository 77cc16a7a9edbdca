//! The package manager of a project: told by its lock file, then by `packageManager`, else npm.
//! Knows how each installs without changing the lock, and how each runs a script of one package.

use super::super::found::Cache;
use super::super::shell::quoted;
use super::Manifest;
use crate::tree::{Tree, join};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Npm,
    Pnpm,
    /// Yarn 1.
    Yarn,
    /// Yarn 2 and later, which has other flags.
    Berry,
    Bun,
}

/// Lock files, and whose they are. Yarn's is told apart by its own settings.
pub const LOCKS: [(&str, Kind); 6] = [
    ("pnpm-lock.yaml", Kind::Pnpm),
    ("yarn.lock", Kind::Yarn),
    ("bun.lock", Kind::Bun),
    ("bun.lockb", Kind::Bun),
    ("package-lock.json", Kind::Npm),
    ("npm-shrinkwrap.json", Kind::Npm),
];

pub struct Manager {
    kind: Kind,
    lock: Option<&'static str>,
}

impl Manager {
    pub fn of(tree: &Tree, root: &str, manifest: &Manifest) -> Manager {
        let locks = LOCKS.into_iter();
        let lock = locks.clone().find(|(name, _)| tree.has(&join(root, name)));
        let asked = manifest.package_manager.as_deref().unwrap_or_default();
        let (name, version) = asked.split_once('@').unwrap_or((asked, ""));
        let kind = match (lock, name) {
            (Some((_, kind)), _) => kind,
            (None, "pnpm") => Kind::Pnpm,
            (None, "yarn") => Kind::Yarn,
            (None, "bun") => Kind::Bun,
            (None, _) if tree.has(&join(root, "pnpm-workspace.yaml")) => Kind::Pnpm,
            (None, _) => Kind::Npm,
        };
        let berry = tree.has(&join(root, ".yarnrc.yml"))
            || (name == "yarn" && !version.starts_with("1.") && !version.is_empty());
        Manager {
            kind: match kind {
                Kind::Yarn if berry => Kind::Berry,
                other => other,
            },
            lock: lock.map(|(name, _)| name),
        }
    }

    /// The command that installs, if there is anything to install.
    pub fn install(&self, dependencies: bool) -> Option<String> {
        if !dependencies && self.lock.is_none() {
            return None;
        }
        let locked = self.lock.is_some();
        let command = match self.kind {
            Kind::Npm if locked => "npm ci --no-audit --no-fund",
            Kind::Npm => "npm install --no-audit --no-fund",
            Kind::Pnpm if locked => "pnpm install --frozen-lockfile",
            Kind::Pnpm => "pnpm install",
            Kind::Yarn if locked => "yarn install --frozen-lockfile",
            Kind::Berry if locked => "yarn install --immutable",
            Kind::Yarn | Kind::Berry => "yarn install",
            Kind::Bun if locked => "bun install --frozen-lockfile",
            Kind::Bun => "bun install",
        };
        Some(command.to_owned())
    }

    /// Runs a script of the package in `folder`, seen from `root`, with `more` for the script.
    pub fn script(&self, root: &str, folder: &str, script: &str, more: &str) -> String {
        let inner = match root {
            "" => folder,
            root => folder
                .strip_prefix(root)
                .unwrap_or(folder)
                .trim_start_matches('/'),
        };
        let tool = match self.kind {
            Kind::Npm => "npm",
            Kind::Pnpm => "pnpm",
            Kind::Yarn | Kind::Berry => "yarn",
            Kind::Bun => "bun",
        };
        // Only npm needs to be told where the script's own words begin.
        let more = match (self.kind, more) {
            (_, "") => String::new(),
            (Kind::Npm, more) => format!(" -- {more}"),
            (_, more) => format!(" {more}"),
        };
        if inner.is_empty() {
            return format!("{tool} run {script}{more}");
        }
        let here = quoted(inner);
        match self.kind {
            Kind::Npm => format!("npm run {script} --workspace={here}{more}"),
            Kind::Pnpm => format!("pnpm --dir {here} run {script}{more}"),
            Kind::Yarn | Kind::Berry => format!("yarn --cwd {here} run {script}{more}"),
            Kind::Bun => format!("bun run --cwd={here} {script}{more}"),
        }
    }

    /// Builds every package that can be built, what others need first where the tool knows.
    pub fn build_all(&self) -> String {
        let command = match self.kind {
            Kind::Npm => "npm run build --workspaces --if-present",
            Kind::Pnpm => "pnpm --recursive --if-present run build",
            Kind::Yarn => "yarn workspaces run build",
            Kind::Berry => "yarn workspaces foreach --all --topological-dev run build",
            Kind::Bun => "bun run --filter '*' build",
        };
        command.to_owned()
    }

    pub fn cache(&self, root: &str) -> Option<Cache> {
        let lock = join(root, self.lock?);
        match self.kind {
            Kind::Npm => Cache::locked("npm", &lock, &["~/.npm"]),
            Kind::Pnpm => Cache::locked("pnpm", &lock, &["~/.local/share/pnpm/store"]),
            Kind::Yarn => Cache::locked("yarn", &lock, &["~/.cache/yarn"]),
            Kind::Berry => Cache::locked("yarn", &lock, &["~/.yarn/berry/cache"]),
            Kind::Bun => Cache::locked("bun", &lock, &["~/.bun/install/cache"]),
        }
    }

    /// Folders in which changes to dependencies are kept.
    pub fn patches(&self, root: &str) -> Vec<String> {
        let names = ["patches", ".yarn/patches", ".yarn/releases"];
        names.iter().map(|it| join(root, it)).collect()
    }
}
