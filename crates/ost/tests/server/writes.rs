//! Writes, reads, holes, and what is refused of them.

use std::cell::Cell;
use std::rc::Rc;

use proto::capability::{READ, WRITE};
use proto::ost::{IO_BLOCKS_MAX, ObjectRun, Op, OpReply, Statement};
use redbud_ost::server::MEMORY_MIN;
use types::limits::BLOCK;
use types::{Fault, ObjectId};

use super::bed::run;

#[test]
fn written_blocks_are_read_with_holes_around_them() {
    run(1, |bed| async move {
        let client = bed.client("a", 7).await;
        client.write(5, 10, 3, 1, false).await.unwrap();
        client.write(5, 20, 256, 1, true).await.unwrap();
        client.write(5, 11, 1, 2, false).await.unwrap();
        assert!(client.has(5, 10, 1, 1).await && client.has(5, 11, 1, 2).await);
        assert!(client.has(5, 12, 1, 1).await && client.has(5, 20, 256, 1).await);
        assert!(client.has(5, 13, 7, 0).await && client.has(6, 0, 9, 0).await, "holes");

        let runs = |from, max| Op::Runs { may: client.may(5, READ), from, max };
        let all = client.call(runs(0, 9), false).await.unwrap();
        let run = |block, len| ObjectRun { block, len };
        assert_eq!(all, OpReply::Runs { runs: vec![run(10, 3), run(20, 256)], end: true });
        let OpReply::Runs { runs: first, end: false } =
            client.call(runs(0, 1), false).await.unwrap()
        else {
            panic!("there is more");
        };
        assert_eq!(first, [run(10, 3)]);

        let punch = |from, to| Op::Punch { may: client.may(5, WRITE), from, to };
        client.call(punch(11, 30), false).await.unwrap();
        assert!(client.has(5, 11, 19, 0).await && client.has(5, 30, 9, 1).await);
        client.call(punch(12, u64::MAX), true).await.unwrap();
        assert!(client.has(5, 10, 1, 1).await && client.has(5, 11, 250, 0).await);

        let OpReply::Target { info } = client.call(Op::Statfs {}, false).await.unwrap() else {
            panic!("another reply");
        };
        assert!(info.free < info.blocks && info.checksums);
        client.session.close().await;
    });
}

#[test]
fn what_is_not_right_is_refused_and_changes_nothing() {
    run(2, |bed| async move {
        let client = bed.client("a", 7).await;
        client.write(5, 0, 4, 1, false).await.unwrap();
        let may = client.may(5, WRITE);
        let write = |block, bytes: usize, sums: Vec<u32>| Op::Write {
            may,
            block,
            data: vec![1; bytes].into(),
            sums,
            room: Statement::default(),
        };
        let far = u64::MAX - 1;
        let read = |block, len| Op::Read { may: client.may(5, READ), block, len };
        let punch = |from, to| Op::Punch { may, from, to };
        for (op, fault) in [
            (write(0, 0, vec![]), Fault::Invalid),
            (write(0, BLOCK - 1, vec![0]), Fault::Invalid),
            (write(0, BLOCK, vec![]), Fault::Invalid),
            (write(0, BLOCK, vec![0; 2]), Fault::Invalid),
            (write(0, 257 * BLOCK, vec![0; 257]), Fault::Invalid),
            (write(far, BLOCK, vec![0]), Fault::Invalid),
            (write(1 << 52, BLOCK, vec![0]), Fault::Invalid),
            (write(0, BLOCK, vec![0]), Fault::Corrupt),
            (read(0, 0), Fault::Invalid),
            (read(0, IO_BLOCKS_MAX + 1), Fault::Invalid),
            (read(far, 4), Fault::Invalid),
            (punch(4, 4), Fault::Invalid),
            (punch(4, 3), Fault::Invalid),
            (punch(far, u64::MAX), Fault::Invalid),
            (punch(0, far), Fault::Invalid),
            (Op::Runs { may: client.may(5, READ), from: 0, max: 0 }, Fault::Invalid),
            (Op::Status {}, Fault::NotPermitted),
        ] {
            let text = format!("{op:?}").chars().take(200).collect::<String>();
            assert_eq!(client.call(op, false).await, Err(fault), "{text}");
        }
        assert!(bed.has_logged(&["object 5", "checksums"]), "{:?}", bed.log.borrow());
        assert!(client.has(5, 0, 4, 1).await);
        assert_eq!(bed.status("corrupt_writes").await, 1);
        // A tool has a session for questions only.
        let asked = bed.ask(client.write_op(5, 0, 1, 3)).await;
        assert!(format!("{asked:?}").contains("NotPermitted"), "{asked:?}");
    });
}

#[test]
fn full_target_refuses_more_and_has_room_again_after_a_destroy() {
    run(3, |bed| async move {
        let client = bed.client("a", 7).await;
        let mut written = 0;
        loop {
            match client.write(1, written * 256, 256, 1, false).await {
                Ok(()) => written += 1,
                Err(fault) => {
                    assert_eq!(fault, Fault::NoSpace);
                    break;
                }
            }
        }
        assert!(written > 10, "{written}");
        assert_eq!(client.write(2, 0, 256, 1, true).await, Err(Fault::NoSpace));
        assert!(client.has(1, (written - 1) * 256, 256, 1).await && client.has(2, 0, 9, 0).await);
        let objects = vec![ObjectId(1), ObjectId(99)];
        client.serve(|may| Op::Destroy { may, objects }).await.unwrap();
        client.write(2, 0, 256, 1, true).await.unwrap();
        assert!(client.has(2, 0, 256, 1).await && client.has(1, 0, 256, 0).await);
    });
}

/// 40 writes of 1 MiB want thirteen times the memory that there is for them: the content of the
/// others stays on the way.
#[test]
fn requests_beyond_the_memory_wait_for_their_turn() {
    run(4, |bed| async move {
        bed.memory.set(MEMORY_MIN);
        bed.restart().await;
        let client = bed.client("a", 7).await;
        let done = Rc::new(Cell::new(0));
        bed.disk.stall(true);
        for index in 0..40 {
            let (client, done) = (client.clone(), done.clone());
            bed.env.spawn(async move {
                client.write(1 + index % 4, index / 4 * 256, 256, 1, false).await.unwrap();
                assert!(client.has(1 + index % 4, index / 4 * 256, 256, 1).await);
                done.set(done.get() + 1);
            });
        }
        bed.wait(500).await;
        let for_reads = MEMORY_MIN as u64 / 4;
        assert_eq!(bed.status("memory_free").await, for_reads);
        let writes = (MEMORY_MIN as u64 - for_reads) >> 20;
        assert_eq!(bed.status("writes_in_flight").await, writes);
        assert_eq!(bed.status("in_flight").await, writes + 1, "and the question");
        bed.disk.stall(false);
        bed.until("all are written and read", || done.get() == 40).await;
        assert_eq!(bed.status("memory_free").await, MEMORY_MIN as u64);
    });
}

/// Six answers of 1 MiB would exceed a frame, and writes that wait for each other's memory would
/// wait for ever. The answer to a change is kept, and would keep memory for what was read.
#[test]
fn request_with_several_reads_or_writes_or_both_is_refused() {
    run(60, |bed| async move {
        let client = bed.client("a", 7).await;
        client.write(5, 0, 256, 1, false).await.unwrap();
        let read = || Op::Read { may: client.may(5, READ), block: 0, len: 256 };
        let many = client.call_all((0..6).map(|_| read()).collect(), false).await;
        assert_eq!(many.err(), Some(Fault::TooBig));
        let both = vec![read(), client.write_op(5, 0, 256, 2)];
        assert_eq!(client.call_all(both, false).await.err(), Some(Fault::TooBig));
        let punch = Op::Punch { may: client.may(5, WRITE), from: 0, to: 256 };
        let both = vec![punch, read()];
        assert_eq!(client.call_all(both, false).await.err(), Some(Fault::TooBig));
        assert!(client.has(5, 0, 256, 1).await, "nothing was changed");
    });
}
