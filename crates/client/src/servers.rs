//! How a client meets the metadata servers of a namespace at its mount.
//!
//! Invariants:
//! - any server of the namespace may be the one that the client meets first: it names the others;
//! - the home session, for what concerns no inode, is that with the server of the root;
//! - each session looks for its server where the list says that it is;
//! - a mount has a session with every server, or fails and says which server is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use env::Env;
use proto::mds::{Mds, Op, OpReply, SHARDS, ServerInfo};
use proto::message::Expected;
use session::client::{Call, Config, Session, Sessions, Shared, result};
use types::{Ino, ServerId, ShardId};

use crate::api::{ClientConfig, ConnectError};

/// The server of each shard; empty: there is one server, which has them all.
pub(crate) type ByShard = BTreeMap<ShardId, ServerId>;

/// Opens the sessions of a client with all servers.
pub(crate) async fn meet(
    env: Env,
    config: &ClientConfig,
) -> Result<(Sessions<Mds>, ByShard), ConnectError> {
    let shared = Rc::<Shared>::default();
    let first = Session::open(env.clone(), session_config(config), shared.clone()).await?;
    if first.agreed().1 & SHARDS == 0 {
        return Ok((Sessions::new(first, shared), ByShard::new()));
    }
    let mut met = vec![first.clone()];
    match meet_others(env, config, &mut met, shared).await {
        Ok(all) => Ok(all),
        Err(text) => {
            for session in met {
                session.close().await;
            }
            Err(ConnectError { text })
        }
    }
}

/// Opens the sessions with the servers that the first one names. `met` has those that there are.
async fn meet_others(
    env: Env,
    config: &ClientConfig,
    met: &mut Vec<Rc<Session<Mds>>>,
    shared: Rc<Shared>,
) -> Result<(Sessions<Mds>, ByShard), String> {
    let first = met[0].clone();
    let asked = first.call(Call::reserved(vec![Op::Servers {}]));
    let no_list = || "the metadata server does not name the servers of the file system".to_owned();
    let reply = env.timeout(config.connect_timeout, asked).await.ok_or_else(no_list)?;
    let reply = reply.map_err(|fault| format!("{}: {fault}", no_list()))?;
    let Ok(OpReply::Servers { list }) = result(&reply, 0) else { return Err(no_list()) };
    let by_shard = by_shard(list, first.server())?;
    for info in list {
        let is_first = info.server == first.server();
        if is_first && is_same(&info.addresses, &config.server) {
            continue;
        }
        let usual = session_config(config);
        let expected =
            Expected { server: info.server, fs_uuid: first.offer().0, ..usual.expected.clone() };
        let its = Config { addresses: info.addresses.clone(), expected, ..usual };
        let session = Session::open(env.clone(), its, shared.clone()).await.map_err(|error| {
            let (server, count) = (info.server, list.len());
            format!("server {server} of the {count} metadata servers: {error}")
        })?;
        if is_first {
            // The mount's addresses are those of several servers, or not all of this one.
            std::mem::replace(&mut met[0], session).close().await;
            continue;
        }
        met.push(session.clone());
        if session.agreed().1 & SHARDS == 0 {
            let server = info.server;
            return Err(format!(
                "metadata server {server} does not know that the file system has several: run the \
                 same release, with the same list of servers, on all of them"
            ));
        }
    }
    let home = by_shard[&Ino::ROOT.shard()];
    let is_home = |session: &&Rc<Session<Mds>>| session.server() == home;
    let with_home = met.iter().find(is_home).expect("every server of the list was met");
    let sessions = Sessions::new(with_home.clone(), shared);
    for session in met.iter().filter(|session| !is_home(session)) {
        sessions.add(session.clone()).map_err(|fault| fault.to_string())?;
    }
    Ok((sessions, by_shard))
}

/// Are these the same addresses, in whichever order?
fn is_same(one: &[String], other: &[String]) -> bool {
    BTreeSet::from_iter(one) == BTreeSet::from_iter(other)
}

/// The server of each shard, as the list of server `first` says.
///
/// # Errors
/// The list contradicts itself, or is of another namespace.
fn by_shard(list: &[ServerInfo], first: ServerId) -> Result<ByShard, String> {
    let wrong = |text: &str| {
        Err(format!("the list of metadata servers that server {first} has is wrong: {text}"))
    };
    if list.iter().all(|info| info.server != first) {
        return wrong("it does not name that server");
    }
    let mut by_shard = ByShard::new();
    for info in list {
        if list.iter().filter(|other| other.server == info.server).count() > 1 {
            return wrong(&format!("it names server {} twice", info.server));
        }
        for &shard in &info.shards {
            if by_shard.insert(ShardId(shard), info.server).is_some() {
                return wrong(&format!("it gives shard {shard} to two servers"));
            }
        }
    }
    let root = Ino::ROOT.shard();
    match by_shard.contains_key(&root) {
        true => Ok(by_shard),
        false => wrong(&format!("no server has shard {}, where the root directory is", root.0)),
    }
}

fn session_config(config: &ClientConfig) -> Config {
    Config {
        description: config.description.clone(),
        lease: config.lease,
        connect_timeout: config.connect_timeout,
        keys: config.keys.clone(),
        kept: config.kept,
        log: config.log.clone(),
        ..Config::new::<Mds>(config.server.clone(), &config.fs_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(server: u16, shards: &[u8]) -> ServerInfo {
        ServerInfo { server: ServerId(server), shards: shards.to_vec(), addresses: Vec::new() }
    }

    #[test]
    fn list_of_servers_is_refused_unless_each_shard_has_one_server() {
        let two = [info(0, &[0]), info(1, &[1, 2])];
        let known = by_shard(&two, ServerId(1)).unwrap();
        let servers: Vec<u16> = known.values().map(|server| server.0).collect();
        assert_eq!(servers, [0, 1, 1]);
        for (list, first, why) in [
            (&two[..], 2, "does not name that server"),
            (&[info(0, &[0]), info(0, &[1])], 0, "names server 0 twice"),
            (&[info(0, &[0]), info(1, &[0])], 0, "shard 0 to two servers"),
            (&[info(1, &[1])], 1, "no server has shard 0"),
        ] {
            let text = by_shard(list, ServerId(first)).unwrap_err();
            assert!(text.contains(why), "{text}");
        }
    }
}
