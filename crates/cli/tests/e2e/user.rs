//! A user who is not root mounts by `fusermount3`, and learns what is missing for that.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::harness::{Cluster, Spec, describe, pattern, redbud, script_command};

/// Whose number nobody's files have.
const USER: u32 = 65_534;

/// A user's place beside a cluster whose data they may read and write.
struct User {
    home: PathBuf,
}

impl User {
    fn new(cluster: &Cluster) -> User {
        for entry in fs::read_dir(&cluster.dir).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("data") {
                fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o666)).unwrap();
            }
        }
        let home = cluster.dir.join("home");
        fs::create_dir_all(home.join("mnt")).unwrap();
        for path in [&home, &home.join("mnt")] {
            chown(path, Some(USER), Some(USER)).unwrap();
        }
        User { home }
    }

    fn mount_point(&self) -> PathBuf {
        self.home.join("mnt")
    }

    /// Runs a script as the user, in a mount namespace of its own in which /dev/fuse has this mode
    /// and /etc/fuse.conf allows nothing.
    fn run(&self, mode: u32, script: &str) -> Output {
        let namespace = format!(
            "test -e fuse || mknod fuse c 10 229\n chmod {mode:o} fuse\n mount --bind fuse /dev/fuse\n\
             touch conf\n test ! -e /etc/fuse.conf || mount --bind conf /etc/fuse.conf\n\
             exec setpriv --reuid {USER} --regid {USER} --clear-groups bash -euo pipefail -c \"$SCRIPT\""
        );
        let node = self.home.parent().unwrap();
        let inner = format!("exec unshare -m --propagation private bash -euc '{namespace}'");
        let mut command = script_command(node, &inner);
        command.env("SCRIPT", script).env("REDBUD", redbud().get_program());
        command.env("HOME", &self.home).env("MNT", self.mount_point());
        for kind in ["XDG_RUNTIME_DIR", "XDG_STATE_HOME"] {
            command.env(kind, &self.home);
        }
        command.output().unwrap()
    }
}

/// A cluster in which the user has a directory; gives the source that names it.
fn prepared() -> (Cluster, User, String) {
    let mut cluster = Cluster::start(&Spec { security: "none", ..Spec::default() });
    cluster.mount_with(&["security=none"]);
    let own = cluster.root().join("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(USER), Some(USER)).unwrap();
    fs::write(cluster.root().join("secret"), b"root's").unwrap();
    fs::set_permissions(cluster.root().join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let (user, source) = (User::new(&cluster), cluster.source.clone());
    (cluster, user, source)
}

#[test]
fn user_mounts_through_fusermount3_with_their_own_rights() {
    let (mut cluster, user, source) = prepared();
    fs::write(user.home.join("big"), pattern(1, 3_000_000)).unwrap();
    let script = format!(
        "test $(id -u) = {USER}
        \"$REDBUD\" mount -o noallow_other,security=none {source} \"$MNT\"
        grep -q \" $MNT fuse\" /proc/self/mounts
        cd \"$MNT/own\"
        mkdir d && printf content > d/f && sync d/f && mv d/f d/g && ln d/g linked && chmod 600 linked
        test \"$(cat linked)\" = content && test $(stat -c %u d/g) = {USER}
        cp \"$HOME/big\" big && cmp \"$HOME/big\" big
        ! cat ../secret 2> \"$HOME/denied\" && grep -qi 'permission denied' \"$HOME/denied\"
        ! touch ../foreign 2> /dev/null
        cd / && \"$REDBUD\" umount \"$MNT\"
        ! grep -q \" $MNT \" /proc/self/mounts"
    );
    let output = user.run(0o666, &script);
    assert!(output.status.success(), "{}", describe(&output));
    let own = cluster.root().join("own");
    assert!(fs::read(own.join("big")).unwrap() == pattern(1, 3_000_000));
    assert_eq!(fs::read(own.join("d/g")).unwrap(), b"content");
    assert_eq!(fs::metadata(own.join("linked")).unwrap().uid(), USER);
    assert!(!cluster.root().join("foreign").exists());
    cluster.unmount(0);
    cluster.finish();
}

#[test]
fn user_mount_reports_what_is_missing() {
    let (cluster, user, source) = prepared();
    let nothing = Path::new("/nonexistent").display();
    for (mode, before, options, expected) in [
        (0o666, format!("PATH={nothing}"), "noallow_other", "install the package fuse3"),
        (0o600, String::new(), "noallow_other", "chmod 0666 /dev/fuse"),
        (0o666, String::new(), "allow_other", "-o noallow_other"),
    ] {
        let script =
            format!("{before} \"$REDBUD\" mount -o {options},security=none {source} \"$MNT\"");
        let output = user.run(mode, &script);
        let said = describe(&output);
        assert!(!output.status.success() && said.contains(expected), "{expected}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    cluster.finish();
}
