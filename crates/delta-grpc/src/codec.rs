//! Frames on a stream of gRPC: written as messages, read as what they hold, unread.

use bytes::Buf;
use delta_wire::agent::frame::{Received, read};
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Writes frames of type `F`, reads raw ones.
#[derive(Debug)]
pub struct FrameCodec<F>(std::marker::PhantomData<fn(F)>);

impl<F> Default for FrameCodec<F> {
    fn default() -> FrameCodec<F> {
        FrameCodec(std::marker::PhantomData)
    }
}

impl<F: Message + 'static> Codec for FrameCodec<F> {
    type Encode = F;
    type Decode = Received;
    type Encoder = FrameEncoder<F>;
    type Decoder = FrameDecoder;

    fn encoder(&mut self) -> FrameEncoder<F> {
        FrameEncoder(std::marker::PhantomData)
    }

    fn decoder(&mut self) -> FrameDecoder {
        FrameDecoder
    }
}

/// Buffers of one stream: small at first, because most agents are idle most of the time.
const BUFFER: usize = 512;
/// Encoded bytes are handed to the connection from here on.
const YIELD_AT: usize = 32 * 1024;

pub struct FrameEncoder<F>(std::marker::PhantomData<fn(F)>);

impl<F: Message> Encoder for FrameEncoder<F> {
    type Item = F;
    type Error = Status;

    fn encode(&mut self, frame: F, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        frame
            .encode(to)
            .map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_AT)
    }
}

pub struct FrameDecoder;

impl Decoder for FrameDecoder {
    type Item = Received;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Received>, Status> {
        // All of it at once: what is left unread of a garbled frame would be taken for the next.
        let bytes = from.copy_to_bytes(from.remaining());
        Ok(Some(read(bytes)))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_AT)
    }
}
