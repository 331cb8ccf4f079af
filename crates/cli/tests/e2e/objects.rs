//! Files in objects at targets, on real mounts: `redbud local --osts`, with targets killed under
//! load, and two mounts of one file.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Scratch, redbud, success};

/// Runs a script in the mount of a local cluster with targets.
fn local(scratch: &Scratch, options: &[&str], script: &str) -> String {
    let mut command = redbud();
    command.arg("local").arg(scratch.path().join("cluster"));
    command.arg("--mount").arg(scratch.path().join("mnt"));
    command.args(["--disks", "1", "--disk-size", "512M", "--metadata-size", "256M"]);
    command.args(options).arg("--exec");
    let program = Path::new(env!("CARGO_BIN_EXE_redbud")).display();
    let dir = scratch.path().join("cluster");
    let functions = format!(
        r#"set -eu
        redbud() {{ {program} "$@"; }}
        dir={dir}
        targets() {{ grep -lz '^serve$' /proc/[0-9]*/cmdline 2>/dev/null \
            | xargs grep -lz "^$dir/cluster.toml$" 2>/dev/null | cut -d/ -f3; }}
        free() {{ for at in $(sed -n 's/^address = "\(.*\)"/\1/p' $dir/cluster.toml); do
            redbud ost status $at --config $dir/cluster.toml --json | tr ',' '\n' \
                | grep -o '"free": *[0-9]*'
        done; }}
        "#,
        dir = dir.display()
    );
    success(command.arg(format!("{functions}\n{script}")))
}

/// The status of the mount's targets.
fn targets(said: &str) -> Vec<Value> {
    let from = said.find('{').unwrap_or_else(|| panic!("no JSON: {said}"));
    let status: Value = serde_json::from_str(&said[from..]).unwrap();
    let devices = status["mounts"][0]["client"]["devices"].as_array().expect("a list");
    devices.iter().map(|device| device["target"].clone()).filter(Value::is_object).collect()
}

/// A full target refuses a write at once; nothing that it took is lost, and what is there can be
/// written again.
#[test]
fn full_target_refuses_the_write_and_not_the_fsync() {
    let scratch = Scratch::new();
    let said = local(
        &scratch,
        &["--osts", "1"],
        r#"
        redbud set-layout . --policy objects
        head -c 4000000 /dev/urandom > $dir/wanted
        n=0
        while cp $dir/wanted f$n 2> $dir/why; do n=$((n + 1)); done
        grep -o 'No space left on device' $dir/why
        rm f$n
        for at in $(seq 0 $((n - 1))); do sync f$at; cmp $dir/wanted f$at; done
        dd if=/dev/zero of=fill bs=4k conv=fsync status=none 2>&1 | grep -o 'No space left' || true
        tac $dir/wanted > $dir/other
        dd if=$dir/other of=f0 bs=64k conv=notrunc,fsync status=none
        cmp $dir/other f0
        rm fill f1
        sync .
        cp $dir/wanted again && sync again && cmp $dir/wanted again
        [ $n -gt 50 ] && echo several
        "#,
    );
    assert_eq!(said, "No space left on device\nNo space left\nseveral\n");
}

#[test]
fn files_lie_at_targets_over_kills_and_restarts() {
    let scratch = Scratch::new();
    let said = local(
        &scratch,
        &["--osts", "2", "--journal", "external"],
        r#"
        free > $dir/before
        mkdir objects
        redbud set-layout objects --policy objects --width 2 --part 1M
        head -c 20000000 /dev/urandom > $dir/wanted
        for round in 1 2 3; do
            ( for n in $(seq 8); do cp $dir/wanted objects/f$n; done ) &
            writers=$!
            sleep 0.1
            kill -KILL $(targets)
            wait $writers
        done
        for n in $(seq 8); do sync objects/f$n; cmp $dir/wanted objects/f$n; done
        echo 3 > /proc/sys/vm/drop_caches
        cmp $dir/wanted objects/f8
        printf XYZ | dd of=objects/f8 bs=1 seek=5000000 conv=notrunc status=none
        dd if=objects/f8 bs=1 skip=4999999 count=5 status=none | tail -c +2 | head -c 3
        truncate -s 7000000 objects/f7
        truncate -s 9000000 objects/f7
        cmp -n 7000000 $dir/wanted objects/f7
        tail -c 2000000 objects/f7 | tr -d '\0' | wc -c
        fallocate -p -o 1048576 -l 2097152 objects/f6
        sync objects/f6
        dd if=objects/f6 bs=1M skip=1 count=2 status=none | tr -d '\0' | wc -c
        cp $dir/wanted block
        cmp $dir/wanted block
        "#,
    );
    assert!(said.starts_with("XYZ0\n0\n"), "{said}");
    // Everything is there after a stop and a start, at other ports perhaps.
    let said = local(
        &scratch,
        &[],
        r#"
        for n in 1 2 3 4 5; do cmp $dir/wanted objects/f$n; done
        cmp $dir/wanted block
        mkdir -p $dir/../second
        redbud mount --allow-unzoned "$REDBUD_SOURCE" $dir/../second
        cmp $dir/wanted $dir/../second/objects/f1
        echo end >> $dir/../second/objects/f1
        tail -c 4 objects/f1
        redbud umount $dir/../second
        rm -r objects
        redbud status --json $dir
        "#,
    );
    assert!(said.starts_with("end\n"), "{said}");
    let targets = targets(&said);
    assert_eq!(targets.len(), 2, "{said}");
    assert!(targets.iter().all(|target| target["connected"] == true), "{said}");
    // What was removed is destroyed: the targets are as free as at the beginning.
    let said = local(
        &scratch,
        &[],
        r#"
        for try in $(seq 500); do
            free > $dir/after
            cmp -s $dir/before $dir/after && break
            sleep 0.02
        done
        wc -l < $dir/before
        diff $dir/before $dir/after && echo as free as before
        "#,
    );
    assert_eq!(said, "2\nas free as before\n");
    for device in ["ost0.img", "ost1.img"] {
        let journal = device.replace(".img", "-journal.img");
        let spec = format!("{device},journal={journal}");
        let mut check = redbud();
        check.args(["ost", "check", "--scrub", &spec]).current_dir(scratch.path().join("cluster"));
        success(&mut check);
    }
}

/// `--journal shared`: the journals of all targets are slices of one file, also after a restart,
/// which writes the cluster's file anew.
#[test]
fn targets_with_one_journal_file_keep_files_over_kills_and_restarts() {
    let scratch = Scratch::new();
    local(
        &scratch,
        &["--osts", "3", "--journal", "shared"],
        r#"
        redbud set-layout . --policy objects --width 3 --part 1M
        head -c 20000000 /dev/urandom > $dir/wanted
        for round in 1 2; do
            ( for n in $(seq 4); do cp $dir/wanted f$n; done ) &
            writers=$!
            sleep 0.1
            kill -KILL $(targets)
            wait $writers
        done
        for n in $(seq 4); do sync f$n; cmp $dir/wanted f$n; done
        kill -KILL $(targets)
        "#,
    );
    let said = local(
        &scratch,
        &[],
        r#"
        echo 3 > /proc/sys/vm/drop_caches
        for n in $(seq 4); do cmp $dir/wanted f$n; done
        grep -c '^journal = "ost-journals.img"$' $dir/cluster.toml
        "#,
    );
    assert_eq!(said, "3\n");
    for index in 0..3 {
        let spec = format!("ost{index}.img,journal=ost-journals.img");
        let mut check = redbud();
        check.args(["ost", "check", "--scrub", &spec]).current_dir(scratch.path().join("cluster"));
        let text = success(&mut check);
        assert!(text.contains("of ost-journals.img, which has 2 of others"), "{text}");
    }
}

/// A full target has the room back at once that an idle mount has ahead of its writes.
#[test]
fn room_ahead_of_an_idle_mount_goes_to_the_writer_that_needs_it() {
    let scratch = Scratch::new();
    let said = local(
        &scratch,
        &["--osts", "1"],
        r#"
        redbud set-layout . --policy objects
        mkdir -p $dir/../second
        redbud mount --allow-unzoned "$REDBUD_SOURCE" $dir/../second
        dd if=/dev/zero of=fill bs=1M status=none 2>&1 | grep -o 'No space left' || true
        truncate -s -32M fill
        sync fill
        # The second mount keeps room ahead, and does nothing any more.
        dd if=/dev/zero of=$dir/../second/idle bs=4k count=1 conv=fsync status=none
        dd if=/dev/zero of=rest bs=4k status=none 2>&1 | grep -o 'No space left' || true
        redbud ost status $(sed -n 's/^address = "\(.*\)"/\1/p' $dir/cluster.toml) \
            --config $dir/cluster.toml --json
        redbud umount $dir/../second
        "#,
    );
    let (full, status) = said.split_at(said.find('{').expect("a status"));
    assert_eq!(full, "No space left\nNo space left\n");
    let status: Value = serde_json::from_str(status).unwrap();
    let target = &status["targets"][0];
    let promised = target["store"]["promised_blocks"].as_u64().unwrap();
    let free = target["free"].as_u64().unwrap();
    assert!(promised < 64 && free < 64, "{promised} of {free} free blocks are promised");
}

/// Makes a target one of the file system that this directory has now.
pub fn adopt(dir: &Path, target: &str) {
    let adopt = ["ost", "adopt", target, "--config", "cluster.toml"];
    let refused = redbud().current_dir(dir).args(adopt).output().unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    let (_, former) = why.split_once("add --from ").unwrap_or_else(|| panic!("{why}"));
    let former = former.split(' ').next().unwrap();
    let said = success(redbud().current_dir(dir).args(adopt).args(["--from", former]));
    assert!(said.contains("before of `local`"), "{said}");
}

/// A dump that is loaded into a new file system leads to the objects, once the targets are adopted;
/// before that they refuse it. Evicted clients of the old one are forgotten.
#[test]
fn targets_are_adopted_by_the_file_system_that_a_dump_is_loaded_into() {
    let scratch = Scratch::new();
    let options = ["--osts", "2", "--journal", "external"];
    local(
        &scratch,
        &options,
        r#"
        mkdir objects
        redbud set-layout objects --policy objects --width 2 --part 1M
        head -c 5000000 /dev/urandom > $dir/wanted
        cp $dir/wanted objects/f
        mkdir -p $dir/../second
        redbud mount --allow-unzoned "$REDBUD_SOURCE" $dir/../second
        echo mine > $dir/../second/objects/of-the-evicted && sync $dir/../second/objects
        client=$(redbud client list $dir | awk '$1 ~ /^[0-9]+$/ { last = $1 } END { print last }')
        redbud client evict --yes $client $dir
        redbud umount $dir/../second || umount -l $dir/../second
        "#,
    );
    let dir = scratch.path().join("cluster");
    let file = dir.join("cluster.toml").display().to_string();
    let run = |arguments: &[&str]| success(redbud().current_dir(&dir).args(arguments));
    let dump = redbud().args(["dump", &file]).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    std::fs::write(dir.join("dump"), dump.stdout).unwrap();
    run(&["mkfs", "--force", &file]);
    let mut load = redbud();
    load.args(["load", &file]).stdin(std::fs::File::open(dir.join("dump")).unwrap());
    success(&mut load);
    for target in ["ost0.img,journal=ost0-journal.img", "ost1.img,journal=ost1-journal.img"] {
        adopt(&dir, target);
        // Once more: it is one already.
        run(&["ost", "adopt", target, "--config", &file]);
    }
    let said = local(
        &scratch,
        &[],
        r#"
        cmp $dir/wanted objects/f
        cp $dir/wanted objects/g && sync objects/g
        cmp $dir/wanted objects/g
        rm objects/f objects/of-the-evicted && echo removed
        "#,
    );
    assert_eq!(said, "removed\n");
    for target in ["ost0.img,journal=ost0-journal.img", "ost1.img,journal=ost1-journal.img"] {
        run(&["ost", "check", "--scrub", target]);
    }
}
