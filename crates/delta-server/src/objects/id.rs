//! The public name of an upload: says where the bytes go, and nothing that is secret.

use delta_core::{LeaseKey, RunId};

/// An upload a lease may write to: its log, or one artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadId {
    pub lease: LeaseKey,
    /// `None` is the log.
    pub artifact: Option<u64>,
}

/// How the ids of a lease's uploads begin.
pub(super) fn prefix(lease: LeaseKey) -> String {
    let attempt = lease.attempt;
    let (run, n, index) = (attempt.run().0, attempt.job.n, attempt.index);
    format!("{run:032x}-{n}-{index}-{}-", lease.epoch)
}

/// `<32 hex>-<job>-<attempt>-<epoch>-log` or `…-<16 hex>`.
impl std::fmt::Display for UploadId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&prefix(self.lease))?;
        match self.artifact {
            None => f.write_str("log"),
            Some(id) => write!(f, "{id:016x}"),
        }
    }
}

impl std::str::FromStr for UploadId {
    type Err = ();

    fn from_str(text: &str) -> Result<UploadId, ()> {
        let parts: Vec<&str> = text.split('-').collect();
        let [run, n, index, epoch, what] = parts[..] else {
            return Err(());
        };
        let run = RunId(u128::from_str_radix(run, 16).map_err(drop)?);
        let job = run.job(n.parse().map_err(drop)?);
        let attempt = job.attempt(index.parse().map_err(drop)?);
        let id = UploadId {
            lease: attempt.lease(epoch.parse().map_err(drop)?),
            artifact: match what {
                "log" => None,
                id => Some(u64::from_str_radix(id, 16).map_err(drop)?),
            },
        };
        // Only the one spelling that is handed out.
        if id.to_string() == text {
            Ok(id)
        } else {
            Err(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::lease;
    use super::*;

    #[test]
    fn only_ids_as_handed_out_are_read() {
        let log = UploadId {
            lease: lease(),
            artifact: None,
        };
        let artifact = UploadId {
            artifact: Some(255),
            ..log
        };
        for id in [log, artifact] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let text = log.to_string();
        for bad in [
            "",
            "x",
            "../../etc",
            &text[1..],
            &format!("{text}-"),
            &text.replace("log", "LOG"),
            &text.replace("-2-", "-02-"),
        ] {
            assert_eq!(bad.parse::<UploadId>(), Err(()), "{bad}");
        }
    }
}
