use types::Fault;

use crate::handle::Mfs;
use crate::testing::{formatted, now};
use crate::txn::Txn;
use engine::clients::CLIENT_INFO_MAX;
use engine::cost::Cost;
use engine::error::Stop;
use engine::format::reply::{REPLY_MAX, REPLY_SLOTS, SETTING_MAX, SHORT_REPLY_MAX};

fn run<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    now(mfs.run(Cost::STEP, body)).unwrap().0
}

#[test]
fn client_numbers_are_issued_once_and_descriptions_can_change() {
    let mfs = formatted();
    let a = run(&mfs, |txn| txn.new_client(b"a"));
    let b = run(&mfs, |txn| txn.new_client(&[9; CLIENT_INFO_MAX]));
    run(&mfs, |txn| txn.set_client(a, &[1; 4090]));
    run(&mfs, |txn| txn.set_client(b, b""));
    assert_eq!(run(&mfs, |txn| txn.clients()), [(a, vec![1; 4090]), (b, vec![])]);
    assert!(run(&mfs, |txn| txn.space().remove_client(a)));
    let c = run(&mfs, |txn| txn.new_client(b"c"));
    assert!(a < b && b < c);
    let gone = now(mfs.run(Cost::SMALL, |txn| txn.set_client(a, b"x")));
    assert_eq!(gone.unwrap_err().fault(), Fault::NotFound);
}

#[test]
fn replies_are_stored_per_slot_until_the_client_is_removed() {
    let mfs = formatted();
    let before = run(&mfs, |txn| Ok(txn.meta_space().1));
    let client = run(&mfs, |txn| txn.new_client(b"a"));
    let other = run(&mfs, |txn| txn.new_client(b"b"));
    for slot in 0..REPLY_SLOTS {
        run(&mfs, |txn| txn.set_reply(client, slot, slot + 1, &slot.to_le_bytes()));
    }
    run(&mfs, |txn| txn.set_reply(other, 5, 6, &[7; REPLY_MAX]));
    run(&mfs, |txn| txn.set_reply(client, 4, 99, b""));
    assert_eq!(run(&mfs, |txn| txn.reply(client, 4)), Some((99, vec![])));
    let bytes = 5u32.to_le_bytes().to_vec();
    assert_eq!(run(&mfs, |txn| txn.reply(client, 5)), Some((6, bytes)));
    assert_eq!(run(&mfs, |txn| txn.reply(client, REPLY_SLOTS)), None);
    // A long reply, then a short one, then a long one, in the same slot.
    for (seq, len) in [(100, REPLY_MAX), (101, SHORT_REPLY_MAX), (102, SHORT_REPLY_MAX + 1)] {
        run(&mfs, |txn| txn.set_reply(client, 4, seq, &vec![seq as u8; len]));
        assert_eq!(run(&mfs, |txn| txn.reply(client, 4)), Some((seq, vec![seq as u8; len])));
    }
    let slots: Vec<u32> = (0..REPLY_SLOTS).collect();
    assert_eq!(run(&mfs, |txn| txn.replied_slots(client)), slots);
    assert_eq!(run(&mfs, |txn| txn.replied_slots(other)), [5]);
    let too_big = now(mfs.run(Cost::SMALL, |txn| txn.set_reply(other, 1, 1, &[0; 1025])));
    assert_eq!(too_big.unwrap_err().fault(), Fault::TooBig);
    while !run(&mfs, |txn| txn.space().remove_client(client)) {}
    assert_eq!(run(&mfs, |txn| txn.reply(client, 5)), None);
    assert_eq!(run(&mfs, |txn| txn.reply(other, 5)), Some((6, vec![7; REPLY_MAX])));
    assert!(run(&mfs, |txn| txn.space().remove_client(other)));
    let left = run(&mfs, |txn| Ok(txn.meta_space().1));
    assert!(before - left <= 4, "{} blocks are not freed", before - left);
}

#[test]
fn quarantine_lasts_until_its_client_is_removed() {
    let mfs = formatted();
    let client = run(&mfs, |txn| txn.new_client(b"a"));
    for slot in 0..REPLY_SLOTS {
        run(&mfs, |txn| txn.set_reply(client, slot, 1, &[0; SHORT_REPLY_MAX + 1]));
    }
    run(&mfs, |txn| txn.space().quarantine(client));
    while !run(&mfs, |txn| txn.space().release_pool(client)) {}
    let mut steps = 0;
    while !run(&mfs, |txn| txn.clients()).is_empty() {
        assert_eq!(run(&mfs, |txn| txn.space().quarantines()), [client], "step {steps}");
        run(&mfs, |txn| txn.space().remove_client(client));
        steps += 1;
    }
    assert!(steps > 1 && run(&mfs, |txn| txn.space().quarantines()).is_empty());
}

#[test]
fn setting_returns_the_value_set_last() {
    let mfs = formatted();
    assert_eq!(run(&mfs, |txn| txn.setting(7)), None);
    run(&mfs, |txn| txn.set_setting(7, &[1; SETTING_MAX]));
    run(&mfs, |txn| txn.set_setting(7, b"x"));
    assert_eq!(run(&mfs, |txn| txn.setting(7)), Some(b"x".to_vec()));
}
