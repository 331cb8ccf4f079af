//! Operations of one directory that wait for its gate and go together.

use commitment::{Counts, Protocol};
use redbud_mds::JointStatus;
use types::*;

use crate::bed::*;

/// What a client does to a directory.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Makes a directory of this name, as a user of its own.
    Make(&'static str),
    /// Removes the directory of this name.
    Remove(&'static str),
    /// Gives a file this name, too.
    Link(Ino, &'static str),
    /// Takes this name from a file.
    Unlink(&'static str),
}

/// What came of it: the number of the inode, if the reply has it.
type Came = Result<Option<Ino>, Fault>;

async fn take(c: Client, dir: Ino, (nth, step): (u32, Step)) -> Came {
    match step {
        Step::Make(text) => c.mkdir_as(2000 + nth, dir, text).await.map(Some),
        Step::Remove(text) => c.rmdir(dir, text).await.map(|()| None),
        Step::Link(ino, text) => c.link(ino, dir, text).await.map(|attr| Some(attr.ino)),
        Step::Unlink(text) => c.unlink(dir, text).await.map(|attr| Some(attr.ino)),
    }
}

async fn clients(bed: &Bed, count: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for nth in 0..count {
        clients.push(bed.client(&format!("c{nth}")).await);
    }
    clients
}

/// All steps at once, each by a client of its own.
async fn at_once(bed: Bed, clients: Vec<Client>, dir: Ino, steps: Vec<Step>) -> Vec<Came> {
    let steps = clients.into_iter().zip((0..).zip(steps));
    let begun: Vec<_> = steps.map(|(c, step)| bed.env.spawn_join(take(c, dir, step))).collect();
    let mut came = Vec::new();
    for task in begun {
        came.push(task.await);
    }
    came
}

fn counts(joint: &JointStatus, protocol: Protocol) -> Counts {
    joint.counts.iter().find(|(name, _)| *name == protocol.name()).unwrap().1
}

/// A directory of shard 0 whose new directories go to shard 1. It has an empty and a full one
/// there. The file `f` of shard 1 is `g` here, too.
async fn furnish(c: &Client) -> (Ino, Ino) {
    let dir = c.mkdir_on(0, ROOT, "dir").await;
    c.mkdir_on(1, dir, "empty").await;
    let full = c.mkdir_on(1, dir, "full").await;
    let file = c.file(full, "f").await.unwrap();
    c.link(file, dir, "g").await.unwrap();
    (dir, file)
}

fn steps(file: Ino) -> Vec<Step> {
    use Step::{Link, Make, Remove, Unlink};
    vec![
        Make("first"),
        Make("a"),
        Remove("empty"),
        Make("b"),
        Remove("full"),
        Link(file, "h"),
        Make("a"),
        Unlink("g"),
        Remove("gone"),
        Link(file, "full"),
        Make("c"),
        Unlink("full"),
    ]
}

/// Is this what came of [`steps`], and is it what is there?
async fn verify(c: &Client, (dir, file): (Ino, Ino), came: &[Came]) {
    let made = |nth: usize| came[nth].unwrap().unwrap();
    let text = format!("{came:?}");
    for (nth, name) in [(0, "first"), (3, "b"), (10, "c")] {
        assert_eq!(c.lookup(dir, name).await, Ok(Some(made(nth))), "{text}");
        let attr = c.attr(made(nth)).await.unwrap();
        assert_eq!((attr.uid, attr.nlink), (2000 + nth as u32, 2), "{text}");
        assert_eq!(attr.ino.shard(), ShardId(1));
        c.file(attr.ino, "inside").await.unwrap();
    }
    // One of two has made it.
    let a: Vec<Ino> =
        [1, 6].into_iter().filter_map(|nth: usize| came[nth].ok().flatten()).collect();
    assert_eq!(a.len(), 1, "{text}");
    assert!([came[1], came[6]].contains(&Err(Fault::Exists)), "{text}");
    assert_eq!(c.lookup(dir, "a").await, Ok(Some(a[0])));
    assert_eq!(came[2], Ok(None));
    assert_eq!(came[4], Err(Fault::NotEmpty));
    assert_eq!((came[5], came[7]), (Ok(Some(file)), Ok(Some(file))), "{text}");
    assert_eq!((came[8], came[9]), (Err(Fault::NotFound), Err(Fault::Exists)), "{text}");
    assert_eq!(came[11], Err(Fault::IsDirectory));
    for gone in ["empty", "g"] {
        assert_eq!(c.lookup(dir, gone).await, Ok(None));
    }
    assert_eq!(c.links(file).await, 2);
    // `.`, its name, and `first`, `a`, `b`, `c`, `full`.
    assert_eq!(c.links(dir).await, 7);
}

#[test]
fn waiting_operations_go_together_and_each_has_its_own_answer() {
    for protocol in Protocol::ALL {
        for batch in [64, 4, 1] {
            run_in_batches(1, 2, (protocol, batch), |bed| async move {
                let c = bed.client("c").await;
                let (dir, file) = furnish(&c).await;
                let before = bed.joint(0);
                let (steps, all) = (steps(file), clients(&bed, 12).await);
                let came = at_once(bed.clone(), all, dir, steps).await;
                verify(&c, (dir, file), &came).await;
                bed.env.sleep(Duration::from_secs(1)).await;
                let (after, name) = (bed.joint(0), protocol.name());
                let spent = |of: fn(&Counts) -> u64| {
                    of(&counts(&after, protocol)) - of(&counts(&before, protocol))
                };
                let (committed, aborted) = (spent(|it| it.committed), spent(|it| it.aborted));
                assert_eq!(after.open, 0);
                match batch {
                    // Nothing but the removal of the full directory is refused by the worker.
                    1 => assert_eq!((committed, aborted), (7, 1), "{name}"),
                    4 => assert!((2..7).contains(&committed) && aborted <= 1, "{name} {committed}"),
                    _ => assert!(committed <= 3 && aborted <= 1, "{name} {committed} {aborted}"),
                }
            });
        }
    }
}

#[test]
fn one_phase_in_batches_of_sixteen_writes_a_quarter_of_a_record_for_each() {
    const CLIENTS: usize = 16;
    /// Of each client. So there is always a batch that waits.
    const PROCESSES: usize = 3;
    const EACH: usize = 8;
    run_in_batches(2, 2, (Protocol::OnePhase, 16), |bed| async move {
        let c = bed.client("c").await;
        c.set_layout(ROOT, "mds=1").await.unwrap();
        // The servers have reached each other after that.
        c.mkdir(ROOT, "first").await.unwrap();
        let all = clients(&bed, CLIENTS).await;
        let mut tasks = Vec::new();
        for process in 0..CLIENTS * PROCESSES {
            let c = all[process % CLIENTS].clone();
            tasks.push(bed.env.spawn_join(async move {
                for number in 0..EACH {
                    c.mkdir(ROOT, &format!("{process}.{number}")).await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await;
        }
        bed.env.sleep(Duration::from_secs(2)).await;
        let (here, there) = (bed.joint(0), bed.joint(1));
        let mut all = counts(&here, Protocol::OnePhase);
        all.add(&counts(&there, Protocol::OnePhase));
        let operations = here.operations as f64;
        assert_eq!(here.operations, (1 + CLIENTS * PROCESSES * EACH) as u64);
        let (forced, messages) = (all.forced as f64 / operations, all.messages as f64 / operations);
        println!("{forced:.3} forced records, {messages:.3} messages");
        assert!(forced <= 0.25 && messages <= 0.1, "{forced} {messages} {all:?}");
    });
}

#[test]
fn batch_has_one_worker_and_directories_still_take_turns() {
    run(3, 3, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        c.set_layout(ROOT, "mds=spread").await.unwrap();
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
        let all = clients(&bed, names.len()).await;
        let came = at_once(bed.clone(), all, ROOT, names.map(Step::Make).into()).await;
        let mut of = [0; 3];
        for made in came {
            of[usize::from(made.unwrap().unwrap().shard().0)] += 1;
        }
        assert_eq!(of, [4; 3]);
        let counts = counts(&bed.joint(0), Protocol::OnePhase);
        assert!(counts.committed < 8, "{counts:?}");
    });
}

/// Kills `victims` so many microseconds after all have begun, and once more after they are back;
/// every client gets its own right answer.
fn crash(protocol: Protocol, victims: &'static [u8], at: u64, again: Option<u64>) {
    run(at, 2, protocol, |bed| async move {
        let c = bed.client("c").await;
        let (dir, file) = furnish(&c).await;
        let (steps, all) = (steps(file), clients(&bed, 12).await);
        let came = bed.env.spawn_join(at_once(bed.clone(), all, dir, steps));
        bed.env.sleep(Duration::from_micros(at)).await;
        for killed in [Some(0), again].into_iter().flatten() {
            bed.env.sleep(Duration::from_micros(killed)).await;
            victims.iter().for_each(|&shard| bed.kill(shard));
            bed.env.sleep(Duration::from_millis(50)).await;
            for &shard in victims {
                bed.start(shard).await;
            }
        }
        let came = came.await;
        verify(&c, (dir, file), &came).await;
        // Nothing is left open.
        bed.env.sleep(Duration::from_secs(10)).await;
        assert!((0..2).all(|shard| bed.joint(shard).open == 0));
        assert!(!bed.logged("does not answer"), "{:#?}", bed.log);
    });
}

#[test]
fn batches_end_though_servers_are_killed_at_any_moment() {
    for protocol in Protocol::ALL {
        let step = if protocol == Protocol::OnePhase { 290 } else { 970 };
        for victims in [&[0][..], &[1], &[0, 1]] {
            for at in (0..4800).step_by(step) {
                // Every other one is killed again while it recovers.
                let again = (at / step as u64 % 2 == 1).then_some(at % 1700);
                crash(protocol, victims, at, again);
            }
        }
    }
}
