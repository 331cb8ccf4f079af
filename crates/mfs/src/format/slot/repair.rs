//! What repair clears in a slot: flags that cannot be, and what only they make of the tail.

use types::FileKind;

use super::{FLAG_CONTENT, FLAG_CONTENT_BLOB, FLAG_LAYOUT, FLAG_OBJECT, FLAG_SPREAD, FLAGS};
use super::{Slot, SlotState, layout_words};
use crate::format::object::ObjectRecord;
use engine::format::block::get_u64;

impl Slot {
    /// Clears unknown flags, and that of a spread directory on anything else; `true` if there were
    /// any.
    pub(crate) fn clear_unknown_flags(&mut self) -> bool {
        let directory = self.state() == SlotState::Inode && self.kind() == FileKind::Directory;
        let senseless = if directory { !FLAGS } else { !FLAGS | FLAG_SPREAD };
        let found = self.state() != SlotState::Empty && self.0[5] & senseless != 0;
        if found {
            self.flag(senseless, false);
        }
        found
    }

    /// Clears impossible flags of content; `known` says whether the file system has the feature for
    /// content. Valid segments stay, and other bytes are removed from the tail. Returns what was
    /// wrong, and changes nothing else.
    pub(crate) fn repair_content(&mut self, known: bool) -> Option<&'static str> {
        let (tail, blob) = (self.0[5] & FLAG_CONTENT != 0, self.0[5] & FLAG_CONTENT_BLOB != 0);
        let fits = self.name_len() + self.xattr_len() + self.rest_len() <= self.room();
        if self.state() == SlotState::Empty || !(tail || blob) || !fits {
            return None;
        }
        let file = self.state() == SlotState::Inode && self.kind() == FileKind::Regular;
        let segments = self.check_segments().is_ok();
        let (keep, what) = match (file, known, tail, blob) {
            (false, ..) => (0, "a content flag on an inode that is no regular file"),
            (_, false, ..) if segments => (0, "a content flag without the feature `inline-data`"),
            (_, false, ..) => (0, "content without the feature `inline-data`"),
            (.., true, true) if segments && get_u64(&self.0, 128) == 0 => {
                (0, "content flags without content")
            }
            (.., true, true) if segments => (FLAG_CONTENT_BLOB, "content flags for two places"),
            (.., true, true) => (FLAG_CONTENT, "content flags for two places"),
            (.., true, _) if self.rest_len() == 0 => (0, "a content flag without content"),
            _ => return None,
        };
        self.flag(FLAG_CONTENT | FLAG_CONTENT_BLOB, false);
        self.flag(keep, true);
        if file && keep == 0 && !segments {
            self.set_payload(b"");
        }
        if blob && keep != FLAG_CONTENT_BLOB && self.kind() != FileKind::Directory {
            self.set_map(0);
        }
        Some(what)
    }

    /// Clears the flag of an object record where none can be, and flags of content and the count of
    /// segments beside a valid record. Bytes that are neither a record nor segments are removed
    /// from the tail. Returns what was wrong, and changes nothing else.
    pub(crate) fn repair_object(&mut self) -> Option<&'static str> {
        let fits = self.name_len() + self.xattr_len() + self.rest_len() <= self.room();
        let flagged = self.state() != SlotState::Empty && self.0[5] & FLAG_OBJECT != 0;
        if !flagged || !fits || self.check_object().is_ok() {
            return None;
        }
        let file = self.state() == SlotState::Inode && self.kind() == FileKind::Regular;
        if file && ObjectRecord::decode(self.payload()).is_some() {
            if self.content_blob().is_some() {
                self.set_map(0);
            }
            self.flag(FLAG_CONTENT | FLAG_CONTENT_BLOB, false);
            self.set_body(0);
            return Some("segments or content beside an object record");
        }
        self.flag(FLAG_OBJECT, false);
        if file && self.content().is_none() && self.check_segments().is_err() {
            self.set_payload(b"");
        }
        Some(match file {
            true => "an object record that makes no sense",
            false => "an object record on an inode that is no regular file",
        })
    }

    /// Clears the flag of layout blocks on an inode that is no regular file; of impossible layout
    /// blocks of a file it keeps one. Returns whether it changed anything.
    pub(crate) fn repair_layout_blocks(&mut self) -> bool {
        let empty = self.state() == SlotState::Empty;
        if empty || self.0[5] & FLAG_LAYOUT == 0 || self.check_layout_blocks().is_ok() {
            return false;
        }
        let file = self.state() == SlotState::Inode && self.kind() == FileKind::Regular;
        let first = layout_words(&self.0).into_iter().flatten().next();
        match first.filter(|_| file) {
            Some(first) => self.set_layout_blocks(&[first]),
            None if file => self.set_layout_blocks(&[]),
            None => self.flag(FLAG_LAYOUT, false),
        }
        true
    }
}
