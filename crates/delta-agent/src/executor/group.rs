//! Process groups of one attempt: asking them to end, ending them, the proof that they are gone.
//!
//! Each step leads a group of its own. A group is forgotten as soon as it is seen empty, because
//! its number may then be given to somebody else.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// The groups that may still have members.
#[derive(Debug, Default)]
pub(super) struct Groups {
    leaders: Vec<Pid>,
}

impl Groups {
    /// `leader` is the process number of a child started as the leader of a new group.
    pub fn add(&mut self, leader: u32) {
        if let Some(pid) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
            self.leaders.push(pid);
        }
    }

    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
        // A stopped process hears TERM only when it continues.
        self.signal(Signal::CONT);
    }

    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    /// Forgets empty groups; true when none is left.
    pub fn all_gone(&mut self) -> bool {
        self.leaders
            .retain(|leader| test_kill_process_group(*leader) != Err(Errno::SRCH));
        self.leaders.is_empty()
    }

    /// Like [`Groups::all_gone`], but zombies count as gone: where nobody reaps orphans (a box
    /// without an init) a dead group answers to signals for ever. Right only after
    /// [`Groups::kill`]: a member that may still fork can slip through a scan of `/proc`.
    pub fn all_dead(&mut self) -> bool {
        if !self.all_gone() {
            self.leaders.retain(|leader| has_live_member(*leader));
        }
        self.leaders.is_empty()
    }

    fn signal(&mut self, signal: Signal) {
        self.leaders
            .retain(|leader| kill_process_group(*leader, signal) != Err(Errno::SRCH));
    }
}

/// Whoever abandons an attempt half way leaves nothing running.
impl Drop for Groups {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether a member of the group is more than a zombie. Where there is no `/proc` to ask, the
/// answer is yes.
fn has_live_member(leader: Pid) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return true;
    };
    let mut seen_any = false;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        seen_any = true;
        if let Some((state, group)) = state_and_group(&stat)
            && group == leader.as_raw_nonzero().get()
            && !matches!(state, "Z" | "X" | "x")
        {
            return true;
        }
    }
    !seen_any
}

/// Fields 3 and 5 of `/proc/PID/stat`; the name before them may itself contain blanks and brackets.
fn state_and_group(stat: &str) -> Option<(&str, i32)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    Some((state, group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_hide_the_group() {
        let stat = "42 (a) b (c)) S 1 77 77 0 -1 4194560";
        assert_eq!(state_and_group(stat), Some(("S", 77)));
        assert_eq!(state_and_group("garbage"), None);
    }

    #[test]
    fn a_group_that_never_was_is_gone() {
        let mut groups = Groups::default();
        groups.add(0x7fff_fff0);
        groups.terminate();
        assert!(groups.all_gone());
    }
}
