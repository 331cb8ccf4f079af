//! The mounts of this process's namespace, from /proc/self/mountinfo.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The file system type of Redbud's mounts.
pub const FS_TYPE: &str = "fuse.redbud";

/// One mount of Redbud.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// The mount point.
    pub path: PathBuf,
    /// The source, as given to the mount.
    pub source: String,
    /// Device number, "major:minor".
    pub device: String,
    /// The user whose process made it.
    pub user: u32,
}

/// All of Redbud's mounts, in the order of mounting.
pub fn redbud_mounts() -> std::io::Result<Vec<Mounted>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(parse_line).collect())
}

/// The mount at exactly `path`, the topmost if there are several.
pub fn mount_at(path: &Path) -> std::io::Result<Option<Mounted>> {
    Ok(redbud_mounts()?.into_iter().rfind(|mount| mount.path == path))
}

/// The mount that `path` lies in.
pub fn mount_of(path: &Path) -> std::io::Result<Option<Mounted>> {
    let mounts = redbud_mounts()?;
    let inside = mounts.into_iter().filter(|mount| path.starts_with(&mount.path));
    Ok(inside.max_by_key(|mount| mount.path.as_os_str().len()))
}

fn parse_line(line: &[u8]) -> Option<Mounted> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let [kind, source, ..] = fields.get(dash + 1..)? else { return None };
    if *kind != FS_TYPE.as_bytes() {
        return None;
    }
    let options = fields.get(dash + 3).map(|options| String::from_utf8_lossy(options));
    let user = options.iter().flat_map(|options| options.split(','));
    let user = user.filter_map(|option| option.strip_prefix("user_id=")?.parse().ok()).next();
    Some(Mounted {
        user: user.unwrap_or_default(),
        path: OsString::from_vec(unescape(fields.get(4)?)).into(),
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
        device: String::from_utf8_lossy(fields.get(2)?).into_owned(),
    })
}

/// Decodes the kernel's octal escapes such as `\040`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        };
        match (byte, tail.get(..3).and_then(octal)) {
            (b'\\', Some(value)) => {
                out.push(value);
                rest = &tail[3..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_redbud_mounts_are_listed_and_escapes_are_decoded() {
        let ours = b"98 30 0:52 / /mnt/a\\040b rw,relatime shared:1 - fuse.redbud 127.0.0.1:10821:/home rw,user_id=7,group_id=8";
        let mount = parse_line(ours).unwrap();
        assert_eq!(mount.path, Path::new("/mnt/a b"));
        assert_eq!(
            (mount.source.as_str(), mount.device.as_str()),
            ("127.0.0.1:10821:/home", "0:52")
        );
        assert_eq!(mount.user, 7);
        assert_eq!(parse_line(b"30 1 254:0 / / rw - ext4 /dev/vda rw"), None);
        assert_eq!(parse_line(b"nonsense - "), None);
    }
}
