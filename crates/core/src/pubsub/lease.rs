//! Leases: the deliveries we hold and until when, and the requests that extend, acknowledge or give them back.

use std::time::{Duration, Instant};

use arrow_array::{Array, StringArray};

use crate::error::{Error, Result};
use crate::pubsub::client::Client;
use crate::retry::{Backoff, is_transient};

/// The most ids one acknowledge or modifyAckDeadline request may name.
pub const MAX_REQUEST_IDS: usize = 1_000;
/// The most bytes one such request may have; leaves room for the subscription's name and framing.
const MAX_REQUEST_BYTES: usize = (512 << 10) - 4_096;

/// Deliveries that came together and whose deadline moves together.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The deliveries.
    pub ack_ids: StringArray,
    /// When they came.
    pub received_at: Instant,
    /// Until when Pub/Sub waits for them.
    pub deadline: Instant,
    /// The deadline passed: Pub/Sub may have given copies to somebody else.
    pub expired: bool,
    /// The extension that is under way, if there is one.
    pub extension: Option<u64>,
}

impl Lease {
    /// A new lease of deliveries that came at `received_at`.
    pub fn new(ack_ids: StringArray, received_at: Instant, ack_deadline: Duration) -> Self {
        Self { ack_ids, received_at, deadline: received_at + ack_deadline, expired: false, extension: None }
    }

    /// How many deliveries it covers.
    pub fn len(&self) -> usize {
        self.ack_ids.len()
    }

    /// Whether it covers none.
    pub fn is_empty(&self) -> bool {
        self.ack_ids.is_empty()
    }

    /// Keep the first `at` deliveries, return the others as a lease of their own.
    pub fn split_off(&mut self, at: usize) -> Self {
        let rest = Self { ack_ids: self.ack_ids.slice(at, self.len() - at), ..self.clone() };
        self.ack_ids = self.ack_ids.slice(0, at);
        rest
    }
}

/// Cut ids into requests that keep to the limits of the service.
pub fn requests<'a>(ack_ids: impl IntoIterator<Item = &'a StringArray>) -> Vec<Vec<String>> {
    let mut requests = vec![];
    let (mut current, mut bytes) = (vec![], 0);
    for ack_id in ack_ids.into_iter().flat_map(|ids| ids.iter().flatten()) {
        if current.len() == MAX_REQUEST_IDS || bytes + ack_id.len() > MAX_REQUEST_BYTES {
            requests.push(std::mem::take(&mut current));
            bytes = 0;
        }
        bytes += ack_id.len() + 4;
        current.push(ack_id.to_owned());
    }
    if !current.is_empty() {
        requests.push(current);
    }
    requests
}

/// Acknowledge `ack_ids`, trying again while that can help.
pub async fn acknowledge(client: &Client, subscription: &str, ack_ids: &[StringArray]) -> Result<()> {
    for request in requests(ack_ids) {
        let mut backoff = Backoff::default();
        loop {
            match client.acknowledge(subscription, request.clone()).await {
                Ok(()) => break,
                Err(status) if is_transient(status.code()) => {
                    log::warn!("acknowledging {} messages of {subscription}: {status}; trying again", request.len());
                    tokio::time::sleep(backoff.next_delay()).await;
                }
                Err(status) => {
                    let doing = format!("acknowledging {} messages of {subscription}", request.len());
                    return Err(Error::from_status(&doing, &status));
                }
            }
        }
    }
    Ok(())
}

/// Set the deadline of `ack_ids` once, 0 to give them back; true when Pub/Sub took all requests.
pub async fn modify<'a>(
    client: &Client,
    subscription: &str,
    ack_ids: impl IntoIterator<Item = &'a StringArray>,
    deadline_s: i32,
) -> bool {
    let mut taken = true;
    for request in requests(ack_ids) {
        let count = request.len();
        if let Err(status) = client.modify_ack_deadline(subscription, request, deadline_s).await {
            log::warn!("setting the deadline of {count} messages of {subscription} to {deadline_s} s failed: {status}");
            taken = false;
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: usize, length: usize) -> StringArray {
        (0..count).map(|i| Some(format!("{i:0length$}"))).collect()
    }

    #[test]
    fn requests_keep_to_the_limit_of_ids_and_lose_none() {
        let all = ids(2_500, 8);
        let cut = requests([&all]);
        assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [1_000, 1_000, 500]);
        assert!(cut.concat().iter().map(String::as_str).eq(all.iter().flatten()));
    }

    #[test]
    fn requests_keep_to_the_limit_of_bytes() {
        let cut = requests([&ids(900, 1_024)]);
        assert!(cut.len() == 2 && cut.iter().all(|r| r.iter().map(String::len).sum::<usize>() <= 512 << 10));
    }

    #[test]
    fn splitting_a_lease_loses_no_delivery() {
        let mut lease = Lease::new(ids(10, 4), Instant::now(), Duration::from_secs(10));
        let rest = lease.split_off(3);
        let both: Vec<_> = lease.ack_ids.iter().chain(rest.ack_ids.iter()).flatten().map(str::to_owned).collect();
        assert!(both.iter().map(String::as_str).eq(ids(10, 4).iter().flatten()));
        assert_eq!((lease.len(), rest.len()), (3, 7));
    }
}
