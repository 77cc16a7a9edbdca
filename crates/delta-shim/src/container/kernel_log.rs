//! What the kernel's own log says of whom it ended for want of memory: the one witness that names
//! the control group, and so the container, also when nothing of it is left. Not everybody may read
//! it, and it says nothing of those that come too fast one behind the other.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;

const FILE: &str = "/dev/kmsg";

/// Bytes of one record: the kernel has none that are longer.
const MAX_RECORD: usize = 8 * 1024;

/// Records that are looked at: more were never written while a step runs, but by somebody who wants
/// to keep us reading.
const MAX_RECORDS: usize = 100_000;

/// The log from a moment on.
pub(super) struct KernelLog {
    file: File,
    named: Named,
    /// Records were overwritten before they were read.
    cut: bool,
}

/// Ends for want of memory, as far as the log names whose they were.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Named {
    pub own: u64,
    pub others: u64,
}

impl KernelLog {
    /// From now on; nothing where this user may not read it.
    pub fn from_now() -> Option<KernelLog> {
        let mut options = File::options();
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).ok()?;
        let file = options.read(true).custom_flags(flags).open(FILE).ok()?;
        seek(&file, SeekFrom::End(0)).ok()?;
        Some(KernelLog {
            file,
            named: Named::default(),
            cut: false,
        })
    }

    /// What it says until now of the container with this id; nothing where a part of it is lost.
    pub fn named(&mut self, id: &str) -> Option<Named> {
        let mut record = [0; MAX_RECORD];
        for _ in 0..MAX_RECORDS {
            match self.file.read(&mut record) {
                Ok(0) => break,
                Ok(length) => self
                    .named
                    .note(&String::from_utf8_lossy(&record[..length]), id),
                Err(problem) if problem.kind() == io::ErrorKind::Interrupted => {}
                Err(problem) if problem.raw_os_error() == Some(Errno::PIPE.raw_os_error()) => {
                    self.cut = true;
                }
                Err(_) => break,
            }
        }
        // What it said of this container is true all the same.
        (self.named.own > 0 || !self.cut).then_some(self.named)
    }
}

impl Named {
    fn note(&mut self, record: &str, id: &str) {
        let Some((_, about)) = record.split_once("oom-kill:") else {
            return;
        };
        let mut groups = about
            .split(',')
            .filter_map(|part| part.strip_prefix("task_memcg="));
        if groups.any(|group| group.contains(id)) {
            self.own += 1
        } else {
            self.others += 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_by_the_group_of_whom_it_was() {
        let record = |group: &str| {
            format!(
                "6,1520,98765432,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,\
                 mems_allowed=0,oom_memcg=/docker/{group},task_memcg=/docker/{group},task=sh,\
                 pid=77,uid=0"
            )
        };
        let mut named = Named::default();
        for text in [
            record("abc"),
            record("def"),
            "6,1,2,-;eth0: up".to_owned(),
            "6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/user,task=x"
                .to_owned(),
        ] {
            named.note(&text, "abc");
        }
        assert_eq!(named, Named { own: 1, others: 2 });
    }
}
