//! Solstice's data plane. No Python in it: `crates/py` binds what Python needs.
//!
//! - [`project`]: JSON and Avro payloads into typed columns.
//! - [`compose`]: rows of any columns into messages, with JSON payloads where they are wanted.
//! - [`pubsub`]: the wire messages, the client, pulling with leases, publishing, decoding into Arrow.
//! - [`agent`]: the process that owns a streaming query's connections and unacknowledged rows.
//! - [`emulator`]: a Pub/Sub server for tests, demos and benchmarks.
//! - [`error`], [`retry`], [`runtime`], [`logging`], [`calendar`]: one error type, one backoff, one tokio runtime per
//!   process, one bounded log channel, one calendar.

pub mod agent;
pub mod calendar;
pub mod compose;
pub mod emulator;
pub mod error;
pub mod logging;
pub mod per_process;
pub mod project;
pub mod pubsub;
pub mod retry;
pub mod runtime;
