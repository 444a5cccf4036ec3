//! The core's log records, for Python's `logging` to take.

use std::time::Duration;

use log::Level;
use pyo3::prelude::*;
use solstice_core::logging;

use crate::errors::call;

/// Keep records from this level of Python's `logging` on (10 debug, 20 info, ...).
#[pyfunction]
pub fn set_log_level(level: u8) {
    logging::install(rust_level(level).to_level_filter());
}

/// Records as (level, target, message), and how many were dropped.
type Drained = (Vec<(u8, String, String)>, u64);

/// The waiting records as (level, target, message), after `wait_s` at the latest, and how many were dropped.
#[pyfunction]
pub fn drain_logs(py: Python<'_>, wait_s: f64) -> PyResult<Drained> {
    let (records, dropped) = call(py, move || Ok(logging::drain(Duration::from_secs_f64(wait_s.clamp(0.0, 60.0)))))?;
    let records = records.into_iter().map(|r| (python_level(r.level), r.target, r.message)).collect();
    Ok((records, dropped))
}

/// Let every `drain_logs` of this process return at once from now on: for the end of the process.
#[pyfunction]
pub fn close_logs() {
    logging::close();
}

/// Write a record as the core does: how tests of the channel make one.
#[pyfunction]
pub fn write_log(level: u8, target: &str, message: &str) {
    log::log!(target: target, rust_level(level), "{message}");
}

fn rust_level(level: u8) -> Level {
    match level {
        0..=9 => Level::Trace,
        10..=19 => Level::Debug,
        20..=29 => Level::Info,
        30..=39 => Level::Warn,
        _ => Level::Error,
    }
}

fn python_level(level: Level) -> u8 {
    match level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info => 20,
        Level::Debug => 10,
        Level::Trace => 5,
    }
}
