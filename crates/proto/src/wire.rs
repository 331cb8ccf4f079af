//! The codec: little-endian fixed fields, counted sequences, and enums as
//! ⟨id u16, length u32, fields⟩ so that a reader can skip what it does not know.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use types::{
    Ahead, Attr, BlockRange, Blocks, ClientId, Epoch, Fault, FileBlock, FileKind, HeldRange, Ino,
    LockOwner, Lsn, Name, ObjectId, PagBlock, PagId, Rights, Segment, SegmentState, ServerId,
    Timestamp, Transno, Uuid,
};

use crate::content::Content;

/// Bytes that are not a message, with the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// A cursor over received bytes.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    /// The buffer that they are the last bytes of, before `end`.
    frame: Option<(&'a Rc<Vec<u8>>, usize)>,
    /// The content behind the message, and how often the message has named it.
    behind: Option<(&'a Content, &'a Cell<u32>)>,
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, frame: None, behind: None }
    }

    /// Reads the bytes `range` of a frame; what is long in it need not be copied.
    pub fn of_frame(frame: &'a Rc<Vec<u8>>, range: Range<usize>) -> Reader<'a> {
        let end = range.end;
        Reader { bytes: &frame[range], frame: Some((frame, end)), behind: None }
    }

    /// Reads a message with `content` behind it; `named` counts how often the message names it.
    pub fn with_content(bytes: &'a [u8], content: &'a Content, named: &'a Cell<u32>) -> Reader<'a> {
        Reader { bytes, frame: None, behind: Some((content, named)) }
    }

    /// A reader of the next `len` bytes alone.
    pub fn part(&mut self, len: usize) -> Result<Reader<'a>, Malformed> {
        let bytes = self.take(len)?;
        let frame = self.frame.map(|(frame, end)| (frame, end - self.bytes.len()));
        Ok(Reader { bytes, frame, behind: self.behind })
    }

    /// The content behind the message, if it has this length.
    pub fn take_behind(&mut self, len: usize) -> Result<Content, Malformed> {
        match self.behind {
            Some((content, named)) if content.len() == len => {
                named.set(named.get() + 1);
                Ok(content.clone())
            }
            _ => Err(Malformed("no content of this length is behind the message")),
        }
    }

    /// The next `len` bytes, as a part of the frame if there is one.
    pub fn take_shared(&mut self, len: usize) -> Result<Content, Malformed> {
        let behind = self.bytes.len();
        let taken = self.take(len)?;
        Ok(match self.frame {
            Some((frame, end)) => {
                let from = end - behind;
                Content::part(frame.clone(), from..from + len)
            }
            None => Content::from(taken.to_vec()),
        })
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        if len > self.bytes.len() {
            return Err(Malformed("the message ends early"));
        }
        let (head, tail) = self.bytes.split_at(len);
        self.bytes = tail;
        Ok(head)
    }
}

/// A value with an encoding on the wire.
pub trait Wire: Sized {
    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads it.
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// Its bytes alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }
}

macro_rules! integers {
    ($($t:ty),*) => { $(
        impl Wire for $t {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                let bytes = reader.take(size_of::<$t>())?;
                Ok(<$t>::from_le_bytes(bytes.try_into().expect("taken by size")))
            }
        }
    )* };
}
integers!(u8, u16, u32, u64, i64);

macro_rules! newtypes {
    ($($t:ident),*) => { $(
        impl Wire for $t {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok($t(Wire::get(reader)?))
            }
        }
    )* };
}
newtypes!(
    Ino, ObjectId, PagId, FileBlock, PagBlock, Blocks, Epoch, Lsn, ClientId, ServerId, LockOwner,
    Uuid
);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::get(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(reader.take(N)?.try_into().expect("taken by size"))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(if bool::get(reader)? { Some(T::get(reader)?) } else { None })
    }
}

/// A last field that older messages lack. It is written only if present, without a flag.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Appended<T>(pub Option<T>);

impl<T: Wire> Wire for Appended<T> {
    fn put(&self, out: &mut Vec<u8>) {
        if let Some(value) = &self.0 {
            value.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Appended(if reader.remaining() > 0 { Some(T::get(reader)?) } else { None }))
    }
}

/// Another encoding of `T` than its own, for a field that is declared with `as`.
pub trait Coding<T> {
    /// Appends the bytes of `value`.
    fn put(value: &T, out: &mut Vec<u8>);
    /// Reads it.
    fn get(reader: &mut Reader<'_>) -> Result<T, Malformed>;
}

/// An inode's number with an enum's head: ⟨1 u16, 8 u32, number u64⟩.
pub struct Tagged;

const TAGGED: (u16, u32) = (1, 8);

impl Coding<Ino> for Tagged {
    fn put(value: &Ino, out: &mut Vec<u8>) {
        TAGGED.0.put(out);
        TAGGED.1.put(out);
        value.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Ino, Malformed> {
        let tag = u16::get(reader)?;
        let len = u32::get(reader)? as usize;
        let mut body = Reader::new(reader.take(len)?);
        if tag != TAGGED.0 {
            return Err(Malformed("an inode is not named by its number"));
        }
        Ino::get(&mut body)
    }
}

/// A flag, and a reserved byte behind it that is 0.
pub struct ThenZero;

impl Coding<bool> for ThenZero {
    fn put(value: &bool, out: &mut Vec<u8>) {
        value.put(out);
        out.push(0);
    }
    fn get(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
        let value = bool::get(reader)?;
        match u8::get(reader)? {
            0 => Ok(value),
            _ => Err(Malformed("a reserved byte is not 0")),
        }
    }
}

/// Appends a field in its declared coding.
#[doc(hidden)]
#[macro_export]
macro_rules! put_field {
    ($value:expr, $out:expr) => {
        $crate::Wire::put($value, $out)
    };
    ($value:expr, $out:expr, $coding:ident) => {
        <$coding as $crate::wire::Coding<_>>::put($value, $out)
    };
}

/// Reads a field in its declared coding.
#[doc(hidden)]
#[macro_export]
macro_rules! get_field {
    ($reader:expr) => {
        $crate::Wire::get($reader)?
    };
    ($reader:expr, $coding:ident) => {
        <$coding as $crate::wire::Coding<_>>::get($reader)?
    };
}

/// A count, then the elements. Every element takes at least one byte, so the decoder refuses
/// a count beyond the remaining bytes before it allocates anything.
impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        for value in self {
            value.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = u32::get(reader)? as usize;
        if count > reader.remaining() {
            return Err(Malformed("a count exceeds the message"));
        }
        let mut out = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            out.push(T::get(reader)?);
        }
        Ok(out)
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((A::get(reader)?, B::get(reader)?))
    }
}

/// A byte string.
#[derive(Clone, PartialEq, Eq, Debug, Default, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl Wire for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        (self.0.len() as u32).put(out);
        out.extend_from_slice(&self.0);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = u32::get(reader)? as usize;
        Ok(Bytes(reader.take(len)?.to_vec()))
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let bytes = Bytes::get(reader)?;
        String::from_utf8(bytes.0).map_err(|_| Malformed("text is not UTF-8"))
    }
}

impl Wire for Name {
    fn put(&self, out: &mut Vec<u8>) {
        (self.as_bytes().len() as u16).put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = usize::from(u16::get(reader)?);
        Name::new(reader.take(len)?).map_err(|_| Malformed("not a legal name"))
    }
}

impl Wire for Rights {
    fn put(&self, out: &mut Vec<u8>) {
        self.bits().put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Rights::from_bits(u8::get(reader)?).ok_or(Malformed("unknown rights"))
    }
}

impl Wire for Fault {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u16).put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Fault::from_u16(u16::get(reader)?).ok_or(Malformed("unknown fault"))
    }
}

impl Wire for FileKind {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        FileKind::from_u8(u8::get(reader)?).ok_or(Malformed("unknown kind of file"))
    }
}

impl Wire for SegmentState {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::get(reader)? {
            0 => Ok(SegmentState::Written),
            1 => Ok(SegmentState::Unwritten),
            _ => Err(Malformed("unknown state of a segment")),
        }
    }
}

impl Wire for Timestamp {
    fn put(&self, out: &mut Vec<u8>) {
        self.seconds.put(out);
        self.nanos.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let stamp = Timestamp { seconds: i64::get(reader)?, nanos: u32::get(reader)? };
        if stamp.nanos >= 1_000_000_000 {
            return Err(Malformed("nanoseconds beyond a second"));
        }
        Ok(stamp)
    }
}

impl Wire for Segment {
    fn put(&self, out: &mut Vec<u8>) {
        self.file.put(out);
        self.len.put(out);
        self.pag.put(out);
        self.addr.put(out);
        self.state.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let segment = Segment {
            file: Wire::get(reader)?,
            len: Wire::get(reader)?,
            pag: Wire::get(reader)?,
            addr: Wire::get(reader)?,
            state: Wire::get(reader)?,
        };
        let bounded = segment.len >= 1
            && segment.len < 1 << 46
            && segment.file.0 < 1 << 52
            && segment.addr.0 < 1 << 52;
        if bounded { Ok(segment) } else { Err(Malformed("a segment is out of range")) }
    }
}

impl Wire for BlockRange {
    fn put(&self, out: &mut Vec<u8>) {
        self.from.put(out);
        self.to.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let range = BlockRange { from: Wire::get(reader)?, to: Wire::get(reader)? };
        if range.from <= range.to {
            Ok(range)
        } else {
            Err(Malformed("a range ends before its start"))
        }
    }
}

impl Wire for Ahead {
    fn put(&self, out: &mut Vec<u8>) {
        self.stride.put(out);
        self.count.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Ahead { stride: Wire::get(reader)?, count: Wire::get(reader)? })
    }
}

impl Wire for HeldRange {
    fn put(&self, out: &mut Vec<u8>) {
        self.range.put(out);
        self.exclusive.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(HeldRange { range: Wire::get(reader)?, exclusive: Wire::get(reader)? })
    }
}

/// Plain structs: fields in order, each in its own coding or the one named after `as`.
#[macro_export]
macro_rules! wire_struct {
    ($($(#[$meta:meta])* pub struct $name:ident $(<$peer:ident: $bound:ident>)? { $($(#[$fmeta:meta])* pub $field:ident: $type:ty $(as $coding:ident)?,)* })*) => { $(
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name $(<$peer: $bound>)? { $($(#[$fmeta])* pub $field: $type,)* }
        impl $(<$peer: $bound>)? $crate::Wire for $name $(<$peer>)? {
            fn put(&self, out: &mut Vec<u8>) {
                let _ = &out;
                $($crate::put_field!(&self.$field, out $(, $coding)?);)*
            }
            fn get(reader: &mut $crate::Reader<'_>) -> Result<Self, $crate::Malformed> {
                let _ = &reader;
                Ok($name { $($field: $crate::get_field!(reader $(, $coding)?),)* })
            }
        }
    )* };
}

/// Enums of messages: id u16, length u32, fields; the decoder ignores an unknown tail.
#[macro_export]
macro_rules! wire_enum {
    ($(#[$meta:meta])* pub enum $name:ident $(<$peer:ident: $bound:ident>)? {
        $($(#[$vmeta:meta])* $variant:ident = $id:literal { $($(#[$fmeta:meta])* $field:ident: $type:ty $(as $coding:ident)?,)* },)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        #[allow(clippy::large_enum_variant, reason = "a box would cost an allocation per message")]
        pub enum $name $(<$peer: $bound>)? {
            $($(#[$vmeta])* $variant {
                $($(#[$fmeta])* #[doc = concat!("Its `", stringify!($field), "`: see the variant.")] $field: $type,)*
            },)*
        }
        impl $(<$peer: $bound>)? $crate::Wire for $name $(<$peer>)? {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($name::$variant { $($field,)* } => {
                        $crate::Wire::put(&($id as u16), out);
                        let place = out.len();
                        $crate::Wire::put(&0u32, out);
                        $($crate::put_field!($field, out $(, $coding)?);)*
                        let len = (out.len() - place - 4) as u32;
                        out[place..place + 4].copy_from_slice(&len.to_le_bytes());
                    })*
                }
            }
            fn get(reader: &mut $crate::Reader<'_>) -> Result<Self, $crate::Malformed> {
                let id = <u16 as $crate::Wire>::get(reader)?;
                let len = <u32 as $crate::Wire>::get(reader)? as usize;
                let mut body = reader.part(len)?;
                let body = &mut body;
                let _ = &body;
                match id {
                    $($id => Ok($name::$variant { $($field: $crate::get_field!(body $(, $coding)?),)* }),)*
                    _ => Err($crate::Malformed(concat!("unknown ", stringify!($name)))),
                }
            }
        }
    };
}

impl Wire for Transno {
    fn put(&self, out: &mut Vec<u8>) {
        self.epoch.put(out);
        self.lsn.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Transno { epoch: Wire::get(reader)?, lsn: Wire::get(reader)? })
    }
}

/// Beside the kind in an inode's attributes: [`Attr::spread`].
const SPREAD: u8 = 0x80;

impl Wire for Attr {
    fn put(&self, out: &mut Vec<u8>) {
        self.ino.put(out);
        out.push(self.kind as u8 | if self.spread { SPREAD } else { 0 });
        self.mode.put(out);
        for value in [self.nlink, self.uid, self.gid, self.rdev] {
            value.put(out);
        }
        self.size.put(out);
        self.blocks.put(out);
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            time.put(out);
        }
        self.version.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (ino, byte) = (Wire::get(reader)?, u8::get(reader)?);
        let kind = FileKind::from_u8(byte & !SPREAD).ok_or(Malformed("unknown kind of file"))?;
        let spread = byte & SPREAD != 0;
        if spread && kind != FileKind::Directory {
            return Err(Malformed("spread, and no directory"));
        }
        Ok(Attr {
            ino,
            kind,
            mode: Wire::get(reader)?,
            nlink: Wire::get(reader)?,
            uid: Wire::get(reader)?,
            gid: Wire::get(reader)?,
            rdev: Wire::get(reader)?,
            size: Wire::get(reader)?,
            blocks: Wire::get(reader)?,
            atime: Wire::get(reader)?,
            mtime: Wire::get(reader)?,
            ctime: Wire::get(reader)?,
            btime: Wire::get(reader)?,
            spread,
            version: Wire::get(reader)?,
        })
    }
}

/// The result of an operation: a flag, then the value or the fault.
impl<T: Wire> Wire for Result<T, Fault> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(fault) => fault.put(out),
        }
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(if bool::get(reader)? { Ok(T::get(reader)?) } else { Err(Fault::get(reader)?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::wire_enum! {
        /// The first version.
        pub enum Old {
            /// With one field.
            It = 1 { first: u32, },
        }
    }

    crate::wire_enum! {
        /// The same, with a field appended.
        pub enum New {
            /// With two fields.
            It = 1 { first: u32, second: Appended<u64>, },
        }
    }

    #[test]
    fn appended_field_is_compatible_with_old_and_new_versions() {
        let bytes = |value: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            value(&mut out);
            out
        };
        let (with, without) = (Appended(Some(9)), Appended(None));
        let old = bytes(&|out| Old::It { first: 7 }.put(out));
        assert_eq!(bytes(&|out| New::It { first: 7, second: without.clone() }.put(out)), old);
        let new = |bytes: &[u8]| New::get(&mut Reader::new(bytes));
        assert_eq!(new(&old), Ok(New::It { first: 7, second: without }));
        let long = bytes(&|out| New::It { first: 7, second: with.clone() }.put(out));
        assert_eq!(new(&long), Ok(New::It { first: 7, second: with }));
        assert_eq!(Old::get(&mut Reader::new(&long)), Ok(Old::It { first: 7 }));
    }
}
