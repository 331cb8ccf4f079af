//! Content of files in messages, which nobody copies without need.
//!
//! A client pins what it has written until the target has it durably, and sends it again if it
//! must (paper 001, section 5). So the bytes belong to a request, to what is kept for a replay and
//! to the buffer that they were written from, all at once. A receiver reads them in the frame that
//! brought them.

use std::ops::{Deref, Range};
use std::rc::Rc;

use crate::wire::{Malformed, Reader, Wire};

/// Bytes of a buffer that others use, too. Its clones are the same bytes.
#[derive(Clone)]
pub struct Content {
    buffer: Rc<dyn AsRef<[u8]>>,
    range: Range<usize>,
}

impl Content {
    /// The bytes `range` of `buffer`. Panics if they are not in it.
    pub fn part(buffer: Rc<dyn AsRef<[u8]>>, range: Range<usize>) -> Content {
        assert!(range.start <= range.end && range.end <= (*buffer).as_ref().len());
        Content { buffer, range }
    }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.buffer).as_ref()[self.range.clone()]
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Content {
        let range = 0..bytes.len();
        Content { buffer: Rc::new(bytes), range }
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Content) -> bool {
        **self == **other
    }
}

impl Eq for Content {}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// The same bytes as of a [`crate::wire::Bytes`].
impl Wire for Content {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Content, Malformed> {
        let len = u32::get(reader)? as usize;
        reader.take_shared(len)
    }
}
