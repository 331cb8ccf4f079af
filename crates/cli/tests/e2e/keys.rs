//! Keys on real mounts: who is let in, who is cut off, and what strangers can do.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::harness::{Cluster, Spec, as_user, describe, eventually, in_namespace, redbud, success};
use crate::namespaces::Namespaces;

/// What the door of the cluster's server has counted as `name`.
fn counted(cluster: &Cluster, name: &str) -> u64 {
    cluster.status()["door"][name].as_u64().unwrap()
}

/// Nodes of the clients that the server has, with whether their frames are encrypted.
fn nodes(cluster: &Cluster) -> Vec<(String, bool)> {
    let status = cluster.status();
    let clients = status["clients"].as_array().unwrap().iter();
    let clients = clients.filter(|client| client["state"] != "quarantined");
    let node = |client: &serde_json::Value| {
        let encrypted = client["encrypted"].as_bool().unwrap();
        (client["node"].as_str().unwrap().to_owned(), encrypted)
    };
    clients.map(node).collect()
}

/// Tries to mount from a host with these options; it must fail.
fn refused(namespace: &str, source: &str, at: &Path, options: &[String]) -> String {
    fs::create_dir_all(at).unwrap();
    let mut command = in_namespace(namespace);
    command.args(["mount", "-o", &options.join(",")]).arg(source).arg(at);
    let output: Output = command.output().unwrap();
    assert!(!output.status.success(), "{}", describe(&output));
    describe(&output)
}

/// A script that must end within seconds, whether it succeeds or not.
fn briefly(script: &str, at: &Path) -> bool {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "5", "sh", "-c", script]).current_dir("/").env("AT", at);
    command.output().unwrap().status.success()
}

#[test]
fn revoked_host_is_cut_off_and_the_other_goes_on() {
    let namespaces = Namespaces::new();
    let host = namespaces.host();
    let mut cluster = Cluster::start(&Spec { host, ..Spec::default() });
    let [one, other] = &namespaces.names;
    for name in [one, other] {
        cluster.mount_in_namespace(name);
    }
    let (a, b) = (cluster.path(0), cluster.path(1));
    fs::write(a.join("shared"), b"from a").unwrap();
    assert_eq!(fs::read(b.join("shared")).unwrap(), b"from a");
    let expected: Vec<_> = [one, other].map(|name| (format!("node {name} (client)"), true)).into();
    assert_eq!(nodes(&cluster), expected);

    // A host without a key, with one that nobody allowed, and with another server's.
    let (source, at) = (cluster.source.clone(), cluster.dir.join("stranger"));
    let said = refused(one, &source, &at, &["security=none".to_owned()]);
    assert!(said.contains("wants a handshake with keys"), "{said}");
    let (stranger, key) = cluster.new_key("stranger.key");
    let said = refused(one, &source, &at, &cluster.key_options(&stranger));
    assert!(said.contains(&key) && said.contains("not in the server's list"), "{said}");
    let text = fs::read_to_string(&cluster.config).unwrap();
    let wrong = cluster.dir.join("wrong.toml");
    let own = success(redbud().args(["key", "show"]).arg(cluster.dir.join("cluster.key")));
    fs::write(&wrong, text.replace(own.trim(), &key)).unwrap();
    let options =
        [format!("cluster={}", wrong.display()), cluster.key_options(&stranger)[1].clone()];
    let said = refused(one, &source, &at, &options);
    assert!(said.contains("none of the public keys"), "{said}");
    for name in ["no_key", "unknown_key", "wrong_server"] {
        assert!(counted(&cluster, name) > 0, "{name}: {}", cluster.status()["door"]);
    }

    // One host is revoked in the middle of its work.
    assert!(briefly("echo 1 > $AT/mine", &a));
    success(redbud().args(["key", "revoke"]).arg(&cluster.config).arg(one));
    eventually("the session of the revoked host ends", || nodes(&cluster).len() == 1);
    assert!(!briefly("echo 2 > $AT/mine && sync -f $AT/mine", &a), "the revoked host goes on");
    assert!(cluster.server_log().contains("its node's keys are revoked"));
    eventually("its attempts are counted", || counted(&cluster, "revoked_key") > 0);
    let (one_key, _) = (cluster.dir.join(format!("{one}.key")), ());
    let said = refused(one, &source, &at, &cluster.key_options(&one_key));
    assert!(said.contains("is revoked"), "{said}");
    fs::write(b.join("shared"), b"from b").unwrap();
    fs::write(b.join("new"), b"new").unwrap();
    assert_eq!(fs::read(b.join("shared")).unwrap(), b"from b");
    assert_eq!(nodes(&cluster), [(format!("node {other} (client)"), true)]);
    cluster.kill_client(0);
    cluster.finish();
}

/// As [`in_namespace`], and without this host's control sockets.
fn of_another_host(name: &str) -> Command {
    let mut command = Command::new("unshare");
    let hidden = "mount -t tmpfs redbud /run/redbud && exec \"$@\"";
    command.args(["--mount", "sh", "-c", hidden, "sh"]);
    let inner = in_namespace(name);
    command.arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    command
}

/// What a node may read of the server, by its role.
#[test]
fn only_an_administrator_scrubs_and_sees_the_others() {
    let namespaces = Namespaces::new();
    let host = namespaces.host();
    let mut cluster = Cluster::start(&Spec { host, ..Spec::default() });
    for name in &namespaces.names {
        cluster.mount_in_namespace(name);
    }
    let (ops, key) = cluster.new_key("ops.key");
    cluster.allow(&key, "ops", &["--role", "administrator"]);
    let [one, other] = &namespaces.names;
    // A cluster's file for each of these hosts, with its own key.
    let file = |key: &Path, name: &str| {
        let text = fs::read_to_string(&cluster.config).unwrap();
        let path = cluster.dir.join(name);
        fs::write(&path, format!("{text}[client]\nkey = \"{}\"\n", key.display())).unwrap();
        path
    };
    let client = file(&cluster.dir.join(format!("{one}.key")), "one.toml");
    let ops = file(&ops, "ops.toml");
    let status = |file: &Path| {
        let mut command = of_another_host(one);
        let text = success(command.args(["status", "--json"]).arg(file));
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let clients = report["filesystems"][0]["server"]["clients"].clone();
        clients.as_array().unwrap().len()
    };
    assert_eq!((status(&client), status(&ops)), (1, 2));
    let scrub = |file: &Path| of_another_host(other).arg("scrub").arg(file).output().unwrap();
    let output = scrub(&client);
    assert_eq!(output.status.code(), Some(5), "{}", describe(&output));
    let output = scrub(&ops);
    assert!(output.status.success(), "{}", describe(&output));
    cluster.finish();
}

/// What root of a squashed host may still do, and that other users there keep their rights.
#[test]
fn root_of_a_squashed_host_is_nobody() {
    const USER: u32 = 1234;
    let namespaces = Namespaces::new();
    let host = namespaces.host();
    let mut cluster = Cluster::start(&Spec { host, ..Spec::default() });
    let whole = cluster.mount();
    let [squashed, _] = &namespaces.names;
    let file = cluster.new_key(&format!("{squashed}.key")).0;
    let key = success(redbud().args(["key", "show"]).arg(&file));
    cluster.allow(key.trim(), squashed, &["--squash", "root"]);
    let index = cluster.mount_with_key(squashed, &file);
    let (own, far) = (cluster.path(whole), cluster.path(index));
    fs::create_dir(own.join("roots")).unwrap();
    fs::write(own.join("roots/file"), b"root's").unwrap();
    fs::create_dir(own.join("users")).unwrap();
    chown(own.join("users"), Some(USER), Some(USER)).unwrap();
    fs::create_dir(own.join("groups")).unwrap();
    chown(own.join("groups"), Some(0), Some(2000)).unwrap();
    fs::set_permissions(own.join("groups"), fs::Permissions::from_mode(0o770)).unwrap();
    fs::create_dir(own.join("all")).unwrap();
    fs::set_permissions(own.join("all"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(own.join("all/roots"), b"").unwrap();

    // Root there is nobody.
    let denied = |result: std::io::Result<()>| {
        let kind = result.unwrap_err().kind();
        assert_eq!(kind, ErrorKind::PermissionDenied);
    };
    denied(fs::write(far.join("roots/new"), b""));
    denied(fs::remove_file(far.join("roots/file")));
    denied(fs::rename(far.join("roots/file"), far.join("all/stolen")));
    denied(fs::set_permissions(far.join("roots/file"), fs::Permissions::from_mode(0o777)));
    denied(chown(far.join("roots/file"), Some(USER), Some(USER)));
    denied(fs::hard_link(far.join("roots/file"), far.join("all/link")));
    denied(fs::remove_file(far.join("all/roots")));
    denied(fs::create_dir(far.join("users/dir")));
    fs::write(far.join("all/nobodys"), b"new").unwrap();
    let attributes = fs::metadata(own.join("all/nobodys")).unwrap();
    assert_eq!((attributes.uid(), attributes.gid()), (65_534, 65_534));
    fs::remove_file(far.join("all/nobodys")).unwrap();

    // A user there is who they are, with their groups (`as_user` adds group 2000).
    as_user(USER, || {
        fs::write(far.join("users/mine"), b"mine").unwrap();
        fs::set_permissions(far.join("users/mine"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(far.join("users/mine"), far.join("users/still mine")).unwrap();
        fs::write(far.join("groups/shared"), b"shared").unwrap();
        fs::remove_file(far.join("groups/shared")).unwrap();
        denied(fs::remove_file(far.join("all/roots")));
    });
    assert_eq!(fs::read(own.join("users/still mine")).unwrap(), b"mine");
    // Root of the server's host is root.
    fs::remove_file(own.join("roots/file")).unwrap();
    cluster.finish();
}
