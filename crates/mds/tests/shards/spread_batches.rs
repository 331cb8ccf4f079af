//! Creations of a spread directory that wait at their coordinator and go together.

use std::rc::Rc;

use commitment::{Counts, Protocol};
use proto::mds::{Leased, NewNode, Op, OpReply, Principal};
use proto::slots::SlotClass;
use proto::wire::Bytes;
use redbud_mds::BATCH_MAX;
use session::client::Call;
use types::*;

use crate::bed::*;

/// Rights that a client wants of a file that it creates and opens.
const OPENED: Rights = Rights::ATTR.union(Rights::OPEN).union(Rights::DATA_X);
const ACL: &[u8] = b"system.posix_acl_default";

/// The result of a creation.
type Came = Result<Leased, Fault>;

/// Has shard 1 make a file in a directory of shard 0, and opens and closes it, as the `nth` user.
async fn make(c: Client, dir: Ino, (nth, text): (u32, String)) -> Came {
    let principal = Principal { uid: 2000 + nth, gid: 3000 + nth, groups: Vec::new() };
    let node = NewNode::plain(FileKind::Regular, 0o666, 0o022);
    let ops = vec![Op::Create { dir, name: name(&text), node, want: OPENED }];
    let call = Call { ops, principal, sync: false, class: SlotClass::Ordinary };
    let leased = match c.sessions[1].call(call).await?.results[0].clone()? {
        OpReply::Created { leased, .. } => leased,
        reply => panic!("{reply:?}"),
    };
    let (ino, seq, give) = (leased.attr.ino, leased.seq, Rights::all());
    c.call(ino, Op::Return { ino, seq, give, still_open: false, range: None }).await?;
    Ok(leased)
}

async fn clients(bed: &Bed, count: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for nth in 0..count {
        clients.push(bed.client(&format!("c{nth}")).await);
    }
    clients
}

/// All names at once, each by a client of its own.
async fn at_once(bed: Bed, clients: Vec<Client>, dir: Ino, names: Vec<String>) -> Vec<Came> {
    let each = clients.into_iter().zip((0..).zip(names));
    let begun: Vec<_> = each.map(|(c, it)| bed.env.spawn_join(make(c, dir, it))).collect();
    let mut came = Vec::new();
    for task in begun {
        came.push(task.await);
    }
    came
}

/// Forced records and messages of both servers so far.
fn spent(bed: &Bed) -> Counts {
    let of = |shard| {
        let all = bed.joint(shard).counts;
        all.iter().find(|(name, _)| *name == bed.protocol.name()).unwrap().1
    };
    let mut all = of(0);
    all.add(&of(1));
    all
}

/// A spread directory of shard 0 that has the file `there`.
async fn furnish(c: &Client) -> Ino {
    let dir = c.mkdir_on(0, ROOT, "dir").await;
    c.set_layout(dir, "spread=on").await.unwrap();
    make(c.clone(), dir, (90, "there".into())).await.unwrap();
    dir
}

fn names() -> Vec<String> {
    ["first", "a", "b", "there", "c", "a", "d", "e", "f", "g"].map(String::from).into()
}

/// Is this what came of [`names`], and is it what is there? `granted`: nobody was killed.
async fn verify(c: &Client, dir: Ino, came: &[Came], granted: bool) {
    let text = format!("{came:?}");
    let (names, mut lost) = (names(), Vec::new());
    for (nth, (text, came)) in names.iter().zip(came).enumerate() {
        match came {
            Ok(leased) => {
                let ino = leased.attr.ino;
                assert_eq!(ino.shard(), ShardId(1));
                assert_eq!(c.lookup(dir, text).await, Ok(Some(ino)));
                let attr = c.attr(ino).await.unwrap();
                let user = (2000 + nth as u32, 3000 + nth as u32);
                assert_eq!((attr.uid, attr.gid, attr.mode, attr.nlink), (user.0, user.1, 0o644, 1));
                assert!(!granted || leased.rights.contains(OPENED), "{leased:?}");
            }
            Err(fault) => {
                assert_eq!(*fault, Fault::Exists);
                lost.push(nth);
            }
        }
    }
    // The name that was there, and one of two creations of `a`.
    assert!([vec![1, 3], vec![3, 5]].contains(&lost), "{text}");
    assert_eq!(c.list(dir).await.len(), names.len() - 1);
}

#[test]
fn waiting_creations_go_together_and_each_has_its_own_answer() {
    for protocol in Protocol::ALL {
        for batch in [64, 4, 1] {
            run_in_batches(71, 2, (protocol, batch), |bed| async move {
                let c = bed.client("c").await;
                let dir = furnish(&c).await;
                let before = spent(&bed);
                let all = clients(&bed, names().len()).await;
                let came = at_once(bed.clone(), all, dir, names()).await;
                verify(&c, dir, &came, true).await;
                bed.env.sleep(Duration::from_secs(1)).await;
                let after = spent(&bed);
                let committed = after.committed - before.committed;
                let aborted = after.aborted - before.aborted;
                match batch {
                    1 => assert_eq!((committed, aborted), (8, 2), "{protocol:?}"),
                    4 => assert!((3..=6).contains(&(committed + aborted)), "{committed} {aborted}"),
                    // The first by itself, the second creation of `a`, and all others.
                    _ => assert!(committed + aborted <= 3, "{committed} {aborted}"),
                }
            });
        }
    }
}

/// Forced records and messages of a creation, with this many clients in one spread directory.
fn cost_of_creation(clients_count: usize, batch: usize) -> (f64, f64) {
    const EACH: usize = 12;
    let found = Rc::new(std::cell::Cell::new((0.0, 0.0)));
    let counts = found.clone();
    run_in_batches(72, 2, (Protocol::OnePhase, batch), |bed| async move {
        let c = bed.client("c").await;
        let dir = furnish(&c).await;
        bed.env.sleep(Duration::from_secs(2)).await;
        let before = spent(&bed);
        let tasks: Vec<_> = clients(&bed, clients_count)
            .await
            .into_iter()
            .enumerate()
            .map(|(client, c)| {
                bed.env.spawn_join(async move {
                    for number in 0..EACH {
                        let it = (client as u32, format!("{client}.{number}"));
                        make(c.clone(), dir, it).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        bed.env.sleep(Duration::from_secs(2)).await;
        let (after, made) = (spent(&bed), (clients_count * EACH) as f64);
        let forced = (after.forced - before.forced) as f64 / made;
        let messages = (after.messages - before.messages) as f64 / made;
        println!("batches of {batch}: {forced:.3} forced records, {messages:.3} messages");
        counts.set((forced, messages));
    });
    found.get()
}

#[test]
fn creation_of_sixteen_clients_writes_less_than_a_record() {
    assert_eq!(cost_of_creation(16, 1), (3.0, 1.0));
    let (forced, messages) = cost_of_creation(16, BATCH_MAX);
    assert!(forced <= 0.9 && messages <= 0.3, "{forced} {messages}");
    // One that is alone costs what it costs without batches.
    assert_eq!(cost_of_creation(1, BATCH_MAX), (3.0, 1.0));
}

#[test]
fn batch_recalls_what_a_client_caches_of_the_directory_once() {
    run(73, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let dir = furnish(&c).await;
        let (before, all) = (spent(&bed), clients(&bed, 10).await);
        let caches = c.clone();
        let reader = bed.env.spawn_join(async move {
            for number in 0..200 {
                let op = Op::Lookup {
                    dir,
                    name: name(&format!("x{number}")),
                    want: Rights::empty(),
                    want_dir: Rights::NAMES | Rights::ATTR,
                };
                caches.call(dir, op).await.unwrap();
            }
        });
        let texts = (0..10).map(|nth| format!("f{nth}")).collect();
        let came = at_once(bed.clone(), all, dir, texts).await;
        assert!(came.iter().all(Result::is_ok), "{came:?}");
        let batches = spent(&bed).committed - before.committed;
        reader.await;
        assert!(batches <= 3 && (1..=batches).contains(&c.recalls()), "{batches} {}", c.recalls());
    });
}

/// A default ACL that names so many users.
fn acl(users: u32) -> Bytes {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    let mut entry = |tag: u16, id: u32| {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(6_u16.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    };
    entry(1, u32::MAX);
    (0..users).for_each(|user| entry(2, 5000 + user));
    [4, 16, 32].into_iter().for_each(|tag| entry(tag, u32::MAX));
    Bytes(bytes)
}

#[test]
fn files_that_inherit_much_are_made_though_not_all_together() {
    for protocol in Protocol::ALL {
        run(74, 2, protocol, |bed| async move {
            let c = bed.client("c").await;
            let dir = furnish(&c).await;
            let inherit = async |users| {
                let name = Bytes(ACL.to_vec());
                let value = acl(users);
                let op = Op::SetXattr { ino: dir, name, value, flags: 0, kill_setgid: false };
                c.call(dir, op).await.unwrap();
            };
            // Answers of 8 KiB each: an entry has room for some.
            inherit(1000).await;
            let (texts, all): (Vec<String>, _) = (names(), clients(&bed, 10).await);
            let came = at_once(bed.clone(), all.clone(), dir, texts).await;
            assert_eq!(came.iter().filter(|it| it.is_ok()).count(), 8, "{came:?}");
            for leased in came.iter().flatten() {
                let name = Bytes(b"system.posix_acl_access".to_vec());
                let op = Op::GetXattr { ino: leased.attr.ino, name, want: Rights::empty() };
                match c.call(leased.attr.ino, op).await {
                    Ok(OpReply::Bytes { bytes, .. }) => assert!(bytes.0.len() > 8000),
                    reply => panic!("{reply:?}"),
                }
            }
            // The primary makes a file whose inherited attributes are too large for an entry.
            inherit(2500).await;
            let texts = vec!["x".into(), "y".into(), "z".into()];
            let came = at_once(bed.clone(), all, dir, texts).await;
            assert!(came.iter().all(|it| *it == Err(Fault::Moved)), "{came:?}");
        });
    }
}

/// Kills `victims` so many microseconds after all have begun, and once more after they are back;
/// every client gets its own right answer.
fn crash(
    (protocol, batch): (Protocol, usize),
    victims: &'static [u8],
    at: u64,
    again: Option<u64>,
) {
    run_in_batches(at, 2, (protocol, batch), |bed| async move {
        let c = bed.client("c").await;
        let dir = furnish(&c).await;
        let all = clients(&bed, names().len()).await;
        let before = c.inodes(1).await;
        let came = bed.env.spawn_join(at_once(bed.clone(), all, dir, names()));
        for killed in [Some(at), again].into_iter().flatten() {
            bed.env.sleep(Duration::from_micros(killed)).await;
            victims.iter().for_each(|&shard| bed.kill(shard));
            bed.env.sleep(Duration::from_millis(50)).await;
            for &shard in victims {
                bed.start(shard).await;
            }
        }
        let came = came.await;
        verify(&c, dir, &came, false).await;
        // Nothing is left open, and no inode without a name.
        bed.env.sleep(Duration::from_secs(10)).await;
        assert!((0..2).all(|shard| bed.joint(shard).open == 0));
        assert_eq!(c.inodes(1).await, before + 8);
        assert!(!bed.logged("does not answer"), "{:#?}", bed.log);
    });
}

#[test]
fn batches_of_creations_end_though_servers_are_killed_at_any_moment() {
    for protocol in Protocol::ALL {
        let step = if protocol == Protocol::OnePhase { 230 } else { 710 };
        for victims in [&[0][..], &[1], &[0, 1]] {
            for at in (100..4600).step_by(step) {
                // Every other one is killed again while it recovers.
                let nth = at / step as u64;
                let again = (nth % 2 == 1).then_some(at % 1700);
                // Behind a full batch the next one goes before it has ended.
                let batch = if nth.is_multiple_of(3) { 3 } else { BATCH_MAX };
                crash((protocol, batch), victims, at, again);
            }
        }
    }
}
