//! Dumps of damaged devices.

use super::*;
use crate::dump::DumpError;

/// What a dump of a device has: by path, what it says of the inode but for its number. And what it
/// tells.
fn paths_dumped(disk: &SimDisk) -> (BTreeMap<String, String>, Dumped) {
    try_paths_dumped(disk).unwrap()
}

/// As [`paths_dumped`]; an error if there is no dump at all.
fn try_paths_dumped(disk: &SimDisk) -> Result<(BTreeMap<String, String>, Dumped), DumpError> {
    let (bytes, dumped) = in_world(&disk.fork(), |env| async move {
        let disk = env.open_disk("meta", WRITE).await.unwrap();
        let options =
            OpenOptions { cache_bytes: 0, read_only: true, repair: true, ..OpenOptions::default() };
        let mfs = Mfs::open(&env, &disk, options).await.unwrap();
        let mut out = Vec::new();
        let dumped = dump(&[Source { mfs: &mfs, zones: &ZONES }], &mut out).await;
        (out, dumped)
    });
    let dumped = dumped?;
    let (mut input, mut paths, mut said) = (&bytes[..], BTreeMap::new(), BTreeMap::new());
    let mut reader = Reader::new(&mut input);
    let mut names = Vec::new();
    loop {
        match reader.take().unwrap() {
            Record::Head { .. } => {}
            Record::Inode(inode) => {
                let number = inode.attr.ino.0;
                let above: &String = paths.entry(inode.parent).or_default();
                let path = format!("{above}/{}", String::from_utf8_lossy(&inode.name));
                names.push((path.clone(), number));
                paths.insert(number, if number == 1 { String::new() } else { path });
                let told =
                    format!("{:?}", (inode.attr.kind, inode.attr.mode, inode.target, inode.xattrs));
                said.insert(number, told);
            }
            Record::Link { parent, name, number } => {
                names.push((
                    format!("{}/{}", paths[&parent], String::from_utf8_lossy(&name)),
                    number,
                ));
            }
            Record::Segments { number, list } => {
                *said.get_mut(&number).unwrap() += &format!("{list:?}")
            }
            Record::Content { number, bytes } => {
                *said.get_mut(&number).unwrap() += &format!("{bytes:?}")
            }
            Record::Object { number, record } => {
                *said.get_mut(&number).unwrap() += &format!("{record:?}")
            }
            Record::End { inodes, .. } => {
                assert_eq!(inodes, said.len() as u64);
                break;
            }
        }
    }
    reader.end().unwrap();
    let said = names.into_iter().map(|(path, number)| (path, said[&number].clone())).collect();
    Ok((said, dumped))
}

#[test]
fn dump_of_a_damaged_tree_has_all_readable_and_reports_the_others() {
    let disk = populated();
    wipe_log(&disk);
    let (whole, told) = paths_dumped(&disk);
    assert_eq!((told.damaged_count, told.left_out_count), (0, 0), "{:?}", told.damaged);
    let numbers = numbers_of(&disk);
    assert_eq!(numbers.len(), whole.len());
    let mut tried = BTreeMap::new();
    for (at, kind) in blocks_in_use(&disk).into_iter().step_by(3) {
        if !matches!(
            kind,
            BlockType::Directory | BlockType::Blob | BlockType::Layout | BlockType::Tree
        ) {
            continue;
        }
        let broken = disk.fork();
        broken.poke(at * BLOCK as u64, &[0xa5; BLOCK]);
        let held = inside(&disk, at, kind);
        if held.contains(&Ino::ROOT) {
            continue;
        }
        let (now, told) = match try_paths_dumped(&broken) {
            Ok(found) => found,
            // The root directory is found through this one.
            Err(DumpError::Damaged(text)) if kind == BlockType::Tree => {
                assert!(text.starts_with("the root directory"), "{text}");
                continue;
            }
            Err(error) => panic!("{kind:?} {at}: {error}"),
        };
        let differing: Vec<_> =
            whole.iter().filter(|(path, said)| now.get(*path) != Some(said)).collect();
        assert_eq!(told.damaged.len() as u64, told.damaged_count);
        assert_eq!(
            differing.is_empty(),
            told.damaged.is_empty(),
            "{kind:?} {at}: {differing:?} {told:?}"
        );
        assert!(now.keys().all(|path| whole.contains_key(path)), "{kind:?} {at}");
        *tried.entry(kind).or_insert(0) += usize::from(!differing.is_empty());
        for (path, _) in differing {
            let inside = |path: &str| held.contains(&numbers[path]);
            let above = path.match_indices('/').skip(1).map(|(end, _)| &path[..end]);
            let explained = match kind {
                // One that was renamed into another directory is sought first where it was born.
                BlockType::Directory => {
                    let name = path.rsplit('/').next().unwrap();
                    let line = format!("{name:?}, a name of inode {}, ", numbers[path]);
                    let told = told.damaged.iter().any(|it| it.starts_with(&line));
                    told || inside(path) || above.into_iter().any(inside)
                }
                // Of the table of directories, whole ones are not to be had.
                BlockType::Tree => true,
                _ => ["/big", "/hard", "/symlink"].iter().any(|end| path.ends_with(end)),
            };
            assert!(explained, "{kind:?} {at}: {path} is gone or another: {told:?}");
        }
    }
    use BlockType::{Blob, Directory, Layout, Tree};
    assert!(
        [Blob, Directory, Layout, Tree].iter().all(|kind| tried.get(kind).is_some_and(|&n| n > 0)),
        "{tried:?}"
    );
}

#[test]
fn dump_reports_a_file_with_another_block_count_than_its_segments() {
    let disk = populated();
    let file = numbers_of(&disk)["/d0/big"];
    in_world(&disk, |env| async move {
        let mfs = open(&env).await;
        run(&mfs, |txn| {
            let last = txn.layouts().layout(file, FileBlock(0), 1000)?.pop().unwrap();
            SEGMENTS.remove(txn, &segment_key(file, last.file.0))
        })
        .await
        .unwrap();
        mfs.close().await.unwrap();
    });
    let (_, told) = paths_dumped(&disk);
    assert_eq!(told.damaged_count, 1);
    let text = "it counts 399 blocks of data, those in the dump have 398";
    assert!(told.damaged[0].contains(text) && told.damaged[0].contains("/d0/big"), "{told:?}");
}
