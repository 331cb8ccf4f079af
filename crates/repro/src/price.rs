//! What messages and changes cost the metadata server's processor on this machine, beside the price
//! in the repository ([`Price::MEASURED`]), which figures in virtual time take.
//!
//! Invariants:
//! - the server and the client of the changes are the processes that users run; each change is one
//!   request and its answer;
//! - messages and streams go over a socket of this host, one end of which is counted;
//! - processor time is the kernel's count, and each figure the least of the runs: what else the
//!   machine does only adds to it.

use std::future::Future;

use env::sim::Price;
use env::{DriverKind, Env, Stream};
use serde::Serialize;
use types::Duration;

use bench::contender::{Field, Kind, SetUp};
use bench::observe::Usage;
use bench::report::Columns;
use bench::works::{Sizes, WORKS, Work};
use bench::{BenchError, Res, failed, process};

/// Messages of a stream, or that go to and fro.
const MESSAGES: u64 = 20_000;
/// How large those are whose bytes are priced, and those without a payload.
const LARGE: usize = 64 << 10;
const SMALL: usize = 64;

/// A measurement of prices.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where and with what.
    pub set_up: SetUp,
    /// Files that are made and removed.
    pub files: u64,
    /// Rounds; the least price counts.
    pub runs: usize,
}

/// What this machine costs, in nanoseconds of processor time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Found {
    /// Of the server, for a request that makes a file.
    pub create: f64,
    /// The same that removes one.
    pub unlink: f64,
    /// Of one end of a connection, for a message without a payload that is sent or received.
    pub message: f64,
    /// For each KiB of a stream, at one end.
    pub kib: f64,
}

impl Found {
    /// As a price: a change is what a request costs beyond its two messages.
    pub fn price(&self) -> Price {
        let nanos = |value: f64| Duration::from_nanos(value.max(0.0).round() as u64);
        Price {
            message: nanos(self.message),
            kib: nanos(self.kib),
            change: nanos((self.create + self.unlink) / 2.0 - 2.0 * self.message),
        }
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For people: both prices, and one by the other.
    pub fn text(&self) -> String {
        let mut columns =
            Columns::new(&["processor time, us", "in the repository", "here", "ratio"]);
        let (known, here) = (Price::MEASURED, self.price());
        let rows = [
            ("a message, sent or received", known.message, here.message),
            ("each KiB of it", known.kib, here.kib),
            ("a change of the store", known.change, here.change),
        ];
        for (what, known, here) in rows {
            let [known, here] = [known, here].map(|time| time.as_nanos() as f64 / 1000.0);
            columns.row(vec![
                what.into(),
                format!("{known:.2}"),
                format!("{here:.2}"),
                format!("{:.2}", here / known),
            ]);
        }
        let micros = |nanos: f64| nanos / 1000.0;
        format!(
            "{}\nThe server's processor here: {:.1} us to make a file, {:.1} to remove one, messages included.\n",
            columns.text(),
            micros(self.create),
            micros(self.unlink)
        )
    }
}

/// Measures, telling `progress` each step.
///
/// # Errors
/// The step that failed and why; everything is taken away again.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Res<Found> {
    process::catch_interrupts();
    progress("messages and a stream over a socket of this host");
    let message = least(plan.runs, message)?;
    let kib = least(plan.runs, kib)?;
    progress("setting up");
    let set_up = SetUp { kinds: vec![Kind::Redbud], ..plan.set_up.clone() };
    let mut field = Field::set_up(&set_up)?;
    let sizes = Sizes { files: plan.files, entries: 0, stream: 0, depth: 1, random_millis: 0 };
    let mut of = |name: &str| {
        let work = named(name)?;
        let mut run = 0;
        least(plan.runs, || {
            let sample = work.turn(&mut field, &sizes, Kind::Redbud)?;
            let each = sample.server_cpu as f64 / sample.ops.max(1) as f64;
            run += 1;
            progress(&format!("run {run}/{}, {name}: {:.1} us", plan.runs, each / 1000.0));
            Ok(each)
        })
    };
    let (create, unlink) = (of("create-8")?, of("unlink-1")?);
    field.tear_down()?;
    Ok(Found { create, unlink, message, kib })
}

fn named(name: &str) -> Res<&'static Work> {
    let found = WORKS.iter().find(|work| work.name == name);
    found.map_or_else(|| failed("choosing works", format!("there is no {name}")), Ok)
}

/// The least of so many samples.
fn least(runs: usize, mut sample: impl FnMut() -> Res<f64>) -> Res<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..runs {
        least = least.min(sample()?);
    }
    Ok(least)
}

/// What a message without a payload costs one end: it is sent, and the answer is read, in turns.
fn message() -> Res<f64> {
    let spent = connected(|env, near, far| async move {
        let its = env.clone();
        let there = env.spawn_join(async move {
            for _ in 0..MESSAGES {
                drain(&far, SMALL as u64).await?;
                send(&its, &far, SMALL, 1).await?;
            }
            Ok::<_, std::io::Error>(far)
        });
        for _ in 0..MESSAGES {
            send(&env, &near, SMALL, 1).await?;
            drain(&near, SMALL as u64).await?;
        }
        there.await.map(drop)
    })?;
    // Each goes to and fro, and has two ends.
    Ok(spent as f64 / MESSAGES as f64 / 4.0)
}

/// What each KiB of a stream costs one end.
fn kib() -> Res<f64> {
    let (large, small) = (stream(LARGE)?, stream(SMALL)?);
    let bytes = MESSAGES * (LARGE - SMALL) as u64;
    Ok(large.saturating_sub(small) as f64 * 1024.0 / bytes as f64 / 2.0)
}

/// Processor time of this process for a stream in pieces of so many bytes, both ends.
fn stream(piece: usize) -> Res<u64> {
    connected(move |env, near, far| async move {
        let reader =
            env.spawn_join(async move { drain(&far, MESSAGES * piece as u64).await.map(|()| far) });
        send(&env, &near, piece, MESSAGES).await?;
        reader.await.map(drop)
    })
}

/// Processor time of this process for what is done with the two ends of a connection.
fn connected<F>(work: impl FnOnce(Env, Stream, Stream) -> F + 'static) -> Res<u64>
where
    F: Future<Output = std::io::Result<()>> + 'static,
{
    let broken = |error: std::io::Error| BenchError(format!("a connection on this host: {error}"));
    let spent = env::run(DriverKind::Auto, move |env| async move {
        let listener = env.listen("127.0.0.1:0").await?;
        let near = env.connect(&listener.local_address()).await?;
        let far = listener.accept().await?;
        let before = Usage::of(std::process::id());
        work(env, near, far).await?;
        Ok::<_, std::io::Error>(Usage::of(std::process::id()).since(before).cpu)
    });
    spent.map_err(broken)?.map_err(broken)
}

async fn send(env: &Env, stream: &Stream, piece: usize, pieces: u64) -> std::io::Result<()> {
    let mut bytes = Vec::with_capacity(piece);
    for _ in 0..pieces {
        // A sender has put its bytes there first.
        bytes.resize(piece, 7);
        let (sent, emptied) = stream.write_all(bytes).await;
        sent?;
        bytes = emptied;
        // One after the other, as messages come.
        env.yield_now().await;
    }
    Ok(())
}

async fn drain(stream: &Stream, mut left: u64) -> std::io::Result<()> {
    let mut bytes = Vec::with_capacity(LARGE.min(left as usize));
    while left > 0 {
        bytes.clear();
        let (read, back) = stream.read(bytes, LARGE).await;
        bytes = back;
        match read? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            len => left -= len as u64,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_costs_a_request_without_its_messages() {
        let found = Found { create: 30_000.0, unlink: 50_000.0, message: 8_000.0, kib: 120.4 };
        let price = found.price();
        assert_eq!(price.message, Duration::from_micros(8));
        assert_eq!(price.change, Duration::from_micros(24));
        assert_eq!(price.kib, Duration::from_nanos(120));
        assert_eq!(price.request(true), Duration::from_micros(40));
        assert!(found.text().contains("a change of the store") && found.text().contains("24.00"));
        let noise = Found { create: 0.0, unlink: 0.0, ..found };
        assert_eq!(noise.price().change, Duration::ZERO);
    }

    #[test]
    fn messages_and_bytes_of_a_stream_cost_something() {
        // Other work on the machine may hide a small difference.
        assert!((0..5).any(|_| message().unwrap() > 0.0));
        assert!((0..5).any(|_| kib().unwrap() > 0.0));
    }
}
