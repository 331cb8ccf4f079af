//! Parallel programs whose processes write one file together and read it back: which process
//! writes and reads which bytes, in which order (002 §6.4, 004 §V.C).
//!
//! Invariants:
//! - the processes of a program write every byte of the file exactly once, and read every byte;
//! - a step begins when all processes have ended the one before it, as after a barrier of MPI;
//! - all accesses are whole blocks: a block that two hosts write in parts would be sent to and fro
//!   between them, and the papers' programs are not said to do that.

use serde::Serialize;
use types::limits::{BLOCK_U64, IO_MAX};

/// Bytes of the file that a process reads or writes by one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The first byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

/// What each process does, by its number, one request after the other.
pub type Step = Vec<Vec<Access>>;

/// A program.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// IOR2 on a shared file.
    Ior(Ior),
    /// BTIO: the solution of the NAS benchmark BT, which is appended several times.
    Bt(Bt),
    /// 004's micro-benchmark.
    Regions(Regions),
}

/// See [`Program::Ior`].
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Ior {
    /// Processes.
    pub processes: u64,
    /// Requests of each.
    pub requests: u64,
    /// Bytes of a request: 32 to 64 KiB (004).
    pub request: u64,
    /// Requests of all processes lie in turns; else each process has its part in one piece.
    pub strided: bool,
}

/// See [`Program::Bt`]. The cube of points is cut into `side`³ cells. Each of `side`² processes has
/// one cell of every layer, and no two of its cells share a row or a column (the benchmark's
/// multi-partitioning).
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Bt {
    /// Cells along each edge.
    pub side: u64,
    /// Bytes of a row of points of a cell, which lie side by side in the file.
    pub row: u64,
    /// Rows of a cell along its two other edges.
    pub rows: u64,
    /// How often the whole cube is written.
    pub dumps: u64,
    /// A few processes write and read for all of them, each a part in one piece: collective I/O
    /// with so many of them. 0: every process writes its own rows.
    pub collectors: u64,
}

/// See [`Program::Regions`]: each process writes its part of the file in one piece; then the file
/// is read in other parts.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Regions {
    /// Processes.
    pub processes: u64,
    /// Bytes of a region that one process writes.
    pub region: u64,
    /// Bytes of a request that writes.
    pub request: u64,
    /// Parts in which the file is read.
    pub parts: u64,
    /// The next idle process takes the next part; else each takes as many, which follow each other.
    pub turns: bool,
}

/// Requests of at most `most` bytes for a range.
fn cut(at: u64, len: u64, most: u64) -> impl Iterator<Item = Access> {
    let starts = (at..at + len).step_by(most as usize);
    starts.map(move |from| Access { at: from, len: most.min(at + len - from) })
}

/// Joins what one process reads on and on.
fn read_ahead(accesses: Vec<Access>) -> Vec<Access> {
    let mut out: Vec<Access> = Vec::new();
    for access in accesses {
        match out.last_mut() {
            Some(last) if last.at + last.len == access.at => last.len += access.len,
            _ => out.push(access),
        }
    }
    out.into_iter().flat_map(|range| cut(range.at, range.len, IO_MAX as u64)).collect()
}

impl Program {
    /// Processes.
    pub fn processes(&self) -> u64 {
        match self {
            Program::Ior(ior) => ior.processes,
            Program::Bt(bt) => bt.side * bt.side,
            Program::Regions(regions) => regions.processes,
        }
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        match self {
            Program::Ior(ior) => ior.processes * ior.requests * ior.request,
            Program::Bt(bt) => bt.dumps * bt.dump(),
            Program::Regions(regions) => regions.processes * regions.region,
        }
    }

    /// How the file is written.
    pub fn writes(&self) -> Vec<Step> {
        match self {
            Program::Ior(ior) => vec![ior.each(0)],
            Program::Bt(bt) => (0..bt.dumps).map(|dump| bt.each(dump)).collect(),
            Program::Regions(regions) => vec![regions.writes()],
        }
    }

    /// How it is read: by the processes that wrote it, and IOR2 also by others. The kernel reads
    /// ahead of a process that reads on and on: its requests are as large as a mount takes them.
    pub fn reads(&self) -> Vec<Step> {
        let steps = match self {
            Program::Ior(ior) => vec![ior.each(0), ior.each(ior.processes / 2)],
            Program::Bt(_) => self.writes(),
            Program::Regions(regions) => vec![regions.reads()],
        };
        steps.into_iter().map(|step| step.into_iter().map(read_ahead).collect()).collect()
    }
}

impl Ior {
    /// Each process takes the bytes of the one that is `shift` further.
    fn each(&self, shift: u64) -> Step {
        let of = |process: u64| {
            let number = (process + shift) % self.processes;
            let place = |nth: u64| {
                if self.strided {
                    nth * self.processes + number
                } else {
                    number * self.requests + nth
                }
            };
            let all = 0..self.requests;
            all.map(|nth| Access { at: place(nth) * self.request, len: self.request }).collect()
        };
        (0..self.processes).map(of).collect()
    }
}

impl Bt {
    /// Bytes of the cube.
    fn dump(&self) -> u64 {
        self.side.pow(3) * self.rows * self.rows * self.row
    }

    /// One dump.
    fn each(&self, dump: u64) -> Step {
        let base = dump * self.dump();
        let processes = self.side * self.side;
        if self.collectors > 0 {
            let part = self.dump().div_ceil(self.collectors).next_multiple_of(BLOCK_U64);
            let step = (processes / self.collectors).max(1);
            let of = |process: u64| {
                let number = process / step;
                if !process.is_multiple_of(step) || number >= self.collectors {
                    return Vec::new();
                }
                let from = (number * part).min(self.dump());
                let len = part.min(self.dump() - from);
                // The kernel hands a request over in pieces.
                cut(base + from, len, IO_MAX as u64).collect()
            };
            return (0..processes).map(of).collect();
        }
        (0..processes).map(|process| self.rows_of(process, base)).collect()
    }

    /// The rows of a process in the dump at `base`, cell by cell.
    fn rows_of(&self, process: u64, base: u64) -> Vec<Access> {
        let side = self.side;
        let mut out = Vec::new();
        for layer in 0..side {
            let x = (process % side + layer) % side;
            let y = (process / side + side - layer % side) % side;
            for depth in 0..self.rows {
                for height in 0..self.rows {
                    let plane = layer * self.rows + depth;
                    let line = plane * side * self.rows + y * self.rows + height;
                    let at = base + (line * side + x) * self.row;
                    out.push(Access { at, len: self.row });
                }
            }
        }
        out
    }
}

impl Regions {
    fn writes(&self) -> Step {
        let of = |process| cut(process * self.region, self.region, self.request).collect();
        (0..self.processes).map(of).collect()
    }

    /// Processes are equally fast, so they take the parts in turns.
    fn reads(&self) -> Step {
        let bytes = self.processes * self.region;
        let part = bytes.div_ceil(self.parts).next_multiple_of(BLOCK_U64);
        let of = |process: u64| {
            let each = self.parts.div_ceil(self.processes);
            let (from, to, step) = if self.turns {
                (process, self.parts, self.processes)
            } else {
                (process * each, ((process + 1) * each).min(self.parts), 1)
            };
            let numbers = (from..to).step_by(step as usize);
            let range = |number: u64| {
                let from = (number * part).min(bytes);
                cut(from, part.min(bytes - from), IO_MAX as u64)
            };
            numbers.flat_map(range).collect()
        };
        (0..self.processes).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IOR: Ior = Ior { processes: 6, requests: 5, request: 48 << 10, strided: false };
    const BT: Bt = Bt { side: 3, row: 8 << 10, rows: 2, dumps: 2, collectors: 0 };
    const REGIONS: Regions =
        Regions { processes: 5, region: 640 << 10, request: 64 << 10, parts: 16, turns: true };

    fn all() -> Vec<Program> {
        vec![
            Program::Ior(IOR),
            Program::Ior(Ior { strided: true, ..IOR }),
            Program::Bt(BT),
            Program::Bt(Bt { collectors: 4, ..BT }),
            Program::Bt(Bt { collectors: 9, ..BT }),
            Program::Regions(REGIONS),
            Program::Regions(Regions { region: 3 << 20, parts: 7, ..REGIONS }),
            Program::Regions(Regions { turns: false, ..REGIONS }),
        ]
    }

    /// How often each block is accessed.
    fn covered(program: &Program, steps: &[Step]) -> Vec<u32> {
        let mut blocks = vec![0; (program.bytes() / BLOCK_U64) as usize];
        for access in steps.iter().flatten().flatten() {
            assert!(access.len > 0 && access.at.is_multiple_of(BLOCK_U64), "{access:?}");
            let (from, to) = (access.at / BLOCK_U64, (access.at + access.len) / BLOCK_U64);
            (from..to).for_each(|block| blocks[block as usize] += 1);
        }
        blocks
    }

    #[test]
    fn every_block_is_written_once_and_read() {
        for program in all() {
            let (writes, reads) = (program.writes(), program.reads());
            assert!(writes.iter().all(|step| step.len() as u64 == program.processes()));
            assert!(covered(&program, &writes).iter().all(|&times| times == 1), "{program:?}");
            let times = if matches!(program, Program::Ior(_)) { 2 } else { 1 };
            assert!(covered(&program, &reads).iter().all(|&n| n == times), "{program:?}");
        }
    }

    #[test]
    fn segmented_and_strided_requests_differ_in_place_only() {
        let step = |strided| Ior { strided, ..IOR }.each(0);
        assert_eq!(step(false)[2][1], Access { at: 11 * IOR.request, len: IOR.request });
        assert_eq!(step(true)[2][1], Access { at: 8 * IOR.request, len: IOR.request });
        assert_eq!(IOR.each(3)[0], IOR.each(0)[3]);
    }

    #[test]
    fn cells_of_a_process_share_no_row_and_no_column() {
        for process in 0..9 {
            let cells: Vec<(u64, u64)> = BT
                .rows_of(process, 0)
                .chunks(4)
                .map(|rows| (rows[0].at / BT.row % 3, rows[0].at / (BT.row * 3) / 2 % 3))
                .collect();
            for (n, (x, y)) in cells.iter().enumerate() {
                assert!(cells[..n].iter().all(|(a, b)| a != x && b != y), "{process}: {cells:?}");
            }
        }
    }

    #[test]
    fn collectors_are_spread_over_the_processes() {
        let step = Bt { side: 4, collectors: 4, ..BT }.each(0);
        let busy: Vec<usize> = (0..16).filter(|&n| !step[n].is_empty()).collect();
        assert_eq!(busy, [0, 4, 8, 12]);
    }
}
