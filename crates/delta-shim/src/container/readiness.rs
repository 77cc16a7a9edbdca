//! Between the start of services and the first step: each that says when it is ready is looked at
//! until it is, until its time is over, or until it has ended.
//!
//! A script is run in the service's own container. A port is looked up in the kernel's list of
//! sockets of that container, from outside: this needs no program in the image, and connects to
//! nothing that would count a visitor.

use delta_core::Cause;
use delta_core::time::{Millis, Span};

use super::calls::{Call, NoAnswer, Waiting};
use super::order::{Network, Ready, Service, Sign};
use super::starting::Begun;
use super::{arguments, refusal, unanswered};
use crate::clock;
use crate::shim::Shim;
use crate::step_execution::{StepEnd, span};

/// What the kernel calls a socket that listens.
const LISTENS: &str = "0A";
/// `::1`, as the kernel writes it.
const LOOPBACK_6: &str = "00000000000000000000000001000000";

/// A service that is not ready yet.
struct Awaited<'a> {
    service: &'a Service,
    ready: &'a Ready,
    deadline: Millis,
    next: Millis,
}

impl Shim {
    /// Waits until all of them are ready; where one is not in time, that is the attempt's end.
    pub(super) async fn await_services(&mut self, services: &[Service]) -> Begun {
        let begun = clock::now();
        let awaited = services.iter().filter_map(|service| {
            let ready = service.ready.as_ref()?;
            Some(Awaited {
                service,
                ready,
                deadline: begun + span(ready.timeout),
                next: begun,
            })
        });
        let mut open: Vec<Awaited<'_>> = awaited.collect();
        while let Some(next) = open.iter().map(|it| it.next).min() {
            while clock::now() < next {
                if let Some(stop) = self.stop {
                    return Err(StepEnd::Stopped(stop.reason));
                }
                self.turn(Some(next)).await;
            }
            let due = open.iter().position(|it| it.next <= next);
            let Some(one) = due.and_then(|at| open.get_mut(at)) else {
                break;
            };
            let (service, ready) = (one.service, one.ready);
            let late = clock::now() >= one.deadline;
            let Some(why) = self.look_whether_ready(one).await? else {
                let waited = delta_wire::duration::format(lasted(begun));
                self.say(&format!(
                    "the service {} is ready after {waited}",
                    service.name
                ));
                open.retain(|it| it.service.name != service.name);
                continue;
            };
            if late || clock::now() >= one.deadline {
                return Err(self.not_ready(service, ready, &why).await);
            }
            // At its deadline it is looked at once more.
            one.next = (clock::now() + span(one.ready.every)).min(one.deadline);
        }
        Ok(())
    }

    /// Nothing when it is ready, else why not.
    async fn look_whether_ready(&mut self, one: &Awaited<'_>) -> Begun<Option<String>> {
        let pid = self.stands(one.service).await?;
        match &one.ready.sign {
            Sign::Run(script) => self.ends_well(one.service, script, one.deadline).await,
            Sign::Port(port) => {
                let network = self.container.as_ref().map(|it| it.order.network);
                let loopback = network != Some(Network::Bridge);
                Ok(match listens(pid, *port, loopback) {
                    Ok(true) => None,
                    Ok(false) => Some(format!("nothing listens on port {port}")),
                    Err(problem) => Some(format!("its ports cannot be looked at: {problem}")),
                })
            }
        }
    }

    async fn ends_well(
        &mut self,
        service: &Service,
        script: &str,
        deadline: Millis,
    ) -> Begun<Option<String>> {
        let Some(container) = &self.container else {
            return Ok(None);
        };
        let runtime = container.order.runtime.clone();
        let call = Call::new(arguments::look(&container.names, &service.name, script));
        // The last look begins at the deadline, and has a moment of its own.
        let until = Waiting::UntilUnlessStopped(deadline.max(clock::now() + LAST_LOOK));
        let first = script.lines().next().unwrap_or_default();
        Ok(match self.call(&runtime, call, until).await {
            Ok(called) if called.status.success() => None,
            Ok(called) => {
                let said = format!("{}\n{}", called.text, called.complaint);
                let said = refusal::last_line(&said);
                let colon = if said.is_empty() { "" } else { ": " };
                let code = called.status.code();
                let code = code.map_or("a signal".to_owned(), |it| format!("exit code {it}"));
                Some(format!("`{first}` ended with {code}{colon}{said}"))
            }
            Err(NoAnswer::TooLate) => Some(format!("`{first}` did not end")),
            Err(no) => return Err(unanswered(no, self.stop)),
        })
    }

    /// The end of an attempt whose service was not ready in time, with the service's last lines.
    async fn not_ready(&mut self, service: &Service, ready: &Ready, why: &str) -> StepEnd {
        let name = &service.name;
        let time = delta_wire::duration::format(ready.timeout);
        let summary = format!("the service {name} was not ready within {time}: {why}");
        self.say(&format!("{summary}; its last lines:"));
        let container = self.container.as_ref();
        if let Some(name) = container.map(|it| it.names.service(name)) {
            self.show_last_lines(&name).await;
        }
        StepEnd::NotStarted(Cause::StartUp, summary)
    }
}

/// How long a look may take that begins when the time is over.
const LAST_LOOK: Span = Span::secs(5);

fn lasted(since: Millis) -> std::time::Duration {
    let millis = clock::now().since(since).0;
    std::time::Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Whether somebody listens on a port in the network of this process.
fn listens(pid: i32, port: u16, loopback: bool) -> std::io::Result<bool> {
    let four = std::fs::read_to_string(format!("/proc/{pid}/net/tcp"))?;
    // A machine may be without it.
    let six = std::fs::read_to_string(format!("/proc/{pid}/net/tcp6")).unwrap_or_default();
    let mut lines = four.lines().chain(six.lines());
    Ok(lines.any(|line| is_listener(line, port, loopback)))
}

/// A line of the kernel's list: number, own address and port, the other's, state.
fn is_listener(line: &str, port: u16, loopback: bool) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let (Some(own), Some(state)) = (words.next(), words.nth(1)) else {
        return false;
    };
    let Some((address, own_port)) = own.split_once(':') else {
        return false;
    };
    // The first byte of an address of version 4 is written last.
    let is_loopback = address == LOOPBACK_6 || (address.len() == 8 && address.ends_with("7F"));
    state == LISTENS && u16::from_str_radix(own_port, 16) == Ok(port) && (loopback || !is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 4] = [
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid",
        "   0: 0100007F:1538 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0",
        "   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0",
        "   2: 0500000A:0050 0100000A:C000 01 00000000:00000000 00:00000000 00000000     0",
    ];

    #[test]
    fn only_what_listens_where_the_job_comes_from_counts() {
        let any = |port, loopback| LINES.iter().any(|it| is_listener(it, port, loopback));
        assert!(any(5432, true) && !any(5432, false), "on the loopback");
        assert!(any(8080, true) && any(8080, false));
        assert!(!any(80, true), "a connection");
        let six = "0: 00000000000000000000000001000000:1538 0:0000 0A 0 0 0 0";
        assert!(is_listener(six, 5432, true) && !is_listener(six, 5432, false));
    }

    #[test]
    fn the_kernel_tells_who_listens() {
        let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a socket");
        let port = socket.local_addr().expect("an address").port();
        let own = i32::try_from(std::process::id()).expect("a number");
        assert!(listens(own, port, true).expect("a list"));
        assert!(!listens(own, port, false).expect("a list"));
        drop(socket);
        assert!(!listens(own, port, true).expect("a list"));
    }
}
