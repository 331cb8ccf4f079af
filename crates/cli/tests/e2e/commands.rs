//! What the commands print and how they end.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::Signal;

use crate::harness::{
    Cluster, PATIENCE, Scratch, Spec, describe, eventually, redbud, shell, signal, success,
    wait_child,
};

fn run(command: &mut Command) -> (i32, String) {
    let output: Output = command.output().unwrap();
    (output.status.code().unwrap_or(-1), describe(&output))
}

fn json(text: &str) -> serde_json::Value {
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!(value["version"], 1, "{text}");
    value
}

fn local(scratch: &Scratch) -> Command {
    let mut command = redbud();
    command.arg("local").arg(scratch.path().join("cluster"));
    command.args(["--disk-size", "1G", "--metadata-size", "256M", "--mount"]);
    command.arg(scratch.path().join("mnt"));
    command
}

/// A `redbud local` in the background, once it stands.
fn local_running(scratch: &Scratch) -> Child {
    let mut command = local(scratch);
    command.stdout(Stdio::null());
    let child = command.spawn().unwrap();
    eventually("the mount stands", || is_mounted(&scratch.path().join("mnt")));
    child
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == path))
}

#[test]
fn local_runs_a_command_in_the_mount_and_ends_with_its_status() {
    let scratch = Scratch::new();
    let command = "test \"$PWD\" = \"$REDBUD_MOUNT\" && echo kept > file && ls && exit 7";
    let (code, said) = run(local(&scratch).args(["--exec", command]));
    assert_eq!(code, 7, "{said}");
    assert!(said.lines().any(|line| line == "file"), "{said}");
    // Later starts reopen what is there; a signal's number is reported as shells do.
    let (code, said) = run(local(&scratch).args(["--exec", "cat file; kill -9 $$"]));
    assert_eq!(code, 128 + 9, "{said}");
    assert!(said.lines().any(|line| line == "kept"), "{said}");
    assert!(!is_mounted(&scratch.path().join("mnt")));
    success(redbud().arg("fsck").arg(scratch.path().join("cluster")));
}

#[test]
fn local_formats_with_inline_data_by_default() {
    let redbud = env!("CARGO_BIN_EXE_redbud");
    let command = format!("echo x > f && sync f && {redbud} layout f");
    for (options, inline) in [(&[][..], true), (&["--inline-data", "off"], false)] {
        let scratch = Scratch::new();
        let (code, said) = run(local(&scratch).args(options).args(["--exec", &command]));
        assert!(code == 0 && said.contains("2 bytes, inline") == inline, "{said}");
    }
}

#[test]
fn local_names_the_holder_of_its_directory_and_stops_at_a_signal() {
    let scratch = Scratch::new();
    let mut first = local_running(&scratch);
    let (code, said) = run(local(&scratch).args(["--exec", "true"]));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(&format!("pid {}", first.id())), "{said}");
    fs::write(scratch.path().join("mnt/f"), b"content").unwrap();
    signal(first.id() as i32, Signal::INT);
    assert_eq!(wait_child(&mut first).code(), Some(0));
    assert!(!is_mounted(&scratch.path().join("mnt")));
    let (code, said) = run(local(&scratch).args(["--exec", "cat f"]));
    assert!(code == 0 && said.contains("content"), "{said}");
}

#[test]
fn local_ends_cleanly_when_its_mount_is_taken_away() {
    let scratch = Scratch::new();
    let mut child = local_running(&scratch);
    assert!(Command::new("umount").arg(scratch.path().join("mnt")).status().unwrap().success());
    assert_eq!(wait_child(&mut child).code(), Some(0));
}

#[test]
fn local_restarts_a_killed_server_and_leaves_nothing_when_it_is_killed_itself() {
    let scratch = Scratch::new();
    let mnt = scratch.path().join("mnt");
    let mut child = local_running(&scratch);
    fs::write(mnt.join("before"), b"1").unwrap();
    let server = find_server(&scratch);
    signal(server, Signal::KILL);
    fs::write(mnt.join("after"), b"2").unwrap();
    eventually("another server runs", || find_server(&scratch) != server);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the client unmounts", || !is_mounted(&mnt));
    let (code, said) = run(local(&scratch).args(["--exec", "cat before after"]));
    assert!(code == 0 && said.contains("12"), "{said}");
}

#[test]
fn local_formats_only_files_created_by_the_same_start() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("cluster");
    success(local(&scratch).args(["--exec", "echo precious > f; sync f"]));
    let config = fs::read(dir.join("cluster.toml")).unwrap();
    fs::remove_file(dir.join("cluster.toml")).unwrap();
    for _ in 0..3 {
        let (code, said) = run(local(&scratch).args(["--exec", "cat f"]));
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("cluster.toml is missing") && !said.contains("--force"), "{said}");
    }
    fs::write(dir.join("cluster.toml"), &config).unwrap();
    assert!(success(local(&scratch).args(["--exec", "cat f"])).contains("precious"));

    // A start that died while it brought the whole images out: it is ended, not begun again.
    fs::create_dir(dir.join("making")).unwrap();
    for file in ["cluster.toml", "data1.img"] {
        fs::rename(dir.join(file), dir.join("making").join(file)).unwrap();
    }
    assert!(success(local(&scratch).args(["--exec", "cat f"])).contains("precious"));
    assert!(!dir.join("making").exists());
}

#[test]
fn local_recreates_files_of_an_interrupted_first_start() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("cluster");
    let mut huge = redbud();
    huge.arg("local").arg(&dir).args(["--disk-size", "100P", "--exec", "true", "--mount"]);
    let (code, said) = run(huge.arg(scratch.path().join("mnt")));
    assert!(code == 1 && said.contains("data0.img"), "{said}");
    for attempt in 0..6 {
        let mut child = local(&scratch).args(["--exec", "true"]).spawn().unwrap();
        // Later and later in the making, if it is not over by then.
        eventually("the start has begun", || {
            dir.join("making").exists() || dir.join("cluster.toml").exists()
        });
        std::thread::sleep(std::time::Duration::from_millis(2 * attempt));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    eventually("the last one has let go", || {
        let (code, said) = run(local(&scratch).args(["--exec", "echo works > f; cat f"]));
        assert!(code == 0 || said.contains("in use"), "{said}");
        code == 0
    });
    success(redbud().arg("fsck").arg(&dir));
}

#[test]
fn local_reports_what_it_cannot_do_and_leaves_no_directory() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("cluster");
    success(local(&scratch).args(["--exec", "true"]));
    let (code, said) = run(local(&scratch).args(["--exec", "true", "--disks", "5"]));
    assert!(code == 0 && said.contains("--disks has no effect"), "{said}");
    assert!(!said.contains("--disk-size"), "{said}");
    let inside = dir.join("sub/mnt");
    let mut command = redbud();
    let (code, said) = run(command.arg("local").arg(&dir).arg("--mount").arg(&inside));
    assert!(code == 1 && said.contains("own directory"), "{said}");
    assert!(!dir.join("sub").exists());
    let (_, said) = run(redbud().arg("fsck").arg(&dir));
    assert!(!said.contains("does not exist"), "{said}");
    fs::remove_file(dir.join("data1.img")).unwrap();
    let (code, said) = run(redbud().arg("fsck").arg(&dir));
    assert!(code == 0 && said.contains("data1.img does not exist"), "{said}");
    fs::hard_link(dir.join("metadata.img"), dir.join("data1.img")).unwrap();
    let (code, said) = run(redbud().arg("mkfs").arg("--force").arg(dir.join("cluster.toml")));
    assert!(code == 1 && said.contains("are one file"), "{said}");
}

#[test]
fn local_refuses_a_foreign_directory_and_leaves_it_unchanged() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("cluster");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("letter"), b"dear").unwrap();
    let (code, said) = run(local(&scratch).args(["--exec", "true"]));
    assert!(code == 1 && said.contains("letter"), "{said}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
}

#[test]
fn local_with_bad_options_changes_nothing() {
    let scratch = Scratch::new();
    let (dir, mnt) = (scratch.path().join("cluster"), scratch.path().join("mnt"));
    let refused = [
        (["--disk-size", "4K"], "data.size"),
        (["--metadata-size", "5000"], "metadata.size"),
        (["--lease", "9h"], "server.lease"),
    ];
    for (options, key) in refused {
        let mut command = redbud();
        command.arg("local").arg(&dir).arg("--mount").arg(&mnt).args(options);
        let (code, said) = run(&mut command);
        assert!(code == 2 && said.contains(key), "{options:?}: {said}");
        assert!(!dir.exists() && !mnt.exists(), "{options:?}");
    }
    success(local(&scratch).args(["--exec", "true"]));
    let config = fs::read(dir.join("cluster.toml")).unwrap();
    let (code, said) = run(local(&scratch).args(["--exec", "true", "--lease", "9h"]));
    assert!(code == 2 && said.contains("server.lease"), "{said}");
    assert_eq!(fs::read(dir.join("cluster.toml")).unwrap(), config);
    success(local(&scratch).args(["--exec", "true"]));
}

#[test]
fn server_cache_follows_the_command_line_and_local_keeps_it() {
    let scratch = Scratch::new();
    let (code, said) = run(local(&scratch).args(["--exec", "true", "--cache", "1M"]));
    assert!(code == 2 && said.contains("at least 8M"), "{said}");
    let mut starts = 0;
    for (option, size) in [(&[][..], "256M"), (&["--cache", "16M"], "16M"), (&[], "16M")] {
        success(local(&scratch).args(["--exec", "true"]).args(option));
        let log = fs::read_to_string(scratch.path().join("cluster/mds.log")).unwrap();
        let said: Vec<&str> = log.lines().filter(|line| line.contains("serving")).collect();
        starts += 1;
        assert_eq!(said.len(), starts, "{log}");
        assert!(said[starts - 1].ends_with(&format!("with a cache of {size}")), "{said:?}");
    }
    let mut cluster = Cluster::formatted(&Spec::default());
    for (options, size) in [(&[][..], "64M"), (&["--cache", "24M"], "24M")] {
        cluster.start_server_with(options);
        assert!(cluster.server_log().contains(&format!("with a cache of {size}")), "{options:?}");
        cluster.stop_server();
    }
}

#[test]
fn wrong_arguments_have_the_exit_status_of_the_calling_program() {
    for (line, status, text) in [
        ("fsck", 16, "Usage: redbud fsck"),
        ("fsck --jobs 0 home.toml", 16, "'--jobs <N>'"),
        ("fsck /nonexistent.toml", 16, "/nonexistent.toml"),
        ("fsck /dev/zero", 16, "is not a cluster's file: it has more than 1 MiB"),
        ("mount", 1, "Usage: redbud mount"),
        ("status --nonsense", 2, "'--nonsense'"),
        ("fsck --help", 0, "Usage: redbud fsck"),
    ] {
        let (code, said) = run(redbud().args(line.split(' ')));
        assert_eq!(code, status, "{line}: {said}");
        assert!(said.contains(text), "{line}: {said}");
    }
}

#[test]
fn metadata_device_errors_name_its_path_once() {
    let cluster = Cluster::formatted(&Spec::default());
    let metadata = cluster.dir.join("metadata.img");
    fs::copy(cluster.dir.join("data0.img"), cluster.dir.join("copy")).unwrap();
    let foreign = |_: &Path| fs::write(&metadata, vec![0; 1 << 20]).unwrap();
    let data = |_: &Path| fs::rename(cluster.dir.join("copy"), &metadata).unwrap();
    let missing = |path: &Path| fs::remove_file(path).unwrap();
    let mutations: [&dyn Fn(&Path); 3] = [&foreign, &data, &missing];
    for mutate in mutations {
        mutate(&metadata);
        for verb in [&["dump"][..], &["path"], &["fsck"], &["mds"]] {
            let mut command = redbud();
            command.args(verb).arg(&cluster.config).args((verb == ["path"]).then_some("7"));
            let (code, said) = run(&mut command);
            assert!(code != 0 && said.matches("metadata.img").count() == 1, "{verb:?}: {said}");
        }
    }
}

/// The process that serves the cluster of `scratch`.
fn find_server(scratch: &Scratch) -> i32 {
    let config = scratch.path().join("cluster/cluster.toml");
    let wanted = format!("mds\0{}\0", config.display());
    let mut found = None;
    eventually("there is a server", || {
        found = fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let is_it = String::from_utf8_lossy(&line).contains(&wanted);
            is_it.then(|| entry.file_name().to_str().and_then(|pid| pid.parse().ok())).flatten()
        });
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn status_df_and_layout_print_tables_and_json() {
    let cluster = Cluster::mounted();
    let file = cluster.root().join("file");
    fs::write(&file, vec![7u8; 300_000]).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();

    // The root directory is as old as the file system, and its maker's.
    let about = fs::metadata(cluster.root()).unwrap();
    assert!(about.created().is_ok_and(|time| time > std::time::UNIX_EPOCH));
    assert_eq!(about.uid(), rustix::process::geteuid().as_raw());

    let root = cluster.root().display().to_string();
    for target in [root.as_str(), &cluster.source, cluster.config.to_str().unwrap()] {
        let status = json(&success(redbud().args(["status", "--json", target])));
        let server = &status["filesystems"][0]["server"];
        assert!(server["epoch"].as_u64().unwrap() >= 1, "{status}");
        assert_eq!(server["clients"].as_array().unwrap().len(), 1, "{status}");
        let df = json(&success(redbud().args(["df", "-o", "json", target])));
        let space = &df["filesystems"][0];
        assert_eq!(space["zones"].as_array().unwrap().len(), 2, "{df}");
        assert!(space["bytes"].as_u64().unwrap() > 7 << 30, "{df}");
        // The root and the file.
        assert_eq!(space["inodes"], 2, "{df}");
    }
    // It names what is wrong with the file systems of other tests, too.
    let (_, said) = run(redbud().arg("status"));
    assert!(said.contains(&root), "{said}");
    assert!(success(redbud().args(["df", "-h", &root])).contains("total"));

    let layout = json(&success(redbud().args(["layout", "--output=json-pretty"]).arg(&file)));
    let segments = layout["files"][0]["segments"].as_array().unwrap();
    let bytes: u64 = segments.iter().map(|segment| segment["length"].as_u64().unwrap()).sum();
    assert_eq!(layout["files"][0]["size"], 300_000);
    assert!((300_000..310_000).contains(&bytes), "{layout}");
    assert!(success(redbud().args(["layout", "-otable"]).arg(&file)).contains("written"));
    let mut some = redbud();
    let output = some.args(["layout", "--json", "/nonexistent", "/etc/passwd"]).arg(&file).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", describe(&output));
    let files = json(&String::from_utf8_lossy(&output.stdout))["files"].as_array().unwrap().len();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(files == 1 && said.contains("/nonexistent") && said.contains("/etc/passwd"), "{said}");
    let (code, said) = run(redbud().arg("mount").arg(&cluster.source).arg(cluster.root()));
    assert!(code == 32 && said.contains("is mounted there"), "{said}");
    let (code, said) = run(redbud().arg("layout").arg("/etc/passwd"));
    assert!(code == 1 && said.contains("not lie in a Redbud mount"), "{said}");
    cluster.finish();
}

#[test]
fn status_and_df_work_on_a_mount_whose_client_died() {
    let mut cluster = Cluster::mounted();
    let root = cluster.root();
    let scratch = Scratch::new();
    let mut other = local_running(&scratch);
    signal(cluster.client_pid(0), Signal::KILL);
    eventually("the mount is dead", || {
        fs::metadata(&root).is_err_and(|error| error.raw_os_error() == Some(107))
    });
    for target in [root.to_str().unwrap(), "mnt0"] {
        for command in ["status", "df"] {
            let mut command = vec![command, "--json", target];
            let said = success(redbud().args(&mut command).current_dir(&cluster.dir));
            assert_eq!(json(&said)["filesystems"][0]["source"], cluster.source, "{said}");
        }
        let status =
            json(&success(redbud().args(["status", "--json", target]).current_dir(&cluster.dir)));
        let mounts = status["mounts"].as_array().unwrap();
        assert_eq!(mounts.len(), 1, "{status}");
        assert_eq!(mounts[0]["mount"], root.to_str().unwrap(), "{status}");
        assert!(mounts[0]["pid"].is_null(), "{status}");
    }
    // Other tests have mounts on this host, too, whose servers they may just have killed.
    let output = redbud().args(["status", "--json"]).output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 4)), "{}", describe(&output));
    let everything = json(&String::from_utf8_lossy(&output.stdout));
    assert!(everything["mounts"].as_array().unwrap().len() >= 2, "{everything}");
    signal(other.id() as i32, Signal::INT);
    assert_eq!(wait_child(&mut other).code(), Some(0));
    cluster.kill_client(0);
    cluster.finish();
}

#[test]
fn mkfs_refuses_formatted_busy_foreign_or_small_devices() {
    let mut cluster = Cluster::formatted(&Spec::default());
    let mkfs = |force: bool| {
        let mut command = redbud();
        command.arg("mkfs").arg(&cluster.config).args(force.then_some("--force"));
        run(&mut command)
    };
    let (code, said) = mkfs(false);
    assert!(code == 1 && said.contains("metadata.img") && said.contains("--force"), "{said}");
    let (code, said) = mkfs(true);
    assert_eq!(code, 0, "{said}");

    fs::write(cluster.dir.join("data0.img"), vec![b'x'; 32 << 20]).unwrap();
    fs::remove_file(cluster.dir.join("metadata.img")).unwrap();
    let (code, said) = mkfs(false);
    assert!(code == 1 && said.contains("data0.img") && said.contains("not empty"), "{said}");
    fs::write(cluster.dir.join("data0.img"), vec![0; 4096]).unwrap();
    let (code, said) = mkfs(true);
    assert!(code == 1 && said.contains("data0.img") && said.contains("too small"), "{said}");
    // What an mkfs leaves that was interrupted before it sized the file.
    fs::write(cluster.dir.join("data0.img"), b"").unwrap();
    let (code, said) = mkfs(true);
    assert_eq!(code, 0, "{said}");

    fs::remove_file(cluster.dir.join("data0.img")).unwrap();
    assert_eq!(run(redbud().arg("mkfs").arg(&cluster.config).arg("--force")).0, 0);
    cluster.start_server();
    let (code, said) = run(redbud().arg("mkfs").arg(&cluster.config).arg("--force"));
    assert!(code == 1 && said.contains("metadata.img"), "{said}");
    let (code, said) = run(redbud().arg("fsck").arg(&cluster.config));
    assert!(code == 8 && said.contains("metadata.img"), "{said}");
    cluster.mount();
    cluster.finish();
}

#[test]
fn failed_mount_says_why_with_the_exit_status_of_mount_8() {
    let mut cluster = Cluster::start(&Spec::default());
    let mnt = cluster.dir.join("mnt");
    fs::create_dir(&mnt).unwrap();
    let log = format!("log={}", cluster.dir.join("refused.log").display());
    let mount = |source: &str, options: &str, path: &Path| {
        run(redbud().args(["mount", "-o", &log, "-o", options, source]).arg(path))
    };
    let wrong = cluster.source.replace(":/test", ":/other");
    let (code, said) = mount(&wrong, "timeo=20,retrans=1", &mnt);
    assert!(code == 32 && said.contains("other"), "{said}");
    let (code, said) = mount("127.0.0.1:9:/test", "timeo=10,retrans=1", &mnt);
    assert!(code == 32 && said.contains("127.0.0.1:9"), "{said}");
    let (code, said) = mount("nonsense", "ro", &mnt);
    assert!(code == 1 && said.contains("nonsense"), "{said}");
    let (code, said) = mount(&cluster.source, "soft", &mnt);
    assert!(code == 1 && said.contains("soft"), "{said}");
    let (code, said) = mount(&cluster.source, "ro", &cluster.dir.join("missing"));
    assert!(code == 32 && said.contains("missing"), "{said}");
    let (code, said) = run(redbud().arg("umount").arg(&mnt));
    assert!(code == 1 && said.contains("no Redbud file system"), "{said}");
    assert!(!is_mounted(&mnt));
    cluster.mount();
    cluster.finish();
}

#[test]
fn mount_helper_runs_in_the_background_and_umount_waits_for_it() {
    let cluster = Cluster::start(&Spec::default());
    let helper = cluster.dir.join("mount.redbud");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_redbud"), &helper).unwrap();
    let mnt = cluster.dir.join("background");
    fs::create_dir(&mnt).unwrap();
    let options = format!("rw,_netdev,nosuid,noatime,log={}", cluster.dir.join("bg.log").display());
    success(Command::new(&helper).arg(&cluster.source).arg(&mnt).args(["-o", &options]));
    assert!(is_mounted(&mnt));
    fs::write(mnt.join("f"), b"content").unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(mnt.to_str().unwrap())).unwrap();
    assert!(line.contains("fuse.redbud") && line.contains(&cluster.source), "{line}");
    assert!(line.contains("nosuid"), "{line}");

    // In use: refused with the name of the process that uses it, then lazily.
    let mut user = Command::new("sleep").arg("600").current_dir(&mnt).spawn().unwrap();
    let (code, said) = run(redbud().arg("umount").arg(&mnt));
    assert!(code == 1 && said.contains(&format!("pid {}", user.id())), "{said}");
    user.kill().unwrap();
    user.wait().unwrap();
    success(redbud().arg("umount").arg(&mnt));
    assert!(!is_mounted(&mnt));

    // Read-only, as fstab would have it.
    let options = format!("ro,log={}", cluster.dir.join("bg.log").display());
    success(Command::new(&helper).arg(&cluster.source).arg(&mnt).args(["-o", &options]));
    assert_eq!(fs::read(mnt.join("f")).unwrap(), b"content");
    let error = fs::write(mnt.join("g"), b"x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    success(redbud().arg("umount").arg(&mnt));
    cluster.finish();
}

/// A link in /sbin by which mount(8) and umount(8) find the binary; taken away at the end.
struct Helper(PathBuf);

impl Helper {
    fn install(name: &str) -> Helper {
        let link = Path::new("/sbin").join(name);
        if fs::read_link(&link).is_ok_and(|target| target.ends_with("target/debug/redbud")) {
            fs::remove_file(&link).unwrap();
        }
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_redbud"), &link)
            .unwrap_or_else(|error| panic!("{}: {error}", link.display()));
        Helper(link)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Clients that have something mounted at `mnt`, or had.
fn clients_of(mnt: &Path) -> usize {
    let wanted = format!("{}\0", mnt.display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let is_client = |line: &Vec<u8>| {
        let line = String::from_utf8_lossy(line);
        line.contains("\0--daemon\0") && line.ends_with(&wanted)
    };
    lines.filter(is_client).count()
}

#[test]
fn mount_8_umount_8_and_fstab_work_as_for_other_file_systems() {
    let cluster = Cluster::start(&Spec::default());
    let _mount = Helper::install("mount.redbud");
    let mnt = cluster.dir.join("m8");
    fs::create_dir(&mnt).unwrap();
    let log = format!("log={}", cluster.dir.join("m8.log").display());
    let program = |name: &str| {
        let mut command = Command::new(name);
        command.stdin(Stdio::null());
        command
    };

    let options = format!("noatime,nosuid,_netdev,{log}");
    let mut mount = program("mount");
    success(mount.args(["-t", "redbud", &cluster.source]).arg(&mnt).args(["-o", &options]));
    fs::write(mnt.join("f"), b"content").unwrap();
    let found = success(
        program("findmnt").args(["-no", "SOURCE,FSTYPE,OPTIONS", "--mountpoint"]).arg(&mnt),
    );
    let fields: Vec<&str> = found.split_whitespace().collect();
    assert_eq!(fields[..2], [cluster.source.as_str(), "fuse.redbud"], "{found}");
    assert!(fields[2].contains("noatime") && fields[2].contains("nosuid"), "{found}");
    let df = success(program("df").args(["-B1", "--output=source,fstype,size"]).arg(&mnt));
    let fields: Vec<&str> = df.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(fields[..2], [cluster.source.as_str(), "fuse.redbud"], "{df}");
    assert!(fields[2].parse::<u64>().unwrap() > 7 << 30, "{df}");

    let _remount = Helper::install("mount.fuse.redbud");
    let (code, said) = run(program("mount").args(["-o", "remount,ro"]).arg(&mnt));
    assert!(code != 0 && said.contains("unmount, and mount again"), "{said}");
    fs::write(mnt.join("g"), b"still writable").unwrap();

    // Without a helper the kernel unmounts at once, and the client writes the rest.
    success(program("umount").arg(&mnt));
    assert!(!is_mounted(&mnt));
    eventually("the client has written everything and ended", || clients_of(&mnt) == 0);

    let fstab = cluster.dir.join("fstab");
    let usual = format!("ro,noauto,user,_netdev,x-systemd.automount,nofail,noatime,{log}");
    let line = format!("{} {} redbud {usual} 0 0\n", cluster.source, mnt.display());
    fs::write(&fstab, line).unwrap();
    success(program("mount").arg("-T").arg(&fstab).arg(&mnt));
    assert_eq!(fs::read(mnt.join("g")).unwrap(), b"still writable");
    let error = fs::write(mnt.join("f"), b"x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let found = success(program("findmnt").args(["-no", "OPTIONS", "--mountpoint"]).arg(&mnt));
    for option in ["ro", "nosuid", "nodev", "noexec", "noatime"] {
        assert!(found.trim().split(',').any(|one| one == option), "{option} in {found}");
    }
    // With the helper, umount(8) waits for the client.
    let _umount = Helper::install("umount.fuse.redbud");
    success(program("umount").arg(&mnt));
    assert_eq!(clients_of(&mnt), 0);
    assert!(!is_mounted(&mnt));
    cluster.finish();
}

#[test]
fn subdirectory_can_be_mounted() {
    let mut cluster = Cluster::mounted();
    let root = cluster.root();
    fs::create_dir_all(root.join("projects/one/deep")).unwrap();
    fs::write(root.join("projects/file"), b"no directory").unwrap();
    fs::write(root.join("projects/one/old"), b"old").unwrap();
    let whole = cluster.source.clone();
    let mnt = cluster.dir.join("mnt");
    fs::create_dir(&mnt).unwrap();
    let log = format!("log={}", cluster.dir.join("refused.log").display());
    for (wrong, why) in [
        ("projects/two", "/projects/two does not exist"),
        ("projects/file", "/projects/file is not a directory"),
        ("projects/file/x", "/projects/file is not a directory"),
        ("projects/../projects", "`..` cannot be"),
    ] {
        let source = format!("{whole}/{wrong}");
        let (code, said) = run(redbud().args(["mount", "-o", &log, &source]).arg(&mnt));
        assert!(matches!(code, 1 | 32) && said.contains(why), "{wrong}: {said}");
    }

    cluster.source = format!("{whole}/projects/one");
    let index = cluster.mount();
    let inner = cluster.path(index);
    let outer = root.join("projects/one");
    assert_eq!(fs::read(inner.join("old")).unwrap(), b"old");
    let (seen, is) = (fs::metadata(&inner).unwrap(), fs::metadata(&outer).unwrap());
    assert_eq!((seen.ino(), seen.nlink()), (is.ino(), is.nlink()));
    // Each sees the other's changes, also those of the root itself.
    for round in 0..20 {
        let name = format!("f{round}");
        fs::write(inner.join(&name), name.as_bytes()).unwrap();
        assert_eq!(fs::read(outer.join(&name)).unwrap(), name.as_bytes());
        fs::rename(outer.join(&name), outer.join("deep").join(&name)).unwrap();
        assert!(!inner.join(&name).exists());
        fs::rename(inner.join("deep").join(&name), inner.join(&name)).unwrap();
        fs::remove_file(outer.join(&name)).unwrap();
        assert!(!inner.join(&name).exists());
        let count = |dir: &Path| fs::read_dir(dir).unwrap().count();
        assert_eq!((count(&inner), count(&outer)), (2, 2));
        fs::create_dir(outer.join("d")).unwrap();
        assert_eq!(fs::metadata(&inner).unwrap().nlink(), 4);
        fs::remove_dir(inner.join("d")).unwrap();
        assert_eq!(fs::metadata(&outer).unwrap().nlink(), 3);
    }
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o750)).unwrap();
    assert_eq!(fs::metadata(&outer).unwrap().mode() & 0o777, 0o750);
    let shown = shell(&inner.join("deep"), "pwd -P; cd ..; pwd -P; cd ..; pwd -P; ls -di mnt1/..");
    let mut lines = shown.lines();
    for expected in [inner.join("deep"), inner.clone(), cluster.dir.clone()] {
        assert_eq!(lines.next(), Some(expected.to_str().unwrap()), "{shown}");
    }
    let found =
        success(Command::new("findmnt").args(["-no", "SOURCE", "--mountpoint"]).arg(&inner));
    assert_eq!(found.trim(), cluster.source);
    let inner_text = inner.display().to_string();
    let status = json(&success(redbud().args(["status", "--json", &inner_text])));
    assert_eq!(status["filesystems"][0]["source"], whole, "{status}");
    assert!(success(redbud().args(["df", &cluster.source])).contains("total"));

    // Removed while it is mounted: gone, not damaged.
    fs::remove_dir_all(&outer).unwrap();
    assert!(fs::write(inner.join("late"), b"x").is_err());
    assert!(fs::read_dir(&inner).map_or(true, |mut entries| entries.next().is_none()));
    cluster.finish();
}

#[test]
fn completions_and_manual_pages_are_written() {
    let scratch = Scratch::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(success(redbud().args(["completions", shell])).contains("redbud"));
    }
    let dir: PathBuf = scratch.path().join("man");
    success(redbud().arg("man").arg(&dir));
    for page in ["redbud.1", "redbud-local.1", "redbud-mount.1", "redbud-fsck.1"] {
        assert!(fs::metadata(dir.join(page)).unwrap().len() > 100, "{page}");
    }
    assert!(success(redbud().args(["help", "mount"])).contains("nosuid"));
    assert!(PATIENCE.as_secs() >= 60);
}
