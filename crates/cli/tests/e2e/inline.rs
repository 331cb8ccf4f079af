//! Small files that lie with their inodes, on real mounts.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};

use crate::harness::{Cluster, Mapping, Spec, eventually, pattern, redbud, success};

/// Bytes that the data zones take on the disk: they are sparse, so that every first write of a
/// block shows.
fn taken(cluster: &Cluster) -> u64 {
    (0..2).map(|at| fs::metadata(cluster.dir.join(format!("data{at}.img"))).unwrap().blocks()).sum()
}

fn put(cluster: &Cluster, mount: usize, name: &str, bytes: &[u8]) {
    let mut file = fs::File::create(cluster.path(mount).join(name)).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn inline_file_takes_no_data_block_until_it_grows() {
    let mut cluster = Cluster::start(&Spec { slot: "1K", ..Spec::default() });
    let (a, b) = (cluster.mount(), cluster.mount());
    let before = taken(&cluster);
    for index in 0..50u8 {
        put(&cluster, a, &format!("f{index}"), &[index + 1; 700]);
    }
    for index in 0..50u8 {
        let path = cluster.path(b).join(format!("f{index}"));
        assert_eq!(fs::read(&path).unwrap(), [index + 1; 700]);
        assert!(fs::metadata(&path).unwrap().blocks() > 0, "tar would take it for a hole");
    }
    assert_eq!(taken(&cluster), before, "no data device was written");
    let file = cluster.path(b).join("f7");
    assert!(success(redbud().arg("layout").arg(&file)).contains("700 bytes, inline: "));

    // It grows out of its slot on one mount, and is seen on the other; then both processes die.
    let grown = fs::OpenOptions::new().write(true).open(&file).unwrap();
    grown.write_all_at(&[99; 5000], 700).unwrap();
    grown.sync_all().unwrap();
    assert!(taken(&cluster) > before);
    assert!(
        success(redbud().arg("layout").arg(cluster.path(a).join("f7")))
            .contains("5700 bytes, 1 segment\n")
    );
    put(&cluster, b, "f8", b"short");
    cluster.kill_server();
    cluster.start_server();
    cluster.kill_client(b);
    cluster.remount(b, &[]);
    let want = [vec![8; 700], vec![99; 5000]].concat();
    for mount in [a, b] {
        assert!(fs::read(cluster.path(mount).join("f7")).unwrap() == want);
        assert_eq!(fs::read(cluster.path(mount).join("f8")).unwrap(), b"short");
    }
    // Emptied, it is small again.
    put(&cluster, a, "f7", b"new");
    assert!(success(redbud().arg("layout").arg(&file)).contains("3 bytes, inline: "));
    assert_eq!(fs::read(&file).unwrap(), b"new");
    cluster.finish();
}

/// Sizes on both sides of what a slot of 1 KiB has room for, of the largest content and of a block.
const SIZES: [usize; 9] = [1, 500, 800, 879, 900, 3928, 4095, 4096, 5000];
/// The largest of them that has room beside a name of two bytes.
const ROOM: usize = 880 - 2;

fn two_mounts() -> Cluster {
    let mut cluster = Cluster::start(&Spec { slot: "1K", ..Spec::default() });
    cluster.mount();
    cluster.mount();
    cluster
}

fn both(path: &Path, flags: OFlags) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags.bits().cast_signed());
    options.open(path).unwrap()
}

/// Runs `change` on a file of each size on one mount, and compares what the other and the model
/// have then, and whether it lies with the inode.
fn each_size(cluster: &Cluster, what: &str, change: impl Fn(&Path, &mut Vec<u8>)) {
    for size in SIZES {
        let (mine, other) = (cluster.path(0).join("fi"), cluster.path(1).join("fi"));
        let mut want = pattern(size as u64, size);
        put(cluster, 0, "fi", &want);
        change(&mine, &mut want);
        for path in [&mine, &other] {
            let read = fs::read(path).unwrap();
            let wrong = read.iter().zip(&want).position(|(a, b)| a != b);
            assert!(
                read == want,
                "{what}, {size} bytes: {wrong:?}, {} for {}",
                read.len(),
                want.len()
            );
        }
        fs::remove_file(&other).unwrap();
    }
}

fn is_inline(path: &Path) -> bool {
    success(redbud().arg("layout").arg(path)).contains("inline")
}

#[test]
fn status_reports_whether_inline_data_is_on() {
    for inline_data in [true, false] {
        let mut cluster = Cluster::start(&Spec { inline_data, ..Spec::default() });
        cluster.mount();
        let text = success(redbud().arg("status").arg(cluster.root()));
        let features = text.lines().find(|line| line.contains("features")).unwrap();
        assert_eq!(features.contains("inline-data"), inline_data, "{text}");
        let json = success(redbud().args(["status", "--json"]).arg(cluster.root()));
        assert_eq!(json.contains("inline-data"), inline_data, "{json}");
        cluster.finish();
    }
}

#[test]
fn files_near_slot_size_copy_punch_allocate_and_truncate() {
    let cluster = two_mounts();
    each_size(&cluster, "nothing", |path, want| {
        assert_eq!(is_inline(path), want.len() <= ROOM, "{}", want.len());
    });
    each_size(&cluster, "copy_file_range to its end", |path, want| {
        let file = both(path, OFlags::empty());
        let (mut from, mut to) = (0, want.len() as u64);
        let copied =
            rustix::fs::copy_file_range(&file, Some(&mut from), &file, Some(&mut to), want.len());
        assert_eq!(copied, Ok(want.len()));
        want.extend_from_within(..);
    });
    each_size(&cluster, "copy_file_range to another and back", |path, want| {
        let (file, copy) = (both(path, OFlags::empty()), path.with_extension("copy"));
        fs::copy(path, &copy).unwrap();
        assert_eq!(is_inline(&copy), want.len() <= ROOM - 5, "{}", want.len());
        let back = File::open(&copy).unwrap();
        let (mut from, mut to) = (0, 10);
        rustix::fs::copy_file_range(&back, Some(&mut from), &file, Some(&mut to), want.len())
            .unwrap();
        fs::remove_file(&copy).unwrap();
        let old = want.clone();
        want.truncate(10);
        // A file of one byte has a hole now.
        want.resize(10, 0);
        want.extend(old);
    });
    each_size(&cluster, "punching", |path, want| {
        let file = both(path, OFlags::empty());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 100, 600).unwrap();
        let len = want.len();
        want[100.min(len)..700.min(len)].fill(0);
        file.sync_all().unwrap();
        assert_eq!(is_inline(path), len <= ROOM);
        rustix::fs::fallocate(&file, punch, 0, 8192).unwrap();
        file.sync_all().unwrap();
        want.fill(0);
        assert!(!is_inline(path), "a hole");
    });
    each_size(&cluster, "allocating and zeroing", |path, want| {
        let file = both(path, OFlags::empty());
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 100).unwrap();
        file.sync_all().unwrap();
        assert!(!is_inline(path), "it has a place of its own");
        rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 10, 6000).unwrap();
        want.truncate(10);
        want.resize(6010, 0);
    });
    each_size(&cluster, "cutting and stretching", |path, want| {
        let file = both(path, OFlags::empty());
        for size in [10_000, 879, 10, 4097, 600, 0, 900] {
            file.set_len(size).unwrap();
            want.resize(size as usize, 0);
            assert!(fs::read(path).unwrap() == *want, "{size}");
        }
        file.write_all_at(b"tail", 890).unwrap();
        want.truncate(890);
        want.extend(b"tail");
        want.resize(900, 0);
    });
    cluster.finish();
}

#[test]
fn files_near_slot_size_read_the_same_direct_and_mapped() {
    let cluster = two_mounts();
    each_size(&cluster, "O_DIRECT", |path, want| {
        let file = both(path, OFlags::DIRECT);
        let mut page = [0; 8192];
        assert_eq!(file.read_at(&mut page, 0).unwrap(), want.len());
        assert!(page[..want.len()] == *want);
        file.write_all_at(&[5; 512], 512).unwrap();
        want.resize(want.len().max(1024), 0);
        want[512..1024].fill(5);
        assert!(fs::read(path).unwrap() == *want);
        file.set_len(300).unwrap();
        file.write_all_at(&[6; 100], 200).unwrap();
        file.sync_all().unwrap();
        want.truncate(200);
        want.resize(300, 6);
    });
    each_size(&cluster, "a shared mapping", |path, want| {
        let file = both(path, OFlags::empty());
        let mapping = Mapping::of(&file);
        for at in (0..want.len().min(Mapping::LEN)).step_by(97) {
            assert_eq!(mapping.load(at), want[at]);
            mapping.store(at, !want[at]);
            want[at] = !want[at];
        }
        file.sync_all().unwrap();
        assert_eq!(
            is_inline(path),
            want.len() <= ROOM,
            "pages that are written back are no longer than the file"
        );
        // What the page has behind the end is nobody's.
        if want.len() < Mapping::LEN {
            mapping.store(want.len(), 9);
            mapping.store(0, 8);
            want[0] = 8;
            drop(mapping);
            file.set_len(want.len() as u64 + 1).unwrap();
            want.push(0);
        }
    });
    cluster.finish();
}

/// A store into a mapping on one mount, and a write through a call on the other, which take turns.
#[test]
fn mapping_of_an_inline_file_sees_writes_of_another_mount() {
    let cluster = two_mounts();
    put(&cluster, 0, "fi", &[1; 600]);
    let (file, other) = (cluster.path(0).join("fi"), cluster.path(1).join("fi"));
    let (file, other) = (both(&file, OFlags::empty()), both(&other, OFlags::empty()));
    let mapping = Mapping::of(&file);
    let mut seen = [0; 600];
    for round in 1..=50u8 {
        mapping.store(100, round);
        other.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!((seen[100], seen[200]), (round, if round == 1 { 1 } else { round - 1 }));
        other.write_all_at(&[round], 200).unwrap();
        assert_eq!((mapping.load(200), mapping.load(100)), (round, round));
    }
    drop((mapping, file, other));
    cluster.finish();
}

#[test]
fn seek_data_and_seek_hole_work_on_inline_files() {
    let cluster = two_mounts();
    let path = cluster.path(0).join("fi");
    put(&cluster, 0, "fi", &[1; 600]);
    for mount in [0, 1] {
        let file = both(&cluster.path(mount).join("fi"), OFlags::empty());
        let seek = |to| rustix::fs::seek(&file, to);
        assert_eq!(seek(SeekFrom::Data(0)), Ok(0));
        assert_eq!(seek(SeekFrom::Data(599)), Ok(599));
        assert_eq!(seek(SeekFrom::Hole(0)), Ok(600));
        assert_eq!(seek(SeekFrom::Data(600)), Err(rustix::io::Errno::NXIO));
    }
    let file = both(&path, OFlags::empty());
    file.set_len(20_000).unwrap();
    file.write_all_at(&[2; 10], 12_288).unwrap();
    file.sync_all().unwrap();
    for mount in [0, 1] {
        let file = both(&cluster.path(mount).join("fi"), OFlags::empty());
        let seek = |to| rustix::fs::seek(&file, to);
        assert_eq!(seek(SeekFrom::Hole(0)), Ok(4096));
        assert_eq!(seek(SeekFrom::Data(4096)), Ok(12_288));
        assert_eq!(seek(SeekFrom::Hole(12_288)), Ok(16_384));
    }
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 16, "one with the inode, one on its device");
    drop(file);
    cluster.finish();
}

/// Leaves no block of the data zones to anybody.
fn fill(root: &Path) {
    let mut filler = File::create(root.join("filler")).unwrap();
    for piece in [1 << 20, 64 << 10, 4096] {
        let bytes = pattern(7, piece);
        loop {
            match filler.write_all(&bytes) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    filler.sync_all().unwrap();
}

fn appended(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(bytes)
}

type Change = fn(&Path) -> io::Result<()>;

/// How a small file is changed where there is no block: what a shell, an editor and a database do.
const CHANGES: [(&str, Change); 8] = [
    ("> shorter", |path| fs::write(path, b"new")),
    ("> as long", |path| fs::write(path, [b'n'; 600])),
    ("> longer, in its slot", |path| fs::write(path, [b'l'; 800])),
    ("> longer than any slot of 1 KiB", |path| fs::write(path, pattern(1, 3928))),
    (">> in its slot", |path| appended(path, b"more")),
    (">> beyond", |path| (0..10).try_for_each(|_| appended(path, &[b'm'; 300]))),
    ("in place", |path| both(path, OFlags::empty()).write_all_at(b"there", 300)),
    ("cut, and written on", |path| {
        both(path, OFlags::empty()).set_len(100)?;
        appended(path, b"on")
    }),
];

/// Makes a small file for each change, fills the data zones, and changes them, synced or not; what
/// they hold then.
fn changed_on_a_full_device(inline_data: bool, synced: bool) -> Vec<Vec<u8>> {
    let spec = Spec { slot: "1K", data: vec![128 << 20], inline_data, ..Spec::default() };
    let mut cluster = Cluster::start(&spec);
    let (a, b) = (cluster.mount(), cluster.mount());
    let text = |at: usize| format!("f{at}");
    for at in 0..CHANGES.len() {
        put(&cluster, a, &text(at), &[b'o'; 600]);
    }
    fill(&cluster.path(a));
    for (at, (what, change)) in CHANGES.iter().enumerate() {
        let path = cluster.path(a).join(text(at));
        change(&path).unwrap_or_else(|error| panic!("{what}, {inline_data}: {error}"));
        if synced {
            File::open(&path).unwrap().sync_all().unwrap();
        }
    }
    if synced {
        cluster.kill_client(a);
        cluster.kill_server();
        cluster.start_server();
        cluster.remount(a, &[]);
    }
    let read = |mount, at| fs::read(cluster.path(mount).join(text(at))).unwrap();
    let left: Vec<_> = (0..CHANGES.len()).map(|at| read(b, at)).collect();
    for (at, left) in left.iter().enumerate() {
        assert!(read(a, at) == *left, "{}", CHANGES[at].0);
    }
    // New names and what is too long find nothing, and say so before anything is promised.
    let path = cluster.path(a).join(text(0));
    let error = appended(&path, &[b'x'; 5000]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(read(b, 0) == left[0]);
    fs::remove_file(cluster.path(a).join("filler")).unwrap();
    eventually("there is room again", || appended(&path, &[b'x'; 5000]).is_ok());
    cluster.finish();
    left
}

#[test]
fn inline_files_can_be_overwritten_on_a_full_device() {
    for synced in [true, false] {
        let (with, without) =
            (changed_on_a_full_device(true, synced), changed_on_a_full_device(false, synced));
        for ((with, without), (what, _)) in with.iter().zip(&without).zip(CHANGES) {
            assert!(with == without, "{what}: {} bytes, {} without", with.len(), without.len());
        }
    }
}
