//! A request body that is ready for the wire. tonic would copy a message into a buffer of its own first, which for a
//! publish request of 250 KB costs more than encoding it did.

use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;

/// What a message has before it on the wire: whether it is compressed, and its length.
pub const FRAME_HEAD_BYTES: usize = 5;

/// Write the head of the uncompressed message that follows it in `framed`.
pub fn write_frame_head(framed: &mut [u8]) {
    if let Some((head, message)) = framed.split_first_chunk_mut::<FRAME_HEAD_BYTES>() {
        // A message of more than 4 GB is far beyond every limit.
        let length = (message.len() as u32).to_be_bytes();
        *head = [0, length[0], length[1], length[2], length[3]];
    }
}

/// A channel that sends this body, whatever message the call is given.
pub struct FramedChannel {
    channel: Channel,
    framed: Bytes,
}

impl FramedChannel {
    /// For one call of `framed`, a message with its head.
    pub fn new(channel: Channel, framed: Bytes) -> Self {
        Self { channel, framed }
    }
}

impl Service<http::Request<Body>> for FramedChannel {
    type Response = <Channel as Service<http::Request<Body>>>::Response;
    type Error = <Channel as Service<http::Request<Body>>>::Error;
    type Future = <Channel as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.channel.call(request.map(|_| Body::new(Full::new(std::mem::take(&mut self.framed)))))
    }
}
