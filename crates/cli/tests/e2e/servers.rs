//! Several metadata servers of one namespace: they run side by side, are shown, restarted and
//! checked one by one.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Scratch, describe, eventually, redbud, signal, success, wait_child};

/// A `redbud local` with several metadata servers, in the background.
struct Local {
    running: Option<Child>,
    scratch: Scratch,
}

impl Local {
    /// Starts one with so many servers, and waits until it is mounted.
    fn start(servers: u16) -> Local {
        let mut local = Local { running: None, scratch: Scratch::new() };
        local.begin(&["--mds", &servers.to_string()]);
        local
    }

    /// Starts it with these options, and waits until it is mounted.
    fn begin(&mut self, options: &[&str]) {
        let mut command = self.command();
        self.running = Some(command.args(options).stdout(Stdio::null()).spawn().unwrap());
        let mount = self.mount();
        eventually("the mount stands", || {
            let ended = self.running.as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(ended.is_none(), "`redbud local` has ended: {ended:?}");
            let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let place = mount.to_str().unwrap();
            table.lines().any(|line| line.split(' ').nth(4) == Some(place))
        });
    }

    fn command(&self) -> Command {
        let mut command = redbud();
        command.arg("local").arg(self.dir()).arg("--mount").arg(self.mount());
        command.args(["--disk-size", "1G", "--metadata-size", "256M", "--lease", "5s"]);
        command
    }

    fn dir(&self) -> PathBuf {
        self.scratch.path().join("cluster")
    }

    fn mount(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }

    /// What each server says, by their numbers; null if it does not answer.
    fn servers(&self) -> Vec<Value> {
        let output = redbud().args(["status", "--json"]).arg(self.dir()).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let systems = report["filesystems"].as_array().cloned().unwrap_or_default();
        systems.into_iter().map(|mut system| system["server"].take()).collect()
    }

    /// Epoch of each server, once all serve.
    fn epochs(&self, count: usize) -> Vec<u64> {
        let mut epochs = Vec::new();
        eventually("all servers serve", || {
            let servers = self.servers();
            epochs = servers.iter().filter_map(|server| server["epoch"].as_u64()).collect();
            servers.iter().filter(|server| server["state"] == "serving").count() == count
        });
        epochs
    }

    /// The process of a server; `None`: it is just being restarted.
    fn pid(&self, server: u16) -> Option<i32> {
        let parent = self.running.as_ref().expect("it runs").id();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let option = format!("--server\0{server}\0");
        let mut children = children.unwrap().split(' ').map(str::to_owned).collect::<Vec<_>>();
        children.retain(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&option)
        });
        children.first().and_then(|pid| pid.parse().ok())
    }

    /// Kills a server (SIGKILL).
    fn kill(&self, server: u16) {
        let mut pid = None;
        eventually("the server runs", || {
            pid = self.pid(server);
            pid.is_some()
        });
        signal(pid.unwrap(), Signal::KILL);
    }

    /// Stops everything in order.
    fn stop(&mut self) {
        let mut child = self.running.take().expect("it runs");
        signal(child.id() as i32, Signal::TERM);
        let status = wait_child(&mut child);
        assert!(status.success(), "`redbud local` ended with {status}: {}", self.log("mds1.log"));
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.dir().join(name)).unwrap_or_default()
    }

    /// Checks the metadata of all servers, which are stopped; returns what is said.
    fn assert_clean(&self) -> String {
        success(redbud().arg("fsck").arg(self.dir()))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let Some(mut child) = self.running.take() else { return };
        if std::thread::panicking() {
            for name in ["mds.log", "mds1.log", "client.log"] {
                eprintln!("{name}:\n{}", self.log(name));
            }
        }
        signal(child.id() as i32, Signal::TERM);
        wait_child(&mut child);
    }
}

/// Exit status of a command, and all that it says.
fn run(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    (output.status.code().unwrap_or(-1), describe(&output))
}

#[test]
fn servers_of_one_namespace_are_shown_together_and_restarted_alone() {
    let mut local = Local::start(2);
    let before = local.epochs(2);
    let numbers: Vec<Value> = local.servers().iter().map(|one| one["server"].clone()).collect();
    assert_eq!(numbers, [0, 1]);
    let table = success(redbud().arg("status").arg(local.mount()));
    assert!(table.contains(", server 0\n") && table.contains(", server 1\n"), "{table}");
    local.kill(1);
    eventually("server 1 is restarted", || local.epochs(2)[1] > before[1]);
    assert_eq!(local.epochs(2)[0], before[0]);
    fs::write(local.mount().join("file"), "kept").unwrap();
    local.kill(0);
    eventually("server 0 is restarted", || local.epochs(2)[0] > before[0]);
    assert_eq!(fs::read_to_string(local.mount().join("file")).unwrap(), "kept");
    local.stop();
    let said = local.assert_clean();
    assert!(said.contains("local, server 0: clean"), "{said}");
    assert!(said.contains("local, server 1: clean"), "{said}");
    let one = success(redbud().args(["fsck", "--server", "1"]).arg(local.dir()));
    assert!(one.contains("server 1: clean") && !one.contains("server 0"), "{one}");
    let json = success(redbud().args(["fsck", "--json"]).arg(local.dir()));
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["clean"], &report["servers"][1]["server"]), (&true.into(), &1.into()));
    // What it was made with stays.
    local.begin(&[]);
    local.epochs(2);
    local.stop();
}

#[test]
fn commands_reach_the_zones_and_the_metadata_of_each_server() {
    let local = Local::start(2);
    let json = success(redbud().args(["pag", "list", "--json"]).arg(local.dir()));
    let report: Value = serde_json::from_str(&json).unwrap();
    let zones = report["pags"].as_array().unwrap().iter();
    let zones: Vec<(u64, u64)> =
        zones.map(|zone| (zone["mds"].as_u64().unwrap(), zone["pag"].as_u64().unwrap())).collect();
    assert_eq!(zones, [(0, 0), (1, 1)]);
    let json = success(redbud().args(["df", "--json"]).arg(local.dir()));
    let report: Value = serde_json::from_str(&json).unwrap();
    let space = &report["filesystems"][0];
    let of_zone = |index: usize| space["zones"][index]["bytes"].as_u64().unwrap();
    assert_eq!(space["bytes"].as_u64().unwrap(), of_zone(0) + of_zone(1));
    let (code, said) = run(redbud().arg("scrub").arg(local.dir()));
    assert!(code == 2 && said.contains("--server 0 to --server 1"), "{said}");
    success(redbud().args(["scrub", "--server", "1"]).arg(local.dir()));
    success(redbud().args(["pag", "lost", "1"]).arg(local.dir()));
    success(redbud().args(["pag", "lost", "--undo", "1"]).arg(local.dir()));
    let (code, said) = run(redbud().args(["pag", "lost", "2"]).arg(local.dir()));
    assert!(code == 1 && said.contains("has no data zone 2"), "{said}");
    for verb in [&["pag", "drain", "1"][..], &["rebalance"]] {
        let (code, said) = run(redbud().args(verb).arg(local.dir()));
        assert!(code == 1 && said.contains("several metadata servers"), "{verb:?}: {said}");
    }
    let file = local.mount().join("file");
    fs::write(&file, "content").unwrap();
    let layout = success(redbud().args(["layout", "--json"]).arg(&file));
    let report: Value = serde_json::from_str(&layout).unwrap();
    assert_eq!(report["files"][0]["mds"], 0);
}

#[test]
fn metadata_of_another_server_are_refused() {
    let mut local = Local::start(2);
    local.stop();
    let file = local.dir().join("cluster.toml");
    let text = fs::read_to_string(&file).unwrap();
    let swapped = text.replace("metadata1.img", "x").replace("metadata.img", "metadata1.img");
    let wrong = local.dir().join("wrong.toml");
    fs::write(&wrong, swapped.replace("\"x\"", "\"metadata.img\"")).unwrap();
    let serve =
        |config: &PathBuf, server: &[&str]| run(redbud().arg("mds").arg(config).args(server));
    let (code, said) = serve(&wrong, &["--server", "0"]);
    let expected = "holds the metadata of server 1, but";
    assert!(code == 1 && said.contains(expected), "{said}");
    let (code, said) = serve(&file, &[]);
    assert!(code == 2 && said.contains("name one with --server 0 to --server 1"), "{said}");
    let (code, said) = serve(&file, &["--server", "2"]);
    assert!(code == 2 && said.contains("there is no server 2"), "{said}");
    let alone = "name = \"local\"\nmetadata = { path = \"metadata.img\" }\n\
                 data = [{ path = \"data0.img\" }]\n[server]\nsecurity = \"none\"\n";
    fs::write(&wrong, alone).unwrap();
    let (code, said) = serve(&wrong, &[]);
    assert!(code == 1 && said.contains("of server 0 of several"), "{said}");
    for (options, expected) in [
        (&["--mds", "3"][..], "was made with 2"),
        (&["--standby", "1"], "no standbys yet"),
        (&["--mds", "2", "--standby", "1"], "does not go with --standby"),
        (&["--mds", "2", "--osts", "1"], "does not go with --osts"),
    ] {
        let (code, said) = run(local.command().args(["--exec", "true"]).args(options));
        assert!(code == 2 && said.contains(expected), "{options:?}: {said}");
    }
    success(local.command().args(["--exec", "true"]));
    local.assert_clean();
}
