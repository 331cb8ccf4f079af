//! Content of files in messages, which nobody copies without need.
//!
//! A client pins what it has written until the target has it durably, and sends it again if it
//! must (paper 001, section 5). So the bytes belong to a request, to what is kept for a replay and
//! to the buffer that they were written from, all at once. A receiver reads them in the frame that
//! brought them, or in a buffer of their own: see [`crate::frame`].

use std::any::Any;
use std::cell::Cell;
use std::ops::{Deref, Range};
use std::rc::Rc;

use crate::wire::{Malformed, Reader, Wire};

/// Set in the length of content whose bytes are behind the message.
const BEHIND: u32 = 1 << 31;

/// What holds bytes.
pub trait Buffer: Any + AsRef<[u8]> {}

impl<T: Any + AsRef<[u8]>> Buffer for T {}

/// Bytes of a buffer that others use, too. Its clones are the same bytes.
#[derive(Clone)]
pub struct Content {
    buffer: Rc<dyn Buffer>,
    range: Range<usize>,
    /// The message is being encoded, and the bytes go behind it.
    behind: Cell<bool>,
}

impl Content {
    /// The bytes `range` of `buffer`. Panics if they are not in it.
    pub fn part(buffer: Rc<dyn Buffer>, range: Range<usize>) -> Content {
        assert!(range.start <= range.end && range.end <= (*buffer).as_ref().len());
        Content { buffer, range, behind: Cell::new(false) }
    }

    /// All bytes of `buffer`.
    pub fn whole(buffer: impl Buffer) -> Content {
        let range = 0..buffer.as_ref().len();
        Content::part(Rc::new(buffer), range)
    }

    /// The buffer and the range of the bytes in it.
    pub fn shared(&self) -> (Rc<dyn Buffer>, Range<usize>) {
        (self.buffer.clone(), self.range.clone())
    }

    /// The buffer, if it is a `T` that nobody else has and the bytes are all of it.
    ///
    /// # Errors
    /// The content, if not.
    pub fn into_buffer<T: Any>(self) -> Result<T, Content> {
        let is_whole = self.range == (0..(*self.buffer).as_ref().len());
        let buffer: Rc<dyn Any> = self.buffer.clone();
        let Ok(buffer) = buffer.downcast::<T>() else { return Err(self) };
        if !is_whole || Rc::strong_count(&buffer) > 2 {
            return Err(self);
        }
        drop(self);
        Ok(Rc::into_inner(buffer).expect("nobody else has it"))
    }

    /// Encodes with `encode`, in which these bytes are left out.
    pub(crate) fn put_behind(&self, encode: impl FnOnce()) {
        self.behind.set(true);
        encode();
        self.behind.set(false);
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
        Content::whole(bytes)
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

/// The same bytes as of a [`crate::wire::Bytes`]; or the length alone, with its highest bit set, if
/// they are behind the message.
impl Wire for Content {
    fn put(&self, out: &mut Vec<u8>) {
        if self.behind.get() {
            (self.len() as u32 | BEHIND).put(out);
            return;
        }
        (self.len() as u32).put(out);
        out.extend_from_slice(self);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Content, Malformed> {
        match u32::get(reader)? {
            len if len & BEHIND == 0 => reader.take_shared(len as usize),
            len => reader.take_behind((len & !BEHIND) as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_taken_back_only_whole_by_its_type_and_by_its_last_user() {
        let content = Content::whole(vec![1, 2, 3]);
        assert_eq!(content.clone().into_buffer::<Vec<u8>>(), Err(content.clone()));
        assert_eq!(content.into_buffer::<String>(), Err(Content::from(vec![1, 2, 3])));
        let part = Content::part(Rc::new(vec![1, 2, 3]), 1..3);
        assert_eq!(part.into_buffer::<Vec<u8>>(), Err(Content::from(vec![2, 3])));
        assert_eq!(Content::whole(vec![4]).into_buffer::<Vec<u8>>(), Ok(vec![4]));
    }
}
