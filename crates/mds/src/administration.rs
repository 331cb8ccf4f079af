//! What administrators ask of a running server: over a session of theirs, or its control socket.

use std::rc::{Rc, Weak};

use env::LocalFuture;
use mfs::PagUse;
use proto::mds::{Op, OpReply};
use session::server::Who;
use types::Fault;
use types::json::Json;

use crate::server::Server;
use crate::space::StateChange;
use crate::{status, zone_files};

/// A running server, to be asked by processes of its host. Does not keep the server alive.
#[derive(Clone)]
pub struct Control(Weak<Server>);

impl Control {
    pub(crate) fn of(server: &Rc<Server>) -> Control {
        Control(Rc::downgrade(server))
    }

    /// Executes an operation of administrators.
    ///
    /// # Errors
    /// `Unreachable`: the server has stopped. `Unsupported`: it is another operation. Else as the
    /// operation.
    pub fn execute(&self, op: Op) -> LocalFuture<'_, Result<OpReply, Fault>> {
        Box::pin(async move {
            let server = self.0.upgrade().ok_or(Fault::Unreachable)?;
            execute(&server, &Who::Local(0), &op).await
        })
    }

    /// Writes home what is dirty, while the server goes on: its end is short after that.
    ///
    /// # Errors
    /// `Unreachable`: the server has stopped. `Io`: its store failed.
    pub async fn settle(&self) -> Result<(), Fault> {
        let server = self.0.upgrade().ok_or(Fault::Unreachable)?;
        let settled = server.runtime.mfs.settle().await;
        server.runtime.checked(settled, "before a handover").ok_or(Fault::Io)
    }
}

/// Executes an operation of administrators for `who`: an administrator, or a client that asks for
/// its own status.
///
/// # Errors
/// As [`Control::execute`].
pub async fn execute(server: &Server, who: &Who, op: &Op) -> Result<OpReply, Fault> {
    match op {
        Op::Status {} => Ok(OpReply::Text { text: status::collect(server, who).await.to_json() }),
        Op::Evict { client } => {
            if server.sessions.get(*client).is_none() {
                return Err(Fault::NotFound);
            }
            server.evictions.evict(*client, "by the administrator").await;
            Ok(OpReply::Done {})
        }
        Op::Scrub { rate } => {
            match rate {
                Some(rate) => server.scrubber.request(*rate),
                None => server.scrubber.cancel(),
            }
            Ok(OpReply::Done {})
        }
        Op::AddZone { path, overwrite, number } => {
            let added = server.space.add_zone(path, *overwrite, number.0).await;
            Ok(answer(added, |out, id| out.number("added", u64::from(id.0))))
        }
        Op::SetZoneState { pag, state, only_from } => {
            let only_from: Vec<PagUse> = only_from.iter().map(|from| PagUse::of(*from)).collect();
            let goes_back = || server.joint.gives_back(*pag);
            let to = PagUse::of(*state);
            let set = server.space.set_state(*pag, to, &only_from, goes_back).await;
            Ok(answer(set, |out, change| match change {
                StateChange::Set { before } => out.text("before", before.name()),
                StateChange::Kept(state) => out.text("kept", state.name()),
            }))
        }
        Op::ZoneFiles { pag, from, to, at } => {
            let found = zone_files::part(server, *pag, *from..*to, *at).await;
            Ok(answer(found, |out, part| part.add_to(out)))
        }
        _ => Err(Fault::Unsupported),
    }
}

/// JSON with what `add` says of a result, or why there is none.
fn answer<T>(result: Result<T, String>, add: impl FnOnce(&mut Json, T)) -> OpReply {
    let mut out = Json::default();
    out.open('{');
    match result {
        Ok(value) => add(&mut out, value),
        Err(why) => out.text("refused", &why),
    }
    out.close('}');
    OpReply::Text { text: out.into_text() }
}
