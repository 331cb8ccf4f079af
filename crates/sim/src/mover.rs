//! The client that moves files out of a zone that drains. It goes by what the servers answer over
//! the network, as `redbud pag drain` does.

use std::cell::Cell;
use std::collections::BTreeSet;

use client::{Client, FileMove, NotMoved};
use env::Env;
use mfs::PagUse;
use proto::mds::{Mds, Op, OpReply, Principal};
use proto::wire::Appended;
use serde_json::Value;
use session::client::{ToolError, ask};
use types::{ClientId, Duration, Fault, Ino, PagId};

use crate::cluster::{Cluster, FS, address};
use crate::drain_state::MOVER;

/// How long each step of a request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two tries to ask, and between two looks at what is left.
const RETRY: Duration = Duration::from_millis(250);

/// How a mover ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MoverEnd {
    /// The server says that nothing is left in the zone. So many servers had started when it was
    /// asked.
    Empty(u64),
    /// The zone does not drain any more.
    NotDraining,
    /// No other zone has room for a file.
    NoRoom,
    /// The client does not connect, or has ended.
    Gone(String),
}

/// How a mover works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Most blocks of a step.
    pub most: u64,
    /// Pause after a step.
    pub pause: Duration,
}

/// A zone, as a server describes it. Sizes are in blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ZoneStatus {
    pub state: String,
    pub blocks: u64,
    pub free: u64,
    pub pooled: u64,
    /// Clients with blocks in their pools.
    pub holders: Vec<u64>,
}

impl ZoneStatus {
    pub(crate) fn is_empty(&self) -> bool {
        self.free == self.blocks
    }

    fn drains(&self) -> bool {
        self.state == PagUse::Draining.name()
    }
}

/// Asks the servers on behalf of an administrator.
pub(crate) struct Asker {
    pub cluster: Cluster,
    /// The node that asks.
    pub env: Env,
    /// Its name.
    pub name: &'static str,
    /// A request was not answered: it may still be done at any later time.
    pub unanswered: Cell<bool>,
}

impl Asker {
    pub(crate) fn new(cluster: &Cluster, env: Env, name: &'static str) -> Asker {
        Asker { cluster: cluster.clone(), env, name, unanswered: Cell::new(false) }
    }

    /// Makes what answers at this path a data zone. The servers of several shards all give it this
    /// number, which is the one that a single server chooses.
    pub(crate) async fn add_zone(&self, path: &str, number: PagId) {
        let number = Appended(Some(number).filter(|_| self.cluster.has_several()));
        let op = Op::AddZone { path: path.to_owned(), overwrite: false, number };
        if !self.cluster.has_several() {
            self.ask(op).await;
            return;
        }
        for shard in self.cluster.all_shards() {
            self.ask_any(&[self.cluster.server_of(shard)], op.clone()).await;
        }
    }

    /// The server's answer, which is JSON; asks until there is one.
    async fn ask(&self, op: Op) -> Value {
        self.ask_any(&self.cluster.servers(), op).await
    }

    /// The answer of one of these servers.
    async fn ask_any(&self, servers: &[String], op: Op) -> Value {
        loop {
            for server in servers {
                match self.ask_one(server, op.clone()).await {
                    Ok(answer) => return answer,
                    Err(why) => {
                        self.unanswered.set(true);
                        self.cluster.drains.note_refusal(why);
                    }
                }
            }
            self.env.sleep(RETRY).await;
        }
    }

    async fn ask_one(&self, server: &str, op: Op) -> Result<Value, String> {
        let keys = self.cluster.keys.as_ref().map(|keys| keys.of_client(self.name));
        let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
        let to = (&*address(server), keys.as_ref());
        let asked = ask::<Mds>(&self.env, to, (FS, self.name), (principal, op), PATIENCE).await;
        let text = match asked {
            Ok(OpReply::Text { text }) => text,
            // Nothing is left to evict, or it is evicted.
            Ok(OpReply::Done {}) | Err(ToolError::Fault(Fault::NotFound)) => {
                return Ok(Value::Null);
            }
            other => return Err(format!("{other:?}")),
        };
        let answer: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        match answer["refused"].as_str() {
            Some(why) => Err(why.to_owned()),
            None => Ok(answer),
        }
    }

    /// Sets the state of a zone, if it is `only_from` until then. `false`: it is another one, and
    /// stays so.
    pub(crate) async fn set_state(
        &self,
        pag: PagId,
        state: PagUse,
        only_from: Option<PagUse>,
    ) -> bool {
        let only_from = only_from.into_iter().map(PagUse::number).collect();
        let answer = self.ask(Op::SetZoneState { pag, state: state.number(), only_from }).await;
        answer["kept"].is_null()
    }

    pub(crate) async fn look(&self, pag: PagId) -> ZoneStatus {
        let status = self.ask(Op::Status {}).await;
        let id = u64::from(pag.0);
        let mut zones = status["pags"].as_array().into_iter().flatten();
        let zone = zones.find(|zone| zone["id"].as_u64() == Some(id)).unwrap_or(&Value::Null);
        let number = |name: &str| zone[name].as_u64().unwrap_or_default();
        ZoneStatus {
            state: zone["state"].as_str().unwrap_or_default().to_owned(),
            blocks: number("blocks"),
            free: number("free"),
            pooled: number("pooled"),
            holders: zone["pools"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|pool| pool["client"].as_u64())
                .collect(),
        }
    }

    /// Evicts the clients with blocks of the zone in their pools that were silent for so long.
    pub(crate) async fn evict_silent(&self, pag: PagId, silent: Duration) {
        let holders = self.look(pag).await.holders;
        let status = self.ask(Op::Status {}).await;
        for client in status["clients"].as_array().into_iter().flatten() {
            let (id, for_ms) = (client["id"].as_u64(), client["silent_ms"].as_u64());
            let Some(id) = id.filter(|id| holders.contains(id)) else { continue };
            if for_ms.is_some_and(|ms| Duration::from_millis(ms) >= silent) {
                let text = format!("the administrator evicts client {id}");
                self.cluster.events.line(&text);
                self.ask(Op::Evict { client: ClientId(id) }).await;
            }
        }
    }

    /// Files with blocks in a zone from a place on, and the place of the next ones.
    async fn files_of(&self, pag: PagId, at: (u64, u64)) -> (Vec<Ino>, Option<(u64, u64)>) {
        let part = self.ask(Op::ZoneFiles { pag, from: 0, to: u64::MAX, at }).await;
        let files = part["files"].as_array().into_iter().flatten();
        let files = files.filter_map(|file| file["ino"].as_u64()).map(Ino).collect();
        let word = |index: usize| part["next"][index].as_str()?.parse::<u64>().ok();
        (files, word(0).zip(word(1)))
    }
}

/// A running mover.
pub(crate) struct Mover {
    pub asker: Asker,
    pub zone: PagId,
    pub pace: Pace,
}

impl Mover {
    /// Mounts nothing, moves everything, and leaves the file system.
    pub(crate) async fn run(self) -> MoverEnd {
        let cluster = &self.asker.cluster;
        let client = match cluster.connect(MOVER).await {
            Ok(client) => client,
            Err(text) => return MoverEnd::Gone(text),
        };
        cluster.drains.mover_is(Some(client.clone()));
        let end = self.drain(&client).await;
        // The server forgets its leases before it hears so.
        cluster.drains.mover_is(None);
        client.unmount().await;
        end
    }

    async fn drain(&self, client: &Client) -> MoverEnd {
        let (asker, zone) = (&self.asker, self.zone);
        client.shun_zones(BTreeSet::from([zone]));
        loop {
            let starts = asker.cluster.starts.get();
            let seen = asker.look(zone).await;
            if seen.is_empty() && seen.drains() {
                return MoverEnd::Empty(starts);
            }
            if !seen.drains() {
                return MoverEnd::NotDraining;
            }
            if let Err(end) = self.pass(client).await {
                return end;
            }
            if seen.pooled > 0 {
                // Asks the clients for them again, if the zone still drains. The process may stand
                // still before it does.
                asker.cluster.drains.note_asking(true);
                asker.env.sleep(self.pace.pause).await;
                asker.set_state(zone, PagUse::Draining, Some(PagUse::Draining)).await;
                asker.cluster.drains.note_asking(false);
            }
            asker.env.sleep(RETRY).await;
        }
    }

    /// Moves each file once that has blocks in the zone.
    async fn pass(&self, client: &Client) -> Result<(), MoverEnd> {
        let (mut at, mut met) = ((0, 0), BTreeSet::new());
        loop {
            let (files, next) = self.asker.files_of(self.zone, at).await;
            for ino in files.into_iter().filter(|ino| met.insert(*ino)) {
                self.move_file(client, ino).await?;
                if !self.asker.look(self.zone).await.drains() {
                    return Err(MoverEnd::NotDraining);
                }
            }
            let Some(then) = next else { return Ok(()) };
            at = then;
        }
    }

    async fn move_file(&self, client: &Client, ino: Ino) -> Result<(), MoverEnd> {
        let mut moving = FileMove::new(ino, BTreeSet::from([self.zone]));
        let end = loop {
            match client.move_step(&mut moving, self.pace.most).await {
                Ok(Some(blocks)) => {
                    self.asker.cluster.drains.moved(blocks);
                    self.asker.env.sleep(self.pace.pause).await;
                }
                Ok(None) => break Ok(()),
                Err(NotMoved::NoRoom(_)) => break Err(MoverEnd::NoRoom),
                Err(NotMoved::Failed(Fault::Unreachable)) => {
                    break Err(MoverEnd::Gone("its client has ended".into()));
                }
                Err(NotMoved::Failed(fault)) => {
                    let text = format!("{MOVER}: inode {ino} stays: {}", fault.text());
                    self.asker.cluster.events.line(&text);
                    break Ok(());
                }
            }
        };
        client.let_go(moving).await;
        end
    }
}
