//! Reports that lay in the workspace before the first step: from the repository, from a cache, from
//! an earlier job. While they stay as they are they say nothing of this attempt.

use std::collections::HashMap;
use std::fs::File;

use delta_shim::report_files::{self, About};
use serde::{Deserialize, Serialize};

use super::report_spec::reports;
use crate::job_io::Around;

/// What was there, by its path.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OldReports(HashMap<String, About>);

impl OldReports {
    /// Looks when everything is in place and nothing of the job has run.
    pub async fn note(around: &Around<'_>) -> OldReports {
        let (reports, root) = (reports(around.spec), around.folder.workspace.clone());
        if reports.is_empty() {
            return OldReports::default();
        }
        let look = move || {
            let mut there = HashMap::new();
            for report in reports {
                for path in report_files::find(&root, &report.pattern).unwrap_or_default() {
                    let file = report_files::open(&root, &path).ok();
                    if let Some(about) = file.as_ref().and_then(report_files::about) {
                        there.insert(path, about);
                    }
                }
            }
            OldReports(there)
        };
        let looked = tokio::task::spawn_blocking(look).await;
        looked.unwrap_or_default()
    }

    /// The file is the one that was there, as it was.
    pub fn has(&self, path: &str, file: &File) -> bool {
        let known = self.0.get(path);
        known.is_some() && known.copied() == report_files::about(file)
    }
}
