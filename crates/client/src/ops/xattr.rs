//! Extended attributes.

use std::fmt::Write;
use std::rc::Rc;

use proto::mds::{Op, OpReply};
use proto::placement::ATTRIBUTE;
use proto::wire::Bytes;
use types::json::Json;
use types::limits::{BLOCK_U64, XATTR_NAME_MAX, XATTR_VALUE_MAX};
use types::{Fault, FileKind, Ino, Rights, Segment, SegmentState};

use crate::api::Caller;
use crate::boundary::FileContent;
use crate::client::Client;
use crate::data_lease::Service;
use crate::inode::{CAPABILITY, Inode, Xattrs};
use crate::report::add_device;
use crate::rpc::{Call, result};

/// Attributes that the client makes up, as JSON text. No list of names has them.
const VIRTUAL: [(&[u8], Virtual); 5] = [
    (b"redbud.layout", Virtual::Layout),
    (b"redbud.devices", Virtual::Devices),
    (b"redbud.durable", Virtual::Durable),
    (b"redbud.dir.spread", Virtual::Spread),
    (b"redbud.mds", Virtual::Server),
];
/// With a decimal number of bytes behind it: the layout from there on, as much as a value can have.
const LAYOUT_FROM: &[u8] = b"redbud.layout@";
/// Bytes of a part of a layout: below the 64 KiB that Linux lets a value have.
const LAYOUT_PART: usize = 60 << 10;
/// Under this name, with `user.` or without, people see and set [`ATTRIBUTE`].
const LAYOUT: &[u8] = b"redbud.dir.layout";
/// Prefixes of the attributes that a file may have.
const STORED: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system.posix_acl_"];

/// Prefixes of the attributes that `ls -l` asks for on every entry.
const ASKED_BY_LS: [&[u8]; 2] = [b"security.", b"system.posix_acl_"];

/// An attribute that the client makes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Virtual {
    /// The layout of a regular file.
    Layout,
    /// A part of it: the segments that end after this many bytes.
    LayoutFrom(u64),
    /// The data devices as this mount sees them: an attribute of the mounted directory.
    Devices,
    /// What of the inode is not durable.
    Durable,
    /// Of a directory: do new files go to the servers that their names choose?
    Spread,
    /// The metadata server that it lives at.
    Server,
}

impl Virtual {
    /// By its name, with `user.` or without.
    fn named(name: &[u8]) -> Option<Virtual> {
        let name = name.strip_prefix(b"user.").unwrap_or(name);
        if let Some(from) = name.strip_prefix(LAYOUT_FROM) {
            // What is no number is behind the end of every file.
            let from = std::str::from_utf8(from).ok().and_then(|from| from.parse().ok());
            return Some(Virtual::LayoutFrom(from.unwrap_or(u64::MAX)));
        }
        VIRTUAL.iter().find(|(own, _)| *own == name).map(|(_, one)| *one)
    }
}

impl Client {
    /// An extended attribute.
    pub async fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Fault> {
        match Virtual::named(name) {
            Some(Virtual::Devices) if ino == self.root() => {
                return Ok(self.devices_json().into_bytes());
            }
            Some(Virtual::Durable) => return Ok(self.durable_json(ino).into_bytes()),
            _ => {}
        }
        self.or_last_known(ino, self.getxattr_online(ino, name), |_| {
            // An application may rely on changes of other attributes.
            if !ASKED_BY_LS.iter().any(|prefix| name.starts_with(prefix)) {
                return None;
            }
            let names = self.core.root_xattrs.borrow();
            let known = Xattrs::Names(names.as_deref()?.into());
            is_absent(&known, name).then_some(Err(Fault::NoAttribute))
        })
        .await
    }

    async fn getxattr_online(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Fault> {
        let (core, name) = (&self.core, stored_name(name));
        core.wait_for_lease(ino).await?;
        let inode = core.inode(ino).await?;
        match Virtual::named(name) {
            Some(Virtual::Layout) => return self.layout(&inode, 0, usize::MAX).await,
            Some(Virtual::LayoutFrom(from)) => {
                return self.layout(&inode, from, LAYOUT_PART).await;
            }
            Some(Virtual::Spread) if inode.kind() == FileKind::Directory => {
                let (_, attr) = core.fetch_attr_reply(ino, Rights::empty()).await?;
                return Ok(attr.spread.to_string().into_bytes());
            }
            Some(Virtual::Server) => {
                // That it answers says that it lives there.
                core.fetch_attr_reply(ino, Rights::empty()).await?;
                return Ok(core.rpc.shard_of(ino).to_string().into_bytes());
            }
            _ => {}
        }
        let known = if core.attr_cache_valid(&inode) { inode.xattrs() } else { Xattrs::Unknown };
        if is_absent(&known, name) {
            return Err(Fault::NoAttribute);
        }
        let mut ops = Vec::new();
        if known == Xattrs::Unknown {
            // A later query for another absent name then needs no request.
            ops.push(Op::ListXattr { ino, want: Rights::ATTR });
        }
        ops.push(Op::GetXattr { ino, name: Bytes(name.to_vec()), want: Rights::ATTR });
        let last = ops.len() - 1;
        let reply = core.rpc.call(Call::ops(&Caller::default(), ops)).await?;
        match result(&reply, last) {
            Ok(OpReply::Bytes { bytes, .. }) => Ok(bytes.0.clone()),
            Ok(_) => Err(Fault::Protocol),
            // The kernel asks for ACLs before it looks up a name.
            Err(fault) if core.note_if_removed(ino, fault) => Err(Fault::NoAttribute),
            Err(fault) => Err(fault),
        }
    }

    /// Sets one; flags as setxattr: 1 create, 2 replace. `kill_setgid`: clear set-gid
    /// (FUSE_SETXATTR_ACL_KILL_SGID).
    pub async fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_setgid: bool,
    ) -> Result<(), Fault> {
        self.core.check_writable()?;
        if Virtual::named(name).is_some() {
            return Err(Fault::NotPermitted);
        }
        if name.is_empty() || name.len() > XATTR_NAME_MAX {
            return Err(Fault::Range);
        }
        if value.len() > XATTR_VALUE_MAX {
            return Err(Fault::TooBig);
        }
        if name == CAPABILITY
            && let Some(inode) = self.core.inodes.get(ino)
            && inode.has_buffered_writer()
            && inode.has_pages()
        {
            // Earlier stores into a mapping come first: their write-back removes the attribute.
            self.core.inval_pages(&inode, (0, u64::MAX)).await;
        }
        let op = Op::SetXattr {
            ino,
            name: Bytes(stored_name(name).to_vec()),
            value: Bytes(value.to_vec()),
            flags,
            kill_setgid,
        };
        let reply = self.core.send_change(caller, op).await?;
        self.core.invalidate_for_abandoned_caller(&reply).await;
        result(&reply, 0).map(|_| ())
    }

    /// Names of all, each terminated by NUL.
    pub async fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Fault> {
        let names = self
            .or_last_known(ino, self.listxattr_online(ino), |_| {
                self.core.root_xattrs.borrow().clone().map(Ok)
            })
            .await?;
        Ok(without_layout(names))
    }

    async fn listxattr_online(&self, ino: Ino) -> Result<Vec<u8>, Fault> {
        let core = &self.core;
        core.wait_for_lease(ino).await?;
        let inode = core.inode(ino).await?;
        if core.attr_cache_valid(&inode)
            && let Xattrs::Names(names) = inode.xattrs()
        {
            return Ok(names.into_vec());
        }
        let op = Op::ListXattr { ino, want: Rights::ATTR };
        let reply = core.rpc.call(Call::one(&Caller::default(), op)).await?;
        match result(&reply, 0) {
            Ok(OpReply::Bytes { bytes, .. }) => Ok(bytes.0.clone()),
            Ok(_) => Err(Fault::Protocol),
            Err(fault) if core.note_if_removed(ino, fault) => Ok(Vec::new()),
            Err(fault) => Err(fault),
        }
    }

    /// Removes one.
    pub async fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<(), Fault> {
        self.core.check_writable()?;
        let op = Op::RemoveXattr { ino, name: Bytes(stored_name(name).to_vec()) };
        let reply = self.core.send_change(caller, op).await?;
        self.core.invalidate_for_abandoned_caller(&reply).await;
        result(&reply, 0).map(|_| ())
    }

    fn devices_json(&self) -> String {
        let mut out = Json::default();
        out.open('[');
        for device in self.devices() {
            out.item();
            add_device(&mut out, &device);
        }
        out.close(']');
        out.into_text()
    }

    /// The segments that end after byte `from`, as many as fit into `room` bytes of text.
    async fn layout(&self, inode: &Rc<Inode>, from: u64, room: usize) -> Result<Vec<u8>, Fault> {
        if inode.kind() != FileKind::Regular {
            return Err(Fault::NoAttribute);
        }
        let guard = self.core.acquire_io(inode, Rights::DATA_S, Service::Plain, (0, 0)).await?;
        let inline = guard.file().inline_len().await?;
        let segments = guard.file().layout().await?;
        let first = segments.partition_point(|(segment, _)| segment.end() * BLOCK_U64 <= from);
        let inline = if from == 0 { inline } else { 0 };
        Ok(layout_json(inline, &segments[first..], room).into_bytes())
    }
}

/// The name under which the server keeps an attribute.
fn stored_name(name: &[u8]) -> &[u8] {
    let own = name.strip_prefix(b"user.").unwrap_or(name);
    if own == LAYOUT { ATTRIBUTE } else { name }
}

/// A program that copies all attributes must not copy the layout: it belongs to the directory.
fn without_layout(names: Vec<u8>) -> Vec<u8> {
    if !names.windows(ATTRIBUTE.len()).any(|part| part == ATTRIBUTE) {
        return names;
    }
    let each = names.split_inclusive(|&byte| byte == 0);
    each.filter(|name| name.strip_suffix(&[0]) != Some(ATTRIBUTE)).flatten().copied().collect()
}

fn is_absent(known: &Xattrs, name: &[u8]) -> bool {
    // The server answers for names that no file can have.
    if !STORED.iter().any(|prefix| name.len() > prefix.len() && name.starts_with(prefix)) {
        return false;
    }
    known.excludes(name)
}

/// The segments of a layout: file offset, length and device offset in bytes, and why they lie
/// there; before them the inline data. Stops before the text is longer than `room` bytes.
fn layout_json(inline: usize, segments: &[(Segment, Option<String>)], room: usize) -> String {
    let mut text = String::from("[");
    if inline > 0 {
        // Writing to a String cannot fail.
        let _ = write!(text, r#"{{"offset":0,"length":{inline},"state":"inline"}}"#);
    }
    for (segment, why) in segments {
        let state = match segment.state {
            SegmentState::Written => "written",
            SegmentState::Unwritten => "unwritten",
        };
        let comma = if text.len() == 1 { "" } else { "," };
        let before = text.len();
        // The text has no character that JSON would escape.
        let why = why.as_ref().map(|why| format!(r#","why":"{why}""#)).unwrap_or_default();
        let _ = write!(
            text,
            r#"{comma}{{"offset":{},"length":{},"pag":{},"address":{},"state":"{state}"{why}}}"#,
            segment.file.0 * BLOCK_U64,
            segment.len * BLOCK_U64,
            segment.pag,
            segment.addr.0 * BLOCK_U64,
        );
        if text.len() >= room {
            text.truncate(before);
            break;
        }
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{FileBlock, PagBlock, PagId};

    #[test]
    fn layout_json_is_in_bytes() {
        let segment = Segment {
            file: FileBlock(1),
            len: 2,
            pag: PagId(3),
            addr: PagBlock(4),
            state: SegmentState::Unwritten,
        };
        let none = || (segment, None);
        let one = r#"{"offset":4096,"length":8192,"pag":3,"address":16384,"state":"unwritten"}"#;
        assert_eq!(layout_json(0, &[none(), none()], usize::MAX), format!("[{one},{one}]"));
        assert_eq!(layout_json(0, &[], 2), "[]");
        let room = 2 * one.len() + 3;
        assert_eq!(layout_json(0, &[none(), none(), none()], room), format!("[{one},{one}]"));
        assert_eq!(layout_json(0, &[none(), none(), none()], room - 1), format!("[{one}]"));
        let why = one.replace("unwritten\"", "unwritten\",\"why\":\"its turn\"");
        let known = (segment, Some("its turn".to_owned()));
        assert_eq!(layout_json(0, &[known], usize::MAX), format!("[{why}]"));
        let inline = r#"{"offset":0,"length":70,"state":"inline"}"#;
        assert_eq!(layout_json(70, &[none()], usize::MAX), format!("[{inline},{one}]"));
    }

    #[test]
    fn layout_has_a_name_for_people_and_is_in_no_list() {
        assert_eq!(stored_name(b"user.redbud.dir.layout"), ATTRIBUTE);
        assert_eq!(stored_name(b"redbud.dir.layout"), ATTRIBUTE);
        assert_eq!(stored_name(b"user.redbud.layout"), b"user.redbud.layout");
        let listed = b"user.a\0trusted.redbud.layout\0trusted.redbud.layouts\0".to_vec();
        assert_eq!(without_layout(listed), b"user.a\0trusted.redbud.layouts\0");
        assert_eq!(without_layout(b"user.a\0".to_vec()), b"user.a\0");
    }

    #[test]
    fn absence_is_known_only_from_cached_names() {
        assert!(!is_absent(&Xattrs::Unknown, b"user.a"));
        assert!(is_absent(&Xattrs::OnlyAcls, b"security.capability"));
        assert!(!is_absent(&Xattrs::OnlyAcls, b"system.posix_acl_access"));
        let some = Xattrs::Names(b"user.a\0user.b\0".as_slice().into());
        assert!(!is_absent(&some, b"user.b"));
        assert!(is_absent(&some, b"user.c"));
        assert!(!is_absent(&some, b"user."), "no file can have it");
        assert!(!is_absent(&some, b"system.other"));
    }
}
