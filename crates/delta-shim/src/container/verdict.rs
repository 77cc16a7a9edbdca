//! How a step in a container ended, and what became of the container. Why there is none in the
//! first place is judged by [`super::refusal`].

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::kernel_log::Named;
use super::refusal::last_line;
use super::script::ShellAnswer;

const KILL: i32 = 9;

/// A shell's way to say that something was ended by a signal.
const SIGNALS: std::ops::RangeInclusive<i32> = 129..=159;

/// How a step in a container ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Exited(ExitStatus),
    OutOfMemory {
        status: ExitStatus,
        kills: u64,
        /// They are known to be of this container.
        own: bool,
    },
    /// Nobody can say how.
    Lost(String),
}

/// How the container is when a step in it ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerState {
    Stands,
    /// It is not there any more, or nobody can say so.
    Gone,
    /// The kernel ended processes in it for want of memory, while this step ran.
    Starved,
    /// It ended so many on this machine, while this step ran: whose, nobody can say.
    Suspected(u64),
}

/// Everybody who may know what became of a container in which no shell can be had. They speak when
/// they come to it, in any order: the container program hears of an end and of a want of memory
/// from two sides, and may hear of the second late or never.
#[derive(Debug, Clone, Copy)]
pub(super) struct Witnesses {
    /// What the container program says.
    pub engine: ContainerState,
    /// How many the kernel ended for want of memory on this machine while the step ran, where it
    /// counts. It counts before it ends.
    pub machine: Option<u64>,
    /// What its log says of those, where it can be read.
    pub log: Option<Named>,
    /// The container has a limit of its own, so that the kernel may end processes for it.
    pub limited: bool,
}

impl Witnesses {
    /// What is certain already, whoever is still to be heard.
    pub fn certain(&self) -> Option<ContainerState> {
        if self.engine == ContainerState::Starved || self.log.is_some_and(|log| log.own > 0) {
            return Some(ContainerState::Starved);
        }
        // There is nobody whom this container could have among them. One that stands although no
        // shell can be had in it may be about to go.
        let over = self.engine != ContainerState::Stands;
        (over && self.unnamed() == Some(0)).then_some(self.engine)
    }

    /// The standing when nobody else is waited for. Without a limit only a machine that had no
    /// memory left ends a container, and its log names whom; the many that a neighbour's limit
    /// ended are not held against it.
    pub fn at_last(&self) -> ContainerState {
        let suspected = self.unnamed().filter(|kills| *kills > 0 && self.limited);
        let suspected = suspected.map(ContainerState::Suspected);
        let suspected = suspected.unwrap_or(self.engine);
        self.certain().unwrap_or(suspected)
    }

    /// Of those whom the kernel ended, how many are not known to be somebody else's.
    fn unnamed(&self) -> Option<u64> {
        let others = self.log.map_or(0, |log| log.others);
        Some(self.machine?.saturating_sub(others))
    }
}

/// What the step's shell answered counts; without an answer, how the program ended that waited for
/// it, if the container is there. One that is gone was ended from outside (D10), or by the kernel
/// for want of memory; a job that ends its container's first processes itself looks the same.
pub(super) fn step(
    answer: &ShellAnswer,
    status: ExitStatus,
    complaint: &str,
    standing: ContainerState,
) -> Ended {
    let starved = match standing {
        // As many are known of.
        ContainerState::Starved => Some((answer.kills.max(1), true)),
        ContainerState::Suspected(kills) => Some((kills, false)),
        ContainerState::Stands | ContainerState::Gone => None,
    };
    if answer.code.is_none()
        && let Some((kills, own)) = starved
    {
        let code = status.code().filter(|code| SIGNALS.contains(code));
        let status = code.map_or(ExitStatus::from_raw(KILL), of_code);
        return Ended::OutOfMemory { status, kills, own };
    }
    let status = match (answer.code, status.code()) {
        (Some(code), _) => of_code(code),
        // Ended from within, before it could answer.
        (None, Some(code)) if SIGNALS.contains(&code) && standing == ContainerState::Stands => {
            of_code(code)
        }
        _ => return Ended::Lost(last_line(complaint)),
    };
    match answer.kills {
        0 => Ended::Exited(status),
        _ if status.success() => Ended::Exited(status),
        kills => Ended::OutOfMemory {
            status,
            kills,
            own: true,
        },
    }
}

/// What `inspect` says of a container: whether it runs, and whether the kernel ended processes in
/// it for want of memory, at any time. That it did so before this step began says nothing of it.
pub(super) fn standing(inspected: &str, killed_before: bool) -> ContainerState {
    let mut words = inspected.split_whitespace();
    let (runs, starved) = (words.next(), words.next());
    match (runs, starved) {
        (_, Some("true")) if !killed_before => ContainerState::Starved,
        (Some("true"), _) => ContainerState::Stands,
        _ => ContainerState::Gone,
    }
}

/// Never a bare 137: a code above 128 is a shell's word for a signal.
fn of_code(code: i32) -> ExitStatus {
    if SIGNALS.contains(&code) {
        ExitStatus::from_raw(code - 128)
    } else {
        ExitStatus::from_raw((code & 0xff) << 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // D10: never a bare "exit 137".
    #[test]
    fn a_code_above_128_is_a_signal_and_memory_needs_evidence() {
        let answer = |code, kills| ShellAnswer {
            code,
            kills,
            killed_before: false,
            counted: true,
            no_shell: false,
        };
        let raw = |code: i32| ExitStatus::from_raw(code << 8);
        let stands = ContainerState::Stands;
        let exited = |answer: ShellAnswer, code| step(&answer, raw(code), "", stands);
        let killed = ExitStatus::from_raw(9);
        assert_eq!(exited(answer(Some(137), 0), 137), Ended::Exited(killed));
        assert_eq!(exited(answer(None, 0), 137), Ended::Exited(killed));
        assert_eq!(exited(answer(Some(3), 0), 3), Ended::Exited(raw(3)));
        let starved = Ended::OutOfMemory {
            status: killed,
            kills: 1,
            own: true,
        };
        assert_eq!(exited(answer(Some(137), 1), 137), starved);
        assert_eq!(exited(answer(Some(0), 1), 0), Ended::Exited(raw(0)));
        let lost = Ended::Lost("the daemon went away".to_owned());
        let away = "the daemon went away";
        assert_eq!(step(&answer(None, 0), raw(1), away, stands), lost);
        // A container that is gone was ended from outside, whatever the code; unless the kernel
        // ended it.
        let gone = ContainerState::Gone;
        assert_eq!(step(&answer(None, 0), raw(137), away, gone), lost);
        assert_eq!(
            step(&answer(None, 0), raw(137), "", ContainerState::Starved),
            starved
        );
        assert_eq!(
            step(&answer(None, 0), raw(1), "", ContainerState::Starved),
            starved
        );
        // What the kernel ended somewhere on this machine is nobody's for certain.
        let suspected = Ended::OutOfMemory {
            status: killed,
            kills: 3,
            own: false,
        };
        assert_eq!(
            step(&answer(None, 0), raw(1), "", ContainerState::Suspected(3)),
            suspected
        );
        assert_eq!(
            step(&answer(Some(3), 0), raw(3), "", gone),
            Ended::Exited(raw(3))
        );
    }

    /// What comes of it when they speak in this order, and nobody is waited for behind the last.
    fn heard(words: &[&dyn Fn(&mut Witnesses)]) -> ContainerState {
        let mut witnesses = Witnesses {
            engine: ContainerState::Gone,
            machine: Some(0),
            log: Some(Named::default()),
            limited: true,
        };
        // The kernel counts before it ends anybody: that is there when the end is seen.
        let counts = |it: &mut Witnesses| it.machine = Some(1);
        counts(&mut witnesses);
        for word in words {
            if let Some(standing) = witnesses.certain() {
                return standing;
            }
            word(&mut witnesses);
        }
        witnesses.at_last()
    }

    // D10: what ended it is told by rank, whoever was quicker.
    #[test]
    fn the_witnesses_of_an_end_are_heard_in_any_order() {
        let engine = |it: &mut Witnesses| it.engine = ContainerState::Starved;
        let own = |it: &mut Witnesses| it.log = Some(Named { own: 1, others: 0 });
        let others = |it: &mut Witnesses| it.log = Some(Named { own: 0, others: 1 });
        let silent = |it: &mut Witnesses| it.log = None;
        let nothing = |_: &mut Witnesses| {};
        for words in [
            [&engine as &dyn Fn(&mut Witnesses), &own],
            [&own, &engine],
            [&silent, &engine],
            [&engine, &silent],
            [&nothing, &own],
            [&own, &nothing],
        ] {
            assert_eq!(heard(&words), ContainerState::Starved);
        }
        // Somebody else's want of memory is not this container's end.
        assert_eq!(heard(&[&others, &nothing]), ContainerState::Gone);
        assert_eq!(heard(&[&nothing, &others]), ContainerState::Gone);
        // Nobody can say whose it was.
        assert_eq!(heard(&[&silent, &nothing]), ContainerState::Suspected(1));
        assert_eq!(heard(&[&nothing, &silent]), ContainerState::Suspected(1));
    }

    #[test]
    fn where_nobody_counts_the_container_program_is_believed() {
        let nobody = |engine| Witnesses {
            engine,
            machine: None,
            log: None,
            limited: true,
        };
        assert_eq!(
            nobody(ContainerState::Gone).certain(),
            None,
            "it may yet say so"
        );
        assert_eq!(nobody(ContainerState::Gone).at_last(), ContainerState::Gone);
        assert_eq!(
            nobody(ContainerState::Stands).at_last(),
            ContainerState::Stands
        );
        let none = Witnesses {
            machine: Some(0),
            ..nobody(ContainerState::Gone)
        };
        assert_eq!(none.certain(), Some(ContainerState::Gone), "at once");
    }

    #[test]
    fn a_container_that_stands_without_a_shell_is_looked_at_again() {
        let standing = Witnesses {
            engine: ContainerState::Stands,
            machine: Some(0),
            log: None,
            limited: true,
        };
        assert_eq!(standing.certain(), None, "it may be about to go");
        assert_eq!(standing.at_last(), ContainerState::Stands);
        let gone = Witnesses {
            engine: ContainerState::Gone,
            ..standing
        };
        assert_eq!(gone.certain(), Some(ContainerState::Gone));
    }

    #[test]
    fn a_container_without_a_limit_is_not_suspected_for_its_neighbours() {
        let many = |limited| Witnesses {
            engine: ContainerState::Gone,
            machine: Some(17),
            log: Some(Named { own: 0, others: 9 }),
            limited,
        };
        assert_eq!(many(false).certain(), None, "the log may yet name it");
        assert_eq!(many(false).at_last(), ContainerState::Gone);
        assert_eq!(many(true).at_last(), ContainerState::Suspected(8));
    }

    #[test]
    fn what_is_said_of_a_container_is_what_is_left_of_it() {
        for (said, before, wanted) in [
            ("true false\n", false, ContainerState::Stands),
            ("true true\n", false, ContainerState::Starved),
            ("true true\n", true, ContainerState::Stands),
            ("false false\n", false, ContainerState::Gone),
            ("false true\n", false, ContainerState::Starved),
            ("false true\n", true, ContainerState::Gone),
            ("", false, ContainerState::Gone),
        ] {
            assert_eq!(standing(said, before), wanted, "{said} {before}");
        }
    }
}
