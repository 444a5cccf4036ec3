//! Deliveries on the wire: ack ids, and the encoding of a StreamingPull response around the kept bytes.

use std::marker::PhantomData;

use bytes::{BufMut, Bytes};
use prost::Message as _;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder};

use super::protobuf::{Digits, delimited_len, put_delimited, put_varint, varint_len};
use super::state::DeliveryId;
use crate::pubsub::wire::{AcknowledgeConfirmation, Empty, ModifyAckDeadlineConfirmation};

/// `{generation}:{slot}:{serial}`, all of them decimal numbers of at most 20 digits.
const MAX_ACK_ID_BYTES: usize = 62;
/// What else a delivery has on the wire, at most: keys, lengths, the attempt.
const FRAMING_BYTES: usize = 24;

/// The name of a delivery on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckId {
    /// The subscription's; a deleted and recreated one has another.
    pub generation: u64,
    /// The delivery within it.
    pub delivery: DeliveryId,
}

impl AckId {
    /// Read an ack id.
    pub fn read(text: &str) -> Option<Self> {
        let mut numbers = text.splitn(3, ':');
        let generation = numbers.next()?.parse().ok()?;
        let slot = numbers.next()?.parse().ok()?;
        let serial = numbers.next()?.parse().ok()?;
        Some(Self { generation, delivery: DeliveryId { slot, serial } })
    }

    /// The answer to what is no ack id.
    pub fn invalid(text: &str) -> Status {
        Status::invalid_argument(format!("You have passed an invalid ack ID to the service (ack_id={text})."))
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
    /// Which delivery of the message this is; 0 when that is not told.
    pub attempt: u32,
    /// The encoded message.
    pub message: Bytes,
}

/// What became of a stream's acknowledgements and lease changes.
#[derive(Debug, Default, PartialEq)]
pub struct Confirmations {
    /// Of acknowledgements.
    pub acks: AcknowledgeConfirmation,
    /// Of new deadlines.
    pub deadlines: ModifyAckDeadlineConfirmation,
}

impl Confirmations {
    /// Add later ones.
    pub fn add(&mut self, later: Self) {
        self.acks.ack_ids.extend(later.acks.ack_ids);
        self.acks.invalid_ack_ids.extend(later.acks.invalid_ack_ids);
        self.deadlines.ack_ids.extend(later.deadlines.ack_ids);
        self.deadlines.invalid_ack_ids.extend(later.deadlines.invalid_ack_ids);
    }

    fn encode(&self, out: &mut EncodeBuf<'_>) {
        if self.acks != AcknowledgeConfirmation::default() {
            put_delimited(out, 5, &self.acks.encode_to_vec());
        }
        if self.deadlines != ModifyAckDeadlineConfirmation::default() {
            put_delimited(out, 3, &self.deadlines.encode_to_vec());
        }
    }
}

/// What a StreamingPull response says of its subscription; some clients act on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Acknowledgements are confirmed.
    pub exactly_once: bool,
    /// The order of ordering keys is kept.
    pub ordered: bool,
}

impl Properties {
    fn encode(self, out: &mut EncodeBuf<'_>) {
        let mut fields = Vec::new();
        for (number, is_set) in [(1, self.exactly_once), (2, self.ordered)] {
            if is_set {
                fields.extend([number << 3, 1]);
            }
        }
        if !fields.is_empty() {
            put_delimited(out, 4, &fields);
        }
    }
}

/// A response of StreamingPull; one of Pull is the same without properties and confirmations.
#[derive(Debug)]
pub struct Deliveries {
    /// The subscription's.
    pub generation: u64,
    /// The subscription's.
    pub properties: Properties,
    /// What is delivered.
    pub deliveries: Vec<Delivery>,
    /// What became of acknowledgements that came in the stream.
    pub confirmations: Option<Box<Confirmations>>,
}

impl Deliveries {
    fn encode(&self, out: &mut EncodeBuf<'_>) {
        let room: usize = self.deliveries.iter().map(|d| d.message.len() + MAX_ACK_ID_BYTES + FRAMING_BYTES).sum();
        out.reserve(room);
        let mut buffer = [0; MAX_ACK_ID_BYTES];
        for delivery in &self.deliveries {
            let ack_id = AckId { generation: self.generation, delivery: delivery.id }.write(&mut buffer);
            let attempt_len = if delivery.attempt == 0 { 0 } else { 1 + varint_len(u64::from(delivery.attempt)) };
            let length = delimited_len(ack_id.len()) + delimited_len(delivery.message.len()) + attempt_len;
            out.put_u8(1 << 3 | 2);
            put_varint(out, length as u64);
            put_delimited(out, 1, ack_id);
            put_delimited(out, 2, &delivery.message);
            if delivery.attempt != 0 {
                out.put_u8(3 << 3);
                put_varint(out, u64::from(delivery.attempt));
            }
        }
        if let Some(confirmations) = &self.confirmations {
            confirmations.encode(out);
        }
        self.properties.encode(out);
    }
}

/// The codec of StreamingPull and Pull: requests by prost, responses straight from the kept bytes.
pub struct DeliveriesCodec<Q>(PhantomData<Q>);

impl<Q> Default for DeliveriesCodec<Q> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<Q: prost::Message + Default + Send + 'static> Codec for DeliveriesCodec<Q> {
    type Encode = Deliveries;
    type Decode = Q;
    type Encoder = DeliveriesEncoder;
    type Decoder = ProstDecoder<Q>;

    fn encoder(&mut self) -> Self::Encoder {
        DeliveriesEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<Empty, Q>::raw_decoder(BufferSettings::default())
    }
}

/// The sending half of [`DeliveriesCodec`].
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
            assert_eq!(AckId::read(&text), Some(id));
        }
    }

    #[test]
    fn other_text_is_no_ack_id() {
        for text in ["", "1", "1:2", "1:2:x", "1:2:3:4", "a:2:3", "1:4294967296:3", "-1:2:3"] {
            assert_eq!(AckId::read(text), None, "{text}");
        }
    }
}
