//! The files of a commit, read by object id: names never reach git as arguments, and nothing of the
//! repository runs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::checkout::{git, resolved};
use crate::question::{NoAnswer, in_folder};

/// The plain files of a commit of a repository, bare or not.
pub struct CommitFiles {
    objects: HashMap<String, String>,
    reader: RefCell<Option<ObjectReader>>,
    repository: PathBuf,
}

/// Why the bytes of a file are not known.
#[derive(Debug, thiserror::Error)]
pub enum UnreadFile {
    #[error("it is no plain file of the commit")]
    Missing,
    #[error("it is too large")]
    TooLarge,
    #[error("git cat-file: {0}")]
    Failed(#[from] io::Error),
}

impl CommitFiles {
    /// Lists a commit; it is too much where it has more than `most` files.
    pub fn list(repository: &Path, commit: &str, most: usize) -> Result<CommitFiles, NoAnswer> {
        let id = resolved(repository, commit).ok_or(NoAnswer::Failed {
            what: "rev-parse",
            why: "there is no such commit".to_owned(),
        })?;
        let listed = git(repository, &["ls-tree", "-r", "-z", "--full-tree", &id])?;
        let mut objects = HashMap::new();
        for line in listed.split(|byte| *byte == 0) {
            let Ok(line) = std::str::from_utf8(line) else {
                continue;
            };
            let Some((about, path)) = line.split_once('\t') else {
                continue;
            };
            let mut words = about.split(' ');
            // Links have mode 120000, submodules 160000.
            let plain = words.next().is_some_and(|mode| mode.starts_with("100"));
            if let (true, Some(object)) = (plain, words.nth(1)) {
                objects.insert(path.to_owned(), object.to_owned());
            }
            if objects.len() > most {
                return Err(NoAnswer::TooMuch { what: "list files" });
            }
        }
        Ok(CommitFiles {
            objects,
            reader: RefCell::new(None),
            repository: repository.to_owned(),
        })
    }

    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().map(String::as_str)
    }

    /// The bytes of a file that has at most `most`.
    pub fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, UnreadFile> {
        let object = self.objects.get(path).ok_or(UnreadFile::Missing)?;
        let mut reader = self.reader.borrow_mut();
        let objects = match reader.take() {
            Some(objects) => objects,
            None => ObjectReader::start(&self.repository)?,
        };
        // A reader that met something odd is not used again.
        let (objects, bytes) = objects.read(object, most)?;
        *reader = Some(objects);
        bytes.ok_or(UnreadFile::TooLarge)
    }
}

/// Two git processes that stay: one tells sizes, the other contents, so that a large object is
/// never asked for.
struct ObjectReader {
    sizes: CatFile,
    contents: CatFile,
}

struct CatFile {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl ObjectReader {
    fn start(repository: &Path) -> io::Result<ObjectReader> {
        Ok(ObjectReader {
            sizes: CatFile::start(repository, "--batch-check")?,
            contents: CatFile::start(repository, "--batch")?,
        })
    }

    /// The object's bytes, or none when it is larger than `most`.
    fn read(
        mut self,
        object: &str,
        most: usize,
    ) -> Result<(ObjectReader, Option<Vec<u8>>), UnreadFile> {
        let size = self.sizes.header(object)?.ok_or(UnreadFile::Missing)?;
        if size > most {
            return Ok((self, None));
        }
        let told = self.contents.header(object)?;
        if told != Some(size) {
            return Err(io::Error::other("another size").into());
        }
        let mut bytes = vec![0; size + 1];
        self.contents.answers.read_exact(&mut bytes)?;
        bytes.pop();
        Ok((self, Some(bytes)))
    }
}

impl CatFile {
    fn start(repository: &Path, mode: &str) -> io::Result<CatFile> {
        let mut child = in_folder(repository)
            .args(["cat-file", mode])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(ask), Some(answers)) = pipes else {
            return Err(io::Error::other("no pipes"));
        };
        Ok(CatFile {
            child,
            ask,
            answers: BufReader::new(answers),
        })
    }

    /// Asks for an object; its size, when it is a blob that is there.
    fn header(&mut self, object: &str) -> io::Result<Option<usize>> {
        writeln!(self.ask, "{object}")?;
        self.ask.flush()?;
        let mut line = String::new();
        (&mut self.answers).take(256).read_line(&mut line)?;
        let mut words = line.split_whitespace().skip(1);
        Ok(match (words.next(), words.next()) {
            (Some("blob"), Some(size)) => size.parse().ok(),
            _ => None,
        })
    }
}

impl Drop for CatFile {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
