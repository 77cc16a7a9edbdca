//! A real redis-server on the loopback, in memory alone, and the few words needed to ask it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::mortal_children;
use crate::process::{Process, Spawn, free_port};

const READY_DEADLINE: Duration = Duration::from_secs(30);
/// What one answer may take.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// A running server with nothing in it and nothing on the disk.
#[derive(Debug)]
pub struct Redis {
    port: u16,
    _process: Process,
    _folder: TempDir,
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Nothing,
    Number(i64),
    Text(String),
    List(Vec<Reply>),
}

impl Reply {
    pub fn text(&self) -> &str {
        match self {
            Reply::Text(text) => text,
            _ => "",
        }
    }
}

impl Redis {
    pub fn start() -> Result<Redis> {
        let program = mortal_children::find_on_path("redis-server")
            .context("redis-server is not on the PATH; install the package redis-server")?;
        let folder = tempfile::Builder::new().prefix("delta-redis-").tempdir()?;
        let port = free_port()?;
        let process = Spawn::new(program)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(folder.path())
            .spawn()?;
        process.wait_for_line("Ready to accept connections", READY_DEADLINE)?;
        Ok(Redis {
            port,
            _process: process,
            _folder: folder,
        })
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Asks it something, on a connection of its own.
    pub fn ask(&self, words: &[&str]) -> Result<Reply> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        let mut asked = format!("*{}\r\n", words.len());
        for word in words {
            asked.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        stream.write_all(asked.as_bytes())?;
        answer(&mut BufReader::new(stream))
    }

    /// One field of a hash; empty where there is none.
    pub fn field(&self, key: &str, field: &str) -> Result<String> {
        Ok(self.ask(&["HGET", key, field])?.text().to_owned())
    }
}

fn answer(reader: &mut impl BufRead) -> Result<Reply> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.trim_end();
    let (kind, rest) = line.split_at_checked(1).context("no answer")?;
    match kind {
        "+" => Ok(Reply::Text(rest.to_owned())),
        ":" => Ok(Reply::Number(rest.parse()?)),
        "$" => {
            let Ok(length) = rest.parse::<usize>() else {
                return Ok(Reply::Nothing);
            };
            let mut text = vec![0; length + 2];
            reader.read_exact(&mut text)?;
            text.truncate(length);
            Ok(Reply::Text(String::from_utf8_lossy(&text).into_owned()))
        }
        "*" => {
            let count: i64 = rest.parse()?;
            let all = (0..count.max(0)).map(|_| answer(reader));
            Ok(Reply::List(all.collect::<Result<_>>()?))
        }
        _ => bail!("redis says {line:?}"),
    }
}
