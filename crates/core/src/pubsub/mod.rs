//! Google Cloud Pub/Sub: what goes over the wire and the client side of it.

pub mod admin;
pub mod client;
pub mod columns;
pub mod connection;
pub mod credentials;
pub mod decode;
pub mod framed;
pub mod lease;
pub mod ledger;
pub mod publish;
pub mod pull;
pub mod puller;
pub mod seen;
pub mod settle;
pub mod wire;
