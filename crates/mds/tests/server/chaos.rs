//! Clients at work while the server is killed and restarted at random moments.
//!
//! The test checks that a surviving client finds, after every restart, exactly what its operations
//! created, durable or replayed, with the same inode numbers and content. No request fails because
//! of a restart, and the file system is consistent at the end.

use std::collections::BTreeMap;

use env::sim::SimRng;
use proto::mds::*;
use proto::wire::Bytes;
use types::*;

use crate::bed::*;

const ROOT: Ino = Ino::ROOT;
const STEPS: usize = 250;

struct Worker {
    client: Client,
    rng: SimRng,
    seen: Transno,
    kept: BTreeMap<Transno, (Request, Reply)>,
    held: BTreeMap<Ino, Rights>,
    restarts: u64,
}

impl Worker {
    async fn new(bed: &Bed, number: u64, seed: u64) -> Worker {
        let client = bed.client(&format!("w{number}")).await;
        let (kept, held) = (BTreeMap::new(), BTreeMap::new());
        Worker { client, rng: SimRng::new(seed), seen: Transno::ZERO, kept, held, restarts: 0 }
    }

    /// Sends the request again until it is answered, however often the server dies meanwhile.
    async fn call(&mut self, op: Op) -> Answer {
        let slot = self.rng.below(3) as u16;
        let mut request = self.client.request(slot, vec![op]);
        request.sync = self.rng.one_in(20);
        loop {
            match self.client.exchange(request.clone()).await {
                Some(mut reply) => {
                    let result = reply.results.remove(0);
                    reply.results.push(result.clone());
                    self.keep(request, reply);
                    return result;
                }
                None => self.recover().await,
            }
        }
    }

    fn keep(&mut self, request: Request, reply: Reply) {
        self.seen = self.seen.max(reply.transno);
        let committed = reply.last_committed;
        if reply.transno != Transno::ZERO {
            self.kept.insert(reply.transno, (request, reply));
        }
        self.kept.retain(|transno, _| *transno > committed);
    }

    async fn recover(&mut self) {
        loop {
            self.client.env.sleep(Duration::from_millis(50)).await;
            let (id, nonce) = (self.client.id(), self.client.nonce);
            let Some(welcome) = self.client.try_connect(id, nonce, 0, self.seen).await else {
                continue;
            };
            let welcome = welcome.expect("no client is evicted");
            if welcome.state == RESUMED || self.replay(welcome).await.is_some() {
                return;
            }
        }
    }

    async fn replay(&mut self, welcome: Welcome) -> Option<()> {
        self.restarts += 1;
        let lease = |(&ino, &rights)| HeldLease { ino, rights, open: false, ranges: vec![] };
        let leases = self.held.iter().map(lease).collect();
        let reclaim = Op::Reclaim { leases, locks: vec![] };
        self.client.exchange(self.client.request(127, vec![reclaim])).await?;
        let old = |transno: &Transno| transno.epoch < welcome.epoch && *transno > welcome.survived;
        let again: Vec<Transno> = self.kept.keys().filter(|t| old(t)).copied().collect();
        let mut replayed = Vec::new();
        for transno in again {
            let (request, reply) = self.kept[&transno].clone();
            let replay = Replay { transno, results: reply.results.clone() };
            let replay = Request { replay: Some(replay), ..request.clone() };
            let new = self.client.exchange(replay).await?;
            assert!(same(&reply.results[0], &new.results[0]), "{reply:?} became {new:?}");
            replayed.push((transno, new.transno));
        }
        self.client.exchange(self.client.request(127, vec![Op::ReclaimDone {}])).await?;
        // Update these only after everything is replayed: another restart would begin where this
        // one did.
        for (old, new) in replayed {
            if let Some(kept) = self.kept.remove(&old) {
                self.kept.insert(new, kept);
            }
            self.seen = self.seen.max(new);
        }
        Some(())
    }
}

fn same(old: &Answer, new: &Answer) -> bool {
    match (old, new) {
        (Ok(OpReply::Created { leased: a, .. }), Ok(OpReply::Created { leased: b, .. })) => {
            a.attr.ino == b.attr.ino && a.attr.kind == b.attr.kind
        }
        (Ok(OpReply::Removed { ino: a, .. }), Ok(OpReply::Removed { ino: b, .. })) => a == b,
        (Ok(a), Ok(b)) => std::mem::discriminant(a) == std::mem::discriminant(b),
        _ => false,
    }
}

fn must(answer: Answer) {
    answer.unwrap();
}

#[derive(Clone, Default, PartialEq, Debug)]
struct InodeModel {
    ino: Option<Ino>,
    mode: u16,
    nlink: u32,
    size: u64,
    xattr: Option<Vec<u8>>,
    segments: Vec<Segment>,
}

/// A model of a client's own directory: names to inodes, inodes to attributes and content.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, Ino>,
    inodes: BTreeMap<Ino, InodeModel>,
}

impl Model {
    fn drop_name(&mut self, text: &str) {
        let Some(ino) = self.names.remove(text) else { return };
        let known = self.inodes.get_mut(&ino).unwrap();
        known.nlink -= 1;
        if known.nlink == 0 {
            self.inodes.remove(&ino);
        }
    }
}

async fn work(mut w: Worker, dir: Ino, shared: Ino) -> u64 {
    let mut model = Model::default();
    for step in 0..STEPS {
        let pause = w.rng.below(30_000);
        w.client.env.sleep(Duration::from_micros(pause)).await;
        one_step(&mut w, &mut model, dir).await;
        step_in_shared(&mut w, shared).await;
        if step % 50 == 49 {
            compare(&mut w, &model, dir).await;
        }
    }
    compare(&mut w, &model, dir).await;
    w.call(Op::Goodbye {}).await.unwrap();
    w.restarts
}

/// An operation in the directory that all clients share: any outcome is right that some order
/// explains.
async fn step_in_shared(w: &mut Worker, dir: Ino) {
    const NAMES: [&str; 3] = ["x", "y", "z"];
    let text = name(NAMES[w.rng.below(3) as usize]);
    let other = name(NAMES[w.rng.below(3) as usize]);
    let none = Rights::empty();
    let op = match w.rng.below(12) {
        0..3 => Op::Create { dir, name: text, node: node(FileKind::Regular, 0o600), want: none },
        3..5 => Op::Unlink { dir, name: text, unused: None },
        5 => {
            let (from, to) = (dir, dir);
            Op::Rename { from, name: text, to, new_name: other, flags: 0, unused: None }
        }
        6 => {
            let find = Op::Lookup { dir, name: text, want: none, want_dir: none };
            let Ok(OpReply::Entry { entry, .. }) = w.call(find).await else { panic!() };
            let Some(found) = entry else { return };
            Op::Link { ino: found.attr.ino, dir, name: other, tmpfile: false }
        }
        _ => return,
    };
    let done = w.call(op).await;
    let possible = [Fault::Exists, Fault::NotFound, Fault::Stale];
    assert!(done.as_ref().err().is_none_or(|fault| possible.contains(fault)), "{done:?}");
}

async fn one_step(w: &mut Worker, model: &mut Model, dir: Ino) {
    let text = format!("n{}", w.rng.below(12));
    let known = model.names.get(&text).copied();
    match (w.rng.below(10), known) {
        (0..=3, known) => {
            let node = node(FileKind::Regular, 0o644);
            let op = Op::Create { dir, name: name(&text), node, want: Rights::empty() };
            match (w.call(op).await, known) {
                (Err(Fault::Exists), Some(_)) => {}
                (Ok(OpReply::Created { leased, .. }), None) => {
                    let ino = leased.attr.ino;
                    model.names.insert(text, ino);
                    let known = InodeModel {
                        ino: Some(ino),
                        mode: 0o644,
                        nlink: 1,
                        ..InodeModel::default()
                    };
                    model.inodes.insert(ino, known);
                }
                other => panic!("{other:?}"),
            }
        }
        (4, Some(_)) => {
            let op = Op::Unlink { dir, name: name(&text), unused: None };
            must(w.call(op).await);
            model.drop_name(&text);
        }
        (5, Some(ino)) => {
            let to = format!("n{}", w.rng.below(12));
            let op = Op::Rename {
                from: dir,
                name: name(&text),
                to: dir,
                new_name: name(&to),
                flags: 0,
                unused: None,
            };
            must(w.call(op).await);
            if model.names.get(&to) != Some(&ino) {
                model.drop_name(&to);
                model.names.remove(&text);
                model.names.insert(to, ino);
            }
        }
        (6, Some(ino)) => {
            let to = format!("n{}", w.rng.below(12));
            let created = w.call(Op::Link { ino, dir, name: name(&to), tmpfile: false }).await;
            assert_eq!(created.is_err(), model.names.contains_key(&to));
            if created.is_ok() {
                model.names.insert(to, ino);
                model.inodes.get_mut(&ino).unwrap().nlink += 1;
            }
        }
        (7, Some(ino)) => {
            let value = vec![w.rng.below(256) as u8; 1 + w.rng.below(300) as usize];
            let op = Op::SetXattr {
                ino,
                name: Bytes(b"user.x".to_vec()),
                value: Bytes(value.clone()),
                flags: 0,
                kill_setgid: false,
            };
            must(w.call(op).await);
            model.inodes.get_mut(&ino).unwrap().xattr = Some(value);
        }
        (8, Some(ino)) => {
            let mode = 0o600 | w.rng.below(0o100) as u16;
            let set = SetAttr { mode: Some(mode), ..no_change() };
            must(w.call(Op::SetAttr { ino, set }).await);
            model.inodes.get_mut(&ino).unwrap().mode = mode;
        }
        (9, Some(ino)) => write(w, model.inodes.get_mut(&ino).unwrap(), ino).await,
        _ => {}
    }
}

/// Takes the right to write, maps new blocks over the file's start, and returns the right.
async fn write(w: &mut Worker, known: &mut InodeModel, ino: Ino) {
    let rights = Rights::DATA_X;
    w.held.insert(ino, rights.closed());
    let Ok(OpReply::Acquired { leased, .. }) = w
        .call(Op::Acquire {
            ino,
            rights,
            from: FileBlock(0),
            range: None,
            ahead: types::Ahead::default(),
        })
        .await
    else {
        panic!()
    };
    let len = 1 + w.rng.below(8);
    let op = Op::Space { hint: None, blocks: len, unreachable: Vec::new() };
    let Ok(OpReply::Space { runs, .. }) = w.call(op).await else { panic!() };
    let mut file = 0;
    let mut segments = Vec::new();
    for run in runs {
        let (pag, addr, state) = (run.pag, run.addr, SegmentState::Written);
        segments.push(Segment { file: FileBlock(file), len: run.len, pag, addr, state });
        file += run.len;
    }
    let mut edits = vec![Edit::Unmap { from: FileBlock(0), to: 1 << 40 }];
    edits.extend(segments.iter().map(|&segment| Edit::Map { segment }));
    let size = Some(file * 4096);
    let done = w
        .call(Op::Commit {
            ino,
            edits,
            size,
            mtime: None,
            ctime: None,
            merge: false,
            tail_zero: false,
        })
        .await;
    assert!(done.is_ok(), "{done:?}");
    (known.size, known.segments) = (file * 4096, segments);
    w.held.remove(&ino);
    let give = Rights::DATA_X | Rights::DATA_S;
    w.call(Op::Return { ino, seq: leased.seq, give, still_open: false, range: None })
        .await
        .unwrap();
}

async fn compare(w: &mut Worker, model: &Model, dir: Ino) {
    let (want, want_dir) = (Rights::empty(), Rights::empty());
    let list = Op::ReadDir { dir, cookie: 0, max: 100, plus: true, want, want_dir };
    let Ok(OpReply::Entries { entries, end: true, .. }) = w.call(list).await else { panic!() };
    let names = entries.iter().map(|entry| (entry.name.to_string(), entry.ino)).collect();
    assert_eq!(model.names, names);
    for (&ino, known) in &model.inodes {
        let Ok(OpReply::Attr { leased }) = w.call(Op::GetAttr { ino, want }).await else {
            panic!()
        };
        let xattr = Op::GetXattr { ino, name: Bytes(b"user.x".to_vec()), want };
        let xattr = match w.call(xattr).await {
            Ok(OpReply::Bytes { bytes, .. }) => Some(bytes.0),
            Err(Fault::NoAttribute) => None,
            other => panic!("{other:?}"),
        };
        let rights = Rights::DATA_S;
        let layout = w
            .call(Op::Acquire {
                ino,
                rights,
                from: FileBlock(0),
                range: None,
                ahead: types::Ahead::default(),
            })
            .await;
        let Ok(OpReply::Acquired { layout: Some(layout), .. }) = layout else { panic!() };
        let found = InodeModel {
            ino: Some(leased.attr.ino),
            mode: leased.attr.mode,
            nlink: leased.attr.nlink,
            size: leased.attr.size,
            xattr,
            segments: joined(&layout.segments),
        };
        assert_eq!(InodeModel { segments: joined(&known.segments), ..known.clone() }, found);
    }
}

fn joined(segments: &[Segment]) -> Vec<Segment> {
    let mut out: Vec<Segment> = Vec::new();
    for segment in segments {
        match out.last_mut() {
            Some(last) if last.joins(segment) => last.len += segment.len,
            _ => out.push(*segment),
        }
    }
    out
}

fn chaos(seed: u64) {
    with_seed(seed, 1 << 18, |bed| async move {
        let first = bed.client("first").await;
        let shared = first.dir(ROOT, "shared").await;
        let mut tasks = Vec::new();
        for number in 0..3 {
            let dir = first.dir(ROOT, &format!("d{number}")).await;
            let worker = Worker::new(&bed, number, seed * 10 + number).await;
            tasks.push(bed.env.spawn_join(work(worker, dir, shared)));
        }
        first.call(Op::Goodbye {}).await.unwrap();
        let mut rng = SimRng::new(seed);
        for _ in 0..6 {
            bed.sleep(Duration::from_micros(20_000 + rng.below(1_000_000))).await;
            bed.restart().await;
        }
        let mut restarts = 0;
        for task in tasks {
            restarts += task.await;
        }
        assert!(restarts > 0, "the restarts were noticed");
        let last = bed.client("last").await;
        assert_eq!(last.names(ROOT).await, ["d0", "d1", "d2", "shared"]);
        last.call(Op::Goodbye {}).await.unwrap();
    });
}

#[test]
fn surviving_clients_find_everything_after_restarts_at_random_moments() {
    for seed in 101..=112 {
        chaos(seed);
    }
}
