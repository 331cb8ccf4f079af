use super::*;

const F: Ino = Ino(9);

fn owner(client: u64, owner: u64) -> Owner {
    Owner { client: ClientId(client), owner: LockOwner(owner) }
}

fn range(exclusive: bool, start: u64, end: u64) -> Lock {
    Lock { flock: false, owner: LockOwner(0), pid: 1, exclusive, start, end }
}

fn flock(exclusive: bool) -> Lock {
    Lock { flock: true, ..range(exclusive, 0, 0) }
}

#[test]
fn locks_conflict_only_where_they_overlap_and_one_is_exclusive() {
    let mut table = LockTable::new();
    table.lock(F, owner(1, 1), &range(true, 0, 9), false).unwrap();
    assert_eq!(table.lock(F, owner(2, 1), &range(false, 9, 9), false), Err(Fault::WouldBlock));
    table.lock(F, owner(2, 1), &range(true, 10, 19), false).unwrap();
    table.lock(F, owner(3, 1), &range(false, 30, u64::MAX), false).unwrap();
    table.lock(F, owner(4, 1), &range(false, 30, 40), false).unwrap();
    table.lock(F, owner(4, 1), &flock(true), false).unwrap();
    assert_eq!(table.lock(F, owner(1, 1), &flock(false), false), Err(Fault::WouldBlock));
    table.validate();
}

#[test]
fn unlocking_the_middle_of_a_range_keeps_both_ends() {
    let mut table = LockTable::new();
    table.lock(F, owner(1, 1), &range(true, 0, 99), false).unwrap();
    table.unlock(F, owner(1, 1), &range(true, 40, 59)).unwrap();
    table.lock(F, owner(2, 1), &range(true, 40, 59), false).unwrap();
    for (start, end) in [(39, 39), (60, 60)] {
        let blocking = table.test(F, owner(2, 1), &range(true, start, end)).unwrap().unwrap();
        assert_eq!(blocking.0, owner(1, 1));
    }
    table.validate();
}

#[test]
fn upgrade_replaces_the_owners_own_lock() {
    let mut table = LockTable::new();
    table.lock(F, owner(1, 1), &range(false, 0, 99), false).unwrap();
    table.lock(F, owner(1, 1), &range(true, 10, 19), false).unwrap();
    assert!(table.test(F, owner(2, 2), &range(false, 0, 9)).unwrap().is_none());
    assert!(table.test(F, owner(2, 2), &range(false, 10, 10)).unwrap().is_some());
    table.lock(F, owner(1, 1), &range(false, 0, 99), false).unwrap();
    assert_eq!(table.len(), 1, "adjacent ranges of one mode are merged");
}

#[test]
fn lock_waiters_are_notified_once_and_in_order() {
    let mut table = LockTable::new();
    table.lock(F, owner(1, 1), &flock(true), false).unwrap();
    for client in 2..5 {
        assert_eq!(table.lock(F, owner(client, 1), &flock(true), true), Err(Fault::WouldBlock));
    }
    let notified = table.unlock(F, owner(1, 1), &flock(true)).unwrap();
    assert_eq!(notified, vec![LockFree { to: owner(2, 1), ino: F }]);
    assert!(table.unlock(F, owner(1, 1), &flock(true)).unwrap().is_empty());
    assert_eq!(
        table.cancel(F, owner(2, 1), &flock(true)),
        vec![LockFree { to: owner(3, 1), ino: F }]
    );
    assert!(table.lock(F, owner(3, 1), &flock(true), true).unwrap().is_empty());
    assert_eq!(table.drop_client(ClientId(3)), vec![LockFree { to: owner(4, 1), ino: F }]);
    table.validate();
}

#[test]
fn cycle_of_lock_waiters_is_refused() {
    let mut table = LockTable::new();
    table.lock(F, owner(1, 1), &range(true, 0, 0), false).unwrap();
    table.lock(Ino(10), owner(2, 1), &range(true, 0, 0), false).unwrap();
    assert_eq!(table.lock(Ino(10), owner(1, 1), &range(true, 0, 0), true), Err(Fault::WouldBlock));
    assert_eq!(table.lock(F, owner(2, 1), &range(true, 0, 0), true), Err(Fault::Deadlock));
    assert_eq!(table.lock(F, owner(3, 1), &range(true, 0, 0), true), Err(Fault::WouldBlock));
}

#[test]
fn lock_table_agrees_with_a_map_of_bytes() {
    let mut state = 0x1357_9bdf_2468_ace1u64;
    let mut next = move |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let mut table = LockTable::new();
    let mut model = [[None::<bool>; 4]; 32];
    for _ in 0..20_000 {
        let who = next(4);
        let (a, b) = (next(32), next(32));
        let lock = range(next(2) == 0, a.min(b), a.max(b));
        let bytes = lock.start as usize..=lock.end as usize;
        let free = |others: &[Option<bool>; 4]| {
            others.iter().enumerate().all(|(other, held)| {
                other as u64 == who || held.is_none_or(|exclusive| !exclusive && !lock.exclusive)
            })
        };
        if next(3) == 0 {
            table.unlock(F, owner(who, 0), &lock).unwrap();
            bytes.for_each(|byte| model[byte][who as usize] = None);
        } else {
            let possible = model[bytes.clone()].iter().all(free);
            assert_eq!(table.lock(F, owner(who, 0), &lock, false).is_ok(), possible);
            if possible {
                bytes.for_each(|byte| model[byte][who as usize] = Some(lock.exclusive));
            }
        }
        table.validate();
    }
}

#[test]
fn lock_holders_lists_other_clients_but_not_the_own_one() {
    let mut table = LockTable::new();
    table.lock(F, owner(1, 1), &range(true, 0, 9), false).unwrap();
    table.lock(F, owner(2, 1), &range(true, 20, 29), false).unwrap();
    assert_eq!(table.holders(F, owner(3, 1), &range(true, 5, 25)), [ClientId(1), ClientId(2)]);
    assert_eq!(table.holders(F, owner(1, 2), &range(true, 5, 25)), [ClientId(2)]);
    assert_eq!(table.awaited(), []);
    table.lock(F, owner(3, 1), &range(false, 25, 40), true).unwrap_err();
    table.lock(F, owner(1, 2), &range(true, 0, 0), true).unwrap_err();
    assert_eq!(table.awaited(), [ClientId(2)]);
}
