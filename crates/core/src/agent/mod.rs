//! The agent: the process that owns a streaming query's connections, leases and unacknowledged rows.
//!
//! - [`book`]: what is held and the delivery rules; pure state, no I/O.
//! - [`control`]: what planner and agent say to each other, and the planner's side of it.
//! - [`server`]: the control socket, the pulling, the leases; it lives exactly as long as its planner.
//! - [`timing`]: when to cut, and when a run that drains its subscription is over; pure state.
//! - [`part`]: how a worker reads one part of a batch, both sides; `workers`: who may.
//! - [`frame`]: length-prefixed JSON, the shape of every control message.

pub mod book;
pub mod control;
pub mod frame;
pub mod part;
pub mod server;
pub mod timing;
mod workers;
