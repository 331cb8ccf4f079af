//! Names of file systems.

/// Longest name of a file system, in bytes.
pub const FS_NAME_MAX: usize = 63;

/// Is `name` fit for a file system: 1..=63 ASCII letters, digits, '-', '_' or '.',
/// beginning with a letter or digit? (It appears in `host:/name` and in fstab.)
pub fn check_fs_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    (1..=FS_NAME_MAX).contains(&bytes.len())
        && bytes[0].is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_name_fits_a_mount_source() {
        for good in ["a", "home", "R2-d2_x.y", "0"] {
            assert!(check_fs_name(good), "{good}");
        }
        for bad in ["", "-a", ".", "a/b", "a b", "ä", &"x".repeat(64)] {
            assert!(!check_fs_name(bad), "{bad}");
        }
    }
}
