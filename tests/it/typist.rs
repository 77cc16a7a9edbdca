//! Guides, typed: their blocks are taken out of the page, files written, commands typed in a folder
//! of their own with the real binary on the `PATH`, and what they say is compared.

use std::net::TcpStream;
use std::time::Duration;

use delta_testkit::process::{Process, Spawn, binary};

use crate::harness::{delta_ci, until};

pub const SOON: Duration = Duration::from_secs(60);

/// A block of a page: the file that the sentence before it names last, its language, its text.
pub struct Block {
    pub name: String,
    pub language: String,
    pub text: String,
}

/// The blocks of a page, or of a part of one, however their fences are written.
pub fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut before) = (Vec::new(), "");
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let inner = line.trim_start();
        let mark = inner.chars().next().unwrap_or_default();
        let fence = inner.chars().take_while(|it| *it == mark).count();
        if !['`', '~'].contains(&mark) || fence < 3 {
            before = if line.is_empty() { before } else { line };
            continue;
        }
        let (fence, language) = inner.split_at(fence);
        let indent = line.len() - inner.len();
        let text = lines.by_ref().take_while(|line| line.trim() != fence);
        let text = text.map(|line| line.get(indent..).unwrap_or_default());
        let text: String = text.map(|line| format!("{line}\n")).collect();
        let name = before.strip_suffix("`:").unwrap_or_default();
        blocks.push(Block {
            name: name.rsplit('`').next().unwrap_or_default().to_owned(),
            language: language.trim().to_owned(),
            text,
        });
        before = "";
    }
    blocks
}

/// What stands for itself in every run of a guide.
fn plain(text: &str) -> String {
    let word = |word: &str| match word.strip_prefix("run_") {
        Some(id) if id.chars().all(|c| c.is_ascii_hexdigit()) => "run_ID".to_owned(),
        _ if word.len() > 39 && word[..40].chars().all(|c| c.is_ascii_hexdigit()) => {
            format!("COMMIT{}", &word[40..])
        }
        _ => word.to_owned(),
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// What a command says where the page prints nothing after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unprinted {
    /// Nothing.
    Silent,
    /// What it likes.
    Any,
}

/// Somebody at a terminal, in a folder of their own.
pub struct Typist {
    pub folder: tempfile::TempDir,
    /// What the page says, and what it is here: addresses, ids.
    pub instead: Vec<(String, String)>,
    pub variables: Vec<(String, String)>,
    pub running: Vec<Process>,
    pub unprinted: Unprinted,
}

impl Typist {
    pub fn new(unprinted: Unprinted) -> Typist {
        Typist {
            folder: tempfile::tempdir().expect("a folder"),
            instead: Vec::new(),
            variables: Vec::new(),
            running: Vec::new(),
            unprinted,
        }
    }

    pub fn here(&self, text: &str) -> String {
        let each = self.instead.iter();
        each.fold(text.to_owned(), |text, (printed, real)| {
            text.replace(printed, real)
        })
    }

    pub fn instead(&mut self, printed: &str, real: impl Into<String>) {
        self.instead.retain(|(it, _)| it != printed);
        self.instead.push((printed.to_owned(), real.into()));
    }

    pub fn shell(&self, script: &str) -> Spawn {
        let program = binary("delta-ci").expect("the binary");
        let folder = program.parent().expect("its folder").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut spawn = Spawn::new("/bin/sh")
            .args(["-c", script])
            .clean_env()
            .env("PATH", format!("{folder}:{path}"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(self.folder.path());
        for (name, value) in &self.variables {
            spawn = spawn.env(name, value);
        }
        spawn
    }

    /// The server of a guide, which says where it listens.
    pub fn start_server(&mut self, command: &str) {
        let words = command.strip_prefix("delta-ci ").expect("our program");
        let mut spawn = delta_ci()
            .args(words.split_whitespace())
            .current_dir(self.folder.path());
        for (name, value) in &self.variables {
            spawn = spawn.env(name, value);
        }
        let process = spawn.spawn().expect("a server");
        let line = process
            .wait_for_line("listening on", SOON)
            .unwrap_or_else(|error| panic!("$ {command}: {error}"));
        let address = line.split("://").nth(1).expect("an address").to_owned();
        self.instead("127.0.0.1:7878", address);
        self.running.push(process);
    }

    /// Types the commands of a block, and compares what is said with what is printed.
    pub fn type_all(&mut self, block: &str) {
        let mut script = String::new();
        let mut printed: Vec<(String, String)> = Vec::new();
        let mut lines = block.lines();
        while let Some(line) = lines.next() {
            let Some(command) = line.strip_prefix("$ ") else {
                if line.starts_with("# ") {
                    continue;
                }
                let (_, said) = printed.last_mut().expect("a command comes first");
                said.push_str(&format!("{line}\n"));
                continue;
            };
            let mut command = self.here(command);
            while command.ends_with('\\') {
                let more = lines.next().expect("the rest of a command");
                command.push_str(&format!("\n{}", self.here(more)));
            }
            if let Some(exported) = command.strip_prefix("export ") {
                self.settle(&mut script, &mut printed);
                let pairs = exported.split(' ').filter_map(|it| it.split_once('='));
                let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
                self.variables.extend(pairs);
            } else if let Some(command) = command.strip_suffix(" &") {
                self.settle(&mut script, &mut printed);
                let process = self.shell(&format!("exec {command}")).spawn();
                self.running.push(process.expect("a program"));
                let address = command.rsplit(' ').next().expect("an address").to_owned();
                let there = || TcpStream::connect(&address).is_ok();
                until("it listens", there, |there| *there);
            } else {
                script.push_str(&format!("echo @@@\n{command}\necho \"@= $?\"\n"));
                printed.push((command, String::new()));
            }
        }
        self.settle(&mut script, &mut printed);
    }

    fn settle(&self, script: &mut String, printed: &mut Vec<(String, String)>) {
        let script = std::mem::take(script);
        let process = self.shell(&format!("exec 2>&1\n{script}")).spawn();
        let process = process.expect("a shell");
        process.wait(SOON * 2).expect("its end");
        let all = process.stdout();
        let said: Vec<&str> = all.split("@@@\n").skip(1).collect();
        assert_eq!(said.len(), printed.len(), "{all}");
        for ((command, printed), said) in printed.drain(..).zip(said) {
            let (said, code) = said.rsplit_once("@= ").expect("how it ended");
            assert_eq!(code, "0\n", "$ {command}\n{said}");
            if !printed.is_empty() || self.unprinted == Unprinted::Silent {
                assert_eq!(plain(said), plain(&printed), "$ {command}");
            }
        }
    }
}
