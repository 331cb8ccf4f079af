//! Frames: how a byte stream carries messages.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic "RBd1" |
//! | 4 | 4 | length of the payload in bytes |
//! | 8 | 4 | CRC32C of length and payload |
//! | 12 | length | payload: one [`Message`] |
//!
//! Content that carries the checksums of its bytes lies behind its message, from 64 KiB on: so the
//! sender need not copy it, and the receiver reads it into a buffer of its own.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic "RBb1" |
//! | 4 | 4 | length of the payload in bytes |
//! | 8 | 4 | CRC32C of both lengths and the payload |
//! | 12 | 4 | length of the content in bytes |
//! | 16 | length | payload: one message that names the content by its length, with bit 31 set |
//! | 16 + length | length | the content, which this checksum does not cover |
//!
//! Invariants:
//! - a decoder holds at most one frame ([`FRAME_MAX`] bytes) and what arrived with it; before the
//!   greeting a server's holds [`GREETING_MAX`] bytes, and takes no content behind a message;
//! - a message names the content behind it exactly once;
//! - bytes that are not a frame end the stream: after [`Malformed`] a decoder yields nothing more;
//! - for a complete frame with an operation of a newer version, the decoder yields
//!   [`Received::Unknown`], because its sender must get an answer.

use std::cell::Cell;
use std::marker::PhantomData;
use std::rc::Rc;

use types::limits::FRAME_MAX;
use types::{crc32c, crc32c_append};

use crate::content::Content;
use crate::mds::Mds;
use crate::message::{Message, Peer};
use crate::wire::{Malformed, Reader, Wire};

/// First bytes of every frame, as a little-endian number.
pub const MAGIC: u32 = u32::from_le_bytes(*b"RBd1");
/// First bytes of a frame with content behind it.
pub const MAGIC_BEHIND: u32 = u32::from_le_bytes(*b"RBb1");
/// Bytes before the payload.
pub const HEADER: usize = 12;
/// Bytes before the payload of a frame with content behind it.
const HEADER_BEHIND: usize = 16;
/// A frame's bytes at most that a server takes before the greeting.
pub const GREETING_MAX: usize = 64 << 10;
/// Content of fewer bytes stays in its message.
const BEHIND_MIN: usize = 64 << 10;
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

/// Appends `message` as a frame, as [`encode`]. Returns the content that has to follow it, if some
/// goes behind it.
pub fn encode_apart<P: Peer>(message: &Message<P>, out: &mut Vec<u8>) -> Option<Content> {
    let Some(content) = content_behind(message) else {
        encode(message, out);
        return None;
    };
    let start = out.len();
    out.extend_from_slice(&MAGIC_BEHIND.to_le_bytes());
    out.extend_from_slice(&[0; HEADER_BEHIND - 4]);
    content.put_behind(|| message.put(out));
    let len = out.len() - start - HEADER_BEHIND;
    assert!(HEADER_BEHIND + len <= FRAME_MAX, "a frame of {len} bytes exceeds the limit");
    let frame = &mut out[start..];
    frame[4..8].copy_from_slice(&(len as u32).to_le_bytes());
    frame[12..16].copy_from_slice(&(content.len() as u32).to_le_bytes());
    let crc = crc32c_append(crc32c(&frame[4..8]), &frame[12..]);
    frame[8..12].copy_from_slice(&crc.to_le_bytes());
    Some(content.clone())
}

/// The content that goes behind this message, if any does.
fn content_behind<P: Peer>(message: &Message<P>) -> Option<&Content> {
    let fits = |content: &&Content| (BEHIND_MIN..=P::BEHIND_MAX).contains(&content.len());
    match message {
        Message::Request { request } => request.ops.iter().filter_map(P::content).find(fits),
        Message::Reply { reply } => {
            let results = reply.results.iter().flatten();
            results.filter_map(P::content_of_reply).find(fits)
        }
        _ => None,
    }
}

/// Takes received bytes and yields messages.
pub struct Decoder<P: Peer = Mds> {
    bytes: Vec<u8>,
    start: usize,
    /// A message whose content behind it has not arrived.
    awaiting: Option<Awaiting>,
    /// Bytes of a frame at most.
    limit: usize,
    /// The last message had content behind it.
    apart: bool,
    broken: Option<Malformed>,
    peer: PhantomData<P>,
}

/// See [`Decoder::awaited`].
struct Awaiting {
    payload: Vec<u8>,
    content: usize,
}

impl<P: Peer> Default for Decoder<P> {
    fn default() -> Decoder<P> {
        Decoder {
            bytes: Vec::new(),
            start: 0,
            awaiting: None,
            limit: FRAME_MAX,
            apart: false,
            broken: None,
            peer: PhantomData,
        }
    }
}

impl<P: Peer> Decoder<P> {
    /// A decoder that has received nothing.
    pub fn new() -> Decoder<P> {
        Decoder::default()
    }

    /// A server's decoder of a new connection: it takes little until [`Decoder::greeted`].
    pub fn of_stranger() -> Decoder<P> {
        Decoder { limit: GREETING_MAX, ..Decoder::default() }
    }

    /// The peer has been let in: it may send frames of any size.
    pub fn greeted(&mut self) {
        self.limit = FRAME_MAX;
    }

    /// The length of the content that the next message waits for, if it waits for some. The caller
    /// may receive it into a buffer of its own: what has arrived it takes with
    /// [`Decoder::take_arrived`], and gives all of it to [`Decoder::complete`]. Else
    /// [`Decoder::next`] takes it from what is received.
    pub fn awaited(&self) -> Option<usize> {
        self.awaiting.as_ref().map(|awaiting| awaiting.content)
    }

    /// Had the last message content behind it? Then the next one probably has, too.
    pub fn was_apart(&self) -> bool {
        self.apart
    }

    /// Moves what has arrived to `into`, and returns how much that is.
    pub fn take_arrived(&mut self, into: &mut [u8]) -> usize {
        let arrived = &self.bytes[self.start..];
        let taken = arrived.len().min(into.len());
        into[..taken].copy_from_slice(&arrived[..taken]);
        self.start += taken;
        taken
    }

    /// The message whose content is awaited, with that.
    ///
    /// # Errors
    /// As [`Decoder::next`].
    pub fn complete(&mut self, content: Content) -> Result<Received<P>, Malformed> {
        let awaiting = self.awaiting.take().expect("a message waits for its content");
        self.apart = true;
        assert_eq!(content.len(), awaiting.content, "the content is complete");
        let named = Cell::new(0);
        let payload = Reader::with_content(&awaiting.payload, &content, &named);
        let result = match received(payload) {
            Ok(Received::Message(_)) if named.get() != 1 => {
                Err(Malformed("a message does not name the content behind it once"))
            }
            result => result,
        };
        self.broken = self.broken.or(result.as_ref().err().copied());
        result
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
        if self.awaiting.is_some() {
            return self.step_content();
        }
        let tail = &self.bytes[self.start..];
        if tail.len() < HEADER {
            return Ok(None);
        }
        let word =
            |at: usize| u32::from_le_bytes([tail[at], tail[at + 1], tail[at + 2], tail[at + 3]]);
        if word(0) == MAGIC_BEHIND {
            return self.step_behind();
        }
        if word(0) != MAGIC {
            return Err(Malformed("the stream is not Redbud's protocol"));
        }
        let len = word(4) as usize;
        if len > self.limit - HEADER {
            return Err(Malformed("a frame exceeds the limit"));
        }
        if tail.len() < HEADER + len {
            return Ok(None);
        }
        self.apart = false;
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

    /// The next message has content behind it.
    fn step_behind(&mut self) -> Result<Option<Received<P>>, Malformed> {
        let tail = &self.bytes[self.start..];
        let Some(header) = tail.first_chunk::<HEADER_BEHIND>() else { return Ok(None) };
        let word =
            |at: usize| header[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        let (len, content) = (word(4) as usize, word(12) as usize);
        if self.limit < FRAME_MAX || !(1..=P::BEHIND_MAX).contains(&content) {
            return Err(Malformed("content behind a message that may have none"));
        }
        if len > self.limit - HEADER_BEHIND {
            return Err(Malformed("a frame exceeds the limit"));
        }
        let Some(frame) = tail.get(..HEADER_BEHIND + len) else { return Ok(None) };
        if crc32c_append(crc32c(&frame[4..8]), &frame[12..]) != word(8) {
            return Err(Malformed("a frame's checksum is wrong"));
        }
        let payload = frame[HEADER_BEHIND..].to_vec();
        self.start += HEADER_BEHIND + len;
        self.awaiting = Some(Awaiting { payload, content });
        self.step_content()
    }

    /// Completes the message whose content is awaited, if that has arrived.
    fn step_content(&mut self) -> Result<Option<Received<P>>, Malformed> {
        let Some(len) = self.awaited() else { return Ok(None) };
        let Some(content) = self.bytes[self.start..].get(..len) else { return Ok(None) };
        let content = Content::from(content.to_vec());
        self.start += len;
        self.complete(content).map(Some)
    }

    /// Makes room for the rest of a large frame at once, when its length is known.
    fn reserve(&mut self) {
        let Some(header) = self.bytes[self.start..].first_chunk::<HEADER>() else { return };
        let word =
            |at: usize| header[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        let len = word(4) as usize;
        if word(0) == MAGIC && (LARGE..=RESERVED_MAX.min(self.limit - 1)).contains(&len) {
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
mod behind_tests;
#[cfg(test)]
mod tests;
