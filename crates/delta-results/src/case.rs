//! One test case as every format can say it.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    Pass,
    Fail,
    Skip,
    /// The test could not be carried out, or ended in a way that is neither pass nor fail.
    Error,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Fail => "fail",
            Status::Skip => "skip",
            Status::Error => "error",
        }
    }

    pub fn from_name(name: &str) -> Option<Status> {
        [Status::Pass, Status::Fail, Status::Skip, Status::Error]
            .into_iter()
            .find(|status| status.name() == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub suite: String,
    pub name: String,
    pub status: Status,
    pub duration_ms: Option<u64>,
    /// One line or a few: what a list shows.
    pub message: Option<String>,
    /// Everything the tool had to say.
    pub trace: Option<String>,
    pub metadata: BTreeMap<String, String>,
}

impl Case {
    pub fn new(suite: impl Into<String>, name: impl Into<String>, status: Status) -> Case {
        Case {
            suite: suite.into(),
            name: name.into(),
            status,
            duration_ms: None,
            message: None,
            trace: None,
            metadata: BTreeMap::new(),
        }
    }

    pub(crate) fn note(&mut self, name: &str, value: impl Into<String>) {
        let value = value.into();
        if !value.is_empty() {
            self.metadata.insert(name.into(), value);
        }
    }

    /// The message is the first line of the trace where the tool gave none.
    pub(crate) fn explain(&mut self, message: Option<String>, trace: Option<String>) {
        let said = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        self.trace = said(trace);
        self.message = said(message).or_else(|| {
            let mut lines = self.trace.as_deref()?.lines().map(str::trim);
            lines.find(|line| !line.is_empty()).map(str::to_string)
        });
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
    pub errors: u64,
}

impl Counts {
    pub(crate) fn of(status: Status) -> Counts {
        let mut one = Counts::default();
        one.add(status);
        one
    }

    pub fn add(&mut self, status: Status) {
        let count = match status {
            Status::Pass => &mut self.passed,
            Status::Fail => &mut self.failed,
            Status::Skip => &mut self.skipped,
            Status::Error => &mut self.errors,
        };
        *count = count.saturating_add(1);
    }

    pub fn total(&self) -> u64 {
        let sum = self.passed.saturating_add(self.failed);
        sum.saturating_add(self.skipped).saturating_add(self.errors)
    }

    pub fn unhappy(&self) -> u64 {
        self.failed.saturating_add(self.errors)
    }

    pub(crate) fn plus(&mut self, other: Counts) {
        self.passed = self.passed.saturating_add(other.passed);
        self.failed = self.failed.saturating_add(other.failed);
        self.skipped = self.skipped.saturating_add(other.skipped);
        self.errors = self.errors.saturating_add(other.errors);
    }
}
