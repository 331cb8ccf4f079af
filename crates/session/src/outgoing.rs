//! Messages on their way to the socket.
//!
//! Invariants:
//! - what is pushed leaves in this order: each frame, and behind it the content that belongs there;
//! - content is not copied: it leaves from the buffer that holds it.

use env::Part;
use proto::frame::encode_apart;
use proto::message::{Message, Peer};

/// See the module.
#[derive(Default)]
pub struct Outgoing {
    /// Frames and content.
    parts: Vec<Part>,
    /// Bytes of these.
    parts_len: usize,
    /// Frames behind them.
    tail: Vec<u8>,
}

impl Outgoing {
    /// Nothing, with room in `spare` for what is pushed next. Panics if there is something in it.
    pub fn reusing(spare: Vec<u8>) -> Outgoing {
        assert!(spare.is_empty());
        Outgoing { tail: spare, ..Outgoing::default() }
    }

    /// Appends a message.
    pub fn push<P: Peer>(&mut self, message: &Message<P>) {
        let Some(content) = encode_apart(message, &mut self.tail) else { return };
        let frames = std::mem::take(&mut self.tail);
        self.parts_len += frames.len() + content.len();
        let (buffer, range) = content.shared();
        self.parts.extend([Part::from(frames), Part::new(buffer, range)]);
    }

    /// Bytes of all.
    pub fn len(&self) -> usize {
        self.parts_len + self.tail.len()
    }

    /// Is there nothing?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all.
    pub fn clear(&mut self) {
        *self = Outgoing::default();
    }

    /// The frames, if there is no content between them.
    pub fn frames(&mut self) -> Option<&mut Vec<u8>> {
        Some(&mut self.tail).filter(|_| self.parts.is_empty())
    }

    /// Everything, in its order; the frames in one piece if there is no content between them.
    pub fn into_parts(self) -> Result<Vec<u8>, Vec<Part>> {
        if self.parts.is_empty() {
            return Ok(self.tail);
        }
        let mut parts = self.parts;
        if !self.tail.is_empty() {
            parts.push(Part::from(self.tail));
        }
        Err(parts)
    }
}
