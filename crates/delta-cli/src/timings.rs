//! Every timing of the server as a flag. What is not given keeps the specification's value.

use std::time::Duration;

use clap::Args;
use delta_core::{Settings, Span};
use delta_server::CacheLimits;

use crate::exit::Exit;
use crate::failure::Failure;

/// How long things may take. Durations read like `500ms`, `2m`, `1h30m`.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Timings")]
pub struct Timings {
    /// How long a lease lives without a heartbeat [default: 2m]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub lease_ttl: Option<Span>,
    /// How often the holder of a lease must send a heartbeat [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub heartbeat_interval: Option<Span>,
    /// How long a grant waits for its acknowledgement [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub ack_timeout: Option<Span>,
    /// How long a job may take to stop once it was told to [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub cancel_deadline: Option<Span>,
    /// How long after a forced cancel the rest of the log is still taken [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub late_log: Option<Span>,
    /// How long an attempt may take when its job does not say [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub job_timeout: Option<Span>,
    /// How much later than that the server ends it itself [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub timeout_buffer: Option<Span>,
    /// How long a run may take from its first grant [default: 6h]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub run_timeout: Option<Span>,
    /// How long a run may wait without any grant [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub wait_timeout: Option<Span>,
    /// How often to look for what is due [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub sweep: Option<Span>,
    /// Lost leases that end an attempt [default: 3]
    #[arg(long, value_name = "N")]
    pub max_losses: Option<u32>,
    /// Grants without acknowledgement that end an attempt [default: 10]
    #[arg(long, value_name = "N")]
    pub max_dispatches: Option<u32>,
    /// First delay before a failed job is tried again; doubled each time [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub retry_base: Option<Span>,
    /// Longest delay before a failed job is tried again [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub retry_cap: Option<Span>,
    /// Expire no lease for this long after a start: agents were cut off, not dead [default: 0]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub startup_grace: Option<Span>,
    /// Delete runs that ended longer ago than this [default: keep everything]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub retention: Option<Span>,
    /// Remove caches that were not used for this long [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub cache_unused: Option<Span>,
    /// Megabytes of caches that a project may have; the least used go first [default: 20000]
    #[arg(long, value_name = "MB")]
    pub cache_megabytes: Option<u64>,
}

impl Timings {
    /// What is kept of caches.
    pub fn caches(&self) -> CacheLimits {
        let usual = CacheLimits::USUAL;
        let unused = self.cache_unused;
        let unused = unused.map(|it| Duration::from_millis(it.0.unsigned_abs()));
        let bytes = self.cache_megabytes.map(|it| it.saturating_mul(1_000_000));
        CacheLimits {
            project_bytes: bytes.unwrap_or(usual.project_bytes),
            unused: unused.unwrap_or(usual.unused),
            ..usual
        }
    }

    /// These flags over `base`, checked.
    pub fn over(&self, mut base: Settings) -> Result<Settings, Failure> {
        let spans = [
            (&mut base.lease_ttl, self.lease_ttl),
            (&mut base.heartbeat_interval, self.heartbeat_interval),
            (&mut base.ack_timeout, self.ack_timeout),
            (&mut base.cancel_deadline, self.cancel_deadline),
            (&mut base.late_log, self.late_log),
            (&mut base.job_timeout, self.job_timeout),
            (&mut base.timeout_buffer, self.timeout_buffer),
            (&mut base.run_timeout, self.run_timeout),
            (&mut base.wait_timeout, self.wait_timeout),
            (&mut base.sweep, self.sweep),
            (&mut base.retry_base, self.retry_base),
            (&mut base.retry_cap, self.retry_cap),
        ];
        for (setting, given) in spans {
            *setting = given.unwrap_or(*setting);
        }
        base.max_losses = self.max_losses.unwrap_or(base.max_losses);
        base.max_dispatches = self.max_dispatches.unwrap_or(base.max_dispatches);
        base.check().map_err(|bad| {
            Failure::new(Exit::Usage, "a timing cannot work")
                .because(bad)
                .next("delta-ci server --help lists the timings and their defaults")
        })?;
        Ok(base)
    }
}

/// Reads a duration of the command line.
pub fn span(text: &str) -> Result<Span, delta_wire::duration::DurationError> {
    let duration = delta_wire::duration::parse(text)?;
    Ok(Span(
        i64::try_from(duration.as_millis()).unwrap_or(i64::MAX),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_keeps_the_recommended_value() {
        let given = Timings {
            lease_ttl: Some(Span::secs(5)),
            heartbeat_interval: Some(Span::secs(1)),
            ..Timings::default()
        };
        let settings = given.over(Settings::recommended()).unwrap();
        assert_eq!(settings.lease_ttl, Span::secs(5));
        assert_eq!(settings.ack_timeout, Settings::recommended().ack_timeout);
    }

    #[test]
    fn timings_that_contradict_each_other_are_named() {
        let given = Timings {
            lease_ttl: Some(Span::secs(5)),
            ..Timings::default()
        };
        let failure = given.over(Settings::recommended()).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(
            failure
                .text()
                .contains("--lease-ttl: 5s is less than twice")
        );
    }
}
