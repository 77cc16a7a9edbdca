//! A file read by position. Its descriptor has one offset for all who read from it, and a try that
//! was given up may still be reading when the next one begins: each has a place of its own here.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::{JoinHandle, spawn_blocking};

/// The bytes of a file from its beginning on, so many at once.
pub(super) struct PositionalReader {
    file: Arc<File>,
    at: u64,
    most: usize,
    piece: Bytes,
    reading: Option<JoinHandle<io::Result<Vec<u8>>>>,
}

impl PositionalReader {
    pub fn new(file: File, most: usize) -> PositionalReader {
        PositionalReader {
            file: Arc::new(file),
            at: 0,
            most,
            piece: Bytes::new(),
            reading: None,
        }
    }
}

impl AsyncRead for PositionalReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.piece.is_empty() {
            let (file, at, most) = (Arc::clone(&self.file), self.at, self.most);
            let reading = self
                .reading
                .get_or_insert_with(|| spawn_blocking(move || read_at(&file, at, most)));
            let read = ready!(Pin::new(reading).poll(context));
            self.reading = None;
            let piece = read.map_err(io::Error::other)??;
            self.at += piece.len() as u64;
            self.piece = Bytes::from(piece);
        }
        let count = self.piece.len().min(buffer.remaining());
        buffer.put_slice(&self.piece.split_to(count));
        Poll::Ready(Ok(()))
    }
}

fn read_at(file: &File, at: u64, most: usize) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; most];
    loop {
        match file.read_at(&mut piece, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => {
                piece.truncate(read?);
                return Ok(piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};

    use tokio::io::AsyncReadExt;

    use super::*;

    // F45
    #[tokio::test]
    async fn two_tries_of_one_file_do_not_disturb_each_other() {
        let mut file = tempfile::tempfile().expect("a file");
        let text: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
        file.write_all_at(&text, 0).expect("written");
        let half = file.seek(SeekFrom::Start(20_000)).expect("a place");
        let open = || PositionalReader::new(file.try_clone().expect("a descriptor"), 777);
        let (mut given_up, mut next) = (open(), open());
        let mut start = vec![0; 1000];
        given_up.read_exact(&mut start).await.expect("a beginning");
        let mut whole = Vec::new();
        next.read_to_end(&mut whole).await.expect("all of it");
        assert_eq!(whole, text);
        let mut rest = Vec::new();
        given_up.read_to_end(&mut rest).await.expect("the rest");
        assert_eq!([start, rest].concat(), text);
        assert_eq!(file.stream_position().expect("a place"), half);
    }
}
