//! Several servers that prove their keys to each other, and to a client.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::server_of;
use crate::harness::{
    Cluster, Running, Spec, eventually, free_port, in_namespace, redbud, success,
};
use crate::namespaces::Namespaces;

/// The file of two servers: server 0 on this host, server 1 at `other`.
fn share_out(cluster: &Cluster, other: &str) {
    let text = fs::read_to_string(&cluster.config).unwrap();
    let (first, _) = cluster.source.split_once(":/").unwrap();
    let tables: String = [("metadata.img", first), ("metadata1.img", other)]
        .map(|(image, at)| {
            format!(
                "[[mds]]\npath = \"{image}\"\nsize = \"256M\"\nlog = \"16M\"\nlisten = \"{at}\"\n"
            )
        })
        .concat();
    let (head, zones) = text.split_once("[metadata]").unwrap();
    let zones = &zones[zones.find("[[data]]").unwrap()..];
    let head: String = head
        .lines()
        .filter(|line| !line.starts_with("listen"))
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(&cluster.config, format!("{head}{tables}{zones}mds = 1\n")).unwrap();
    success(redbud().args(["mkfs", "--force"]).arg(&cluster.config));
}

#[test]
fn servers_prove_their_keys_to_each_other() {
    let namespaces = Namespaces::new();
    let (host, name) = (namespaces.host(), &namespaces.names[0]);
    let mut cluster = Cluster::formatted(&Spec { host, security: "greeting", ..Spec::default() });
    let other = format!("{}:{}", namespaces.guest(), free_port());
    share_out(&cluster, &other);
    let log = |number: u16| cluster.dir.join(format!("server{number}.log"));
    let logs = [log(0), log(1)];
    let said = |number: usize| fs::read_to_string(&logs[number]).unwrap_or_default();
    let pids = cluster.pids().clone();
    let start = |number: usize, config: &Path| {
        let mut command = if number == 0 { redbud() } else { in_namespace(name) };
        command.arg("mds").arg(config).args(["--server", &number.to_string()]);
        Running::ready(command, &logs[number], &pids)
    };
    // A server with another key is none of them.
    let wrong: PathBuf = cluster.dir.join("wrong.toml");
    let text = fs::read_to_string(&cluster.config).unwrap();
    let own = "[server]\nkey = \"other.key\"\nallowed = \"cluster.allowed\"\n";
    fs::write(&wrong, text.replace("[server]\n", own)).unwrap();
    cluster.new_key("other.key");
    let (zero, stranger) = (start(0, &cluster.config), start(1, &wrong));
    eventually("neither server takes the other one for one of theirs", || {
        said(0).contains("shard 1") && said(0).contains("public keys")
    });
    stranger.signal(Signal::TERM);
    assert!(stranger.wait().success(), "{}", said(1));

    let one = start(1, &cluster.config);
    cluster.mount_in_namespace(name);
    let parent = cluster.root().join("parent");
    fs::create_dir(&parent).unwrap();
    success(redbud().args(["set-layout", "--mds", "1"]).arg(&parent));
    fs::create_dir(parent.join("child")).unwrap();
    fs::write(parent.join("child/file"), "content").unwrap();
    assert_eq!((server_of(&parent), server_of(&parent.join("child"))), (0, 1));
    let status = cluster.status();
    let clients = status["clients"].as_array().unwrap();
    let node = format!("node {name} (client)");
    let client = clients.iter().find(|client| client["node"] == node.as_str());
    assert_eq!(client.map(|client| &client["encrypted"]), Some(&false.into()), "{status}");
    assert_eq!(fs::read(parent.join("child/file")).unwrap(), b"content");
    fs::remove_file(parent.join("child/file")).unwrap();
    fs::remove_dir(parent.join("child")).unwrap();
    cluster.unmount(0);
    for server in [zero, one] {
        server.signal(Signal::TERM);
        assert!(server.wait().success(), "{}{}", said(0), said(1));
    }
    cluster.assert_clean();
}
