//! LINEARIZABLE, after the run: what clients saw is what one POSIX file system on one host could
//! have shown, in some order that agrees with real time. Exempt is what SEMANTICS.md allows to be
//! lost with sessions and devices.
//!
//! The judge first tries the observed order, then, if that does not explain everything, all orders
//! ([`Judge`]). Only a history that no order explains is a violation. Everything that the model
//! sees is reported here, whatever broke below it.

use crate::call::Call;
use crate::judge::{Abandoned, Judge};
use crate::model::FsState;

/// What the judge did not judge.
#[derive(Default)]
pub(crate) struct Unjudged {
    /// Searches that the judge gave up.
    pub searches: u64,
    /// Where it stopped, if it did.
    pub abandoned: Option<Abandoned>,
    /// What the observed order did not explain.
    pub misled: Option<String>,
}

/// Judges a whole history; with `may_crash` sessions may have been lost. With `all_orders` the
/// observed order is ignored.
///
/// # Errors
/// The step that nothing explains.
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
