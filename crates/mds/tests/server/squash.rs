//! What a node whose callers are squashed may do, and what a changed list of keys does.

use std::cell::RefCell;
use std::rc::Rc;

use channel::{Allowed, Entry, Mode, Role, SecretKey, SecretKeys, Squash};
use proto::mds::*;
use session::server::{KeyFiles, KeyRing, ServerKeys};
use types::*;

use crate::bed::{Answer, Bed, Client, name, no_change, node, run};

const ROOT: Ino = Ino::ROOT;
const NOBODY: u32 = 65_534;

fn key(seed: u8) -> SecretKey {
    SecretKey::new([seed; 32])
}

/// The keys of a server with a node `plain`, and a node `squashed`.
fn ring(revoked: bool) -> KeyRing {
    let entry = |seed: u8, name: &str, squash| {
        let (key, role) = (key(seed).public(), Role::Client);
        Entry { key, name: name.into(), role, squash, revoked }
    };
    let entries = [entry(1, "plain", Squash::Off), entry(2, "squashed", Squash::All)];
    let text = entries.map(|entry| format!("{entry}\n")).concat();
    KeyRing { secrets: SecretKeys::only(key(200)), allowed: Allowed::parse(&text).unwrap() }
}

/// What the server reads next.
type Next = Rc<RefCell<Option<KeyRing>>>;

fn keys() -> (ServerKeys, Next) {
    let next: Next = Rc::new(RefCell::new(Some(ring(false))));
    let read = next.clone();
    let read = Rc::new(move || read.borrow_mut().take().map(KeyFiles::from));
    (ServerKeys { least: Mode::Greeting, half_open_max: 10, read }, next)
}

fn client(bed: &Bed, node: &str, seed: u8) -> Client {
    let client = Client::new(bed.world.node(node));
    client.prove(key(seed), key(200).public());
    client
}

/// A client of each node, and the root directory is everybody's.
async fn clients(bed: &Bed) -> (Client, Client) {
    bed.ask_for(keys().0).await;
    let (plain, squashed) = (client(bed, "plain", 1), client(bed, "squashed", 2));
    for client in [&plain, &squashed] {
        client.connect(ClientId(0)).await.unwrap();
    }
    let open = Op::SetAttr { ino: ROOT, set: SetAttr { mode: Some(0o777), ..no_change() } };
    as_user(&plain, 0, open, None).await.unwrap();
    (plain, squashed)
}

/// The answer to `uid`'s request, which was answered with `replay` before if the client is right.
async fn as_user(client: &Client, uid: u32, op: Op, replay: Option<OpReply>) -> Answer {
    let request = replay_of(client, uid, op, replay);
    client.exchange(request).await.unwrap().results.remove(0)
}

fn replay_of(client: &Client, uid: u32, op: Op, replay: Option<OpReply>) -> Request {
    let principal = Principal { uid, gid: uid, groups: vec![] };
    let replay = replay.map(|reply| Replay {
        transno: Transno { epoch: Epoch(1), lsn: Lsn(1) },
        results: vec![Ok(reply)],
    });
    Request { principal, replay, ..client.request(0, vec![op]) }
}

/// SEMANTICS 6.4: saying that it was executed before makes nothing of a request allowed.
#[test]
fn replay_of_a_squashed_node_is_checked() {
    run(|bed| async move {
        let (plain, squashed) = clients(&bed).await;
        let file = plain.create(ROOT, "f", FileKind::Regular, Rights::empty()).await.unwrap();
        let attr = file.attr;
        let steal = || Op::SetAttr {
            ino: attr.ino,
            set: SetAttr { uid: Some(NOBODY), mode: Some(0o777), judged_by: 1000, ..no_change() },
        };
        let answer = || Some(OpReply::Done {});
        let refused = as_user(&squashed, 0, steal(), None).await;
        assert_eq!(refused.unwrap_err(), Fault::NotPermitted);
        // Nothing is to be recovered, and the connection ends.
        assert_eq!(squashed.exchange(replay_of(&squashed, 0, steal(), answer())).await, None);
        plain.exchange(Request { sync: true, ..plain.request(0, vec![Op::Renew {}]) }).await;
        bed.ask_for(keys().0).await;
        assert_eq!(squashed.connect(squashed.id()).await.unwrap().state, RECOVERED);
        let refused = as_user(&squashed, 0, steal(), answer()).await;
        assert_eq!(refused.unwrap_err(), Fault::NotPermitted);
    });
}

/// SEMANTICS 6.4.
#[test]
fn squashed_node_makes_no_devices_and_no_set_gid_files_of_other_groups() {
    run(|bed| async move {
        let (plain, squashed) = clients(&bed).await;
        let create = |dir, text: &str, node| Op::Create {
            dir,
            name: name(text),
            node,
            want: Rights::empty(),
        };
        for kind in [FileKind::CharDevice, FileKind::BlockDevice] {
            let device = || NewNode { rdev: 0x801, ..node(kind, 0o666) };
            let refused = as_user(&squashed, 0, create(ROOT, "device", device()), None).await;
            assert_eq!(refused.unwrap_err(), Fault::NotPermitted);
            as_user(&plain, 0, create(ROOT, &format!("{kind:?}"), device()), None).await.unwrap();
        }
        let whiteout = create(ROOT, "whiteout", node(FileKind::CharDevice, 0));
        as_user(&squashed, 0, whiteout, None).await.unwrap();
        // A directory that passes on a group that the caller is not in.
        let made = as_user(&plain, 0, create(ROOT, "d", node(FileKind::Directory, 0o755)), None);
        let Ok(OpReply::Created { leased, .. }) = made.await else { panic!() };
        let (dir, mode) = (leased.attr.ino, Some(0o2777));
        let set = SetAttr { mode, gid: Some(7), ..no_change() };
        as_user(&plain, 0, Op::SetAttr { ino: dir, set }, None).await.unwrap();
        let file = create(dir, "f", node(FileKind::Regular, 0o2755));
        let Ok(OpReply::Created { leased, .. }) = as_user(&squashed, 0, file, None).await else {
            panic!()
        };
        assert_eq!((leased.attr.gid, leased.attr.mode), (7, 0o755));
        let ino = leased.attr.ino;
        let set = SetAttr { mode: Some(0o2755), judged_by: NOBODY, ..no_change() };
        let changed = as_user(&squashed, 0, Op::SetAttr { ino, set }, None).await;
        let Ok(OpReply::Attr { leased }) = changed else { panic!("{changed:?}") };
        assert_eq!(leased.attr.mode, 0o755);
        // In its own group it may.
        let own = create(ROOT, "own", node(FileKind::Regular, 0o2755));
        let Ok(OpReply::Created { leased, .. }) = as_user(&squashed, 0, own, None).await else {
            panic!()
        };
        assert_eq!((leased.attr.gid, leased.attr.mode), (NOBODY, 0o2755));
    });
}

#[test]
fn squashed_node_sets_the_times_of_others_files_to_now_only() {
    run(|bed| async move {
        let (plain, squashed) = clients(&bed).await;
        let file = Op::Create {
            dir: ROOT,
            name: name("f"),
            node: NewNode::plain(FileKind::Regular, 0o666, 0),
            want: Rights::empty(),
        };
        let Ok(OpReply::Created { leased, .. }) = as_user(&plain, 1000, file, None).await else {
            panic!()
        };
        let ino = leased.attr.ino;
        let at = Some(SetTime::At { time: Timestamp { seconds: 5, nanos: 0 } });
        let chosen = SetAttr { mtime: at, judged_by: 1000, ..no_change() };
        let refused = as_user(&squashed, 0, Op::SetAttr { ino, set: chosen }, None).await;
        assert_eq!(refused.unwrap_err(), Fault::NotPermitted);
        let now = SetAttr { mtime: Some(SetTime::Now {}), judged_by: 1000, ..no_change() };
        as_user(&squashed, 0, Op::SetAttr { ino, set: now }, None).await.unwrap();
    });
}

/// SEMANTICS 6.3.
#[test]
fn lost_list_ends_no_session_and_a_revocation_does() {
    run(|bed| async move {
        let (keys, next) = keys();
        bed.ask_for(keys).await;
        let plain = client(&bed, "plain", 1);
        plain.connect(ClientId(0)).await.unwrap();
        *next.borrow_mut() = Some(KeyRing { allowed: Allowed::default(), ..ring(false) });
        bed.sleep(Duration::from_secs(1)).await;
        plain.call(Op::Renew {}).await.unwrap();
        assert!(bed.logged("no longer in the list of allowed keys"));
        *next.borrow_mut() = Some(ring(true));
        bed.sleep(Duration::from_secs(1)).await;
        assert!(plain.exchange(plain.request(0, vec![Op::Renew {}])).await.is_none());
        assert!(bed.logged("its node's keys are revoked"), "{:?}", bed.log.borrow());
    });
}
