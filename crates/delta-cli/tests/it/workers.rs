//! The processes behind planning, as a server starts them: one order in, one answer out.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use delta_testkit::disk::Mounted;
use serde_json::{Value, json};

use crate::support::worker;

/// Where this server stops by itself, whoever still listens.
const MOST: u64 = 2 << 30;

/// A git server whose list of refs has no end, and how much of it was taken.
fn endless() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Whoever is cut off has had enough.
            let _ = list(stream, &counted);
        }
    });
    (format!("http://{address}/endless.git"), sent)
}

fn list(mut stream: TcpStream, sent: &AtomicU64) -> std::io::Result<()> {
    let _ = stream.read(&mut [0; 4096])?;
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\
                Content-Type: application/x-git-upload-pack-advertisement\r\n\r\n\
                001e# service=git-upload-pack\n0000";
    stream.write_all(head.as_bytes())?;
    let mut number = 0_u64;
    while sent.load(Ordering::Relaxed) < MOST {
        let mut many = String::new();
        for _ in 0..1000 {
            number += 1;
            let line = format!("{} refs/heads/{number:0>150}\n", "a".repeat(40));
            many.push_str(&format!("{:04x}{line}", line.len() + 4));
        }
        stream.write_all(many.as_bytes())?;
        sent.fetch_add(many.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}

fn fetched(order: &Value) -> Value {
    let output = worker("fetch-worker", order);
    serde_json::from_slice(&output.stdout).expect("an answer")
}

fn order(mirror: &Path, url: &str) -> Value {
    json!({"mirror": mirror, "url": url, "git_ref": "refs/heads/main"})
}

#[test]
fn a_git_server_without_end_is_not_heard_to_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let (url, sent) = endless();
    let answer = fetched(&order(&folder.path().join("mirror"), &url));
    assert!(answer["failed"].is_string(), "{answer}");
    let taken = sent.load(Ordering::Relaxed);
    assert!(taken < MOST / 2, "{} MiB were taken", taken >> 20);
}

// What a fetch that was killed left is given back when room is short, not kept for ever.
#[test]
fn a_disk_that_a_fetch_filled_is_made_room_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Mounted::of(folder.path(), "320m").expect("a small disk");
    let mirror = folder.path().join("mirror");
    let left = mirror.join("objects/pack/tmp_pack_abc");
    std::fs::create_dir_all(left.parent().expect("a folder")).expect("folders");
    std::fs::write(&left, vec![1_u8; 100 << 20]).expect("what was left");
    let mut order = order(&mirror, "http://127.0.0.1:9/nobody.git");
    order["commit"] = json!("a".repeat(40));
    let answer = fetched(&order);
    let why = answer["failed"].as_str().expect("nobody is there");
    assert!(!why.contains("the disk has"), "{why}");
    assert!(!left.exists());
    drop(disk);
}
