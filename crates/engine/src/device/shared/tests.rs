use super::*;

const FS: Uuid = Uuid([1; 16]);

fn owner(byte: u8) -> Uuid {
    Uuid([byte; 16])
}

/// A journal of `owner(byte)`.
fn journal(byte: u8, start: u64, blocks: u64) -> Slice {
    let kind = SliceKind::Journal { shard: 0, metadata: owner(byte) };
    Slice { kind, start, blocks, uuid: Uuid([100 + byte; 16]) }
}

fn label(slices: Vec<Slice>) -> Label {
    Label::new(FS, "home", owner(99), 1001, slices)
}

#[test]
fn slice_takes_the_first_gap_that_is_large_enough() {
    let three = label(vec![journal(2, 0, 100), journal(3, 150, 100), journal(4, 600, 300)]);
    let rows = [
        (50, None, Ok(100)),
        (51, None, Ok(250)),
        (350, None, Ok(250)),
        (351, None, Err(350)),
        // A target that is made anew gives its own back first.
        (351, Some(owner(3)), Ok(100)),
        (500, Some(owner(3)), Ok(100)),
        (400, Some(owner(4)), Ok(250)),
        (750, Some(owner(4)), Ok(250)),
        (751, Some(owner(4)), Err(750)),
        (100, Some(owner(2)), Ok(0)),
        (351, Some(owner(9)), Err(350)),
    ];
    for (blocks, replaced, expected) in rows {
        let found = room_in(&three, FS, blocks, replaced);
        match expected {
            Ok(start) => assert_eq!(found, Ok(start), "{blocks} {replaced:?}"),
            Err(most) => {
                let text = found.expect_err("there is no room");
                assert!(text.contains(&format!("at most {} bytes", most * 4096)), "{text}");
            }
        }
    }
}

#[test]
fn last_gap_ends_before_the_copy_of_the_label() {
    let one = label(vec![journal(2, 0, 100)]);
    assert_eq!(room_in(&one, FS, 900, None), Ok(100));
    assert!(room_in(&one, FS, 901, None).is_err());
    let with = Label { slices: vec![one.slices[0], journal(3, 100, 900)], ..one };
    assert_eq!(with.check(), Ok(()));
    assert!(with.is_shared());
    assert!(room_in(&with, FS, 2, None).is_err());
}

#[test]
fn other_file_system_and_a_full_label_are_refused() {
    let full = (0..60).map(|n| journal(2 + n, u64::from(n) * 10, 10)).collect();
    let text = room_in(&label(full), FS, 10, None).unwrap_err();
    assert!(text.contains("60 journals"), "{text}");
    let text = room_in(&label(vec![journal(2, 0, 10)]), owner(7), 10, None).unwrap_err();
    assert!(text.contains("`home`") && text.contains(&owner(7).to_string()), "{text}");
}

#[test]
fn journal_that_fills_its_device_does_not_share_it() {
    assert!(!label(vec![journal(2, 0, 1000)]).is_shared());
    assert!(label(vec![journal(2, 0, 999)]).is_shared());
    assert!(label(vec![journal(2, 1, 999)]).is_shared());
    let metadata = SliceKind::Metadata { shard: 0, journal: None };
    let metadata = Slice { kind: metadata, start: 500, blocks: 100, uuid: owner(50) };
    assert!(!label(vec![journal(2, 0, 100), metadata]).is_shared());
}
