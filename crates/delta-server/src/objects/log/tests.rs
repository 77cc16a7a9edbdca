//! Logs of one server, of two that share a folder, and of one that came after a crash.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use aws_lc_rs::digest::SHA256;
use delta_testkit::wait::eventually;

use super::super::tests::{lease, names, pair};
use super::segments::{SEGMENT_BYTES, cut_path, path};
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// Everything that can be read of the log.
fn read(objects: &Objects) -> Vec<u8> {
    let mut bytes = vec![0; 64 * 1024 * 1024];
    let read = objects.read_log(lease(), 0).fill(&mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

/// Returns how much is on disk then.
fn put(objects: &Objects, offset: u64, bytes: &[u8]) -> Result<u64, AppendError> {
    Ok(objects.store_log(lease(), offset, bytes)?.stored)
}

fn folder(objects: &Objects) -> PathBuf {
    objects.log_folder(lease())
}

/// What a server that died leaves behind: bytes after the mark.
fn leave_tail(folder: &Path, bytes: &[u8]) {
    let mut options = std::fs::OpenOptions::new();
    let segment = options.append(true).open(path(folder, 0));
    segment.unwrap().write_all(bytes).unwrap();
}

#[test]
fn a_log_grows_at_its_end_only_whichever_server_gets_the_bytes() {
    // A27
    let (_folder, one, two) = pair();
    let early = put(&one, 0, b"abc").unwrap_err();
    assert!(matches!(early, AppendError::Unknown), "{early:?}");
    one.make_log(lease()).unwrap();
    assert_eq!(one.log_extent(lease()).unwrap().bytes, 0);
    assert_eq!(put(&one, 0, b"abc").unwrap(), 3);
    assert_eq!(put(&two, 3, b"def").unwrap(), 6);
    two.make_log(lease()).unwrap();
    assert_eq!(put(&one, 3, b"defg").unwrap(), 7, "an equal overlap");
    for offset in [9, u64::MAX] {
        let gap = put(&two, offset, b"x").unwrap_err();
        assert!(matches!(gap, AppendError::Gap { expected: 7 }));
    }
    let differs = put(&one, 0, b"abX").unwrap_err();
    assert!(matches!(differs, AppendError::Differs { expected: 7 }));
    assert_eq!(read(&two), b"abcdefg");
}

#[test]
fn what_is_received_is_read_at_once_and_stored_soon_after() {
    // A27: two cursors.
    let (_folder, one, two) = pair();
    one.make_log(lease()).unwrap();
    let mut watch = one.watch_log(lease());
    let cursors = one.append_log_here(lease(), 0, b"abc").unwrap();
    assert_eq!((cursors.received, cursors.stored), (3, 0));
    assert_eq!(read(&two), b"abc");
    let stored = eventually(PATIENCE, "stored", || match watch.cursors() {
        cursors if cursors.stored == 3 => Ok(cursors),
        other => Err(other),
    });
    assert_eq!(stored.received, 3);
    assert_eq!(two.log_cursors(lease()).unwrap(), Some(stored));
}

#[test]
fn another_server_takes_over_a_log_that_is_not_on_disk_yet() {
    // A balancer sends the next chunk elsewhere: it waits for the first server's sync.
    let (_folder, one, two) = pair();
    one.make_log(lease()).unwrap();
    one.append_log_here(lease(), 0, b"abc").unwrap();
    let cursors = two.append_log_here(lease(), 3, b"def").unwrap();
    assert_eq!((cursors.received, cursors.stored), (6, 3));
    let cursors = one.append_log_here(lease(), 6, b"ghi").unwrap();
    assert_eq!(cursors.received, 9);
    assert_eq!(read(&one), b"abcdefghi");
}

#[test]
fn a_server_that_writes_without_a_pause_leaves_the_log_to_others_now_and_then() {
    let (_folder, one, two) = pair();
    one.make_log(lease()).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let zeros = vec![0_u8; 64 * 1024];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut offset = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let cursors = one.append_log_here(lease(), offset, &zeros).unwrap();
                offset = cursors.received % (8 * 1024 * 1024);
            }
        });
        // Zeros at the beginning are there already, or are the first.
        let taken = two.append_log_here(lease(), 0, &zeros[..10]);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        taken.unwrap();
    });
}

#[test]
fn two_servers_that_get_the_same_bytes_at_once_store_them_once() {
    // A27: a runner that lost an answer sends again, and a balancer picks another server.
    let (_folder, one, two) = pair();
    one.make_log(lease()).unwrap();
    let pieces: Vec<Vec<u8>> = (0..50_u8).map(|n| vec![n; 100]).collect();
    std::thread::scope(|scope| {
        for server in [&one, &two, &one] {
            scope.spawn(|| {
                for (n, piece) in pieces.iter().enumerate() {
                    put(server, n as u64 * 100, piece).unwrap();
                }
            });
        }
    });
    let stored = read(&two);
    assert!(stored == pieces.concat(), "{} bytes", stored.len());
}

#[test]
fn a_long_log_is_a_row_of_segments_of_which_only_the_last_changes() {
    // D8
    let (_folder, one, two) = pair();
    one.make_log(lease()).unwrap();
    let bytes: Vec<u8> = (0..SEGMENT_BYTES * 2 + 10)
        .map(|n| n as u8 ^ (n >> 9) as u8)
        .collect();
    let mut offset = 0;
    for piece in bytes.chunks(1_000_003) {
        offset = one
            .append_log_here(lease(), offset, piece)
            .unwrap()
            .received;
    }
    assert_eq!(put(&one, offset, b"").unwrap(), bytes.len() as u64);
    let files = names(&folder(&one));
    let segments = [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES].map(|start| format!("seg-{start:020}"));
    assert_eq!(files[1..], segments);
    assert!(read(&two) == bytes);
    let across = (SEGMENT_BYTES - 5) as usize..(SEGMENT_BYTES + 5) as usize;
    assert_eq!(
        put(&two, across.start as u64, &bytes[across]).unwrap(),
        bytes.len() as u64
    );
    let hash = digest(&bytes);
    assert!(two.log_has_hash(lease(), bytes.len() as u64, &hash));
}

#[test]
fn what_a_server_that_died_had_received_counts_when_it_was_sent_again() {
    // A27, promise 2: nothing behind the mark is called stored before it is.
    let (_folder, one, two) = pair();
    one.make_log(lease()).unwrap();
    put(&one, 0, b"abc").unwrap();
    leave_tail(&folder(&one), b"def");
    let cursors = two.log_cursors(lease()).unwrap().unwrap();
    assert_eq!((cursors.received, cursors.stored), (3, 3));
    assert_eq!(read(&two), b"abcdef");
    assert_eq!(put(&two, 3, b"de").unwrap(), 5);
    assert_eq!(put(&two, 5, b"fg").unwrap(), 7);
    assert_eq!(read(&one), b"abcdefg");
}

#[test]
fn a_torn_tail_is_written_over_by_what_the_holder_sends_again() {
    // A power cut: the file is longer than what was synced, and what is there is not what was sent.
    let (_folder, one, two) = pair();
    one.make_log(lease()).unwrap();
    put(&one, 0, b"abc").unwrap();
    leave_tail(&folder(&one), b"d\0\0\0\0");
    std::fs::write(path(&folder(&one), 20), b"behind a break").unwrap();
    assert_eq!(put(&two, 1, b"bcdef").unwrap(), 6);
    assert_eq!(read(&two), b"abcdef");
    assert_eq!(put(&one, 6, b"g").unwrap(), 7);
    assert_eq!(read(&two), b"abcdefg");
    let differs = put(&two, 3, b"X").unwrap_err();
    assert!(matches!(differs, AppendError::Differs { expected: 7 }));
}

#[test]
fn a_server_that_died_after_it_began_a_segment_leaves_a_log_that_goes_on() {
    let (_folder, one, two) = pair();
    one.make_log(lease()).unwrap();
    let bytes = vec![7; SEGMENT_BYTES as usize];
    put(&one, 0, &bytes).unwrap();
    std::fs::write(path(&folder(&one), SEGMENT_BYTES), b"").unwrap();
    assert_eq!(put(&two, SEGMENT_BYTES, b"on").unwrap(), SEGMENT_BYTES + 2);
    assert_eq!(read(&one)[bytes.len()..], *b"on");
}

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

#[test]
fn whatever_is_sent_twice_torn_or_elsewhere_the_log_is_what_the_holder_has() {
    // A27, I25: two servers, overlaps, gaps, and tails as a power cut leaves them.
    let bytes: Vec<u8> = (0..SEGMENT_BYTES * 5 / 2)
        .map(|n| (n * n % 255) as u8)
        .collect();
    for seed in 1..=2 {
        let (_folder, one, two) = pair();
        one.make_log(lease()).unwrap();
        let mut dice = Dice(seed);
        // How far the holder has got, and what it may not have any more.
        let (mut at, mut trimmed) = (0_u64, 0_u64);
        while trimmed < bytes.len() as u64 {
            let server = if dice.roll(2) == 0 { &one } else { &two };
            let back = dice.roll(3) * dice.roll(50_000);
            let from = at.saturating_sub(back).max(trimmed);
            let to = (from + dice.roll(1_600_000)).min(bytes.len() as u64);
            let piece = &bytes[from as usize..to as usize];
            let sent = match dice.roll(4) {
                0 => server.store_log(lease(), from, piece),
                _ => server.append_log_here(lease(), from, piece),
            };
            let cursors = sent.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            (at, trimmed) = (cursors.received, trimmed.max(cursors.stored));
            if dice.roll(10) == 0 && at < bytes.len() as u64 {
                // Everything is on disk and the lock is free: now the power goes.
                let stored = server.store_log(lease(), at, b"").unwrap().stored;
                let last = segments::list(&folder(&one)).unwrap().segments;
                let last = path(&folder(&one), last.last().unwrap().start);
                let mut options = std::fs::OpenOptions::new();
                let mut last = options.append(true).open(last).unwrap();
                last.write_all(&vec![0; dice.roll(5_000) as usize]).unwrap();
                at = stored;
            }
            let gap = server.append_log_here(lease(), at + 10_000_000, b"x");
            assert!(
                matches!(gap, Err(AppendError::Gap { .. })),
                "seed {seed}: {gap:?}"
            );
        }
        assert!(read(&one) == bytes, "seed {seed}");
    }
}

#[test]
fn a_holder_that_trimmed_what_was_stored_goes_on_though_the_mark_is_older() {
    // The mark is written after a sync and may be lost; what it stood for is not.
    let (_folder, one, two) = pair();
    one.make_log(lease()).unwrap();
    put(&one, 0, b"abcdef").unwrap();
    std::fs::write(folder(&one).join("lock"), b"").unwrap();
    assert_eq!(two.log_cursors(lease()).unwrap().unwrap().stored, 0);
    assert_eq!(put(&two, 6, b"ghi").unwrap(), 9);
    assert_eq!(read(&one), b"abcdefghi");
}

#[test]
fn bytes_that_could_not_be_synced_are_asked_for_again() {
    // F44: a disk that failed may have forgotten what it had.
    let (_folder, one, _two) = pair();
    one.make_log(lease()).unwrap();
    put(&one, 0, b"abc").unwrap();
    let mut writing = writing::Writing::begin(&folder(&one)).unwrap();
    writing.append(&folder(&one), 100, 3, b"def").unwrap();
    let being_synced = writing.unsynced();
    writing.roll_back(&folder(&one)).unwrap();
    assert_eq!(writing.cursors().received, 3);
    // What was being synced meanwhile proves nothing about what is there now.
    writing.append(&folder(&one), 100, 3, b"x").unwrap();
    writing.synced(&being_synced);
    let cursors = writing.cursors();
    assert_eq!((cursors.received, cursors.stored), (4, 3));
    drop(writing);
    assert_eq!(read(&one), b"abcx");
}

#[test]
fn a_store_that_fails_takes_what_it_can_and_goes_on_when_it_is_back() {
    // F44: something is in the way of the next segment.
    let (_folder, one, two) = pair();
    one.make_log(lease()).unwrap();
    let bytes: Vec<u8> = (0..SEGMENT_BYTES + 10).map(|n| (n % 253) as u8).collect();
    let in_the_way = path(&folder(&one), SEGMENT_BYTES);
    std::fs::create_dir(&in_the_way).unwrap();
    let failed = put(&one, 0, &bytes).unwrap_err();
    assert!(matches!(failed, AppendError::Io(_)), "{failed:?}");
    let cursors = one.log_cursors(lease()).unwrap().unwrap();
    assert_eq!(cursors.received, SEGMENT_BYTES);
    std::fs::remove_dir(in_the_way).unwrap();
    assert_eq!(put(&two, 0, &bytes).unwrap(), bytes.len() as u64);
    assert!(read(&one) == bytes);
}

#[test]
fn a_flood_beyond_the_quota_is_counted() {
    // T24
    let (_folder, mut one, _two) = pair();
    one.logs.quota = 10;
    one.make_log(lease()).unwrap();
    let mut watch = one.watch_log(lease());
    put(&one, 0, &[7; 20]).unwrap();
    for n in 1..1_000 {
        assert_eq!(put(&one, n * 20, &[7; 20]).unwrap(), (n + 1) * 20);
    }
    let cursors = watch.cursors();
    assert_eq!((cursors.stored, cursors.cut), (20_000, true));
    assert_eq!(one.log_extent(lease()).unwrap().bytes, 10);
}

#[test]
fn a_log_beyond_its_quota_is_cut_once_and_says_so() {
    // T24, D15
    let (_folder, mut one, mut two) = pair();
    (one.logs.quota, two.logs.quota) = (10, 10);
    one.make_log(lease()).unwrap();
    assert_eq!(put(&one, 0, b"0123456789").unwrap(), 10);
    assert_eq!(one.log_extent(lease()).unwrap().readable, 10, "just full");
    let cursors = one.append_log_here(lease(), 8, b"89abc").unwrap();
    assert_eq!((cursors.received, cursors.cut), (13, true));
    assert_eq!(put(&one, 13, b"dropped").unwrap(), 20);
    assert_eq!(put(&two, 20, b"too").unwrap(), 23);
    let extent = two.log_extent(lease()).unwrap();
    assert_eq!((extent.bytes, extent.cut), (10, true));
    let text = String::from_utf8(read(&two)).unwrap();
    assert!(
        text.starts_with("0123456789\n[delta-ci: the log was cut here"),
        "{text}"
    );
    assert_eq!(text.matches("cut here").count(), 1);
    assert_eq!(text.len() as u64, extent.readable);
    assert!(cut_path(&folder(&one), 10).exists());
    let differs = put(&one, 0, b"X").unwrap_err();
    assert!(matches!(differs, AppendError::Differs { .. }));
}

#[test]
fn many_logs_are_stored_without_anybody_asking() {
    let (_folder, one, _two) = pair();
    let leases: Vec<LeaseKey> = (1..40).map(|n| lease().attempt.lease(n)).collect();
    for lease in &leases {
        one.make_log(*lease).unwrap();
        one.append_log_here(*lease, 0, b"line\n").unwrap();
    }
    for lease in leases {
        eventually(PATIENCE, "stored", || {
            let cursors = one.log_cursors(lease).unwrap().unwrap();
            (cursors.stored == 5).then_some(()).ok_or(cursors)
        });
    }
}

#[test]
fn a_hash_is_taken_anew_when_another_server_added_bytes() {
    let (_folder, one, two) = pair();
    one.make_log(lease()).unwrap();
    put(&one, 0, b"abc").unwrap();
    assert!(!one.log_has_hash(lease(), 3, &digest(b"abcdef")));
    put(&two, 3, b"def").unwrap();
    assert!(one.log_has_hash(lease(), 6, &digest(b"abcdef")));
    assert!(one.log_has_hash(lease(), 3, &digest(b"abc")));
    assert!(!one.log_has_hash(lease(), 99, &digest(b"abc")));
}

fn digest(bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(aws_lc_rs::digest::digest(&SHA256, bytes).as_ref());
    digest
}
