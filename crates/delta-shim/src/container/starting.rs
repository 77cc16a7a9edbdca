//! Before the first step: images, a network, services, and the job's own container.

use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use delta_core::Cause;
use rustix::process::{PidfdFlags, pidfd_open};
use tokio::net::unix::pipe;

use super::arguments::{self, Reachable};
use super::calls::{Call, Called, Output, Waiting, spawned};
use super::order::{Network, Pull, Service};
use super::{Main, refusal, script, unanswered};
use crate::shim::Shim;
use crate::step_execution::StepEnd;

/// Where services are that share the loopback of the job.
const LOOPBACK: &str = "127.0.0.1";

pub(super) type Begun<T = ()> = Result<T, StepEnd>;

impl Shim {
    /// Everything up to the first step; where it cannot be, the end of the attempt.
    pub(crate) async fn begin_container(&mut self) -> Begun {
        let Some(container) = &mut self.container else {
            return Ok(());
        };
        let order = container.order.clone();
        container.watch_memory();
        let mut images = vec![order.image.as_str()];
        images.extend(order.services.iter().map(|it| it.image.as_str()));
        images.sort_unstable();
        images.dedup();
        for image in images {
            self.have_image(image, order.pull).await?;
        }
        if order.network == Network::Bridge {
            self.make_network().await?;
        }
        let alike = |service: &Service| Reachable {
            name: service.name.clone(),
            address: LOOPBACK.to_owned(),
        };
        match order.network {
            // Its loopback is theirs: it must be there first.
            Network::None => {
                let reachable: Vec<_> = order.services.iter().map(alike).collect();
                self.start_main(&reachable).await?;
                self.start_services(&order.services).await?;
            }
            Network::Host => {
                self.start_services(&order.services).await?;
                let reachable: Vec<_> = order.services.iter().map(alike).collect();
                self.start_main(&reachable).await?;
            }
            Network::Bridge => {
                let reachable = self.start_services(&order.services).await?;
                self.start_main(&reachable).await?;
            }
        }
        self.await_services(&order.services).await?;
        for service in &order.services {
            self.stands(service).await?;
        }
        Ok(())
    }

    async fn have_image(&mut self, image: &str, pull: Pull) -> Begun {
        if pull == Pull::IfMissing {
            let words = ["image", "inspect", "--format", "{{.Id}}", image];
            let called = self.ask(Call::words(words)).await?;
            if called.status.success() {
                return Ok(());
            }
            let (cause, summary) = refusal::failure("the image", &called.complaint);
            if cause != Cause::Image {
                return Err(StepEnd::NotStarted(cause, summary));
            }
        }
        self.say(&format!("pulling the image {image}"));
        let log = self.container.as_ref().map(|it| it.log());
        let mut call = Call::words(["pull", image]);
        if let Some(Ok(log)) = log {
            call.output = Output::Shown(log);
        }
        let called = self.ask_for(call, Waiting::UntilStopped).await?;
        self.drain();
        if called.status.success() {
            return Ok(());
        }
        self.show(called.complaint.as_bytes());
        let what = format!("the image {image} cannot be had");
        let (cause, summary) = refusal::failure(&what, &called.complaint);
        // Whatever a registry answers: it is the image that is not there.
        let cause = match cause {
            Cause::DiskFull | Cause::SpecError => cause,
            _ if summary.starts_with(&what) => Cause::Image,
            _ => cause,
        };
        Err(StepEnd::NotStarted(cause, summary))
    }

    async fn make_network(&mut self) -> Begun {
        let Some(container) = &mut self.container else {
            return Ok(());
        };
        container.has_network = true;
        let call = Call::new(arguments::network(&container.names));
        let called = self.ask(call).await?;
        if called.status.success() {
            return Ok(());
        }
        let (cause, summary) =
            refusal::failure("the job's network could not be made", &called.complaint);
        Err(StepEnd::NotStarted(cause, summary))
    }

    /// Starts them all, and says where they are on the job's network.
    async fn start_services(&mut self, services: &[Service]) -> Begun<Vec<Reachable>> {
        let mut reachable = Vec::with_capacity(services.len());
        for service in services {
            let Some(container) = &mut self.container else {
                return Ok(reachable);
            };
            let name = container.names.service(&service.name);
            let mut call = Call::new(arguments::service(
                &container.order,
                &container.names,
                service,
            ));
            call.input = arguments::service_env(service);
            container.services.push(name.clone());
            let called = self.ask(call).await?;
            if !called.status.success() {
                let (cause, summary) = refusal::no_service(&service.name, &called.complaint);
                return Err(StepEnd::NotStarted(cause, summary));
            }
            let address = self.look_at(&name).await?;
            if let Some(address) = address {
                reachable.push(Reachable {
                    name: service.name.clone(),
                    address,
                });
            }
        }
        Ok(reachable)
    }

    /// Finds a container's first process on this machine, so that it can be ended without the
    /// container program, and its address on the job's network.
    async fn look_at(&mut self, name: &str) -> Begun<Option<String>> {
        let format =
            "{{.Id}} {{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}";
        let called = self
            .ask(Call::words(["inspect", "--format", format, name]))
            .await?;
        let mut words = called.text.split_whitespace();
        let (id, pid, address) = (words.next(), words.next(), words.next());
        if let (Some(id), Some(pid), Some(container)) = (id, pid, &mut self.container) {
            container.inits.extend(init_of(id, pid));
            if name == container.names.main() {
                container.id = Some(id.to_owned());
            }
        }
        Ok(address.map(str::to_owned))
    }

    async fn start_main(&mut self, reachable: &[Reachable]) -> Begun {
        let started = self.spawn_main(reachable).map_err(|problem| {
            let summary = format!("the container program cannot be started: {problem}");
            StepEnd::NotStarted(Cause::StartUp, summary)
        })?;
        self.watch(started.pid);
        if let Some(container) = &mut self.container {
            container.main = Some(started);
        }
        loop {
            self.take_ends();
            let Some(main) = self.container.as_ref().and_then(|it| it.main.as_ref()) else {
                return Ok(());
            };
            if main.holder.is_some() {
                break;
            }
            if let (Some(status), None) = (main.ended, &main.output) {
                return Err(self.not_begun(status).await);
            }
            if let Some(stop) = self.stop {
                return Err(StepEnd::Stopped(stop.reason));
            }
            self.turn(None).await;
        }
        let Some(name) = self.container.as_ref().map(|it| it.names.main()) else {
            return Ok(());
        };
        self.look_at(&name).await.map(drop)
    }

    /// The program that stands for the job's container ended before it was there.
    async fn not_begun(&mut self, status: ExitStatus) -> StepEnd {
        let complaint = String::from_utf8_lossy(&self.said).into_owned();
        let (image, first) = self.image();
        let name = self.container.as_ref().map(|it| it.names.main());
        let name = name.unwrap_or_default();
        match refusal::not_begun(&image, first.as_deref(), status, &complaint) {
            Err((cause, summary)) => StepEnd::NotStarted(cause, summary),
            Ok(code) => {
                let (cause, mut summary) = self.early_end("the container", &name, code).await;
                if cause == Cause::SpecError {
                    summary.push_str(": an entrypoint must become the command it is given");
                }
                StepEnd::NotStarted(cause, summary)
            }
        }
    }

    /// Why a container that was there is not any more, before the first step.
    async fn early_end(&mut self, what: &str, name: &str, code: i32) -> (Cause, String) {
        // No step ran in it: whatever ended in it did so now.
        let standing = self.state_of(name, false).await;
        refusal::early_end(what, code, standing, self.memory_limit())
    }

    /// The job's image, and what it starts in place of our own program.
    fn image(&self) -> (String, Option<String>) {
        let order = self.container.as_ref().map(|it| &it.order);
        let image = order.map_or(String::new(), |it| it.image.clone());
        (image, order.and_then(|it| it.entrypoint.first().cloned()))
    }

    fn spawn_main(&self, reachable: &[Reachable]) -> io::Result<Main> {
        let Some(container) = &self.container else {
            return Err(io::Error::other("there is no container"));
        };
        let (input, held): (PipeReader, _) = io::pipe()?;
        let (heard, output) = io::pipe()?;
        let runtime = &container.order.runtime;
        // What holds a container of podman leaves a note where it was started when memory ran out.
        let here = container.pipe.parent().unwrap_or(Path::new("/"));
        let mut command = Command::new(&runtime.program);
        command
            .args(arguments::main(
                &container.order,
                &container.names,
                &container.pipe,
                reachable,
                script::holder(&container.key),
            ))
            .env_clear()
            .envs(runtime.env.iter().map(|(name, value)| (name, value)))
            .current_dir(here)
            .stdin(Stdio::from(input))
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0);
        Ok(Main {
            pid: spawned(&mut command)?,
            ended: None,
            input: Some(held),
            output: Some(pipe::Receiver::from_owned_fd(OwnedFd::from(heard))?),
            chatter: Vec::new(),
            holder: None,
        })
    }

    /// A service that is gone before the first step will not be there for it. Of one that is there,
    /// the number of its first process on this machine.
    pub(super) async fn stands(&mut self, service: &Service) -> Begun<i32> {
        let Some(name) = self
            .container
            .as_ref()
            .map(|it| it.names.service(&service.name))
        else {
            return Ok(0);
        };
        let format = "{{.State.Running}} {{.State.ExitCode}} {{.State.Pid}}";
        let called = self
            .ask(Call::words(["inspect", "--format", format, &name]))
            .await?;
        let mut words = called.text.split_whitespace();
        let (running, code) = (words.next(), words.next().unwrap_or_default());
        if running == Some("false") {
            let code = code.parse().unwrap_or_default();
            let what = format!("the service {}", service.name);
            let (cause, summary) = self.early_end(&what, &name, code).await;
            return Err(StepEnd::NotStarted(cause, summary));
        }
        let pid = words.next().and_then(|pid| pid.parse().ok());
        Ok(pid.unwrap_or_default())
    }

    async fn ask(&mut self, call: Call) -> Begun<Called> {
        self.ask_for(call, Waiting::AWhileUnlessStopped).await
    }

    async fn ask_for(&mut self, call: Call, waiting: Waiting) -> Begun<Called> {
        let Some(runtime) = self.container.as_ref().map(|it| it.order.runtime.clone()) else {
            let summary = "there is no container".to_owned();
            return Err(StepEnd::NotStarted(Cause::AgentError, summary));
        };
        let called = self.call(&runtime, call, waiting).await;
        called.map_err(|no| unanswered(no, self.stop))
    }
}

/// A hold on the process with this number, if it really is the first one of that container: the
/// daemon may be elsewhere, and its numbers mean somebody else here.
fn init_of(id: &str, pid: &str) -> Option<OwnedFd> {
    let number = rustix::process::Pid::from_raw(pid.parse().ok()?)?;
    let held = pidfd_open(number, PidfdFlags::empty()).ok()?;
    // Looked at after it is held: the number cannot change hands any more.
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    (id.len() >= 64 && groups.contains(id)).then_some(held)
}
