//! `solstice._native`: the bindings of `solstice-core`. This file only registers; each module binds one thing.

mod admin;
mod agent;
mod arrow;
mod build_info;
mod compose;
mod connection;
mod emulator;
mod errors;
mod logging;
mod pending;
mod process;
mod project;
mod publish;
mod pull;
mod rows;
mod seen;
mod waiting;

use pyo3::prelude::*;

/// Solstice's native core. Use the Python packages on top of it, not this module.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use admin::{
        create_subscription, create_topic, delete_subscription, delete_topic, get_subscription, get_topic,
        list_subscriptions, list_topics,
    };
    #[pymodule_export]
    use agent::{Agent, agent_status, read_part, run_agent};
    #[pymodule_export]
    use arrow::ArrowStream;
    #[pymodule_export]
    use build_info::{build_profile, source_fingerprint};
    #[pymodule_export]
    use compose::Composer;
    #[pymodule_export]
    use connection::Connection;
    #[pymodule_export]
    use emulator::Emulator;
    #[pymodule_export]
    use errors::provoke_panic;
    #[pymodule_export]
    use logging::{close_logs, drain_logs, set_log_level, write_log};
    #[pymodule_export]
    use pending::Pending;
    #[pymodule_export]
    use project::Projection;
    #[pymodule_export]
    use publish::Publisher;
    #[pymodule_export]
    use pull::{PulledBatch, Puller};
    #[pymodule_export]
    use rows::decode_columns;
    #[pymodule_export]
    use seen::{FreshRows, SeenIds};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        if cfg!(debug_assertions) {
            let slow = c"this is a debug build of Solstice's native core, many times slower: run make build";
            let kind = module.py().get_type::<pyo3::exceptions::PyRuntimeWarning>();
            PyErr::warn(module.py(), &kind, slow, 1)?;
        }
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
