//! What is seen and not understood: ecosystems that no module here plans, and tools that run other
//! tools. They are named, with what a maintainer would write, so that a plan never looks as if it
//! were all there is.

use std::collections::BTreeMap;

use super::found::Found;
use super::ignored;
use crate::tree::{Tree, file_name, folder_of};

/// Something by whose files it is known.
struct Stranger {
    name: &'static str,
    /// Names of files, or how they end where they begin with `.`.
    files: &'static [&'static str],
    /// What somebody would write who wants it to run.
    steps: &'static str,
}

const fn stranger(
    name: &'static str,
    files: &'static [&'static str],
    steps: &'static str,
) -> Stranger {
    Stranger { name, files, steps }
}

static STRANGERS: [Stranger; 24] = [
    stranger(
        "CMake",
        &["CMakeLists.txt"],
        "cmake -B build && cmake --build build && ctest --test-dir build",
    ),
    stranger("Maven", &["pom.xml"], "mvn --batch-mode verify"),
    stranger(
        "Gradle",
        &[
            "build.gradle",
            "build.gradle.kts",
            "settings.gradle",
            "settings.gradle.kts",
        ],
        "./gradlew check",
    ),
    stranger(
        ".NET",
        &[".sln", ".slnx", ".csproj", ".fsproj", ".vbproj"],
        "dotnet test",
    ),
    stranger(
        "Ruby",
        &["Gemfile", ".gemspec"],
        "bundle install && bundle exec rake",
    ),
    stranger(
        "PHP",
        &["composer.json"],
        "composer install && composer test",
    ),
    stranger("Deno", &["deno.json", "deno.jsonc"], "deno test"),
    stranger(
        "autotools",
        &["configure.ac", "configure.in"],
        "./configure && make check",
    ),
    stranger(
        "Meson",
        &["meson.build"],
        "meson setup build && meson test -C build",
    ),
    stranger(
        "Bazel",
        &[
            "MODULE.bazel",
            "WORKSPACE",
            "WORKSPACE.bazel",
            "BUILD.bazel",
        ],
        "bazel test //...",
    ),
    stranger("Nix", &["flake.nix"], "nix flake check"),
    stranger("OCaml", &["dune-project"], "dune build && dune test"),
    stranger(
        "PDM",
        &["pdm.lock"],
        "pdm install && pdm run python -m pytest",
    ),
    stranger(
        "Pipenv",
        &["Pipfile", "Pipfile.lock"],
        "pipenv install --dev && pipenv run python -m pytest",
    ),
    stranger("Elixir", &["mix.exs"], "mix test"),
    stranger("sbt", &["build.sbt"], "sbt test"),
    stranger("Swift", &["Package.swift"], "swift test"),
    stranger("Dart", &["pubspec.yaml"], "dart test"),
    stranger("Haskell", &["stack.yaml", ".cabal"], "cabal test all"),
    stranger("Zig", &["build.zig"], "zig build test"),
    stranger("Bun without package.json", &["bunfig.toml"], "bun test"),
    stranger("just", &["justfile", "Justfile"], "just test"),
    stranger("Task", &["Taskfile.yml", "Taskfile.yaml"], "task test"),
    stranger("staticcheck", &["staticcheck.conf"], "staticcheck ./..."),
];

/// The file with the hooks of pre-commit.
pub const HOOKS: &str = ".pre-commit-config.yaml";

/// Where other systems keep what they run.
const WORKFLOWS: [(&str, &str); 21] = [
    (".github/workflows", "GitHub Actions"),
    (".gitlab-ci.yml", "GitLab CI"),
    (".gitea/workflows", "Gitea Actions"),
    (".forgejo/workflows", "Forgejo Actions"),
    (".woodpecker.yml", "Woodpecker"),
    (".woodpecker.yaml", "Woodpecker"),
    (".woodpecker", "Woodpecker"),
    (".drone.yml", "Drone"),
    (".circleci", "CircleCI"),
    (".travis.yml", "Travis CI"),
    ("Jenkinsfile", "Jenkins"),
    (".buildkite", "Buildkite"),
    ("bitbucket-pipelines.yml", "Bitbucket Pipelines"),
    ("appveyor.yml", "AppVeyor"),
    (".appveyor.yml", "AppVeyor"),
    (".cirrus.yml", "Cirrus CI"),
    (".cirrus.star", "Cirrus CI"),
    ("azure-pipelines.yml", "Azure Pipelines"),
    (".azure-pipelines", "Azure Pipelines"),
    (".semaphore", "Semaphore"),
    (".teamcity", "TeamCity"),
];

/// Names what is there and gave no job, each once, by its file nearest to the root.
pub fn name_them(tree: &Tree, found: &mut Found) {
    let mut seen: BTreeMap<usize, (&str, usize)> = BTreeMap::new();
    for path in tree.paths() {
        let name = file_name(path);
        let Some(number) = STRANGERS.iter().position(|it| it.is_of(name)) else {
            continue;
        };
        if ignored(folder_of(path)).is_some() {
            continue;
        }
        let depth = |path: &str| path.matches('/').count();
        let (nearest, count) = seen.entry(number).or_insert((path, 0));
        *count += 1;
        if depth(path) < depth(nearest) {
            *nearest = path;
        }
    }
    for (number, (path, count)) in seen {
        let stranger = &STRANGERS[number];
        // Bun is understood by its package.json.
        if stranger.files == ["bunfig.toml"] && found.has_project(folder_of(path)) {
            continue;
        }
        // What lints there has it among its own, or calls it.
        if stranger.name == "staticcheck" && found.has_job(folder_of(path), "lint").is_some() {
            continue;
        }
        let others = match count {
            1 => String::new(),
            more => format!(" ({} such files)", more),
        };
        let reason = format!(
            "is of {}, which is not understood{others}: write a job with `{}`",
            stranger.name, stranger.steps
        );
        found.remark(path, reason);
    }
    if tree.has(HOOKS) && !found.pre_commit {
        let reason = "has hooks of pre-commit, which the project does not ask for: write a job \
                      with `pre-commit run --all-files`";
        found.remark(HOOKS, reason);
    }
    for (place, system) in WORKFLOWS {
        if tree.has(place) || !tree.below(place).is_empty() {
            found.remark(place, format!("says what {system} runs; it is not read"));
        }
    }
}

impl Stranger {
    fn is_of(&self, name: &str) -> bool {
        self.files.iter().any(|it| match it.strip_prefix('.') {
            Some(end) => {
                let stem = name.strip_suffix(end).and_then(|it| it.strip_suffix('.'));
                stem.is_some_and(|it| !it.is_empty())
            }
            None => *it == name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(paths: &[&str]) -> Vec<String> {
        let files = paths.iter().map(|it| ((*it).to_owned(), String::new()));
        let mut found = Found::default();
        name_them(&Tree::of(files), &mut found);
        found
            .remarks
            .into_iter()
            .map(|it| format!("{} {}", it.what, it.reason))
            .collect()
    }

    #[test]
    fn each_is_named_once_by_the_file_nearest_to_the_root() {
        let said = seen(&[
            "a/b/CMakeLists.txt",
            "lib/CMakeLists.txt",
            "vendor/x/pom.xml",
        ]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with("lib/CMakeLists.txt is of CMake"),
            "{said:?}"
        );
        assert!(said[0].contains("(2 such files)"), "{said:?}");
    }

    #[test]
    fn kinds_are_told_by_whole_names_or_by_ends() {
        for path in [
            "pom.xml",
            "app/App.csproj",
            "x.sln",
            "Gemfile",
            "a.gemspec",
            "composer.json",
            "deno.json",
            "configure.ac",
            "build.gradle.kts",
            "meson.build",
            "justfile",
            "lib/BUILD.bazel",
            "flake.nix",
            "dune-project",
            "pdm.lock",
            "Pipfile",
            "Pipfile.lock",
            ".github/workflows/ci.yml",
            ".gitlab-ci.yml",
            ".gitea/workflows/ci.yaml",
            ".forgejo/workflows/ci.yml",
            ".woodpecker.yml",
            ".woodpecker/test.yaml",
            ".drone.yml",
            ".circleci/config.yml",
            ".travis.yml",
            "Jenkinsfile",
            ".buildkite/pipeline.yml",
            "bitbucket-pipelines.yml",
            "appveyor.yml",
            ".appveyor.yml",
            ".cirrus.yml",
            "azure-pipelines.yml",
        ] {
            assert_eq!(seen(&[path]).len(), 1, "{path}");
        }
        for path in [
            "Gemfile.lock",
            "pom.xml.bak",
            ".sln",
            "csproj",
            "a/.cabal",
            "README.md",
        ] {
            assert!(seen(&[path]).is_empty(), "{path}");
        }
    }
}
