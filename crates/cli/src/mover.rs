//! A client that moves files between data zones, for `redbud pag drain` and `redbud rebalance`,
//! and between pools, for `redbud migrate`.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use client::{Client, ClientConfig, FileMove, MigrateStep, Migration, NoKernel, NotMoved};
use env::{DriverKind, Env, asked_to_stop};
use proto::mds::{Op, OpReply};
use proto::placement::{Layout, Policy};
use serde_json::Value;
use session::client::ReadClientKeys;
use types::limits::BLOCK_U64;
use types::units::human_size;
use types::{Duration, Fault, Ino, Instant, PagId, ShardId};

use crate::commands::mount::host_name;
use crate::commands::status::problems::{list, number, text};
use crate::exit::{Failure, Status};
use crate::source::Source;
use crate::{admin, output};

/// How often the zones are looked at while files move, and the progress is printed.
const LOOK: Duration = Duration::from_secs(1);
/// For so long, the command waits for a server that is away.
const AWAY: Duration = Duration::from_secs(120);
/// Pause between two tries to ask it.
const RETRY: Duration = Duration::from_millis(250);
/// Longest sleep without a look at signals.
const NAP: Duration = Duration::from_millis(100);
/// With a rate, a step moves what the rate allows for this part of a second.
const STEPS_A_SECOND: u64 = 10;

/// How files are to be moved.
pub struct Order<'a> {
    /// The file system.
    pub source: &'a Source,
    /// The shard of the files, if there are several metadata servers.
    pub shard: Option<ShardId>,
    /// The command, as clients are described.
    pub command: String,
    /// Bytes in a second, at most.
    pub rate: Option<u64>,
    /// Print the progress.
    pub talks: bool,
}

/// A data zone, as the server last described it. Sizes are in blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Zone {
    /// Its number.
    pub id: PagId,
    /// Its state, by name.
    pub state: String,
    /// It is an object target.
    pub is_target: bool,
    /// It is another server's, which has lent blocks of it.
    pub is_borrowed: bool,
    /// All blocks that the server has.
    pub blocks: u64,
    /// Blocks that belong to nobody.
    pub free: u64,
    /// Blocks that files gave up, and that are not free yet.
    pub freed: u64,
    /// Clients with blocks of it in their pools, and how many.
    pub pools: Vec<(u64, u64)>,
    /// Blocks of it that other servers have.
    pub lent: u64,
}

impl Zone {
    /// Blocks in pools.
    pub fn pooled(&self) -> u64 {
        self.pools.iter().map(|(_, blocks)| blocks).sum()
    }

    /// Blocks of files.
    pub fn in_files(&self) -> u64 {
        self.blocks.saturating_sub(self.free + self.freed + self.pooled())
    }

    fn of(zone: &Value) -> Zone {
        let pool = |pool: &Value| (number(&pool["client"]), number(&pool["blocks"]));
        let is_borrowed = text(&zone["kind"]) == "borrowed";
        let lent: u64 = list(&zone["lent"]).map(|lent| number(&lent["blocks"])).sum();
        Zone {
            id: PagId(number(&zone["id"]) as u16),
            state: text(&zone["state"]).to_owned(),
            is_target: text(&zone["kind"]) == "target",
            is_borrowed,
            lent: if is_borrowed { 0 } else { lent },
            // What others have is nothing that could move.
            blocks: match is_borrowed {
                true => lent,
                false => number(&zone["blocks"]).saturating_sub(lent),
            },
            free: number(&zone["free"]),
            freed: number(&zone["freed"]),
            pools: list(&zone["pools"]).map(pool).collect(),
        }
    }
}

/// A file with blocks in a zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZoneFile {
    /// Its number.
    pub ino: Ino,
    /// A path, or what else names it.
    pub name: String,
}

impl ZoneFile {
    fn of(file: &Value) -> ZoneFile {
        let ino = Ino(number(&file["ino"]));
        let name = match (&file["path"], &file["orphan"]) {
            (Value::String(path), _) => path.clone(),
            (_, Value::Bool(true)) => format!("ino {ino} (removed, still open)"),
            _ => format!("ino {ino}"),
        };
        ZoneFile { ino, name }
    }
}

/// What became of a file that was to move to a pool.
pub enum Migrated {
    /// It lies in the pool, and so many bytes were copied.
    Moved(u64),
    /// It lay there.
    There,
    /// A signal ended the command before.
    Stopped,
    /// It is as before.
    Stayed(Fault),
    /// It is as before, because this device or target did not answer.
    Silent(String),
}

/// What a mover does next.
pub type Next = Result<(), Failure>;

/// See the module.
pub struct Mover {
    pub env: Env,
    client: Client,
    source: Source,
    keys: Option<ReadClientKeys>,
    rate: Option<u64>,
    talks: bool,
    begun: Instant,
    /// Until then, the rate allows no further step.
    paced: Instant,
    looked: Instant,
    /// Blocks that were moved.
    pub blocks: u64,
    /// Files of which blocks were moved.
    pub files: u64,
    /// Files that stayed, or a part of them, in the current pass, and why.
    pub stayed: BTreeMap<Ino, (String, NotMoved)>,
    /// A copy was given up while its device was silent, so its writes may never end.
    left: bool,
    /// The zones, as last looked at.
    pub zones: Vec<Zone>,
    /// The clients' descriptions, as last looked at.
    pub clients: BTreeMap<u64, String>,
}

/// Runs `work` with a mover, which leaves the file system afterwards.
pub fn run<T: 'static>(
    order: &Order<'_>,
    work: impl AsyncFnOnce(&mut Mover) -> Result<T, Failure> + 'static,
) -> Result<T, Failure> {
    // From here on a signal ends the command between two steps.
    asked_to_stop();
    let all = order.source.clone();
    let source = server(&all, order.shard)?;
    let keys = admin::keys_for(&all);
    let config = ClientConfig {
        server: all.servers.clone(),
        fs_name: source.fs_name.clone(),
        description: format!("{}, pid {}, {}", host_name(), std::process::id(), order.command),
        keys: keys.clone(),
        // No file is used twice, but for those that stay.
        inodes_max: 1024,
        log: Rc::new(output::eprint_line),
        ..ClientConfig::default()
    };
    let (rate, talks) = (order.rate, order.talks);
    let ran = env::run(DriverKind::Auto, |env| async move {
        let client = Client::connect(env.clone(), config, Rc::new(NoKernel)).await;
        let client = client.map_err(|error| {
            Failure::new(
                Status::Unreachable,
                "RB-MOVE-CONNECT",
                format!("{source}: {}", error.text),
            )
        })?;
        let now = env.now();
        let mut mover = Mover {
            env,
            client: client.clone(),
            source,
            keys,
            rate,
            talks,
            begun: now,
            paced: now,
            looked: now,
            blocks: 0,
            files: 0,
            stayed: BTreeMap::new(),
            left: false,
            zones: Vec::new(),
            clients: BTreeMap::new(),
        };
        let done = work(&mut mover).await;
        let lost = client.unmount().await;
        match (done, lost) {
            // The copy was not wanted any more.
            (Ok(done), Some(_)) if mover.left => Ok(done),
            // Every step is committed before the next one begins, so this is no loss of content.
            (Ok(_), Some(text)) => Err(Failure::failed("RB-MOVE", text)),
            (done, _) => done,
        }
    });
    ran.unwrap_or_else(|error| {
        Err(Failure::failed("RB-IO-DRIVER", format!("cannot start the I/O driver: {error}")))
    })
}

/// The server that has the files of this shard.
fn server(source: &Source, shard: Option<ShardId>) -> Result<Source, Failure> {
    let servers = admin::servers(source)?;
    if let [only] = &servers[..] {
        return Ok(only.source.clone());
    }
    let number = u16::from(shard.unwrap_or(ShardId(0)).0);
    let found = servers.into_iter().find(|server| server.number == Some(number));
    found.map(|server| server.source).ok_or_else(|| {
        let text = format!("{source}: the file system has no metadata server {number}");
        Failure::failed("RB-MOVE", text)
    })
}

impl Mover {
    /// A failure of the request with this fault.
    fn failed(&self, what: &str, fault: Fault) -> Failure {
        let text = format!("{}: {what}: {}", self.source, fault.text());
        match fault {
            Fault::NotPermitted => Failure::new(Status::NotPermitted, "RB-MDS-REFUSED", text),
            _ => Failure::failed("RB-MOVE", text),
        }
    }

    /// The server's answer to an administrator's question, which is JSON. Asks again while no
    /// server answers.
    async fn ask(&self, what: &str, op: Op) -> Result<Value, Failure> {
        let until = self.env.now() + AWAY;
        loop {
            match self.ask_once(what, op.clone()).await {
                Err(failure)
                    if failure.code == Status::Unreachable as u8
                        && self.env.now() < until
                        && !asked_to_stop() =>
                {
                    self.env.sleep(RETRY).await;
                }
                answer => return answer,
            }
        }
    }

    async fn ask_once(&self, what: &str, op: Op) -> Result<Value, Failure> {
        let answer = admin::ask_over(&self.env, &self.source, self.keys.as_ref(), op).await?;
        let OpReply::Text { text: answer } = answer else {
            return Err(self.failed(what, Fault::Protocol));
        };
        let answer: Value = serde_json::from_str(&answer).map_err(|error| {
            let text = format!("{}: {what}: the server sent no JSON: {error}", self.source);
            Failure::failed("RB-MOVE", text)
        })?;
        match &answer["refused"] {
            Value::Null => Ok(answer),
            why => Err(Failure::failed("RB-PAG-REFUSED", text(why))),
        }
    }

    /// Looks at the zones.
    pub async fn look(&mut self) -> Next {
        let status = self.ask("reading the status", Op::Status {}).await?;
        if status["partial"] == true {
            return Err(self.failed("this needs the key of an administrator", Fault::NotPermitted));
        }
        self.zones = list(&status["pags"]).map(Zone::of).collect();
        let client = |one: &Value| {
            let state = text(&one["state"]);
            let quarantined = if state == "quarantined" { ", evicted, in quarantine" } else { "" };
            let name = format!("{}{quarantined}", text(&one["description"]));
            (number(&one["id"]), name)
        };
        self.clients = list(&status["clients"]).map(client).collect();
        self.looked = self.env.now();
        Ok(())
    }

    /// A zone, as last looked at.
    pub fn zone(&self, id: PagId) -> Option<&Zone> {
        self.zones.iter().find(|zone| zone.id == id)
    }

    /// Lets a zone drain that was in state `from` as last looked at; if it is in another one by
    /// now, it stays so. As every request of an administrator it is sent once: sent again, after an
    /// answer that was lost, it could undo what has been said since.
    pub async fn begin_drain(&self, zone: PagId, from: mfs::PagUse) -> Next {
        let what = "letting the data zone drain";
        match self.ask_once(what, Self::draining_from(zone, from)).await {
            // The next look tells whether it was done.
            Err(failure) if failure.code == Status::Unreachable as u8 => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Has the server ask clients again for their blocks of a zone, as long as it drains.
    pub async fn ask_for_pools(&self, zone: PagId) -> Next {
        let op = Self::draining_from(zone, mfs::PagUse::Draining);
        self.ask("asking for the blocks in the pools of clients", op).await.map(drop)
    }

    fn draining_from(zone: PagId, from: mfs::PagUse) -> Op {
        let state = mfs::PagUse::Draining.number();
        Op::SetZoneState { pag: zone, state, only_from: vec![from.number()] }
    }

    /// Has the server of `owner` take back what is free of its zone at the server of `from`.
    pub async fn take_back(&self, owner: ShardId, zone: PagId, from: ShardId) -> Next {
        match self.client.take_back(owner, zone, from).await {
            // One of the two is away, or something was granted just now; or the zone does not drain
            // any more, as the next look tells.
            Ok(()) | Err(Fault::Busy | Fault::NotPermitted) => Ok(()),
            Err(fault) => Err(self.failed("giving lent blocks back", fault)),
        }
    }

    /// Places nothing in these zones.
    pub fn shun(&self, zones: BTreeSet<PagId>) {
        self.client.shun_zones(zones);
    }

    /// Files with blocks in a zone from a place on, and the place of the next ones.
    pub async fn files_of(
        &self,
        zone: PagId,
        at: (u64, u64),
    ) -> Result<(Vec<ZoneFile>, Option<(u64, u64)>), Failure> {
        let what = "looking for the files of the data zone";
        let op = Op::ZoneFiles { pag: zone, from: 0, to: u64::MAX, at };
        let part = self.ask(what, op).await?;
        let files = list(&part["files"]).map(ZoneFile::of).collect();
        let word = |index: usize| text(&part["next"][index]).parse::<u64>();
        match (&part["next"], word(0), word(1)) {
            (Value::Null, ..) => Ok((files, None)),
            (_, Ok(first), Ok(second)) => Ok((files, Some((first, second)))),
            _ => Err(self.failed(what, Fault::Protocol)),
        }
    }

    /// The blocks of a file; `None`: it is gone.
    pub async fn blocks_of(&self, ino: Ino) -> Result<Option<u64>, Failure> {
        match self.client.attr_of(ino).await {
            Ok(attr) => Ok(Some(attr.blocks)),
            Err(Fault::Stale | Fault::NotFound) => Ok(None),
            Err(fault) => Err(self.failed("reading the attributes of a file", fault)),
        }
    }

    /// Moves the blocks of a file out of `zones`, and notes it in `stayed` if some stay. `goes_on`
    /// is asked after each look at the zones.
    pub async fn move_file(
        &mut self,
        file: &ZoneFile,
        zones: &BTreeSet<PagId>,
        goes_on: impl Fn(&Mover) -> bool,
    ) -> Next {
        let mut moving = FileMove::new(file.ino, zones.clone());
        let before = self.blocks;
        let most = self.rate.map_or(u64::MAX, |rate| rate / BLOCK_U64 / STEPS_A_SECOND);
        while !asked_to_stop() && goes_on(self) {
            match self.client.move_step(&mut moving, most).await {
                Ok(Some(blocks)) => {
                    self.blocks += blocks;
                    self.pace(blocks).await;
                }
                Ok(None) => break,
                Err(why) => {
                    self.stayed.insert(file.ino, (file.name.clone(), why));
                    break;
                }
            }
            self.look_if_due().await?;
        }
        self.client.let_go(moving).await;
        self.files += u64::from(self.blocks > before);
        self.look_if_due().await
    }

    /// Moves a file to where `layout` says; `any`: unless it lies in that kind of pool.
    pub async fn migrate(
        &mut self,
        ino: Ino,
        name: &str,
        layout: &Layout,
        any: bool,
    ) -> Result<Migrated, Failure> {
        let mut move_ = Migration::new(ino, layout.clone(), any);
        let (mut bytes, mut waits, mut said) = (0, false, self.env.now());
        let mut checked = false;
        let ended = loop {
            if asked_to_stop() {
                break Migrated::Stopped;
            }
            match self.client.migrate_step(&mut move_).await {
                Ok(MigrateStep::There) => break Migrated::There,
                Ok(MigrateStep::Moved) => break Migrated::Moved(bytes),
                Ok(MigrateStep::Copied(_)) if !checked => {
                    checked = true;
                    let unknown = move_.counts_holes();
                    if !unknown && !self.may_have_room(ino, layout).await? {
                        break Migrated::Stayed(Fault::NoSpace);
                    }
                }
                Ok(MigrateStep::Copied(more)) => {
                    bytes += more;
                    self.pace(more.div_ceil(BLOCK_U64)).await;
                }
                Ok(MigrateStep::Again) => bytes = 0,
                Ok(MigrateStep::Waits) if !waits => {
                    waits = true;
                    let why = "waits until an evicted client certainly writes it no more";
                    output::eprint_line(&format!("{name}: {why}"));
                }
                Ok(MigrateStep::Waits) => {}
                Err(fault) => break Migrated::Stayed(fault),
            }
            if self.talks && self.env.now().since(said) >= LOOK {
                said = self.env.now();
                output::print(&format!("{name}: {} copied\n", human_size(bytes)))?;
            }
        };
        self.client.end_migration(&mut move_).await;
        if let Some(path) = move_.silent() {
            self.left = true;
            return Ok(Migrated::Silent(path.to_owned()));
        }
        if let Migrated::Stayed(Fault::Unreachable) = ended {
            let text = format!("{name}: the client has ended: run the same command again");
            return Err(Failure::failed("RB-MIGRATE", text));
        }
        Ok(ended)
    }

    /// May the targets have room for the file, as they have last said? One that takes a write says
    /// only later that it is full, and then the whole copy is in vain.
    async fn may_have_room(&self, ino: Ino, layout: &Layout) -> Result<bool, Failure> {
        let Policy::Objects { width, .. } = layout.policy else { return Ok(true) };
        let Some(blocks) = self.blocks_of(ino).await? else { return Ok(true) };
        let may = |zone: &&Zone| {
            let named = layout.zones.is_empty() || layout.zones.contains(&zone.id);
            zone.is_target && named && zone.state == mfs::PagUse::InService.name()
        };
        let mut free: Vec<u64> = self.zones.iter().filter(may).map(|zone| zone.free).collect();
        free.sort_unstable_by(|one, other| other.cmp(one));
        free.truncate(usize::from(width.max(1)));
        let each = blocks / free.len().max(1) as u64;
        // Nothing is known of one that has said nothing since the server was started.
        Ok(free.iter().all(|free| *free == 0 || *free >= each))
    }

    async fn look_if_due(&mut self) -> Next {
        if self.env.now().since(self.looked) < LOOK {
            return Ok(());
        }
        self.look().await?;
        self.talk()
    }

    /// Sleeps as long as the rate asks for after so many blocks.
    async fn pace(&mut self, blocks: u64) {
        let Some(rate) = self.rate else { return };
        let nanos = u128::from(blocks * BLOCK_U64) * 1_000_000_000 / u128::from(rate.max(1));
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.paced = self.paced.max(self.env.now()) + Duration::from_nanos(nanos);
        while self.env.now() < self.paced && !asked_to_stop() {
            self.env.sleep(self.paced.since(self.env.now()).min(NAP)).await;
        }
    }

    /// Prints how far the move is.
    fn talk(&self) -> Next {
        if !self.talks {
            return Ok(());
        }
        let leaving = self.zones.iter().filter(|zone| zone.state == mfs::PagUse::Draining.name());
        let left: u64 = leaving.map(|zone| zone.blocks - zone.free).sum();
        let left = match left {
            0 => String::new(),
            left => format!(", {} left", human_size(left * BLOCK_U64)),
        };
        let nanos = self.env.now().since(self.begun).as_nanos().max(1);
        let rate = u128::from(self.blocks * BLOCK_U64) * 1_000_000_000 / nanos;
        output::print(&format!(
            "moved {} of {} files{left}, {}/s\n",
            human_size(self.blocks * BLOCK_U64),
            self.files,
            human_size(rate as u64),
        ))
    }

    /// Prints the files that stayed, and why, to standard error; the first ones of many.
    pub fn print_stayed(&self) {
        const NAMED: usize = 100;
        for (name, why) in self.stayed.values().take(NAMED) {
            output::eprint_line(&format!("{name}: {}", reason(why)));
        }
        if let Some(more) = self.stayed.len().checked_sub(NAMED).filter(|more| *more > 0) {
            output::eprint_line(&format!("and {more} more files"));
        }
    }
}

/// Why a file stayed.
fn reason(why: &NotMoved) -> String {
    match why {
        NotMoved::NoRoom(zones) if zones.is_empty() => {
            "no data zone that may take it has room".into()
        }
        NotMoved::NoRoom(zones) => {
            let zones: Vec<String> = zones.iter().map(ToString::to_string).collect();
            format!(
                "its layout allows data zones {} only, and no other one of these has room: copy it \
                 into a directory with another layout, or make room there",
                zones.join(",")
            )
        }
        NotMoved::Failed(fault) => fault.text().into(),
    }
}
