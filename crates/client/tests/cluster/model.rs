//! Random operations of two clients, one after the other, against a model in memory, while
//! connections break and the server restarts.

use std::collections::BTreeMap;

use client::{NodeSpec, Place, SetAttrRequest};
use types::{Fault, FileKind, Ino};

use crate::harness::{Cluster, Mount, RDONLY, RDWR, ROOT, check, name};

#[derive(Clone)]
enum Node {
    Dir(BTreeMap<String, Ino>),
    File(Vec<u8>),
}

/// The expected file system.
struct Model {
    nodes: BTreeMap<Ino, Node>,
    links: BTreeMap<Ino, u32>,
}

impl Model {
    fn new() -> Model {
        Model {
            nodes: BTreeMap::from([(Ino::ROOT, Node::Dir(BTreeMap::new()))]),
            links: BTreeMap::new(),
        }
    }

    fn names(&mut self, dir: Ino) -> &mut BTreeMap<String, Ino> {
        match self.nodes.get_mut(&dir) {
            Some(Node::Dir(names)) => names,
            _ => panic!("{dir:?} is no directory"),
        }
    }

    fn find(&mut self, dir: Ino, text: &str) -> Option<Ino> {
        self.names(dir).get(text).copied()
    }

    fn is_dir(&self, ino: Ino) -> bool {
        matches!(self.nodes.get(&ino), Some(Node::Dir(_)))
    }

    fn is_empty(&mut self, ino: Ino) -> bool {
        self.names(ino).is_empty()
    }

    fn content(&mut self, ino: Ino) -> &mut Vec<u8> {
        match self.nodes.get_mut(&ino) {
            Some(Node::File(bytes)) => bytes,
            _ => panic!("{ino:?} is no file"),
        }
    }

    fn add(&mut self, dir: Ino, text: &str, ino: Ino, node: Option<Node>) {
        self.names(dir).insert(text.into(), ino);
        *self.links.entry(ino).or_insert(0) += 1;
        if let Some(node) = node {
            self.nodes.insert(ino, node);
        }
    }

    fn remove(&mut self, dir: Ino, text: &str) {
        let ino = self.names(dir).remove(text).expect("the name is there");
        let links = self.links.get_mut(&ino).expect("it has links");
        *links -= 1;
        if *links == 0 {
            self.nodes.remove(&ino);
        }
    }

    fn dirs(&self) -> Vec<Ino> {
        self.nodes.keys().copied().filter(|ino| self.is_dir(*ino)).collect()
    }

    /// Is `dir` inside `of`, or the same?
    fn is_inside(&self, dir: Ino, of: Ino) -> bool {
        dir == of
            || match &self.nodes[&of] {
                Node::Dir(names) => {
                    names.values().any(|ino| self.is_dir(*ino) && self.is_inside(dir, *ino))
                }
                Node::File(_) => false,
            }
    }
}

struct ModelRun {
    cluster: Cluster,
    mounts: [Mount; 2],
    model: Model,
}

impl ModelRun {
    fn random(&self, n: usize) -> usize {
        (self.cluster.env.random_u64() % n as u64) as usize
    }

    async fn step(&mut self) {
        let mount = self.mounts[self.random(2)].clone();
        let dirs = self.model.dirs();
        let dir = dirs[self.random(dirs.len())];
        let text = format!("n{}", self.random(6));
        let found = self.model.find(dir, &text);
        // The kernel finds a directory by its path before it works in it.
        match self.random(9) {
            0 => self.mkdir(&mount, dir, &text, found).await,
            1 => self.create(&mount, dir, &text, found).await,
            2 => self.unlink(&mount, dir, &text, found).await,
            3 => self.rename(&mount, dir, &text, found).await,
            4 => self.link(&mount, dir, &text, found).await,
            5 => self.write(&mount, found).await,
            6 => self.truncate(&mount, found).await,
            7 => self.read(&mount, found).await,
            _ => self.list(&mount, dir).await,
        }
    }

    async fn mkdir(&mut self, mount: &Mount, dir: Ino, text: &str, found: Option<Ino>) {
        if self.model.dirs().len() > 6 {
            return;
        }
        let made = mount.mkdir(dir, text).await;
        match found {
            Some(_) => assert_eq!(made.err(), Some(Fault::Exists), "{text}"),
            None => {
                let ino = made.expect("a directory can be made").attr.ino;
                self.model.add(dir, text, ino, Some(Node::Dir(BTreeMap::new())));
            }
        }
    }

    async fn create(&mut self, mount: &Mount, dir: Ino, text: &str, found: Option<Ino>) {
        let file = name(text);
        let node = NodeSpec { kind: FileKind::Regular, mode: 0o644, umask: 0, rdev: 0 };
        let made = mount.client.mknod(&ROOT, Place { dir, name: &file }, node).await;
        match found {
            Some(_) => assert_eq!(made.err(), Some(Fault::Exists), "{text}"),
            None => {
                let ino = made.expect("a file can be made").attr.ino;
                assert!(!self.model.nodes.contains_key(&ino), "a number is reused");
                self.model.add(dir, text, ino, Some(Node::File(Vec::new())));
            }
        }
    }

    async fn unlink(&mut self, mount: &Mount, dir: Ino, text: &str, found: Option<Ino>) {
        let file = name(text);
        let place = Place { dir, name: &file };
        let is_dir = found.is_some_and(|ino| self.model.is_dir(ino));
        let removed = if is_dir {
            mount.client.rmdir(&ROOT, place).await
        } else {
            mount.client.unlink(&ROOT, place).await
        };
        let expected = match found {
            None => Err(Fault::NotFound),
            Some(ino) if is_dir && !self.model.is_empty(ino) => Err(Fault::NotEmpty),
            Some(_) => Ok(()),
        };
        assert_eq!(removed, expected, "{text}");
        if removed.is_ok() {
            self.model.remove(dir, text);
        }
    }

    async fn rename(&mut self, mount: &Mount, dir: Ino, text: &str, found: Option<Ino>) {
        let dirs = self.model.dirs();
        let to = dirs[self.random(dirs.len())];
        let target = format!("n{}", self.random(6));
        let over = self.model.find(to, &target);
        let (from_name, to_name) = (name(text), name(&target));
        let from_place = Place { dir, name: &from_name };
        let to_place = Place { dir: to, name: &to_name };
        let renamed = mount.client.rename(&ROOT, from_place, to_place, 0).await;
        let Some(ino) = found else {
            assert_eq!(renamed, Err(Fault::NotFound));
            return;
        };
        let is_dir = self.model.is_dir(ino);
        let inside = is_dir && self.model.is_inside(to, ino);
        let over_dir = over.is_some_and(|over| self.model.is_dir(over));
        if inside {
            // A rename of a directory onto itself changes nothing.
            assert!(renamed.is_err() || over == Some(ino));
            return;
        }
        let expected = match over {
            Some(over) if over == ino => Ok(()),
            Some(_) if is_dir && !over_dir => Err(Fault::NotDirectory),
            Some(_) if !is_dir && over_dir => Err(Fault::IsDirectory),
            Some(over) if over_dir && !self.model.is_empty(over) => Err(Fault::NotEmpty),
            _ => Ok(()),
        };
        if over_dir && over.is_some_and(|over| over != ino && self.model.is_inside(dir, over)) {
            assert!(renamed.is_err(), "the target contains the source");
            return;
        }
        assert_eq!(renamed, expected, "{text} to {target}");
        if renamed.is_ok() && over != Some(ino) {
            if over.is_some() {
                self.model.remove(to, &target);
            }
            self.model.add(to, &target, ino, None);
            self.model.remove(dir, text);
        }
    }

    async fn link(&mut self, mount: &Mount, dir: Ino, text: &str, found: Option<Ino>) {
        let Some(ino) = found.filter(|ino| !self.model.is_dir(*ino)) else { return };
        let dirs = self.model.dirs();
        let to = dirs[self.random(dirs.len())];
        let target = format!("n{}", self.random(6));
        let to_name = name(&target);
        let linked = mount.client.link(&ROOT, ino, Place { dir: to, name: &to_name }).await;
        match self.model.find(to, &target) {
            Some(_) => assert_eq!(linked.err(), Some(Fault::Exists)),
            None => {
                self.model.add(to, &target, ino, None);
                let links = self.model.links[&ino];
                assert_eq!(linked.expect("a link can be made").attr.nlink, links, "{dir} {text}");
            }
        }
    }

    async fn write(&mut self, mount: &Mount, found: Option<Ino>) {
        let Some(ino) = found.filter(|ino| !self.model.is_dir(*ino)) else { return };
        let (offset, len) = (self.random(20_000), 1 + self.random(9000));
        let byte = self.random(255) as u8 + 1;
        let handle = mount.open(ino, RDWR).await;
        mount.write(handle, offset as u64, &vec![byte; len]).await;
        if self.random(3) == 0 {
            mount.client.fsync(handle, false).await.expect("fsync works");
        }
        mount.close(handle).await;
        let content = self.model.content(ino);
        content.resize(content.len().max(offset + len), 0);
        content[offset..offset + len].fill(byte);
    }

    async fn truncate(&mut self, mount: &Mount, found: Option<Ino>) {
        let Some(ino) = found.filter(|ino| !self.model.is_dir(*ino)) else { return };
        let size = self.random(20_000);
        let set = SetAttrRequest { size: Some(size as u64), ..SetAttrRequest::default() };
        let (attr, _) = mount.client.setattr(&ROOT, ino, set).await.expect("truncation works");
        assert_eq!(attr.size, size as u64);
        self.model.content(ino).resize(size, 0);
    }

    async fn read(&mut self, mount: &Mount, found: Option<Ino>) {
        let Some(ino) = found.filter(|ino| !self.model.is_dir(*ino)) else { return };
        let handle = mount.open(ino, RDONLY).await;
        let bytes = mount.read(handle, 0, 100_000).await;
        mount.close(handle).await;
        let model = self.model.content(ino);
        assert_eq!(bytes.len(), model.len(), "{ino:?}");
        let differs = bytes.iter().zip(model.iter()).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{ino:?}");
        let (attr, _) = mount.client.getattr(ino).await.expect("attributes are there");
        assert_eq!(attr.size, bytes.len() as u64);
    }

    async fn list(&mut self, mount: &Mount, dir: Ino) {
        let listed = mount.list(dir, self.random(2) == 0).await;
        let names: Vec<String> = self.model.names(dir).keys().cloned().collect();
        assert_eq!(listed, names);
        for text in names {
            let entry = mount.find(dir, &text).await.expect("it was listed");
            assert_eq!(Some(entry.attr.ino), self.model.find(dir, &text));
        }
    }

    /// Checks with a new client.
    async fn verify(&mut self) {
        let fresh = self.cluster.mount("fresh").await;
        let mut walk = vec![Ino::ROOT];
        while let Some(dir) = walk.pop() {
            self.list(&fresh, dir).await;
            for ino in self.model.names(dir).values().copied().collect::<Vec<_>>() {
                if self.model.is_dir(ino) {
                    walk.push(ino);
                } else {
                    self.read(&fresh, Some(ino)).await;
                }
            }
        }
        fresh.client.unmount().await;
    }
}

fn run(seed: u64, disturb: bool) {
    check(seed, |cluster| async move {
        let mounts = [cluster.mount("a").await, cluster.mount("b").await];
        let mut run = ModelRun { cluster: cluster.clone(), mounts, model: Model::new() };
        for step in 0..400 {
            if disturb && step % 40 == 39 {
                match run.random(3) {
                    0 => cluster.world.cut("a", "mds"),
                    1 => cluster.world.cut("b", "mds"),
                    _ => cluster.restart_server().await,
                }
            }
            run.step().await;
        }
        run.verify().await;
        for mount in &run.mounts {
            assert_eq!(mount.client.status().evictions, 0);
        }
    });
}

#[test]
fn two_clients_and_a_model_agree_on_random_operations() {
    for seed in 100..108 {
        run(seed, false);
    }
}

#[test]
fn two_clients_and_a_model_agree_through_cuts_and_server_restarts() {
    for seed in 200..208 {
        run(seed, true);
    }
}
