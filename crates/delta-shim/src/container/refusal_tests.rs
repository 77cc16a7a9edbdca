//! What docker and podman really said, and whose fault it was.

use std::os::unix::process::ExitStatusExt;

use super::*;

/// The words before the reason, as the daemon and runc say them.
const DOCKER: &str = "docker: Error response from daemon: ";
const SHIM: &str =
    "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: ";
const RUNC: &str = "runc create failed: unable to start container process: ";
const PODMAN: &str = "Error: runc: runc create failed: unable to start container process: ";

struct Row {
    /// How the program ended.
    code: i32,
    said: &'static [&'static str],
    cause: Cause,
    why: &'static str,
}

const fn row(code: i32, said: &'static [&'static str], cause: Cause, why: &'static str) -> Row {
    Row {
        code,
        said,
        cause,
        why,
    }
}

const NOT_FOUND: &str = "exec: \"nosuch\": executable file not found in $PATH: ";
const GONE: &str = "OCI runtime attempted to invoke a command that was not found";
const QUOTA: &str = "Error: CPU cfs quota cannot be less than 1ms (i.e. 1000)";
const ONTO: &str = "error during container init: error mounting \"/w/a\" to rootfs at \
     \"/etc/passwd\": not a directory: unknown: Are you trying to mount a directory onto a file \
     (or vice-versa)?";
const USAGE: &str = "invalid argument \"many\" for \"--cpus\" flag: failed to parse many as a \
     rational number\n\nUsage:  docker run [OPTIONS] IMAGE\n\nRun 'docker run --help' for more";

const OF_THE_FILE: &[Row] = &[
    row(
        127,
        &[SHIM, RUNC, NOT_FOUND, "unknown"],
        Cause::SpecError,
        "no program",
    ),
    row(
        127,
        &[PODMAN, NOT_FOUND, GONE],
        Cause::SpecError,
        "no program",
    ),
    row(
        127,
        &[
            "docker: Error response from daemon: OCI runtime create failed: \
                 container_linux.go:380: starting container process caused: ",
            NOT_FOUND,
            "unknown.\nSee 'docker run --help'.",
        ],
        Cause::SpecError,
        "no program, as an older runc says it",
    ),
    row(
        127,
        &[
            "Error: crun: executable file `nosuch` not found in $PATH: No such file: ",
            GONE,
        ],
        Cause::SpecError,
        "no program, as crun says it",
    ),
    row(
        126,
        &[
            SHIM,
            RUNC,
            "exec: \"/etc/passwd\": permission denied: unknown",
        ],
        Cause::SpecError,
        "a file that is no program",
    ),
    row(
        126,
        &[
            PODMAN,
            "exec: \"/etc\": permission denied: OCI permission denied",
        ],
        Cause::SpecError,
        "a folder",
    ),
    row(
        125,
        &[
            DOCKER,
            "unable to find user x: no matching entries in passwd file",
        ],
        Cause::SpecError,
        "a user that the image does not have",
    ),
    row(
        126,
        &["Error: unable to find group x: no matching entries in group file"],
        Cause::SpecError,
        "a group that the image does not have",
    ),
    row(
        125,
        &[DOCKER, "Minimum memory limit allowed is 6MB"],
        Cause::SpecError,
        "too little memory",
    ),
    row(
        126,
        &[
            "Error: OCI runtime error: runc: ",
            RUNC,
            "error during container init: error setting cgroup config for procHooks process: \
                 unable to set memory limit to 1048576 (current usage: 2695168)",
        ],
        Cause::SpecError,
        "less memory than a container begins with",
    ),
    row(
        125,
        &[QUOTA],
        Cause::SpecError,
        "less of a processor than there can be",
    ),
    row(
        125,
        &[DOCKER, "Duplicate mount point: /x"],
        Cause::SpecError,
        "two mounts at one place",
    ),
    row(
        125,
        &["Error: /x: duplicate mount destination"],
        Cause::SpecError,
        "two mounts at one place",
    ),
    row(
        125,
        &[SHIM, RUNC, ONTO],
        Cause::SpecError,
        "a mount over a file of the image",
    ),
    row(
        125,
        &[
            DOCKER,
            "invalid mount config: invalid mount path: 'x' mount path must be absolute",
        ],
        Cause::SpecError,
        "a mount that is nowhere",
    ),
    row(
        125,
        &["docker: invalid reference format: must be lowercase"],
        Cause::SpecError,
        "no image's name",
    ),
    row(
        125,
        &["Error: invalid reference format"],
        Cause::SpecError,
        "no image's name",
    ),
    row(
        125,
        &["docker: invalid env file (/dev/stdin): variable 'A B' contains whitespaces"],
        Cause::SpecError,
        "no variable's name",
    ),
    row(
        125,
        &[USAGE],
        Cause::SpecError,
        "a value that its flag does not take",
    ),
];

const RLIMIT: &str = "error during container init: error setting rlimits for ready process: error \
     setting rlimit type 7: operation not permitted: ";
const PROC: &str = "error during container init: error mounting \"proc\" to rootfs at \"/proc\": \
     permission denied: ";
const SOURCE: &str = "error during container init: error mounting \"/w/a\" to rootfs at \"/a\": \
     no such file or directory: OCI runtime attempted to invoke a command that was not found";
const PIDS: &str = "error during container init: error setting cgroup config for procHooks \
     process: failed to write \"9\": write /sys/fs/cgroup/pids/x/pids.max: invalid argument: ";
const RUNTIME: &str = "unable to retrieve OCI runtime error (open /x/log.json: no such file or \
     directory): fork/exec /usr/sbin/runc: no such file or directory: unknown";
const INIT: &str = "exec: \"docker-init\": executable file not found in $PATH";
const DEVICE: &str = "error gathering device information while adding custom device \"/dev/x\": \
     no such file or directory";
const RANGE: &str = "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available";
const POOL: &str = "Error response from daemon: could not find an available, non-overlapping IPv4 \
     address pool among the defaults to assign to the network";
const OOM: &str = "container init was OOM-killed (memory limit too low?): unknown";

const OF_THE_MACHINE: &[Row] = &[
    row(
        126,
        &[PODMAN, RLIMIT, "OCI permission denied"],
        Cause::StartUp,
        "a limit the kernel refuses",
    ),
    row(
        125,
        &[SHIM, RUNC, RLIMIT, "unknown"],
        Cause::StartUp,
        "a limit the kernel refuses",
    ),
    row(
        126,
        &[SHIM, RUNC, PROC, "unknown"],
        Cause::StartUp,
        "the kernel refuses its mount",
    ),
    row(
        126,
        &[PODMAN, PROC, "OCI permission denied"],
        Cause::StartUp,
        "the kernel refuses its mount",
    ),
    row(
        127,
        &[PODMAN, SOURCE],
        Cause::StartUp,
        "the agent made the SOURCE, and it is gone",
    ),
    row(
        125,
        &[SHIM, RUNC, PIDS, "unknown"],
        Cause::StartUp,
        "a control group refuses it",
    ),
    row(127, &[SHIM, RUNTIME], Cause::StartUp, "no runc here"),
    row(127, &[DOCKER, INIT], Cause::StartUp, "no docker-init here"),
    row(
        125,
        &["Error: lookup init binary: ", INIT],
        Cause::StartUp,
        "no catatonit here",
    ),
    row(
        127,
        &[DOCKER, DEVICE],
        Cause::StartUp,
        "a device that is not here",
    ),
    row(
        125,
        &[DOCKER, RANGE],
        Cause::StartUp,
        "another machine may have more",
    ),
    row(
        125,
        &[DOCKER, "Unknown runtime specified x"],
        Cause::StartUp,
        "a runtime not set up here",
    ),
    row(
        125,
        &["Error: default OCI runtime \"x\" not found: invalid argument"],
        Cause::StartUp,
        "a runtime not set up here",
    ),
    row(
        125,
        &[
            DOCKER,
            "invalid mount config for type \"bind\": bind source path does not exist: /a",
        ],
        Cause::StartUp,
        "the agent made it; the daemon is elsewhere",
    ),
    row(
        125,
        &[DOCKER, "network delta-ci-x not found"],
        Cause::StartUp,
        "the agent had made it",
    ),
    row(1, &[POOL], Cause::StartUp, "no address is left"),
    row(
        125,
        &[SHIM, RUNC, OOM],
        Cause::StartUp,
        "a question is no answer",
    ),
    row(
        125,
        &[SHIM, RUNC, "exec: \"/a\": input/output error: unknown"],
        Cause::StartUp,
        "a disk that fails",
    ),
    row(
        126,
        &[SHIM, RUNC, "exec /bin/sh: exec format error"],
        Cause::StartUp,
        "another processor",
    ),
    row(
        125,
        &["unknown flag: --pull\nSee 'docker run --help'."],
        Cause::StartUp,
        "an old docker",
    ),
    row(
        125,
        &["Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?"],
        Cause::StartUp,
        "nobody there",
    ),
    row(125, &["something else"], Cause::StartUp, "doubt"),
    row(
        125,
        &[DOCKER, "No such image: nosuch:1"],
        Cause::Image,
        "an image that went meanwhile",
    ),
    row(
        125,
        &["Error: nosuch:1: image not known"],
        Cause::Image,
        "an image that went meanwhile",
    ),
    row(
        125,
        &[DOCKER, "write /x: no space left on device"],
        Cause::DiskFull,
        "the disk",
    ),
];

/// As it is judged when nothing is known of a want of memory.
fn judged(entrypoint: Option<&str>, code: i32, complaint: &str) -> (Cause, String) {
    let begun = not_begun("box:1", entrypoint, exit(code), complaint);
    begun.map_or_else(
        |refused| refused,
        |code| early_end("the container", code, ContainerState::Gone, None),
    )
}

fn exit(code: i32) -> ExitStatus {
    ExitStatus::from_raw(code << 8)
}

// EP-43
#[test]
fn what_docker_and_podman_say_has_its_cause() {
    for row in OF_THE_FILE.iter().chain(OF_THE_MACHINE) {
        let said = row.said.concat();
        let about = format!("{}: {} {said}", row.why, row.code);
        let (cause, summary) = no_service("db", &said);
        assert_eq!(cause, row.cause, "a service: {about}");
        assert!(!summary.ends_with("--help'."), "{summary}");
        for entrypoint in [None, Some("nosuch")] {
            let (cause, summary) = judged(entrypoint, row.code, &said);
            // Only a container ends with other codes, and not with the program's own words.
            if row.code >= OWN_FAILURE {
                assert_eq!(cause, row.cause, "the job: {about}");
                assert!(!summary.contains("before the first step"), "{summary}");
            }
        }
    }
}

#[test]
fn what_the_first_process_inside_says_is_the_images() {
    let tini = "[FATAL tini (7)] exec sh failed: No such file or directory";
    let catatonit = "ERROR (catatonit:6): failed to exec pid1: No such file or directory";
    for (code, said) in [(127, tini), (1, catatonit), (127, "")] {
        let (cause, summary) = judged(None, code, said);
        assert_eq!(cause, Cause::SpecError, "{said}");
        assert!(summary.contains("box:1 has no `sh`"), "{summary}");
    }
    let (cause, summary) = judged(Some("/in.sh"), 127, tini);
    assert_eq!(cause, Cause::SpecError);
    assert!(summary.contains("has no `/in.sh`"), "{summary}");
    // An entrypoint that ran, and did not find something itself.
    let said = "/in.sh: line 3: Error: nothing here";
    let ended = not_begun("box:1", Some("/in.sh"), exit(127), said);
    assert_eq!(ended, Ok(127), "it had begun");
    assert_eq!(judged(Some("/in.sh"), 127, said).0, Cause::SpecError);
    assert_eq!(judged(None, 3, "").0, Cause::SpecError);
    let other = "[FATAL tini (7)] exec sh failed: Exec format error";
    assert_eq!(judged(None, 1, other).0, Cause::StartUp);
}

#[test]
fn a_container_that_somebody_ended_was_not_ended_by_its_file() {
    for code in [137, 143] {
        let (cause, summary) = judged(Some("x"), code, "");
        assert_eq!(cause, Cause::StartUp);
        let wanted = format!("the container ended with exit code {code} before the first step");
        assert_eq!(summary, wanted);
    }
}

#[test]
fn a_container_that_ran_out_of_memory_early_is_told_as_that() {
    let ended = |code, standing| early_end("the service db", code, standing, Some(24));
    let (cause, summary) = ended(1, ContainerState::Starved);
    assert_eq!(cause, Cause::OutOfMemory);
    let wanted = "the service db ran out of memory before the first step: the kernel ended a \
                  process of it; it may use 24 MiB";
    assert_eq!(summary, wanted);
    let (cause, summary) = ended(137, ContainerState::Suspected(2));
    assert_eq!(cause, Cause::OutOfMemory);
    let wanted = "the service db ended with exit code 137 before the first step, most likely for \
                  want of memory: the kernel ended 2 processes on this machine for that meanwhile; \
                  it may use 24 MiB";
    assert_eq!(summary, wanted);
    // What is nobody's for certain is not held against one that ended otherwise.
    let suspected = ContainerState::Suspected(2);
    assert_eq!(ended(1, suspected).0, Cause::SpecError);
    assert_eq!(ended(143, suspected).0, Cause::StartUp);
    assert_eq!(ended(137, ContainerState::Gone).0, Cause::StartUp);
}

#[test]
fn a_long_complaint_keeps_its_reason() {
    let long = format!(
        "{DOCKER}it is so: {}: the reason\n\nRun 'docker help'",
        "x".repeat(900)
    );
    let said = last_line(&long);
    assert!(
        said.starts_with("Error response from daemon: it is so: x"),
        "{said}"
    );
    assert!(said.ends_with("x: the reason"), "{said}");
    assert_eq!(said.chars().count(), FIRST_WORDS + LAST_WORDS + 3);
    assert_eq!(last_line("a\n\nSee 'docker run --help'."), "a");
}
