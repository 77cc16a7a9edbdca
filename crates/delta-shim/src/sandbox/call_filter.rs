//! Calls that the kernel refuses a job (seccomp): those by which processes of one user change each
//! other's limits and priorities, the one that would take a job's own mark away, and those by which
//! a job could leave something in the kernel for the next one of its user: keys, and what is shared
//! by a number or a name, where that is not the job's own.
//!
//! Rules of files do not govern these calls, and the kernel asks for the same user and no more. A
//! limit ends its process (memory, descriptors, time of the processor), so whoever sets one of the
//! agent's ends the agent. Reading goes on, and so does what a job does to itself.
//!
//! A call is known by the architecture it was made for and its number: a program for 32 bits on a
//! machine of 64 has numbers of its own, and gets the same answers. What is made for one that is
//! not in the table is not there at all.

use std::io;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{
    Resource, getpid, getpriority_process, getrlimit, prlimit, setpriority_process, setrlimit,
};
use seccompiler::{apply_filter, sock_filter};

use super::file_rules;

/// What a job may change of nobody but itself, or leave to nobody; each has what is above it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Own {
    Limits,
    /// Keys are not there.
    LimitsAndPriorities,
    /// Nor are segments, semaphores and queues of the kernel: where a job has no namespace for
    /// them, they outlive it, and the next job of its user finds them.
    AllThatIsShared,
}

/// Puts the filter on the calling thread, and with it on whatever is started from it. The thread
/// gains no privilege from then on.
pub(super) fn put(own: Own) -> io::Result<()> {
    let program = program(architectures(std::env::consts::ARCH), own);
    apply_filter(&program.ok_or(io::ErrorKind::Unsupported)?).map_err(io::Error::other)
}

/// Whether the kernel refuses what it is told to, and nothing else. Tried out, once.
pub(super) fn is_possible() -> bool {
    static TRIED: OnceLock<bool> = OnceLock::new();
    *TRIED.get_or_init(|| {
        let tried = file_rules::elsewhere(|| put(Own::AllThatIsShared).is_ok() && holds());
        tried.unwrap_or(false)
    })
}

/// Sets on the calling thread, by its number as if it were another, what it has already.
fn holds() -> bool {
    let (core, locks) = (getrlimit(Resource::Core), getrlimit(Resource::Locks));
    let nice = getpriority_process(None).unwrap_or(0);
    let refused = [
        prlimit(Some(getpid()), Resource::Core, core).err(),
        setrlimit(Resource::Locks, locks).err(),
        setpriority_process(Some(getpid()), nice).err(),
    ];
    let all = refused.into_iter().all(|it| it == Some(Errno::PERM));
    all && setrlimit(Resource::Core, core).is_ok() && setpriority_process(None, nice).is_ok()
}

/// How an architecture numbers the calls.
struct Architecture {
    /// As the kernel's audit calls it.
    id: u32,
    /// Bits of a number that choose another way to make the same call.
    ignored: u32,
    setrlimit: u32,
    prlimit: u32,
    setpriority: u32,
    ioprio_set: u32,
    sched_setparam: u32,
    sched_setscheduler: u32,
    sched_setattr: u32,
    add_key: u32,
    request_key: u32,
    keyctl: u32,
    /// Whatever reaches segments, semaphores and queues: who knows the number of one need not open
    /// it. What only lets go of one is no harm.
    shared: &'static [u32],
}

const X86_64: Architecture = Architecture {
    id: 0xc000_003e,
    // Programs with pointers of 32 bits (x32) make the same calls under this bit.
    ignored: 0x4000_0000,
    setrlimit: 160,
    prlimit: 302,
    setpriority: 141,
    ioprio_set: 251,
    sched_setparam: 142,
    sched_setscheduler: 144,
    sched_setattr: 314,
    add_key: 248,
    request_key: 249,
    keyctl: 250,
    // shmget, shmat, shmctl; semget, semop, semctl, semtimedop; msgget, msgsnd, msgrcv, msgctl;
    // mq_open, mq_unlink.
    shared: &[29, 30, 31, 64, 65, 66, 220, 68, 69, 70, 71, 240, 241],
};

const I386: Architecture = Architecture {
    id: 0x4000_0003,
    ignored: 0,
    setrlimit: 75,
    prlimit: 340,
    setpriority: 97,
    ioprio_set: 289,
    sched_setparam: 154,
    sched_setscheduler: 156,
    sched_setattr: 351,
    add_key: 286,
    request_key: 287,
    keyctl: 288,
    // As above, with ipc for what has no number of its own, and the semtimedop of long times.
    shared: &[
        117, 395, 397, 396, 393, 394, 420, 399, 400, 401, 402, 277, 278,
    ],
};

const AARCH64: Architecture = Architecture {
    id: 0xc000_00b7,
    ignored: 0,
    setrlimit: 164,
    prlimit: 261,
    setpriority: 140,
    ioprio_set: 30,
    sched_setparam: 118,
    sched_setscheduler: 119,
    sched_setattr: 274,
    add_key: 217,
    request_key: 218,
    keyctl: 219,
    shared: &[
        194, 196, 195, 190, 193, 191, 192, 186, 189, 188, 187, 180, 181,
    ],
};

const ARM: Architecture = Architecture {
    id: 0x4000_0028,
    ignored: 0,
    setrlimit: 75,
    prlimit: 369,
    setpriority: 97,
    ioprio_set: 314,
    sched_setparam: 154,
    sched_setscheduler: 156,
    sched_setattr: 380,
    add_key: 309,
    request_key: 310,
    keyctl: 311,
    // With the semtimedop of long times.
    shared: &[
        307, 305, 308, 299, 298, 300, 312, 420, 303, 301, 302, 304, 274, 275,
    ],
};

/// Those whose programs a machine runs.
fn architectures(machine: &str) -> &'static [Architecture] {
    match machine {
        "x86_64" => &[X86_64, I386],
        "aarch64" => &[AARCH64, ARM],
        _ => &[],
    }
}

/// Where the kernel puts what is asked for: the number, the architecture, six arguments.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// The lower half of an argument, which is all there is of a number or a process.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

const fn upper_half(index: u32) -> u32 {
    argument(index) + 4
}

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0000 | Errno::PERM.raw_os_error() as u32;
const NOT_THERE: u32 = 0x0005_0000 | Errno::NOSYS.raw_os_error() as u32;

/// The caller itself, in the place of a process.
const ITSELF: u32 = 0;
/// `RLIMIT_LOCKS`, the same on all of them.
const LOCKS: u32 = 10;
/// `PRIO_PROCESS` and `IOPRIO_WHO_PROCESS`: not a group, not all of a user. A job can join the
/// group of its shim.
const ONE_PROCESS: u32 = 0;
const ONE_PROCESS_ON_DISK: u32 = 1;

/// One look at a word, and where it leads.
struct Look {
    at: u32,
    value: u32,
    equal: Then,
    other: Then,
}

#[derive(Clone, Copy)]
enum Then {
    Next,
    /// The one behind the next.
    Past,
    Allow,
    Refuse,
}

const fn look(at: u32, value: u32, equal: Then, other: Then) -> Look {
    Look {
        at,
        value,
        equal,
        other,
    }
}

/// Of itself, but not of the mark.
const SET_LIMIT: &[Look] = &[look(argument(0), LOCKS, Then::Refuse, Then::Allow)];

/// Limits of any process, but not of the mark; without a new limit the call only reads.
const LIMIT: &[Look] = &[
    look(argument(2), 0, Then::Next, Then::Past),
    look(upper_half(2), 0, Then::Allow, Then::Next),
    look(argument(0), ITSELF, Then::Next, Then::Refuse),
    look(argument(1), LOCKS, Then::Refuse, Then::Allow),
];

const PRIORITY: &[Look] = &[
    look(argument(0), ONE_PROCESS, Then::Next, Then::Refuse),
    look(argument(1), ITSELF, Then::Allow, Then::Refuse),
];

const PRIORITY_ON_DISK: &[Look] = &[
    look(argument(0), ONE_PROCESS_ON_DISK, Then::Next, Then::Refuse),
    look(argument(1), ITSELF, Then::Allow, Then::Refuse),
];

const SCHEDULE: &[Look] = &[look(argument(0), ITSELF, Then::Allow, Then::Refuse)];

/// What becomes of a call.
#[derive(Clone, Copy)]
enum Judgement {
    /// It depends on its arguments.
    By(&'static [Look]),
    /// As on a kernel that was built without it, which programs know how to go on without.
    NotThere,
}

impl Architecture {
    fn calls(&self, own: Own) -> Vec<(u32, Judgement)> {
        use Judgement::{By, NotThere};
        let mut calls = vec![(self.setrlimit, By(SET_LIMIT)), (self.prlimit, By(LIMIT))];
        if own >= Own::LimitsAndPriorities {
            calls.extend([
                (self.setpriority, By(PRIORITY)),
                (self.ioprio_set, By(PRIORITY_ON_DISK)),
                (self.sched_setparam, By(SCHEDULE)),
                (self.sched_setscheduler, By(SCHEDULE)),
                (self.sched_setattr, By(SCHEDULE)),
                // A user's keyring outlives its processes, and a slot's user has the next job, too.
                (self.add_key, NotThere),
                (self.request_key, NotThere),
                (self.keyctl, NotThere),
            ]);
        }
        if own >= Own::AllThatIsShared {
            calls.extend(self.shared.iter().map(|call| (*call, NotThere)));
        }
        calls
    }

    fn block(&self, own: Own) -> Option<Vec<sock_filter>> {
        let mut block = vec![load(NUMBER)];
        if self.ignored != 0 {
            block.push(step(AND, !self.ignored));
        }
        for (number, judgement) in self.calls(own) {
            let judged = match judgement {
                Judgement::By(looks) => judged(looks)?,
                Judgement::NotThere => vec![step(RETURN, NOT_THERE)],
            };
            block.push(unless(number, judged.len())?);
            block.extend(judged);
        }
        block.push(step(RETURN, ALLOW));
        Some(block)
    }
}

/// Everything the kernel executes at each call. Nothing where no architecture is known.
fn program(architectures: &[Architecture], own: Own) -> Option<Vec<sock_filter>> {
    if architectures.is_empty() {
        return None;
    }
    let mut program = vec![load(ARCHITECTURE)];
    for architecture in architectures {
        let block = architecture.block(own)?;
        program.push(unless(architecture.id, block.len())?);
        program.extend(block);
    }
    program.push(step(RETURN, NOT_THERE));
    Some(program)
}

/// The looks at one call: two steps each, and both answers behind the last.
fn judged(looks: &[Look]) -> Option<Vec<sock_filter>> {
    let mut steps = Vec::new();
    for (index, look) in looks.iter().enumerate() {
        let behind = 2 * (looks.len() - index - 1);
        let way = |then| {
            u8::try_from(match then {
                Then::Next => 0,
                Then::Past => 2,
                Then::Allow => behind,
                Then::Refuse => behind + 1,
            })
        };
        steps.push(load(look.at));
        steps.push(sock_filter {
            code: IF_EQUAL,
            jt: way(look.equal).ok()?,
            jf: way(look.other).ok()?,
            k: look.value,
        });
    }
    steps.extend([step(RETURN, ALLOW), step(RETURN, REFUSE)]);
    Some(steps)
}

fn load(at: u32) -> sock_filter {
    step(LOAD, at)
}

/// Leaves this many steps out where the word is another.
fn unless(value: u32, steps: usize) -> Option<sock_filter> {
    Some(sock_filter {
        code: IF_EQUAL,
        jt: 0,
        jf: u8::try_from(steps).ok()?,
        k: value,
    })
}

fn step(code: u16, k: u32) -> sock_filter {
    sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: u64 = 4711;
    const POINTER: u64 = 0x7f00_0000_1000;
    /// Its lower half is zero.
    const ROUND_POINTER: u64 = 0x7f_0000_0000;
    const ALL: Own = Own::AllThatIsShared;

    /// What the kernel makes of a program: as much of its machine as is used here.
    fn answer(machine: &str, own: Own, id: u32, number: u32, arguments: &[u64]) -> u32 {
        let program = program(architectures(machine), own).expect("a program");
        let word = |at: u32| match at {
            NUMBER => number,
            ARCHITECTURE => id,
            _ => {
                let index = ((at - 16) / 8) as usize;
                let value = arguments.get(index).copied().unwrap_or(0);
                (value >> (8 * (at % 8))) as u32
            }
        };
        let (mut at, mut held) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            match step.code {
                LOAD => held = word(step.k),
                AND => held &= step.k,
                IF_EQUAL if held == step.k => at += usize::from(step.jt),
                IF_EQUAL => at += usize::from(step.jf),
                RETURN => return step.k,
                code => panic!("{code}"),
            }
        }
    }

    fn check(call: impl Fn(&Architecture) -> u32, arguments: &[u64], wanted: u32) {
        for machine in ["x86_64", "aarch64"] {
            for architecture in architectures(machine) {
                let number = call(architecture);
                let ways = [0, architecture.ignored].map(|bit| number | bit);
                for number in ways {
                    let answer = answer(machine, ALL, architecture.id, number, arguments);
                    assert_eq!(answer, wanted, "{number} {arguments:?} on {machine}");
                }
            }
        }
    }

    #[test]
    fn limits_of_others_can_be_read_and_not_set() {
        let prlimit = |it: &Architecture| it.prlimit;
        check(prlimit, &[OTHER, 7, 0, POINTER], ALLOW);
        check(prlimit, &[0, 7, POINTER, 0], ALLOW);
        check(prlimit, &[OTHER, 7, POINTER, 0], REFUSE);
        check(prlimit, &[OTHER, 7, ROUND_POINTER, 0], REFUSE);
        check(prlimit, &[OTHER, 7, 0x1000, 0], REFUSE);
    }

    #[test]
    fn a_job_keeps_its_mark() {
        check(|it| it.setrlimit, &[u64::from(LOCKS), POINTER], REFUSE);
        check(|it| it.setrlimit, &[7, POINTER], ALLOW);
        let prlimit = |it: &Architecture| it.prlimit;
        check(prlimit, &[0, u64::from(LOCKS), POINTER, 0], REFUSE);
        check(prlimit, &[0, u64::from(LOCKS), ROUND_POINTER, 0], REFUSE);
        check(prlimit, &[0, u64::from(LOCKS), 0, POINTER], ALLOW);
        // The kernel looks at 32 bits of them.
        check(prlimit, &[1 << 32, 7, POINTER, 0], ALLOW);
        let hidden = (1 << 32) | u64::from(LOCKS);
        check(prlimit, &[0, hidden, POINTER, 0], REFUSE);
        check(|it| it.setrlimit, &[hidden, POINTER], REFUSE);
    }

    #[test]
    fn a_priority_is_set_of_the_caller_alone() {
        check(|it| it.setpriority, &[0, 0, 19], ALLOW);
        check(|it| it.setpriority, &[0, OTHER, 19], REFUSE);
        check(|it| it.ioprio_set, &[1, 0, 3 << 13], ALLOW);
        check(|it| it.ioprio_set, &[1, OTHER, 3 << 13], REFUSE);
        // Groups and users, the caller's own too.
        for which in [1, 2] {
            check(|it| it.setpriority, &[which, 0, 19], REFUSE);
            check(|it| it.ioprio_set, &[which + 1, 0, 3 << 13], REFUSE);
        }
        let scheduled: [fn(&Architecture) -> u32; 3] = [
            |it| it.sched_setparam,
            |it| it.sched_setscheduler,
            |it| it.sched_setattr,
        ];
        for call in scheduled {
            check(call, &[0, 5, POINTER], ALLOW);
            check(call, &[OTHER, 5, POINTER], REFUSE);
        }
    }

    #[test]
    fn a_keyring_is_not_there() {
        let calls: [fn(&Architecture) -> u32; 3] =
            [|it| it.add_key, |it| it.request_key, |it| it.keyctl];
        for call in calls {
            check(call, &[POINTER, POINTER], NOT_THERE);
        }
    }

    #[test]
    fn what_would_be_left_to_the_next_job_is_not_there() {
        for machine in ["x86_64", "aarch64"] {
            for architecture in architectures(machine) {
                for call in architecture.shared {
                    let answer = |own| answer(machine, own, architecture.id, *call, &[]);
                    assert_eq!(answer(ALL), NOT_THERE, "{call} on {machine}");
                    assert_eq!(answer(Own::LimitsAndPriorities), ALLOW, "{call}");
                }
            }
        }
        // The number of `ipc` is another call's elsewhere.
        assert_eq!(
            answer("x86_64", ALL, X86_64.id, I386.shared[0], &[2]),
            ALLOW
        );
    }

    #[test]
    fn priorities_can_be_left_alone() {
        let of =
            |number, arguments: &[u64]| answer("x86_64", Own::Limits, X86_64.id, number, arguments);
        assert_eq!(of(X86_64.setpriority, &[0, OTHER, 19]), ALLOW);
        assert_eq!(of(X86_64.sched_setattr, &[OTHER, POINTER]), ALLOW);
        assert_eq!(of(X86_64.prlimit, &[OTHER, 7, POINTER, 0]), REFUSE);
    }

    #[test]
    fn other_calls_go_on_and_foreign_architectures_have_none() {
        check(|_| 0, &[0; 6], ALLOW);
        check(|_| 435, &[OTHER; 6], ALLOW);
        let mips = 0x4000_0008;
        assert_eq!(answer("x86_64", ALL, mips, 1, &[]), NOT_THERE);
        assert_eq!(answer("aarch64", ALL, X86_64.id, 1, &[]), NOT_THERE);
        assert!(program(architectures("sparc64"), ALL).is_none());
    }

    #[test]
    fn a_kernel_that_takes_the_filter_does_as_it_says() {
        let taken = file_rules::elsewhere(|| put(ALL).is_ok()).expect("a thread");
        assert_eq!(is_possible(), taken);
        assert!(setrlimit(Resource::Core, getrlimit(Resource::Core)).is_ok());
    }
}
