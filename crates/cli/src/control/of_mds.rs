//! What the control socket of a metadata server answers: what an administrator's session would get.

use std::rc::Rc;

use mds::Control;
use proto::mds::{Op, OpReply};
use proto::wire::Appended;
use types::{ClientId, PagId};

use super::{Answer, Ask, Handler};

/// Answers for a server.
pub fn handler(server: Control) -> Handler {
    Rc::new(move |ask| {
        let server = server.clone();
        Box::pin(async move { answer(&server, ask).await })
    })
}

/// Answers for a server that serves.
pub async fn answer(server: &Control, ask: Ask) -> Answer {
    if ask == Ask::Failover {
        let text = "this server stands alone: its cluster's file has no table [membership]";
        return Err(text.into());
    }
    let Some(op) = op_of(ask) else {
        return Err("this is a metadata server: the client of a mount is asked for that".into());
    };
    match server.execute(op).await {
        Ok(OpReply::Text { text }) => Ok(text),
        Ok(_) => Ok("null".into()),
        Err(fault) => Err(fault.text().into()),
    }
}

fn op_of(ask: Ask) -> Option<Op> {
    match ask {
        Ask::Status => Some(Op::Status {}),
        Ask::Evict { client } => Some(Op::Evict { client: ClientId(client) }),
        Ask::Scrub { rate, .. } => Some(Op::Scrub { rate }),
        Ask::AddZone { path, overwrite, number } => {
            Some(Op::AddZone { path, overwrite, number: Appended(number.map(PagId)) })
        }
        Ask::SetZoneState { pag, state, only_from } => {
            Some(Op::SetZoneState { pag: PagId(pag), state, only_from })
        }
        Ask::ZoneFiles { pag, from, to, at } => {
            Some(Op::ZoneFiles { pag: PagId(pag), from, to, at })
        }
        Ask::Why { .. }
        | Ask::Sync
        | Ask::MoveDirectory { .. }
        | Ask::MoveFiles { .. }
        | Ask::Failover => None,
    }
}

/// The request that asks a server on this host for `op`, if its socket can be asked for that.
pub fn request(op: &Op) -> Option<Ask> {
    match op {
        Op::Status {} => Some(Ask::Status),
        Op::Evict { client } => Some(Ask::Evict { client: client.0 }),
        Op::Scrub { rate } => Some(Ask::Scrub { rate: *rate, only: None }),
        Op::SetZoneState { pag, state, only_from } => {
            let only_from = only_from.clone();
            Some(Ask::SetZoneState { pag: pag.0, state: *state, only_from })
        }
        Op::ZoneFiles { pag, from, to, at } => {
            Some(Ask::ZoneFiles { pag: pag.0, from: *from, to: *to, at: *at })
        }
        Op::AddZone { path, overwrite, number } => {
            let number = number.0.map(|number| number.0);
            Some(Ask::AddZone { path: path.clone(), overwrite: *overwrite, number })
        }
        _ => None,
    }
}
