//! Which reports a job spec names, and of whom they are.

use std::path::Path;

use delta_results::Format;
use delta_shim::report_files;
use delta_wire::JobSpec;
use delta_wire::job_spec::ResultsFormat;

use super::old_reports::OldReports;
use super::report_reader::Source;

/// One report, or several by one pattern.
#[derive(Clone, Debug)]
pub(crate) struct ReportSpec {
    pub format: Format,
    pub pattern: String,
    /// The test of the job spec that writes it, by its place there.
    pub test: Option<u32>,
}

impl ReportSpec {
    /// It is written line by line, so that it can be read along.
    pub fn grows(&self) -> bool {
        matches!(self.format, Format::Tap | Format::Json | Format::Junit)
    }

    /// At least one of its pattern can be read.
    pub fn is_in(&self, place: &Path, root: &Path, stale: &OldReports) -> bool {
        let found = report_files::find(place, &self.pattern).unwrap_or_default();
        found.iter().any(|path| {
            let source = Source {
                report: self,
                root,
                place,
                path,
            };
            source.is_there(stale)
        })
    }

    /// Another test may write the same file: whose it is can be told when one of them has ended.
    pub fn is_shared(&self, all: &[ReportSpec]) -> bool {
        let of_another = |it: &&ReportSpec| it.test.is_some() && it.test != self.test;
        let mut others = all.iter().filter(of_another);
        let apart = |it: &ReportSpec| {
            report_files::is_one_path(&it.pattern)
                && report_files::is_one_path(&self.pattern)
                && report_files::plain(&it.pattern) != report_files::plain(&self.pattern)
        };
        self.test.is_some() && !others.all(apart)
    }
}

/// Reports that a job spec names.
pub fn reports(spec: &JobSpec) -> Vec<ReportSpec> {
    let own = spec.results.iter().map(|it| ReportSpec {
        format: format(it.format),
        pattern: it.path.clone(),
        test: None,
    });
    let of_tests = spec.tests.iter().zip(0..).filter_map(|(test, place)| {
        let config = test.result_config.as_ref()?;
        Some(ReportSpec {
            format: format(config.result_format),
            pattern: config.result_file.clone()?,
            test: Some(place),
        })
    });
    own.chain(of_tests).collect()
}

fn format(format: ResultsFormat) -> Format {
    match format {
        ResultsFormat::Junit => Format::Junit,
        ResultsFormat::Jest => Format::Jest,
        ResultsFormat::Playwright => Format::Playwright,
        ResultsFormat::Tap => Format::Tap,
        ResultsFormat::Json => Format::Json,
    }
}
