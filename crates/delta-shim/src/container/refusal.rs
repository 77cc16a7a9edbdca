//! Whose fault it is that there is no container: what the container program complains, judged.
//!
//! Its exit codes are no judges. 126 and 127 are to say that the program to be run in the container
//! cannot be, but docker and podman choose them by words such as "permission denied" and "no such
//! file", wherever in the machine these come from. So the file of a job is blamed for what it alone
//! can have caused, by words that say so; whatever else there is, is the machine's, and is tried
//! again.

use std::process::ExitStatus;

use delta_core::Cause;

use super::verdict::ContainerState;
use crate::verdict::counted;

/// Characters of what the program complained that fit into a sentence, from its beginning and from
/// its end: the reason is the last of the many that it names.
const FIRST_WORDS: usize = 100;
const LAST_WORDS: usize = 200;

/// What programs say when there is no daemon to talk to.
const NO_DAEMON: [&str; 6] = [
    "cannot connect to the docker daemon",
    "error during connect",
    "permission denied while trying to connect",
    "dial unix",
    "unable to connect to podman",
    "cannot connect to podman",
];

/// What they say of an image that is not there.
const NO_IMAGE: [&str; 4] = [
    "no such image",
    "unable to find image",
    "image not known",
    "image not found",
];

/// What they say of what the job asked for: users, limits, names of images, variables of services,
/// places of mounts.
const NOT_SO: [&str; 12] = [
    "no matching entries in passwd file",
    "no matching entries in group file",
    "minimum memory limit",
    "unable to set memory limit to",
    "cfs quota cannot be less than",
    "invalid reference format",
    "contains whitespace",
    "no variable name on line",
    "duplicate mount point",
    "duplicate mount destination",
    "mount path must be absolute",
    "are you trying to mount a directory onto a file",
];

/// How they say that it is the job's program that does not start: everything before that went well.
const NOT_EXECUTED: [&str; 7] = [
    "container process: exec: ",
    "container process caused: exec: ",
    "container process caused \"exec: ",
    "crun: executable file ",
    "crun: open executable",
    "failed to exec pid1: ",
    "[fatal tini ",
];

/// Why it does not, where that is the image's: any other reason is the machine's, such as a program
/// for another processor.
const NOT_IN_IMAGE: [&str; 5] = [
    "not found",
    "no such file or directory",
    "permission denied",
    "is a directory",
    "not a directory",
];

/// A program for another processor; the first process inside may be the one that says so.
const OTHER_FORMAT: &str = "exec format error";

/// How docker and podman begin what they say themselves; all else is said in the container.
const OWN_WORDS: [&str; 2] = ["docker: ", "Error: "];

/// Codes that they share: 125 is their own failure, the others are said to be the container's.
const OWN_FAILURE: i32 = 125;
const NOT_RUNNABLE: [i32; 2] = [126, 127];

/// A shell's way to say that somebody ended it, by KILL or by TERM.
const KILLED: i32 = 128 + 9;
const ENDED: [i32; 2] = [KILLED, 128 + 15];

/// Why a command of ours failed.
pub(super) fn failure(what: &str, complaint: &str) -> (Cause, String) {
    let said = complaint.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|it| said.contains(it));
    let last = last_line(complaint);
    if says(&NO_DAEMON) {
        let summary = format!("no container can be made, the daemon does not answer: {last}");
        return (Cause::StartUp, summary);
    }
    let cause = match () {
        () if says(&NO_IMAGE) => Cause::Image,
        () if said.contains("no space left on device") => Cause::DiskFull,
        () if says(&NOT_SO) || not_in_image(&said) || bad_value(&said) => Cause::SpecError,
        () => Cause::StartUp,
    };
    (cause, format!("{what}: {last}"))
}

/// The program to be run in the container is not in the image, or is none.
fn not_in_image(said: &str) -> bool {
    let marks = NOT_EXECUTED.iter().filter_map(|it| said.split_once(it));
    marks
        .map(|(_, why)| why.lines().next().unwrap_or(why))
        .any(|why| NOT_IN_IMAGE.iter().any(|it| why.contains(it)))
}

/// A flag's value is refused. Values are the job's; a flag that is unknown is ours.
fn bad_value(said: &str) -> bool {
    said.contains("invalid argument \"") && said.contains("\" flag")
}

/// Why a service was not started.
pub(super) fn no_service(name: &str, complaint: &str) -> (Cause, String) {
    failure(
        &format!("the service {name} could not be started"),
        complaint,
    )
}

/// Why there is no container of the job's, when its first process ended before any step; or the
/// code it ended with, where it had begun. Its program is what the job says, or our `sh`.
pub(super) fn not_begun(
    image: &str,
    entrypoint: Option<&str>,
    status: ExitStatus,
    complaint: &str,
) -> Result<i32, (Cause, String)> {
    let Some(code) = status.code() else {
        let summary = "the program that makes containers was ended".to_owned();
        return Err((Cause::AgentError, summary));
    };
    let own = complaint
        .lines()
        .any(|line| OWN_WORDS.iter().any(|it| line.starts_with(it)));
    let said = complaint.to_lowercase();
    let refused = code == OWN_FAILURE || own && NOT_RUNNABLE.contains(&code);
    let missing = match refused {
        true => not_in_image(&said),
        // Said by the first process inside, which is ours, or by what it became.
        false => not_in_image(&said) || entrypoint.is_none() && NOT_RUNNABLE.contains(&code),
    };
    if missing {
        let first = entrypoint.unwrap_or("sh");
        let summary = format!("the image {image} has no `{first}` that could be run");
        let last = last_line(complaint);
        let colon = if last.is_empty() { "" } else { ": " };
        return Err((Cause::SpecError, format!("{summary}{colon}{last}")));
    }
    if refused || said.contains(OTHER_FORMAT) {
        return Err(failure("the container could not be made", complaint));
    }
    Ok(code)
}

/// What ended a container that was there, before the first step. For want of memory, it is the
/// job's; one that was killed or told to end was so by somebody at the machine, as far as anybody
/// can say.
pub(super) fn early_end(
    what: &str,
    code: i32,
    standing: ContainerState,
    limit: Option<u64>,
) -> (Cause, String) {
    let ended = format!("{what} ended with exit code {code} before the first step");
    let limit = limit.map_or(String::new(), |limit| format!("; it may use {limit} MiB"));
    match standing {
        ContainerState::Starved => {
            let words = "ran out of memory before the first step: the kernel ended a process of it";
            (Cause::OutOfMemory, format!("{what} {words}{limit}"))
        }
        ContainerState::Suspected(kills) if code == KILLED => {
            let whom = counted(kills);
            let summary = format!(
                "{ended}, most likely for want of memory: the kernel ended {whom} on this machine \
                 for that meanwhile{limit}"
            );
            (Cause::OutOfMemory, summary)
        }
        _ if ENDED.contains(&code) => (Cause::StartUp, ended),
        _ => (Cause::SpecError, ended),
    }
}

/// The last thing it said that is not advice.
pub(super) fn last_line(complaint: &str) -> String {
    let mut lines = complaint.lines().map(str::trim);
    let is_advice = |line: &str| line.starts_with("Run '") || line.starts_with("See '");
    let line = lines.rfind(|line| !line.is_empty() && !is_advice(line));
    let line = line.unwrap_or("");
    let line = line.strip_prefix("docker: ").unwrap_or(line);
    let count = line.chars().count();
    if count <= FIRST_WORDS + LAST_WORDS {
        return line.to_owned();
    }
    let first: String = line.chars().take(FIRST_WORDS).collect();
    let last: String = line.chars().skip(count - LAST_WORDS).collect();
    format!("{first} … {last}")
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;
