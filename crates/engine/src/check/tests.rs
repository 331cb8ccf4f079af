//! A check of a store that has nothing but clients: the engine needs no layer above for it.

use std::collections::BTreeSet;

use types::{ClientId, MetaBlock};

use super::{Checker, Claims, Finding, Mismatch, clients, find_blobs, mismatches};
use crate::clients::{CLIENT_INFO_MAX, CLIENTS, NEXT_CLIENT, REPLIES, SETTINGS};
use crate::cost::Cost;
use crate::error::{OwnerMismatch, Stop};
use crate::format::blob::BlobOwner;
use crate::format::block::BlockType;
use crate::format::reply::{SETTING_VALUE, short_key};
use crate::store::Store;
use crate::testing::now;
use crate::txn::Txn;

/// Longest blob of a client.
const MAX: usize = CLIENT_INFO_MAX;

struct Findings {
    store: Store,
    claims: Claims,
    list: Vec<Finding>,
}

impl Checker for Findings {
    fn store(&self) -> &Store {
        &self.store
    }

    fn claims(&mut self) -> &mut Claims {
        &mut self.claims
    }

    fn note(&mut self, finding: Finding) {
        self.list.push(finding);
    }
}

/// Checks clients and bitmap.
fn check(store: &Store) -> (Findings, BTreeSet<ClientId>, Vec<Mismatch>) {
    let claims = Claims::new(&store.superblock());
    let mut check = Findings { store: store.clone(), claims, list: Vec::new() };
    let known = now(clients(&mut check, MAX)).unwrap();
    let wrong = now(mismatches(&mut check, 0)).unwrap();
    (check, known, wrong)
}

fn change<T>(store: &Store, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    now(store.run(Cost::DELETE, body)).unwrap().0
}

/// A store with two clients, a reply of each length, and a setting.
fn store() -> (Store, [ClientId; 2]) {
    let store = Store::volatile(1000);
    let clients = change(&store, |txn| {
        txn.set_root(NEXT_CLIENT, 1)?;
        let [a, b] = [txn.new_client(b"a")?, txn.new_client(b"b")?];
        txn.set_reply(a, 0, 1, b"short")?;
        txn.set_reply(b, 1, 1, &[7; 1000])?;
        txn.set_setting(3, b"value")?;
        Ok([a, b])
    });
    (store, clients)
}

fn value(txn: &mut Txn<'_>, client: ClientId) -> Result<[u8; 8], Stop> {
    Ok(CLIENTS.get(txn, &client.0.to_be_bytes())?.expect("a client"))
}

#[test]
fn sound_store_has_no_finding_and_one_owner_of_every_block() {
    let (store, both) = store();
    let (check, known, wrong) = check(&store);
    assert_eq!((check.list, wrong), (Vec::new(), Vec::new()));
    assert_eq!(known, BTreeSet::from(both));
}

#[test]
fn damaged_records_of_clients_are_found_in_the_order_of_the_walk() {
    let (store, [a, b]) = store();
    let replies = change(&store, |txn| {
        txn.set_root(NEXT_CLIENT, 2)?;
        let replies = REPLIES.get(txn, &short_key(a))?.expect("its block");
        let replies = MetaBlock(u64::from_le_bytes(replies));
        txn.init(replies, BlockType::Table)?;
        SETTINGS.insert(txn, &4u32.to_be_bytes(), &[0xff; SETTING_VALUE])?;
        Ok(replies)
    });
    let (check, _, wrong) = check(&store);
    assert_eq!(wrong, []);
    assert_eq!(
        check.list,
        [
            Finding::UnissuedClient(b),
            Finding::Damaged(replies, "not a block of replies".into()),
            Finding::LostReplies(replies),
            Finding::BadSetting(4),
        ]
    );
}

#[test]
fn missing_description_is_found_among_blocks_without_an_owner() {
    let (store, [a, b]) = store();
    let [of_a, of_b] = change(&store, |txn| {
        let [of_a, of_b] = [value(txn, a)?, value(txn, b)?];
        CLIENTS.insert(txn, &a.0.to_be_bytes(), &of_b)?;
        Ok([of_a, of_b].map(|value| MetaBlock(u64::from_le_bytes(value))))
    });
    let (mut check, _, wrong) = check(&store);
    let [whose, other] = [a, b].map(BlobOwner::client);
    let mismatch = OwnerMismatch { expected: whose, found: other };
    let found = [Finding::WrongBlob(whose, of_b, mismatch), Finding::LostDescription(a)];
    assert_eq!(check.list, found);
    assert_eq!(wrong, [Mismatch::Lost(of_a.0, of_a.0 + 1)]);
    let found = now(find_blobs(&mut check, &BTreeSet::from([whose]), MAX)).unwrap();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [(whose, of_a)]);
    assert_eq!(now(mismatches(&mut check, 0)).unwrap(), []);
}

#[test]
fn block_in_use_that_the_bitmap_has_free_is_found() {
    let (store, [a, _]) = store();
    let block = change(&store, |txn| {
        let block = u64::from_le_bytes(value(txn, a)?);
        txn.free_meta(MetaBlock(block), 1)?;
        Ok(block)
    });
    let (_, _, wrong) = check(&store);
    assert_eq!(wrong, [Mismatch::MarkedFree(block, block + 1)]);
}
