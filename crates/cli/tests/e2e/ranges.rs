//! Two mounts write different ranges of one file at the same time.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;

use rustix::fs::OFlags;

use crate::harness::{Cluster, Content, Spec, on_blocks_and_objects, pattern};

fn open(root: &Path, options: &mut OpenOptions) -> File {
    options.open(root.join("f")).unwrap()
}

/// Both mounts write every second piece, at the same time; the file as it must be then.
fn stride(files: &[File; 2], round: u64, pieces: usize, len: usize) -> Vec<u8> {
    let piece = |at: usize| pattern(round * 100_000 + at as u64, len);
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        for (who, file) in files.iter().enumerate() {
            let (barrier, piece) = (&barrier, &piece);
            scope.spawn(move || {
                barrier.wait();
                for at in (who..pieces).step_by(2) {
                    file.write_all_at(&piece(at), (at * len) as u64).unwrap();
                }
                file.sync_all().unwrap();
            });
        }
    });
    (0..pieces).flat_map(piece).collect()
}

fn assert_content(roots: &[PathBuf; 2], expected: &[u8], why: &str) {
    for root in roots {
        let read = fs::read(root.join("f")).unwrap();
        let wrong = read.iter().zip(expected).position(|(a, b)| a != b);
        assert!(
            read.len() == expected.len() && wrong.is_none(),
            "{why}: {wrong:?} of {} and not {}, with {:?} there",
            read.len(),
            expected.len(),
            wrong.map(|at| &read[at..read.len().min(at + 16)]),
        );
        assert_eq!(fs::metadata(root.join("f")).unwrap().size(), expected.len() as u64);
    }
}

on_blocks_and_objects!(two_mounts_writing_ranges_of_one_file_keep_every_byte);

fn two_mounts_writing_ranges_of_one_file_keep_every_byte(content: Content) {
    let mut cluster = Cluster::start(&Spec { content, ..Spec::default() });
    cluster.mount();
    cluster.mount();
    let roots = [cluster.path(0), cluster.path(1)];
    fs::write(roots[0].join("f"), b"").unwrap();
    let mut ways: Vec<(&str, OpenOptions)> = Vec::new();
    let mut writes = OpenOptions::new();
    writes.write(true);
    ways.push(("O_WRONLY", writes.clone()));
    let mut both = OpenOptions::new();
    both.read(true).write(true);
    ways.push(("O_RDWR", both.clone()));
    both.custom_flags(OFlags::DIRECT.bits().cast_signed());
    ways.push(("O_RDWR | O_DIRECT", both));
    for (round, (name, mut options)) in ways.into_iter().enumerate() {
        let files = [open(&roots[0], &mut options), open(&roots[1], &mut options)];
        for (len, pieces) in [(65_536, 400), (1 << 20, 24), (4096, 300), (47_008, 60), (700, 200)] {
            files[0].set_len(0).unwrap();
            let expected = stride(&files, round as u64, pieces, len);
            assert_content(&roots, &expected, &format!("{name}, pieces of {len}"));
        }
        // Operations that need the whole right, between writes of ranges.
        let mut expected = stride(&files, 9, 64, 65_536);
        files[1].set_len(1_000_001).unwrap();
        expected.truncate(1_000_001);
        let end = open(&roots[0], OpenOptions::new().append(true));
        std::io::Write::write_all(&mut &end, &[7; 5000]).unwrap();
        expected.extend([7; 5000]);
        assert_content(&roots, &expected, name);
    }
    cluster.finish();
}
