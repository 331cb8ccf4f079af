//! Invariant 9, when the run has ended: what clients saw is what one POSIX file system on one host
//! could have shown, in some order that agrees with real time, but for what SEMANTICS.md lets go
//! with sessions and devices.
//!
//! First the order that the server and the clients told is tried, then, if that does not explain
//! everything, all of them ([`Judge`]); only what no order explains is a violation. What the model
//! meets is told here, whatever broke below it.

use crate::call::Call;
use crate::judge::{Abandoned, Judge};
use crate::model::FsState;

/// The invariant.
pub(crate) const LINEARIZABLE: &str = "9: views are linearizable";

/// What the judge says nothing about.
#[derive(Default)]
pub(crate) struct Unjudged {
    /// Searches that were given up.
    pub searches: u64,
    /// Where it stopped, if it did.
    pub abandoned: Option<Abandoned>,
    /// What the order that was told did not explain.
    pub misled: Option<String>,
}

/// Judges a whole history; of a `may_crash` one sessions may have lost something. With `all_orders`
/// nothing that was told of their order counts.
///
/// # Errors
/// The step that nothing explains, for people.
pub(crate) fn judge(
    calls: &[Call],
    (may_crash, all_orders): (bool, bool),
    unjudged: &mut Unjudged,
) -> Result<(), String> {
    let start = || FsState { may_crash, ..FsState::default() };
    let mut settled_as_told = 0;
    if !all_orders {
        let mut guided = Judge::guided(start());
        unjudged.misled = match guided.settle(calls) {
            Ok(()) if guided.given_up == 0 => return Ok(()),
            Ok(()) => Some(format!("{} searches were given up", guided.given_up)),
            Err(unexplained) => Some(unexplained.text),
        };
        settled_as_told = guided.settled;
    }
    let mut judge = Judge::new(start());
    let settled = judge.settle(calls);
    unjudged.searches = judge.given_up;
    unjudged.abandoned = judge.abandoned;
    if let Some(abandoned) = &mut unjudged.abandoned {
        abandoned.from = abandoned.from.max(settled_as_told);
    }
    settled.map_err(|unexplained| unexplained.text)
}
