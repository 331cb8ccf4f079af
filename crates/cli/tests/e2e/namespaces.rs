//! Clients in network namespaces of their own: hosts, as far as the network goes.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::harness::{Cluster, Scratch, Spec, eventually, success};

/// The first three bytes of all addresses, in the range that is kept for tests of networks.
fn network() -> String {
    let id = std::process::id();
    format!("198.{}.{}", 18 + id / 256 % 2, id % 256)
}

/// Namespaces of this process so far: each pair has names and addresses of its own.
static PAIRS: AtomicU32 = AtomicU32::new(0);

/// Two namespaces, each joined to this one by a pair of virtual Ethernet devices.
pub struct Namespaces {
    pub names: [String; 2],
    number: u32,
}

fn ip(arguments: &str) {
    success(Command::new("ip").args(arguments.split_whitespace()));
}

impl Namespaces {
    pub fn new() -> Namespaces {
        let (id, network) = (std::process::id(), network());
        let number = PAIRS.fetch_add(1, Ordering::Relaxed);
        assert!(number < 32, "no address is left");
        let names = ["a", "b"].map(|end| format!("redbud{id}-{number}{end}"));
        let namespaces = Namespaces { names, number };
        for (index, name) in namespaces.names.iter().enumerate() {
            let first = 8 * number as usize + 4 * index;
            let (near, far) = (first + 1, first + 2);
            let device = namespaces.device(index);
            ip(&format!("netns add {name}"));
            ip(&format!("link add {device} type veth peer name eth0 netns {name}"));
            ip(&format!("address add {network}.{near}/30 dev {device}"));
            ip(&format!("link set {device} up"));
            ip(&format!("-n {name} address add {network}.{far}/30 dev eth0"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} link set eth0 up"));
            ip(&format!("-n {name} route add default via {network}.{near}"));
        }
        namespaces
    }

    fn device(&self, index: usize) -> String {
        format!("rb{}{}{}", std::process::id(), ["a", "b"][index], self.number)
    }

    /// The address of this host that both namespaces reach.
    pub fn host(&self) -> String {
        format!("{}.{}", network(), 8 * self.number + 1)
    }

    /// The address of the first namespace.
    pub fn guest(&self) -> String {
        format!("{}.{}", network(), 8 * self.number + 2)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for (index, name) in self.names.iter().enumerate() {
            let _ = Command::new("ip").args(["link", "delete", &self.device(index)]).output();
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

fn append(root: &Path, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(root.join("log")).unwrap();
    writeln!(file, "{line}").unwrap();
}

#[test]
fn host_that_is_cut_off_does_not_stop_the_other() {
    let namespaces = Namespaces::new();
    let lease = Duration::from_secs(10);
    let host = namespaces.host();
    let mut cluster = Cluster::start(&Spec { lease, host, ..Spec::default() });
    for name in &namespaces.names {
        cluster.mount_in_namespace(name);
    }
    let (a, b) = (cluster.path(0), cluster.path(1));
    for round in 0..20 {
        append(if round % 2 == 0 { &a } else { &b }, &round.to_string());
        let expected: String = (0..=round).map(|line| format!("{line}\n")).collect();
        assert_eq!(fs::read_to_string(b.join("log")).unwrap(), expected);
        assert_eq!(fs::read_to_string(a.join("log")).unwrap(), expected);
    }
    // The first host holds the file when its cable is pulled.
    append(&a, "held");
    OpenOptions::new().append(true).open(a.join("log")).unwrap().sync_all().unwrap();
    ip(&format!("link set {} down", namespaces.device(0)));
    append(&b, "alone");
    let text = fs::read_to_string(b.join("log")).unwrap();
    assert!(text.ends_with("held\nalone\n"), "{text}");
    ip(&format!("link set {} up", namespaces.device(0)));
    eventually("the host that was cut off sees what happened", || {
        fs::read_to_string(a.join("log")).is_ok_and(|now| now == text)
    });
    append(&a, "back");
    assert!(fs::read_to_string(b.join("log")).unwrap().ends_with("alone\nback\n"));
    cluster.finish();
}

/// The part of `docs/cluster.md` that a newcomer can type.
#[test]
fn cluster_of_the_documents_starts_in_namespaces() {
    let scratch = Scratch::new();
    let text = include_str!("../../../../docs/cluster.md");
    let (_, text) = text.split_once("## 8. ").expect("the section is there");
    let (_, text) = text.split_once("in the path:").expect("it says what is needed");
    let (begin, end) = text.split_once("To end it:").expect("it says how it ends");
    let code = |text: &str| -> String {
        text.lines()
            .filter_map(|line| line.strip_prefix("    "))
            .flat_map(|line| [line, "\n"])
            .collect()
    };
    let binaries = Path::new(env!("CARGO_BIN_EXE_redbud")).parent().unwrap();
    let script = format!(
        "set -eu\nPATH={}:$PATH\nend() {{ set +e\n{}}}\ntrap end EXIT\n{}cmp /bin/sh mnt/sh\n",
        binaries.display(),
        code(end),
        code(begin),
    );
    let said = success(Command::new("bash").args(["-c", &script]).current_dir(scratch.path()));
    assert!(said.contains("10.77.0.2:10823") && said.contains("no problem is known"), "{said}");
}
