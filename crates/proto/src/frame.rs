//! Frames: how a byte stream carries messages.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic "RBd1" |
//! | 4 | 4 | length of the payload in bytes |
//! | 8 | 4 | CRC32C of length and payload |
//! | 12 | length | payload: one [`Message`] |
//!
//! Invariants:
//! - a decoder holds at most one frame ([`FRAME_MAX`] bytes) and what arrived with it;
//! - bytes that are not a frame end the stream: after [`Malformed`] a decoder yields nothing more;
//! - for a complete frame with an operation of a newer version, the decoder yields
//!   [`Received::Unknown`], because its sender must get an answer.

use std::marker::PhantomData;
use std::rc::Rc;

use types::limits::FRAME_MAX;
use types::{crc32c, crc32c_append};

use crate::mds::Mds;
use crate::message::{Message, Peer};
use crate::wire::{Malformed, Reader, Wire};

/// First bytes of every frame, as a little-endian number.
pub const MAGIC: u32 = u32::from_le_bytes(*b"RBd1");
/// Bytes before the payload.
pub const HEADER: usize = 12;
/// Capacity that an empty decoder keeps, unless its user wants less.
const SPARE_MAX: usize = 1 << 20;
/// Payloads from here on stay in the buffer that they came in.
const LARGE: usize = 64 << 10;
/// Payloads up to here get room at once.
const RESERVED_MAX: usize = 2 << 20;
/// Room for what comes behind such a payload.
const READ_BEHIND: usize = 4 << 10;
/// Id of [`Message::Request`] on the wire.
const REQUEST: u16 = 4;

/// What a frame held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received<P: Peer = Mds> {
    /// A message.
    Message(Message<P>),
    /// A request of which only slot and sequence are readable: the server answers
    /// `Unsupported`.
    Unknown {
        /// Its slot.
        slot: u16,
        /// Its sequence.
        seq: u32,
    },
}

/// Appends `message` as a frame. Panics if it exceeds [`FRAME_MAX`]: the code that builds a
/// reply keeps it below the limit.
pub fn encode<P: Peer>(message: &Message<P>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&[0; HEADER - 4]);
    message.put(out);
    let len = out.len() - start - HEADER;
    assert!(HEADER + len <= FRAME_MAX, "a frame of {len} bytes exceeds the limit");
    let len = (len as u32).to_le_bytes();
    let crc = crc32c_append(crc32c(&len), &out[start + HEADER..]);
    out[start + 4..start + 8].copy_from_slice(&len);
    out[start + 8..start + 12].copy_from_slice(&crc.to_le_bytes());
}

/// Takes received bytes and yields messages.
pub struct Decoder<P: Peer = Mds> {
    bytes: Vec<u8>,
    start: usize,
    broken: Option<Malformed>,
    peer: PhantomData<P>,
}

impl<P: Peer> Default for Decoder<P> {
    fn default() -> Decoder<P> {
        Decoder { bytes: Vec::new(), start: 0, broken: None, peer: PhantomData }
    }
}

impl<P: Peer> Decoder<P> {
    /// A decoder that has received nothing.
    pub fn new() -> Decoder<P> {
        Decoder::default()
    }

    /// Lends the buffer for a read that appends to it; [`Decoder::restore`] returns it.
    pub fn lend(&mut self) -> Vec<u8> {
        self.lend_within(SPARE_MAX)
    }

    /// As [`Decoder::lend`]; an empty buffer keeps at most the capacity `spare`.
    pub fn lend_within(&mut self, spare: usize) -> Vec<u8> {
        self.compact();
        self.reserve();
        if self.bytes.is_empty() && self.bytes.capacity() > spare {
            self.bytes = Vec::new();
        }
        std::mem::take(&mut self.bytes)
    }

    /// Returns the buffer lent by [`Decoder::lend`], with the received bytes appended.
    pub fn restore(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.compact();
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete message.
    ///
    /// # Errors
    /// The bytes are not a frame, or a frame's payload is not a message.
    #[allow(clippy::should_implement_trait, reason = "an iterator's `next` does not work with `?`")]
    pub fn next(&mut self) -> Result<Option<Received<P>>, Malformed> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let result = self.step();
        if let Err(malformed) = result {
            self.broken = Some(malformed);
        }
        result
    }

    fn step(&mut self) -> Result<Option<Received<P>>, Malformed> {
        let tail = &self.bytes[self.start..];
        if tail.len() < HEADER {
            return Ok(None);
        }
        let word =
            |at: usize| u32::from_le_bytes([tail[at], tail[at + 1], tail[at + 2], tail[at + 3]]);
        if word(0) != MAGIC {
            return Err(Malformed("the stream is not Redbud's protocol"));
        }
        let len = word(4) as usize;
        if len > FRAME_MAX - HEADER {
            return Err(Malformed("a frame exceeds the limit"));
        }
        if tail.len() < HEADER + len {
            return Ok(None);
        }
        let payload = &tail[HEADER..HEADER + len];
        if crc32c_append(crc32c(&tail[4..8]), payload) != word(8) {
            return Err(Malformed("a frame's checksum is wrong"));
        }
        if len < LARGE {
            let received = received(Reader::new(payload))?;
            self.start += HEADER + len;
            return Ok(Some(received));
        }
        // The message keeps the buffer; what has arrived behind it goes on in another one.
        let (begin, end) = (self.start + HEADER, self.start + HEADER + len);
        let behind = self.bytes[end..].to_vec();
        let frame = Rc::new(std::mem::replace(&mut self.bytes, behind));
        self.start = 0;
        received(Reader::of_frame(&frame, begin..end)).map(Some)
    }

    /// Makes room for the rest of a large frame at once, when its length is known.
    fn reserve(&mut self) {
        let Some(header) = self.bytes[self.start..].first_chunk::<HEADER>() else { return };
        let word =
            |at: usize| header[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        let len = word(4) as usize;
        if word(0) == MAGIC && (LARGE..=RESERVED_MAX).contains(&len) {
            let wanted = self.start + HEADER + len + READ_BEHIND;
            self.bytes.reserve_exact(wanted.saturating_sub(self.bytes.len()));
        }
    }

    fn compact(&mut self) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
        } else if self.start > 0 {
            self.bytes.drain(..self.start);
        }
        self.start = 0;
    }
}

/// The message of a payload.
fn received<P: Peer>(payload: Reader<'_>) -> Result<Received<P>, Malformed> {
    match Message::get(&mut payload.clone()) {
        Ok(message) => Ok(Received::Message(message)),
        Err(malformed) => {
            let (slot, seq) = request_head(payload).ok_or(malformed)?;
            Ok(Received::Unknown { slot, seq })
        }
    }
}

/// Slot and sequence of a request, which are its first fields in every version.
fn request_head(mut reader: Reader<'_>) -> Option<(u16, u32)> {
    let id = u16::get(&mut reader).ok()?;
    let _len = u32::get(&mut reader).ok()?;
    (id == REQUEST).then_some(())?;
    Some((u16::get(&mut reader).ok()?, u32::get(&mut reader).ok()?))
}

#[cfg(test)]
mod tests;
