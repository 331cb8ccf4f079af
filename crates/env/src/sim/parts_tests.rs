//! Shared parts that are sent, and reads straight into buffers.

use std::rc::Rc;

use types::Duration;

use super::*;
use crate::Part;

#[test]
fn parts_arrive_in_buffers_whole_and_in_order() {
    for seed in 0..20 {
        SimWorld::new(seed).run(|env| async move {
            let listener = env.listen("server:1").await.unwrap();
            let near = env.connect("server:1").await.unwrap();
            let far = listener.accept().await.unwrap();
            let large: Rc<Vec<u8>> = Rc::new((0..600_000u32).map(|at| (at * 7) as u8).collect());
            let parts = vec![
                Part::from(vec![1, 2, 3]),
                Part::new(large.clone(), 5..5),
                Part::new(large.clone(), 5..large.len()),
            ];
            let expected: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            let len = expected.len();
            env.spawn(async move {
                let mut start = 0;
                while start < len {
                    start += near.write_parts(parts.clone(), start).await.unwrap();
                }
            });
            let (mut buf, mut at, mut dropped) = (env.buffer(len), 0, 0);
            while at < len {
                // A read whose future is dropped loses nothing.
                let read = far.read_into(env.buffer(len), 9..len);
                dropped += u32::from(env.timeout(Duration::ZERO, read).await.is_none());
                let read;
                (read, buf) = far.read_into(buf, at..len).await;
                at += match read.unwrap() {
                    0 => panic!("the stream has ended"),
                    read => read,
                };
            }
            assert!(buf[..] == expected[..] && dropped > 0);
            assert_eq!(far.read_into(buf, 0..1).await.0.unwrap(), 0);
        });
    }
}
