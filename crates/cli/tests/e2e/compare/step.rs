//! Scripts: random system calls over a small tree.

/// xorshift: the same on every run.
pub struct Random(u64);

impl Random {
    /// A generator of its own for each seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Open files that a script has at once.
pub const SLOTS: usize = 5;

/// How a file is opened, beside access and O_CREAT.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenHow {
    pub write: bool,
    pub read: bool,
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
    pub append: bool,
    pub nofollow: bool,
    pub directory: bool,
    pub sync: bool,
}

/// What is made by mknod(2).
#[derive(Clone, Copy, Debug)]
pub enum Node {
    File,
    Fifo,
    Socket,
    Device,
}

/// A system call. Paths lie below the script's root; a slot holds an open file, or none.
#[derive(Clone, Debug)]
pub enum Act {
    Mkdir { path: String, mode: u32 },
    Rmdir { path: String },
    Open { slot: usize, path: String, how: OpenHow, mode: u32 },
    Tmpfile { slot: usize, path: String, mode: u32 },
    Publish { slot: usize, path: String },
    Close { slot: usize },
    Unlink { path: String },
    Link { from: String, to: String, follow: bool },
    Symlink { target: String, path: String },
    Readlink { path: String },
    Rename { from: String, to: String, flags: u32 },
    Mknod { path: String, node: Node, mode: u32 },
    Stat { path: String, follow: bool },
    Fstat { slot: usize },
    Chmod { path: String, mode: u32 },
    Fchmod { slot: usize, mode: u32 },
    Chown { path: String, uid: Option<u32>, gid: Option<u32> },
    Utimens { path: String, seconds: i64 },
    Access { path: String, mode: u32 },
    Truncate { path: String, len: u64 },
    Ftruncate { slot: usize, len: u64 },
    Read { slot: usize, offset: u64, len: usize },
    Write { slot: usize, offset: Option<u64>, len: usize, seed: u64 },
    Store { slot: usize, offset: u64, len: usize, seed: u64 },
    Allocate { slot: usize, mode: u32, offset: u64, len: u64 },
    Copy { from: usize, to: usize, offset: u64, to_offset: u64, len: usize },
    Fsync { slot: usize, data: bool },
    SetXattr { path: String, name: usize, len: usize, flags: u32 },
    GetXattr { path: String, name: usize },
    RemoveXattr { path: String, name: usize },
    ListXattr { path: String },
    List { path: String },
    Flock { slot: usize, kind: u32 },
}

/// An operation, its process, and the mount that it uses.
#[derive(Clone, Debug)]
pub struct Step {
    pub mount: usize,
    pub uid: u32,
    pub act: Act,
}

const FLAT: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn path(random: &mut Random) -> String {
    let mut path = random.of(&FLAT).to_owned();
    while random.below(5) < 2 {
        path.push('/');
        path += if random.below(12) == 0 { ".." } else { random.of(&FLAT) };
    }
    match random.below(60) {
        0 => path + "/",
        1 => path + "/.",
        2 => format!("{path}/{}", "x".repeat(255)),
        3 => format!("{path}/{}", "x".repeat(256)),
        _ => path,
    }
}

fn mode(random: &mut Random) -> u32 {
    let wide = [0o777, 0o755, 0o644, 0o700, 0o711, 0o600];
    match random.below(8) {
        0 => {
            let mode = random.below(0o10000) as u32;
            // SEMANTICS.md says what differs for set-gid without the group's right to execute.
            if mode & 0o2010 == 0o2000 { mode | 0o010 } else { mode }
        }
        1 => 0o1777,
        2 => 0o2775,
        3 => 0o6755,
        _ => random.of(&wide),
    }
}

fn range(random: &mut Random) -> (u64, usize) {
    let offset = match random.below(4) {
        0 => 0,
        1 => 4096 * random.below(40),
        2 => random.below(20_000),
        _ => random.below(200_000),
    };
    let len = match random.below(4) {
        0 => random.below(100),
        1 => 4096,
        2 => random.below(10_000),
        _ => random.below(150_000),
    };
    (offset, len as usize)
}

fn open(random: &mut Random, slot: usize) -> Act {
    let create = random.below(2) == 0;
    let access = random.below(4);
    let one_in = |random: &mut Random, n: u64| random.below(n) == 0;
    let how = OpenHow {
        write: access != 0,
        read: access != 1,
        create,
        exclusive: create && one_in(random, 3),
        truncate: access != 0 && one_in(random, 5),
        append: access != 0 && one_in(random, 5),
        nofollow: one_in(random, 8),
        directory: !create && one_in(random, 12),
        sync: one_in(random, 12),
    };
    Act::Open { slot, path: path(random), how, mode: mode(random) }
}

fn on_names(random: &mut Random) -> Act {
    let path = path(random);
    let other = self::path(random);
    match random.below(44) {
        0..6 => Act::Mkdir { path, mode: mode(random) },
        6..9 => Act::Rmdir { path },
        9..13 => Act::Unlink { path },
        13..16 => Act::Link { from: path, to: other, follow: random.below(3) == 0 },
        16..18 => {
            let up = if random.below(3) == 0 { "../" } else { "" };
            Act::Symlink { target: format!("{up}{other}"), path }
        }
        18 => Act::Readlink { path },
        19..25 => Act::Rename { from: path, to: other, flags: random.of(&[0, 0, 0, 0, 1, 2]) },
        25..27 => {
            let node = random.of(&[Node::File, Node::Fifo, Node::Socket, Node::Device]);
            Act::Mknod { path, node, mode: mode(random) }
        }
        27..31 => Act::Stat { path, follow: random.below(2) == 0 },
        31 | 32 => Act::Chmod { path, mode: mode(random) },
        33 | 34 => {
            let id = |random: &mut Random| random.of(&[None, Some(0), Some(1000), Some(1001)]);
            let (uid, gid) = (id(random), id(random));
            Act::Chown { path, uid, gid: gid.or(if uid.is_none() { Some(1000) } else { None }) }
        }
        35 => Act::Utimens { path, seconds: random.below(1 << 29) as i64 },
        36 => Act::Access { path, mode: random.below(8) as u32 },
        37 => Act::Truncate { path, len: random.below(200_000) },
        38 => {
            let len = random.of(&[0, 1, 20, 200, 1500]);
            let flags = random.of(&[0, 0, 1, 2]);
            Act::SetXattr { path, name: random.below(5) as usize, len, flags }
        }
        39 => Act::GetXattr { path, name: random.below(5) as usize },
        40 => Act::RemoveXattr { path, name: random.below(5) as usize },
        41 => Act::ListXattr { path },
        _ => Act::List { path },
    }
}

fn on_files(random: &mut Random) -> Act {
    let slot = random.below(SLOTS as u64) as usize;
    let (offset, len) = range(random);
    let seed = random.below(1 << 40);
    match random.below(44) {
        0..8 => open(random, slot),
        8 => Act::Tmpfile { slot, path: path(random), mode: mode(random) },
        9 => Act::Publish { slot, path: path(random) },
        10..12 => Act::Close { slot },
        12..14 => Act::Fstat { slot },
        14 => Act::Fchmod { slot, mode: mode(random) & !0o1000 },
        15..17 => Act::Ftruncate { slot, len: offset },
        17..24 => Act::Read { slot, offset, len },
        24..32 => Act::Write { slot, offset: Some(offset), len, seed },
        32..34 => Act::Write { slot, offset: None, len, seed },
        34..37 => Act::Store { slot, offset, len, seed },
        37..40 => {
            let mode = random.of(&[0, 1, 3, 16, 17]);
            Act::Allocate { slot, mode, offset, len: len as u64 }
        }
        40 => {
            let to = random.below(SLOTS as u64) as usize;
            Act::Copy { from: slot, to, offset, to_offset: random.below(200_000), len }
        }
        41 | 42 => Act::Fsync { slot, data: random.below(2) == 0 },
        _ => Act::Flock { slot, kind: random.below(3) as u32 },
    }
}

/// The script of a seed.
pub fn script(seed: u64, steps: usize) -> Vec<Step> {
    let mut random = Random::new(seed);
    let step = |random: &mut Random| {
        let act = if random.below(2) == 0 { on_names(random) } else { on_files(random) };
        let uid = random.of(&[0, 0, 0, 1000, 1000, 1001]);
        Step { mount: random.below(2) as usize, uid, act }
    };
    (0..steps).map(|_| step(&mut random)).collect()
}
