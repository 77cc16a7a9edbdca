//! Disks that are full, servers that hang or are not there, and checkouts that are stopped.

use std::os::unix::fs::PermissionsExt;

use delta_core::Cause;
use delta_testkit::proxy::HttpProxy;
use delta_testkit::wait::eventually_async;

use super::*;

// EP-40
#[tokio::test]
async fn a_host_that_is_not_there_is_said_so() {
    let port = delta_testkit::port::free_port().expect("a port");
    let bench = Bench::new(&format!("http://127.0.0.1:{port}/app.git"));
    let out = bench.checkout().await;
    assert_eq!(out.failed().cause, Cause::Clone);
    let says = format!("127.0.0.1:{port} cannot be reached");
    assert!(out.failed().summary.contains(&says), "{out:?}");
    let hub = Hub::start();
    let out = Bench::new(&hub.http.url("nothing.git")).checkout().await;
    assert!(
        out.failed().summary.contains("no such repository"),
        "{out:?}"
    );
}

#[tokio::test]
async fn a_machine_without_git_is_said_so() {
    let mut bench = Bench::new("https://host.example/app.git");
    bench.settings.git = "/nowhere/git".into();
    let out = bench.checkout().await;
    assert_eq!(out.failed().cause, Cause::Clone);
    assert!(
        out.failed().summary.contains("git is not installed"),
        "{out:?}"
    );
}

/// Whether a process of this machine works in the folder.
fn is_at_work(folder: &Path) -> bool {
    let folder = folder.display().to_string();
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    processes
        .filter_map(|it| fs::read(it.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(&folder))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_ends_the_checkout_in_time() {
    let hub = Hub::start();
    let proxy = HttpProxy::start(hub.http.addr(), 1).expect("a proxy");
    let held = proxy.hold_response("/app.git/git-upload-pack");
    let mut bench = Bench::new(&format!("{}/app.git", proxy.url())).at(&hub.commits[0]);
    bench.settings.time_limit = Duration::from_secs(2);
    let out = bench.checkout().await;
    assert_eq!(out.failed().cause, Cause::Clone);
    assert!(out.failed().summary.contains("longer than 2 s"), "{out:?}");
    assert!(held.has_arrived());
    assert_left_alone(&bench).await;
}

/// No process is left, and nothing that somebody could go on with.
async fn assert_left_alone(bench: &Bench) {
    let look = async || {
        if is_at_work(bench.folder.path()) {
            Err("a process is at work")
        } else {
            Ok(())
        }
    };
    eventually_async(PATIENCE, "git and its children are gone", look).await;
    assert_eq!(bench.kept("trusted"), Vec::<PathBuf>::new());
    let look = async || match bench.kept("gone") {
        left if left.is_empty() => Ok(()),
        left => Err(left),
    };
    eventually_async(PATIENCE, "what was begun is removed", look).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkout_that_is_stopped_leaves_no_process_and_nothing_kept() {
    let hub = Hub::start();
    let proxy = HttpProxy::start(hub.http.addr(), 1).expect("a proxy");
    let held = proxy.hold_response("/app.git/git-upload-pack");
    let bench = Bench::new(&format!("{}/app.git", proxy.url())).at(&hub.commits[0]);
    tokio::select! {
        out = bench.checkout() => panic!("the server hangs: {out:?}"),
        () = held.arrived(PATIENCE) => {}
    }
    assert_left_alone(&bench).await;
    let tmp = bench.folder.path().join("attempt-0/tmp");
    assert_eq!(fs::read_dir(tmp).expect("a folder").count(), 0);
    held.release();
    bench.checkout().await.expect();
}

/// A file system of this size, where we may have one.
struct Small(PathBuf);

impl Small {
    fn mount(place: &Path, kilobytes: u32) -> Small {
        fs::create_dir_all(place).expect("a folder");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kilobytes}k"), "tmpfs"])
            .arg(place)
            .status();
        assert!(mounted.expect("mount").success());
        Small(place.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let ended = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .status();
        assert!(ended.is_ok_and(|it| it.success()) || std::thread::panicking());
    }
}

/// git on a disk that takes nothing more: what it says then, without the disk.
fn git_without_room(folder: &Path) -> PathBuf {
    let program = folder.join("git");
    let text = "#!/bin/sh\ncase \"$*\" in *fetch*) \
                echo 'fatal: write error: No space left on device' >&2; exit 128;; esac\n\
                exec git \"$@\"\n";
    fs::write(&program, text).expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
    program
}

// EP-42, F43
#[tokio::test]
async fn a_full_disk_is_its_own_cause_and_gets_its_space_back() {
    let hub = Hub::start();
    // Bytes that do not shrink.
    let mut noise = vec![0_u8; 3 << 20];
    getrandom::fill(&mut noise).expect("noise");
    fs::write(hub.app.work().join("large"), noise).expect("a file");
    let commit = hub.app.publish("a large file").expect("a commit");
    let mut bench = Bench::new(&hub.url()).at(&commit);
    let root = bench.folder.path().join("small");
    // Only root may make a file system; others see how the words are read.
    let small = rustix::process::geteuid()
        .is_root()
        .then(|| Small::mount(&root, 2048));
    if small.is_none() {
        bench.settings.git = git_without_room(bench.folder.path());
    }
    let out = bench.checkout_at(&root).await;
    let failed = out.failed();
    assert_eq!(failed.cause, Cause::DiskFull, "{out:?}");
    assert!(failed.summary.contains("the disk is full; "), "{failed:?}");
    assert!(failed.summary.contains(" bytes are free"), "{failed:?}");
    if small.is_none() {
        assert_eq!(bench.kept("trusted"), Vec::<PathBuf>::new());
    }
    assert_eq!(fs::read_dir(&out.tmp).expect("a folder").count(), 0);
    drop(small);
}

// EP-42, F43
#[tokio::test]
async fn a_cache_that_does_not_fit_on_the_disk_is_given_up() {
    let hub = Hub::start();
    let mut bench = Bench::new(&hub.url()).at(&hub.commits[0]);
    bench.checkout().await.expect();
    assert_eq!(bench.kept("trusted").len(), 1);
    bench.settings.git = git_without_room(bench.folder.path());
    let out = bench.at(&hub.commits[1]);
    let failed = out.checkout().await;
    assert_eq!(failed.failed().cause, Cause::DiskFull);
    assert_eq!(out.kept("trusted").len(), 0);
}
