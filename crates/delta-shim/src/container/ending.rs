//! After the last step: what is left in the containers is asked to end, then they are removed, and
//! that they are gone is looked at.

use std::os::fd::OwnedFd;

use delta_core::time::{Millis, Span};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, kill_process, pidfd_send_signal};

use super::arguments::{self, Names};
use super::calls::{Call, Output, Waiting};
use super::leftovers::removal;
use super::runtime::Runtime;
use super::script;
use crate::clock;
use crate::shim::Shim;
use crate::step_execution::span;

/// How long the program has to remove containers. A daemon under load takes seconds; one that
/// hangs is not waited for, the processes are then killed without it.
const REMOVAL: Span = Span::secs(10);
/// How long killed processes may take to vanish.
const VANISHING: Span = Span::secs(5);
/// Between two looks at what is left.
const LOOK: Span = Span(100);
/// How long the programs that stood for a container may take to notice that it is gone.
const NOTICING: Span = Span::secs(3);

/// Looks at which nothing may be seen of a container whose making was given up.
const LOOKS_AFTER_GIVING_UP: u32 = 3;

/// Lines of a failed service that are shown.
const LAST_LINES: &str = "20";

impl Shim {
    /// Ends everything in the containers and removes them. True when they are gone.
    pub(crate) async fn end_container(&mut self) -> bool {
        if self.container.is_none() {
            return true;
        }
        self.let_leftovers_end().await;
        self.drain();
        self.show_failed_services().await;
        let gone = self.remove_containers().await;
        if let Some(main) = self.container.as_mut().and_then(|it| it.main.as_mut()) {
            main.input = None;
        }
        self.all_gone_by(clock::now() + NOTICING).await;
        gone
    }

    /// As for processes: TERM, and a grace. The order to stop in force says how long.
    async fn let_leftovers_end(&mut self) {
        let own_grace = clock::now() + span(self.order.leftover_grace);
        let mut signal = "-TERM";
        loop {
            let kill_at = self.stop.map_or(own_grace, |stop| Millis(stop.kill_at));
            let (Some(container), false) = (&self.container, clock::now() >= kill_at) else {
                return;
            };
            let Some(main) = container.main.as_ref().filter(|main| main.ended.is_none()) else {
                return;
            };
            let Some(holder) = &main.holder else {
                return;
            };
            let runtime = container.order.runtime.clone();
            let call = Call::new(arguments::sweep(&container.names, holder, signal));
            signal = "-0";
            let called = self.call(&runtime, call, Waiting::Until(kill_at)).await;
            match called.ok().and_then(|called| script::left(&called.text)) {
                Some(0) | None => return,
                Some(_) => {}
            }
            let next = (clock::now() + LOOK).min(kill_at);
            while clock::now() < next {
                self.turn(Some(next)).await;
            }
        }
    }

    /// The last lines of services that ended by themselves and not well.
    async fn show_failed_services(&mut self) {
        let Some(container) = &self.container else {
            return;
        };
        let runtime = container.order.runtime.clone();
        for name in container.services.clone() {
            let format = "{{.State.Running}} {{.State.ExitCode}}";
            let call = Call::words(["inspect", "--format", format, &name]);
            let Ok(called) = self.call(&runtime, call, Waiting::AWhile).await else {
                return;
            };
            let code = called.text.trim().strip_prefix("false ").map(str::to_owned);
            let Some(code) = code.filter(|code| code != "0") else {
                continue;
            };
            let own = self.container.as_ref().map(|it| it.names.service(""));
            let short = name
                .strip_prefix(own.as_deref().unwrap_or(""))
                .unwrap_or(&name);
            self.say(&format!(
                "the service {short} ended with exit code {code}; its last lines:"
            ));
            self.show_last_lines(&name).await;
        }
    }

    /// The last lines of a container, in the job's log.
    pub(super) async fn show_last_lines(&mut self, name: &str) {
        let Some(container) = &self.container else {
            return;
        };
        let runtime = container.order.runtime.clone();
        let mut call = Call::words(["logs", "--tail", LAST_LINES, name]);
        if let Ok(log) = container.log() {
            call.output = Output::Shown(log);
        }
        if let Ok(called) = self.call(&runtime, call, Waiting::AWhile).await {
            self.drain();
            self.show(called.complaint.as_bytes());
        }
    }

    async fn remove_containers(&mut self) -> bool {
        let Some(container) = &self.container else {
            return true;
        };
        let runtime = container.order.runtime.clone();
        let names = container.names.clone();
        let mut made = container.services.clone();
        made.extend(container.main.is_some().then(|| names.main()));
        let mut gone = made.is_empty();
        if !gone {
            self.give_up_starting().await;
            gone = self.removed(&runtime, &names, made).await || self.kill_inits().await;
        }
        if self.container.as_ref().is_some_and(|it| it.has_network) {
            let name = names.main();
            let call = Call::words(["network", "rm", &name]);
            // Without its containers it does nothing; the next start of an agent removes it.
            let until = Waiting::Until(clock::now() + REMOVAL);
            let _ = self.call(&runtime, call, until).await;
        }
        gone
    }

    /// A program that is still making a container must not go on with it afterwards.
    async fn give_up_starting(&mut self) {
        let Some(main) = self.container.as_ref().and_then(|it| it.main.as_ref()) else {
            return;
        };
        if main.holder.is_none() && main.ended.is_none() {
            let pid = main.pid;
            let _ = kill_process(pid, Signal::KILL);
            let deadline = clock::now() + VANISHING;
            while self.end_of(pid).is_none() && clock::now() < deadline {
                self.turn(Some(deadline)).await;
            }
        }
    }

    /// Removes them until none is seen any more.
    async fn removed(&mut self, runtime: &Runtime, names: &Names, made: Vec<String>) -> bool {
        let mut words = removal(runtime.kind);
        words.extend(made);
        let begun = self.container.as_ref().and_then(|it| it.main.as_ref());
        let begun = begun.is_some_and(|main| main.holder.is_some());
        // What was given up while it was being made may yet appear.
        let wanted = if begun { 1 } else { LOOKS_AFTER_GIVING_UP };
        let (mut looks, deadline) = (0, clock::now() + REMOVAL);
        while clock::now() < deadline {
            let until = Waiting::Until(deadline);
            let call = Call::words(words.iter().map(String::as_str));
            // It fails also where a container is being removed already, so that is looked at.
            let _ = self.call(runtime, call, until).await;
            let filter = names.filter();
            let look = ["ps", "--all", "--quiet", "--filter", &filter];
            let seen = self.call(runtime, Call::words(look), until).await;
            let none = seen.is_ok_and(|it| it.status.success() && it.text.trim().is_empty());
            looks = if none { looks + 1 } else { 0 };
            if looks == wanted {
                return true;
            }
            let next = (clock::now() + LOOK).min(deadline);
            while clock::now() < next {
                self.turn(Some(next)).await;
            }
        }
        false
    }

    /// Without the container program: the end of a container's first process is the end of
    /// everything in it. True when every container was ended so.
    async fn kill_inits(&mut self) -> bool {
        let Some(container) = &mut self.container else {
            return true;
        };
        let inits = std::mem::take(&mut container.inits);
        let count = container.services.len() + usize::from(container.main.is_some());
        for init in &inits {
            // Somebody else's, or gone: the proof is below.
            let _ = pidfd_send_signal(init, Signal::KILL);
        }
        let deadline = clock::now() + VANISHING;
        loop {
            if inits.iter().all(has_ended) {
                return inits.len() == count;
            }
            if clock::now() >= deadline {
                return false;
            }
            self.turn(Some(clock::now() + LOOK)).await;
        }
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut asked, Some(&now)).is_ok_and(|ready| ready > 0)
}
