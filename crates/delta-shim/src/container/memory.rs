//! Whether it was for want of memory that a container, or a step in it, ended: everybody who may
//! know is heard, within a bound. Who is quicker must not decide what an attempt failed for.

use delta_core::time::Span;

use super::Container;
use super::calls::{Call, Waiting};
use super::kernel_log::Named;
use super::verdict::{self, ContainerState, Witnesses};
use crate::clock;
use crate::evidence::kills_on_this_machine;
use crate::shim::Shim;

/// How long the end of a container may take to be seen after that of the step in it.
const ENDING: Span = Span::secs(1);

/// How long the container program may take to hear of a want of memory, which comes to it by
/// another way than the end; and the pause between two looks. A loaded daemon takes a second.
const SETTLING: Span = Span::secs(5);
const LOOK: Span = Span(100);

impl Shim {
    /// How the job's container is when no shell can be had in it.
    pub(super) async fn standing(&mut self, killed_before: bool) -> ContainerState {
        // A step may be seen to end before its container is.
        let deadline = clock::now() + ENDING;
        while !self.main_ended() && self.stop.is_none() && clock::now() < deadline {
            self.turn(Some(deadline)).await;
            self.take_ends();
        }
        match self.container.as_ref().map(|it| it.names.main()) {
            Some(name) => self.state_of(&name, killed_before).await,
            None => ContainerState::Gone,
        }
    }

    /// How a container of the attempt is. It is kept until it is removed, so that this can be asked
    /// of one that ended.
    pub(super) async fn state_of(&mut self, name: &str, killed_before: bool) -> ContainerState {
        let deadline = clock::now() + SETTLING;
        loop {
            let (engine, id) = self.engine_says(name, killed_before).await;
            let (machine, limited) = (self.kernel_ended(), self.memory_limit().is_some());
            let container = self.container.as_mut();
            let witnesses = Witnesses {
                engine,
                machine,
                log: container.and_then(|it| it.named(name, id.as_deref())),
                limited,
            };
            if let Some(standing) = witnesses.certain() {
                return standing;
            }
            if self.stop.is_some() || clock::now() >= deadline {
                return witnesses.at_last();
            }
            let next = (clock::now() + LOOK).min(deadline);
            while clock::now() < next {
                self.turn(Some(next)).await;
            }
        }
    }

    /// What the container program says of it, and what it calls it.
    async fn engine_says(
        &mut self,
        name: &str,
        killed_before: bool,
    ) -> (ContainerState, Option<String>) {
        let Some(container) = &self.container else {
            return (ContainerState::Gone, None);
        };
        let is_main = name == container.names.main();
        let runtime = container.order.runtime.clone();
        let format = "{{.State.Running}} {{.State.OOMKilled}} {{.Id}}";
        let call = Call::words(["inspect", "--format", format, name]);
        let called = self
            .call(&runtime, call, Waiting::AWhileUnlessStopped)
            .await;
        let called = called.ok().filter(|called| called.status.success());
        let said = called.map_or(String::new(), |called| called.text);
        let id = said.split_whitespace().nth(2).map(str::to_owned);
        match verdict::standing(&said, killed_before) {
            ContainerState::Stands if is_main && self.main_ended() => (ContainerState::Gone, id),
            standing => (standing, id),
        }
    }

    /// MiB that a container of the job may use, where it has a limit.
    pub(super) fn memory_limit(&self) -> Option<u64> {
        self.container.as_ref().and_then(|it| it.order.memory_mb)
    }

    /// How many processes the kernel ended for want of memory since the step began, anywhere on
    /// this machine; nothing where it does not count.
    fn kernel_ended(&self) -> Option<u64> {
        let before = self.container.as_ref().and_then(|it| it.killed_before)?;
        kills_on_this_machine()?.checked_sub(before)
    }
}

impl Container {
    /// What the kernel's log says of a container; of one that is gone, its id may be known still.
    fn named(&mut self, name: &str, id: Option<&str>) -> Option<Named> {
        let known = self.id.as_deref().filter(|_| name == self.names.main());
        self.kernel_log.as_mut()?.named(id.or(known)?)
    }
}
