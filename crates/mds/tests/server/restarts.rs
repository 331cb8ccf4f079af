//! Many restarts of the server, each with clients that replay.

use proto::mds::*;
use types::*;

use crate::bed::*;
use crate::recovery::replay;

const ROOT: Ino = Ino::ROOT;

/// The number of the chunk in which an inode was created.
fn chunk(ino: Ino) -> u64 {
    ino.0 >> 24
}

/// A restart loses a new directory with a file, and a link and a removal, which name no slot.
/// Clients replay them. No restart uses up a number for that.
#[test]
fn hundreds_of_restarts_with_replays_use_up_no_directory_numbers() {
    const RESTARTS: u64 = 200;
    run(|bed| async move {
        let clients = [bed.client("a").await, bed.client("b").await];
        let mut places = Vec::new();
        for (client, who) in clients.iter().zip(["a", "b"]) {
            let dir = client.dir(ROOT, who).await;
            places.push((dir, client.file(dir, "file").await));
            client.sync().await;
        }
        let mut last = Ino::NONE;
        for n in 0..RESTARTS {
            let mut lost = Vec::new();
            for (client, &(d, file)) in clients.iter().zip(&places) {
                let text = |what: &str| name(&format!("{what}{n}"));
                let made = node(FileKind::Directory, 0o755);
                let want = Rights::empty();
                let dir = Op::Create { dir: d, name: text("dir"), node: made, want };
                let link = Op::Link { ino: file, dir: d, name: text("link"), tmpfile: false };
                let request = client.request(1, vec![dir, link]);
                let reply = client.exchange(request.clone()).await.unwrap();
                let Ok(OpReply::Created { leased, .. }) = &reply.results[0] else {
                    panic!("{reply:?}")
                };
                let within = leased.attr.ino;
                let made = node(FileKind::Regular, 0o644);
                let create = Op::Create { dir: within, name: text("file"), node: made, want };
                let remove = Op::Unlink { dir: d, name: text("link"), unused: None };
                let second = client.request(2, vec![create, remove]);
                let answer = client.exchange(second.clone()).await.unwrap();
                let Ok(OpReply::Created { leased, .. }) = &answer.results[0] else {
                    panic!("{answer:?}")
                };
                last = leased.attr.ino;
                lost.push([(request, reply), (second, answer)]);
            }
            bed.restart().await;
            for client in &clients {
                assert_eq!(client.connect(client.id()).await.unwrap().state, RECOVERED);
            }
            // The second client is the first to replay.
            for (client, requests) in clients.iter().zip(&lost).rev() {
                for (request, reply) in requests {
                    let again = client.exchange(replay(request, reply)).await.unwrap();
                    assert!(again.results.iter().all(Result::is_ok), "{n}: {again:?}");
                }
            }
            for client in &clients {
                client.call(Op::ReclaimDone {}).await.unwrap();
            }
            clients[0].sync().await;
        }
        // Each directory has one chunk: the root, the first two, and two of each round.
        assert_eq!(chunk(last), 3 + 2 * RESTARTS, "{last}");
        bed.check().await;
    });
}
