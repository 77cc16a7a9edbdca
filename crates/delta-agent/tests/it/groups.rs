//! The control groups of attempts, real ones: where they are made, and that none is left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use delta_shim::program::ShimProgram;
use delta_shim::verdict::Outcome;
use delta_testkit::root;
use rustix::fs::{XattrFlags, setxattr};
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, PATIENCE, until};

/// The group of version 2 that this process is in.
fn home() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let point = mount.and_then(|line| line.split(' ').nth(4));
    let point = Path::new(point.expect("this test needs control groups of version 2"));
    let groups = fs::read_to_string("/proc/self/cgroup").expect("groups");
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    point.join(own.expect("a group"))
}

/// A group as systemd makes it for a unit with `Delegate=yes` and `DelegateSubgroup=agent`.
struct Unit(PathBuf);

impl Unit {
    fn make() -> Unit {
        root::required("a control group").expect("root");
        let unit = Unit(home().join(format!("delta-test-unit-{}", std::process::id())));
        fs::create_dir_all(unit.0.join("agent")).expect("groups");
        setxattr(&unit.0, "user.delegate", b"1", XattrFlags::empty()).expect("the mark");
        unit
    }

    /// A shim that is begun by an agent of that unit.
    fn shim(&self, shim: &ShimProgram) -> ShimProgram {
        let members = self.0.join("agent/cgroup.procs");
        let join = format!("echo 0 > {} && exec \"$0\" \"$@\"", members.display());
        let shim = shim.program.display().to_string();
        ShimProgram {
            program: "/bin/sh".into(),
            arguments: ["-c", &join, &shim].map(Into::into).to_vec(),
        }
    }

    fn inside(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.path().is_dir());
        let names = folders.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.collect()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        for folder in [self.0.join("agent"), self.0.clone()] {
            while fs::remove_dir(&folder).is_err() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// The group that an attempt's folder tells of.
fn told(bench: &Bench, file: &str) -> PathBuf {
    let path = bench.state.path().join("attempts/1").join(file);
    PathBuf::from(fs::read_to_string(path).expect("a group"))
}

#[tokio::test]
async fn the_groups_of_a_lost_shim_are_ended_and_removed() {
    root::required("a control group").expect("root");
    let bench = Bench::new(&["echo $PPID; echo up; (setsid sleep 600 &); sleep 600"]);
    let mut attempt = bench.start();
    bench.seen.wait_for("out up").await;
    let file = bench.state.path().join("attempts/1/group");
    until("its group is told", || file.exists()).await;
    let mut groups = vec![told(&bench, "group")];
    // Version 2 counts in the same one.
    if bench.state.path().join("attempts/1/memory").exists() {
        groups.push(told(&bench, "memory"));
    }
    assert!(groups.iter().all(|group| group.is_dir()), "{groups:?}");
    let seen = bench.seen.lines.lock().expect("lines").clone();
    let shim = seen.iter().find_map(|line| {
        let number = line.strip_prefix("out ")?.parse().ok()?;
        Pid::from_raw(number)
    });
    kill_process(shim.expect("a shim"), Signal::KILL).expect("killed");
    bench.ended(&mut attempt).await;
    until("they are gone", || {
        groups.iter().all(|group| !group.exists())
    })
    .await;
}

#[tokio::test]
async fn groups_are_made_beside_the_part_that_a_unit_puts_its_agent_into() {
    let unit = Unit::make();
    // The shim joins beside the work; what it starts from then on is born inside.
    let step = "until grep -q '^0::.*/delta-ci-' /proc/$PPID/cgroup; do sleep 0.01; done; \
                sh -c 'cat /proc/$PPID/cgroup'; (setsid sleep 600 &)";
    let mut bench = Bench::new(&[step, "cat /proc/self/cgroup"]);
    bench.program = unit.shim(&bench.program);
    let ended = bench.run().await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{}", ended.summary);
    assert!(ended.confirmed);
    let log = bench.log();
    let name = unit.0.file_name().expect("a name").to_string_lossy();
    assert!(log.contains(&format!("/{name}/delta-ci-")), "{log}");
    assert!(!log.contains("/agent/delta-ci-"), "{log}");
    until("its group is gone", || unit.inside() == ["agent"]).await;
}
