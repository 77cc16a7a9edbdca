//! Timings and budgets the server decides by. Every default is a setting; none switches fencing
//! off (LM-30).

use crate::policy::Backoff;
use crate::time::Span;

/// What the operator may set. Facts record the deadlines that follow, so a changed setting never
/// reinterprets the past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a lease lives without a heartbeat (RP-46).
    pub lease_ttl: Span,
    /// How often a holder is told to heartbeat (RP-47).
    pub heartbeat_interval: Span,
    /// How long a grant waits for its acknowledgement (RP-48).
    pub ack_timeout: Span,
    /// How long a holder has to stop after a cancel reached it (RP-49).
    pub cancel_deadline: Span,
    /// How long after a cancel was forced its holder may still hand over the log.
    pub late_log: Span,
    /// Job timeout where the job names none.
    pub job_timeout: Span,
    /// What is added to a job's timeout before the server ends it itself.
    pub timeout_buffer: Span,
    /// Run timeout, from the first grant, where the run names none.
    pub run_timeout: Span,
    /// How long a run may wait without any grant.
    pub wait_timeout: Span,
    /// How long planning may take.
    pub planning_timeout: Span,
    /// How often the sweeper looks for what is due.
    pub sweep: Span,
    /// Lost leases that end an attempt.
    pub max_losses: u32,
    /// Grants without acknowledgement that end an attempt.
    pub max_dispatches: u32,
    /// First delay before a retry; doubled each time.
    pub retry_base: Span,
    /// Longest delay before a retry.
    pub retry_cap: Span,
    /// High half of every lease epoch: a restored backup gets a new one.
    pub incarnation: u32,
}

impl Settings {
    /// The values of the specifications and of A33.
    pub fn recommended() -> Settings {
        Settings {
            lease_ttl: Span::secs(120),
            heartbeat_interval: Span::secs(20),
            ack_timeout: Span::secs(30),
            cancel_deadline: Span::secs(30),
            late_log: Span::secs(60),
            job_timeout: Span::minutes(30),
            timeout_buffer: Span::secs(30),
            run_timeout: Span::hours(6),
            wait_timeout: Span::hours(24),
            planning_timeout: Span::secs(60),
            sweep: Span::secs(1),
            max_losses: 3,
            max_dispatches: 10,
            retry_base: Span::secs(1),
            retry_cap: Span::secs(60),
            incarnation: 1,
        }
    }

    /// Names the setting that cannot work, and why.
    pub fn check(&self) -> Result<(), BadSetting> {
        let positive = [
            ("lease-ttl", self.lease_ttl),
            ("heartbeat-interval", self.heartbeat_interval),
            ("ack-timeout", self.ack_timeout),
            ("cancel-deadline", self.cancel_deadline),
            ("job-timeout", self.job_timeout),
            ("run-timeout", self.run_timeout),
            ("wait-timeout", self.wait_timeout),
            ("planning-timeout", self.planning_timeout),
            ("sweep", self.sweep),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, span)| span.0 <= 0) {
            return Err(BadSetting {
                name,
                why: "must be longer than zero".into(),
            });
        }
        if self.lease_ttl < self.heartbeat_interval.times(2) {
            let why = format!(
                "{} is less than twice the heartbeat interval {}: one lost heartbeat would lose \
                 the lease",
                self.lease_ttl, self.heartbeat_interval
            );
            return Err(BadSetting {
                name: "lease-ttl",
                why,
            });
        }
        if self.max_losses == 0 || self.max_dispatches == 0 {
            let why = "must be at least 1".to_string();
            return Err(BadSetting {
                name: "max-losses",
                why,
            });
        }
        Ok(())
    }

    /// Delays between attempts, where a job names none.
    pub fn backoff(&self) -> Backoff {
        Backoff {
            base: self.retry_base,
            cap: self.retry_cap,
        }
    }

    /// How long after a cancel request the server forces the end, whether or not it was heard:
    /// one heartbeat interval to hear of it, then the deadline itself.
    pub fn force_after(&self) -> Span {
        self.heartbeat_interval.plus(self.cancel_deadline)
    }
}

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSetting {
    pub name: &'static str,
    pub why: String,
}

impl std::fmt::Display for BadSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "--{}: {}", self.name, self.why)
    }
}

impl std::error::Error for BadSetting {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_specification() {
        // RP-46, RP-47, RP-48, RP-49, A33, A42
        let s = Settings::recommended();
        assert_eq!(s.check(), Ok(()));
        let shown = format!(
            "ttl {} heartbeat {} ack {} cancel {} job {} run {} wait {} plan {} sweep {}",
            s.lease_ttl,
            s.heartbeat_interval,
            s.ack_timeout,
            s.cancel_deadline,
            s.job_timeout,
            s.run_timeout,
            s.wait_timeout,
            s.planning_timeout,
            s.sweep
        );
        assert_eq!(
            shown,
            "ttl 2m heartbeat 20s ack 30s cancel 30s job 30m run 6h wait 24h plan 1m sweep 1s"
        );
        assert_eq!(s.late_log, Span::secs(60));
    }

    #[test]
    fn a_ttl_under_two_heartbeats_is_refused() {
        // RP-47
        let mut s = Settings::recommended();
        s.lease_ttl = Span::secs(39);
        assert_eq!(s.check().unwrap_err().name, "lease-ttl");
        s.lease_ttl = Span::secs(40);
        assert_eq!(s.check(), Ok(()));
    }

    #[test]
    fn no_setting_switches_fencing_off() {
        // LM-30: the whole vocabulary of settings, none of which is a switch.
        let shown = format!("{:?}", Settings::recommended());
        for word in ["true", "false", "fenc", "disable", "skip"] {
            assert!(!shown.contains(word), "{word} in {shown}");
        }
    }
}
