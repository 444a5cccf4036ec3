//! Which rows: those of a request, and those that were not published.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tonic::Code;

/// Row numbers, as runs in the order they were added.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    runs: Vec<Range<u64>>,
}

impl Rows {
    /// Add a row.
    #[inline]
    pub fn push(&mut self, row: u64) {
        match self.runs.last_mut() {
            Some(run) if run.end == row => run.end += 1,
            _ => self.runs.push(row..row + 1),
        }
    }

    /// The runs.
    pub fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }

    /// Every row.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.runs.iter().cloned().flatten()
    }
}

/// Rows that were not published, as far as anybody knows, and why.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The rows, counted from the first that the publisher was given.
    pub rows: Range<u64>,
    /// The column at fault, if it is the row's own fault.
    pub column: Option<&'static str>,
    /// What happened.
    pub reason: Arc<str>,
    /// The status of the service, if it was asked.
    pub code: Option<Code>,
}

impl Failure {
    /// Whether something is wrong with these rows, or their request: the others were only not sent.
    pub fn is_cause(&self) -> bool {
        self.column.is_some() || self.code.is_some()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rows.end - self.rows.start {
            1 => write!(f, "row {}", self.rows.start)?,
            _ => write!(f, "rows {} to {}", self.rows.start, self.rows.end - 1)?,
        }
        if let Some(column) = self.column {
            write!(f, " of column '{column}'")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// Everything that failed. Rows next to each other with one reason are one entry.
#[derive(Debug, Default)]
pub struct Failures {
    entries: Vec<Failure>,
}

impl Failures {
    /// Add rows.
    pub fn add(&mut self, failure: Failure) {
        match self.entries.last_mut() {
            Some(last) if last.rows.end == failure.rows.start && last.reason == failure.reason => {
                last.rows.end = failure.rows.end;
            }
            _ => self.entries.push(failure),
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entries by row; neighbours that were added apart are put together.
    pub fn sorted(&self) -> Vec<Failure> {
        let mut entries = self.entries.clone();
        entries.sort_by_key(|failure| failure.rows.start);
        let mut merged = Self::default();
        for failure in entries {
            merged.add(failure);
        }
        merged.entries
    }
}
