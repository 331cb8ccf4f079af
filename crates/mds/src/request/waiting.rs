//! How long a request waits for other clients. Its answer says so, since the client's estimate of
//! the service time leaves that out (PROTOCOLS 3.12).

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use env::Env;
use types::Duration;

/// The output of `wait`, whose time is added to `sum`. A wait that is over at once reads no clock.
pub(super) async fn timed<T>(env: &Env, sum: &Cell<Duration>, wait: impl Future<Output = T>) -> T {
    let mut wait = pin!(wait);
    let mut begun = None;
    let output = poll_fn(|cx| {
        let polled = wait.as_mut().poll(cx);
        if matches!(polled, Poll::Pending) {
            begun.get_or_insert_with(|| env.now());
        }
        polled
    })
    .await;
    if let Some(begun) = begun {
        sum.set(sum.get() + env.now().since(begun));
    }
    output
}
