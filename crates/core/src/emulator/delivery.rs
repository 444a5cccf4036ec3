//! Deliveries on the wire: ack ids, and the encoding of a StreamingPull response around the kept bytes.

use bytes::{BufMut, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder};

use super::message::{Digits, delimited_len, put_delimited, put_varint};
use super::state::DeliveryId;
use crate::pubsub::wire::{Empty, StreamingPullRequest};

/// `{generation}:{slot}:{serial}`, all of them decimal numbers of at most 20 digits.
const MAX_ACK_ID_BYTES: usize = 62;

/// The field `subscription_properties` with `message_ordering_enabled` set.
const ORDERED_PROPERTIES: [u8; 4] = [4 << 3 | 2, 2, 2 << 3, 1];

/// The name of a delivery on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckId {
    /// The subscription's; a deleted and recreated one has another.
    pub generation: u64,
    /// The delivery within it.
    pub delivery: DeliveryId,
}

impl AckId {
    /// Read an ack id, or refuse it as the service does.
    pub fn parse(text: &str) -> Result<Self, Status> {
        Self::read(text).ok_or_else(|| Status::invalid_argument(format!("The ack id {text:?} is invalid.")))
    }

    fn read(text: &str) -> Option<Self> {
        let mut numbers = text.splitn(3, ':');
        let generation = numbers.next()?.parse().ok()?;
        let slot = numbers.next()?.parse().ok()?;
        let serial = numbers.next()?.parse().ok()?;
        Some(Self { generation, delivery: DeliveryId { slot, serial } })
    }

    fn write(self, out: &mut [u8; MAX_ACK_ID_BYTES]) -> &[u8] {
        let mut rest = &mut out[..];
        let mut digits = Digits::default();
        rest.put_slice(digits.write(self.generation));
        rest.put_u8(b':');
        rest.put_slice(digits.write(u64::from(self.delivery.slot)));
        rest.put_u8(b':');
        rest.put_slice(digits.write(self.delivery.serial));
        let used = MAX_ACK_ID_BYTES - rest.len();
        &out[..used]
    }
}

/// A leased message on its way out.
#[derive(Debug)]
pub struct Delivery {
    /// Names the lease.
    pub id: DeliveryId,
    /// The encoded message.
    pub message: Bytes,
}

/// One StreamingPull response.
#[derive(Debug)]
pub struct Deliveries {
    /// The subscription's.
    pub generation: u64,
    /// Whether the subscription keeps the order of ordering keys; some clients do so only when told.
    pub ordered: bool,
    /// What is delivered.
    pub deliveries: Vec<Delivery>,
}

impl Deliveries {
    fn encode(&self, out: &mut EncodeBuf<'_>) {
        let room: usize = self.deliveries.iter().map(|d| d.message.len() + MAX_ACK_ID_BYTES + 16).sum();
        out.reserve(room);
        let mut buffer = [0; MAX_ACK_ID_BYTES];
        for delivery in &self.deliveries {
            let ack_id = AckId { generation: self.generation, delivery: delivery.id }.write(&mut buffer);
            out.put_u8(1 << 3 | 2);
            put_varint(out, (delimited_len(ack_id.len()) + delimited_len(delivery.message.len())) as u64);
            put_delimited(out, 1, ack_id);
            put_delimited(out, 2, &delivery.message);
        }
        if self.ordered {
            out.put_slice(&ORDERED_PROPERTIES);
        }
    }
}

/// The codec of StreamingPull: requests by prost, responses straight from the kept bytes.
#[derive(Default)]
pub struct StreamingPullCodec;

impl Codec for StreamingPullCodec {
    type Encode = Deliveries;
    type Decode = StreamingPullRequest;
    type Encoder = DeliveriesEncoder;
    type Decoder = ProstDecoder<StreamingPullRequest>;

    fn encoder(&mut self) -> Self::Encoder {
        DeliveriesEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<Empty, StreamingPullRequest>::raw_decoder(BufferSettings::default())
    }
}

/// The sending half of [`StreamingPullCodec`].
pub struct DeliveriesEncoder;

impl Encoder for DeliveriesEncoder {
    type Item = Deliveries;
    type Error = Status;

    fn encode(&mut self, item: Deliveries, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_ids_read_back_as_written() {
        for (generation, slot, serial) in [(1, 0, 0), (u64::MAX, u32::MAX, u64::MAX), (12, 345, 6_789)] {
            let id = AckId { generation, delivery: DeliveryId { slot, serial } };
            let mut buffer = [0; MAX_ACK_ID_BYTES];
            let text = String::from_utf8(id.write(&mut buffer).to_vec()).unwrap();
            assert_eq!(AckId::parse(&text).unwrap(), id);
        }
    }

    #[test]
    fn other_text_is_no_ack_id() {
        for text in ["", "1", "1:2", "1:2:x", "1:2:3:4", "a:2:3", "1:4294967296:3", "-1:2:3"] {
            assert_eq!(AckId::parse(text).unwrap_err().code(), tonic::Code::InvalidArgument);
        }
    }
}
