//! Random operations on files, compared with arrays of bytes.

use super::*;
use crate::api::Whence;

pub const SPAN: u64 = 96 * 1024;

/// The expected content, and what a crash may leave of it.
pub struct Model {
    pub bytes: Vec<u8>,
    /// Per byte, the values that it had since the last fsync, one bit each (values are below 64).
    pub had: Vec<u64>,
    pub sizes: BTreeSet<u64>,
}

impl Model {
    pub fn new() -> Model {
        let had = vec![1; 2 * SPAN as usize];
        Model { bytes: Vec::new(), had, sizes: BTreeSet::from([0]) }
    }

    fn note(&mut self, from: usize, to: usize) {
        for index in from..to {
            self.had[index] |= 1 << self.bytes.get(index).copied().unwrap_or(0);
        }
        self.sizes.insert(self.bytes.len() as u64);
    }

    pub fn resize(&mut self, size: usize) {
        let old = self.bytes.len();
        self.bytes.resize(size, 0);
        self.note(old.min(size), old.max(size));
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        if self.bytes.len() < offset + bytes.len() {
            self.resize(offset + bytes.len());
        }
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.note(offset, offset + bytes.len());
    }

    pub fn zero(&mut self, from: usize, to: usize) {
        let to = to.min(self.bytes.len());
        if from < to {
            self.bytes[from..to].fill(0);
            self.note(from, to);
        }
    }

    pub fn synced(&mut self) {
        for (index, had) in self.had.iter_mut().enumerate() {
            *had = 1 << self.bytes.get(index).copied().unwrap_or(0);
        }
        self.sizes = BTreeSet::from([self.bytes.len() as u64]);
    }

    pub fn check_crashed(&self, left: &[u8]) {
        assert!(self.sizes.contains(&(left.len() as u64)), "size {} was never", left.len());
        for (index, &byte) in left.iter().enumerate() {
            let allowed = byte < 64 && self.had[index] >> byte & 1 == 1;
            assert!(allowed, "byte {index} is {byte:#x} after the crash");
        }
    }
}

pub struct Player {
    pub rig: Rig,
    pub rng: SimRng,
    pub files: Vec<(Rc<File>, Model)>,
    /// Range of the operations in bytes.
    pub span: u64,
}

impl Player {
    pub fn new(rig: Rig, seed: u64, files: u64) -> Player {
        let files = (0..files).map(|index| (rig.file(10 + index), Model::new())).collect();
        // Small files, some of them inline.
        let span =
            if rig.server.inline_max.get() > 0 && !seed.is_multiple_of(4) { 6000 } else { SPAN };
        Player { rig, rng: SimRng::new(seed ^ 0x5eed), files, span }
    }

    fn range(&mut self) -> (u64, u64) {
        let from = self.rng.below(self.span);
        let len = match self.rng.below(5) {
            0 => 1 + self.rng.below(200),
            1 => 4096,
            2 => 1 + self.rng.below(self.span),
            _ => 1 + self.rng.below(12_000),
        };
        let from = if self.rng.one_in(3) { from / 4096 * 4096 } else { from };
        (from, len.min(self.span - from).max(1))
    }

    pub async fn check(&mut self, at: usize) {
        let (file, model) = &self.files[at];
        let (file, want) = (file.clone(), model.bytes.clone());
        assert_eq!(file.size(), want.len() as u64);
        let (from, len) = self.range();
        let got = file.read(from, len as usize).await.expect("reads").to_vec();
        let from = (from as usize).min(want.len());
        let to = (from + len as usize).min(want.len());
        assert!(got == want[from..to], "content differs in {from}..{to}");
    }

    pub async fn step(&mut self) {
        let at = self.rng.below(self.files.len() as u64) as usize;
        let (from, len) = self.range();
        let file = self.files[at].0.clone();
        match self.rng.below(16) {
            0..=5 => {
                let byte = 1 + self.rng.below(63) as u8;
                let bytes = vec![byte; len as usize];
                self.rig.write(&file, from, &bytes).await.expect("writes");
                self.files[at].1.write(from as usize, &bytes);
            }
            6 => {
                let size = self.files[at].1.bytes.len();
                if size < self.span as usize {
                    let bytes = vec![7; (len % 3000 + 1) as usize];
                    let (offset, n) = file
                        .write(None, IoBuf::copy_of(&bytes), bytes.len(), None)
                        .await
                        .expect("appends");
                    assert_eq!((offset as usize, n as usize), (size, bytes.len()));
                    self.files[at].1.write(size, &bytes);
                }
            }
            7 => {
                let size = if self.rng.one_in(4) { 0 } else { from };
                file.set_size(size).await.expect("truncates");
                self.files[at].1.resize(size as usize);
            }
            8 => {
                file.fallocate(3, from, len).await.expect("punches");
                self.files[at].1.zero(from as usize, (from + len) as usize);
            }
            9 => {
                let keep = self.rng.below(2) as u32;
                let zero = if self.rng.one_in(2) { 16 } else { 0 };
                file.fallocate(zero | keep, from, len).await.expect("allocates");
                let model = &mut self.files[at].1;
                if zero != 0 {
                    model.zero(from as usize, (from + len) as usize);
                }
                if keep == 0 && model.bytes.len() < (from + len) as usize {
                    model.resize((from + len) as usize);
                }
            }
            10 => {
                file.fsync(false).await.expect("syncs");
                self.files[at].1.synced();
            }
            11 => {
                let time = self.rng.below(1_500_000);
                self.rig.env.sleep(Duration::from_micros(time)).await;
            }
            12 => self.seek(at, from).await,
            13 => {
                // Another client recalls the file, and this one acquires it again.
                file.flush().await.expect("flushes");
                assert!(file.is_clean());
                let size = self.files[at].1.bytes.len() as u64;
                assert_eq!(self.rig.server.attr(file.ino).size, size);
                let seen = self.rig.server.seen(file.ino);
                assert!(seen == self.files[at].1.bytes, "others see something else");
                file.rights_lost(Rights::empty());
                self.rig.server.frozen.set(self.rng.one_in(3));
                self.rig.acquire(&file);
            }
            _ => {}
        }
        self.check(at).await;
    }

    async fn seek(&mut self, at: usize, from: u64) {
        let (file, model) = &self.files[at];
        let size = model.bytes.len() as u64;
        match file.seek(from, Whence::Data).await {
            Ok(found) => {
                assert!(found >= from && found < size);
                assert!(model.bytes[from as usize..found as usize].iter().all(|&b| b == 0));
            }
            Err(fault) => {
                assert_eq!(fault, Fault::NoData);
                assert!(model.bytes.iter().skip(from as usize).all(|&b| b == 0));
            }
        }
        if from < size {
            let hole = file.seek(from, Whence::Hole).await.expect("there is a hole at the end");
            assert!((from..=size).contains(&hole));
        }
    }
}

pub fn play(seed: u64, setup: Setup, steps: u64) {
    play_with(seed, setup, steps, |_| ());
}

/// As [`play`]; `between` steps, something happens.
pub fn play_with(seed: u64, setup: Setup, steps: u64, between: impl Fn(&mut Player)) {
    run(seed, setup, |rig| async move {
        let mut player = Player::new(rig, seed, 3);
        for _ in 0..steps {
            player.step().await;
            between(&mut player);
        }
        for at in 0..player.files.len() {
            let (file, model) = &player.files[at];
            let got = file.read(0, 2 * SPAN as usize).await.expect("reads").to_vec();
            assert!(got == model.bytes, "the whole content");
        }
        player.rig.finish(setup.blocks).await;
        for (file, model) in &player.files {
            let seen = player.rig.server.seen(file.ino);
            assert!(seen == model.bytes, "the server has the content");
            let mut attr = player.rig.server.attr(file.ino);
            let known = attr.blocks;
            file.overlay(&mut attr);
            assert_eq!(attr.blocks, known);
        }
    });
}

#[test]
fn random_operations_agree_with_an_array_of_bytes() {
    for seed in 0..25 {
        play(seed, Setup::default(), 250);
    }
}

#[test]
fn random_operations_agree_when_memory_and_grants_are_small() {
    for seed in 100..115 {
        let setup = Setup {
            disks: 1,
            blocks: 512,
            dirty_max: 128 << 10,
            grant_max: 7,
            inline_max: [0, 3000][seed as usize % 2],
            ..Setup::default()
        };
        play(seed, setup, 200);
    }
}

#[test]
fn random_operations_agree_with_inline_data() {
    for seed in 0..40 {
        let inline_max = [3928, 300, 2000][seed as usize % 3];
        play(seed, Setup { inline_max, ..Setup::default() }, 250);
    }
}

#[test]
fn random_operations_agree_when_the_server_chooses_places() {
    for seed in 140..165 {
        let inline_max = [0, 0, 3000][seed as usize % 3];
        let few = Setup { disks: 1, blocks: 512, dirty_max: 128 << 10, ..Setup::default() };
        let setup = if seed % 2 == 0 { few } else { Setup::default() };
        play(seed, Setup { inline_max, ..setup }.undelegated(), 250);
    }
}
