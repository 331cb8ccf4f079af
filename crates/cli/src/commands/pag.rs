//! `redbud pag`: the data zones of a file system that is served.

use std::collections::{BTreeMap, BTreeSet};

use bench::report::Columns;
use mfs::PagUse;
use proto::mds::{Op, OpReply};
use proto::wire::Appended;
use serde::Serialize;
use serde_json::Value;
use types::PagId;
use types::limits::{BLOCK_U64, PAGS_MAX};
use types::units::human_size;

use crate::address::{OST_PORT, check_address_or};
use crate::admin::Server;
use crate::args::{
    Output, PagAddArgs, PagArgs, PagCommand, PagDrainArgs, PagFilesArgs, PagListArgs, PagLostArgs,
};
use crate::commands::drain;
use crate::commands::status::problems::{list, number, text};
use crate::exit::{Ended, Failure};
use crate::source::Source;
use crate::{admin, output, target};

/// The state of a zone that drains, or whose drain is paused, and that has nothing left.
const DRAINED: &str = "drained";
/// What is before the address of an object target.
const OST: &str = "ost:";
/// The kind of a zone that is another server's.
const BORROWED: &str = "borrowed";

#[derive(Serialize)]
struct Added {
    version: u32,
    source: String,
    pag: u64,
    device: String,
    /// What to write into the cluster's file; empty: nothing.
    next: String,
}

/// Runs one of them.
pub fn run(args: &PagArgs) -> Ended {
    match &args.command {
        PagCommand::Add(args) => add(args),
        PagCommand::List(args) => list_all(args),
        PagCommand::Lost(args) => lost(args),
        PagCommand::Drain(args) => {
            let to = match (args.undo, args.pause) {
                (true, _) => PagUse::InService,
                (_, true) => PagUse::Paused,
                (false, false) => return drain_out(args),
            };
            let drains = [PagUse::Draining, PagUse::Paused];
            let only_from: &[PagUse] = if args.undo { &drains } else { &[] };
            set((args.pag, only_from), to, args.target.as_ref(), args.output)
        }
        PagCommand::Files(args) => files(args),
    }
}

/// Says that the device of a zone is gone, or is there after all.
pub fn lost(args: &PagLostArgs) -> Ended {
    let to = if args.undo { PagUse::InService } else { PagUse::Lost };
    let only_from: &[PagUse] = if args.undo { &[PagUse::Lost] } else { &[] };
    set((args.pag, only_from), to, args.target.as_ref(), args.output)
}

fn refused(text: impl Into<String>) -> Failure {
    Failure::failed("RB-PAG-REFUSED", text)
}

/// The server's answer to `op`, which is JSON.
fn ask(source: &Source, op: Op) -> Result<Value, Failure> {
    let OpReply::Text { text: answer } = admin::ask(source, op)? else {
        return Err(refused(format!("{source}: the server sent an unexpected reply")));
    };
    let answer: Value = serde_json::from_str(&answer)
        .map_err(|error| refused(format!("{source}: the server sent no JSON: {error}")))?;
    match &answer["refused"] {
        Value::Null => Ok(answer),
        why => Err(refused(text(why))),
    }
}

/// Makes the object target at `address` a zone of the file system, or says that it is there now;
/// returns its number. It has the same number at all metadata servers. The first one says which, so
/// that two who add targets at once do not give one number to both.
pub fn add_target(source: &Source, address: &str) -> Result<u64, Failure> {
    let servers = admin::servers(source)?;
    if let [only] = &servers[..] {
        return add_target_at(&only.source, address, None);
    }
    let mut taken = BTreeSet::new();
    for server in &servers {
        taken.extend(zones_of(server)?.into_iter().map(|zone| zone.pag));
    }
    let mut number = new_number(&taken);
    for (nth, server) in servers.iter().enumerate() {
        let added = add_target_at(&server.source, address, number)?;
        let asked = number.replace(PagId(u16::try_from(added).unwrap_or(u16::MAX)));
        if let Some(asked) = asked.filter(|asked| nth > 0 && u64::from(asked.0) != added) {
            let text = format!(
                "{OST}{address} is data zone {asked} of metadata server 0, and {added} of server \
                 {nth}: clients cannot use it"
            );
            return Err(refused(text));
        }
    }
    number.map(|number| u64::from(number.0)).ok_or_else(|| refused("there is no metadata server"))
}

/// A number that no data zone has; `None`: all have one.
fn new_number(taken: &BTreeSet<u64>) -> Option<PagId> {
    let end = PAGS_MAX as u64;
    let next = taken.last().map_or(0, |last| last + 1);
    let mut free = (next..end).chain(0..next.min(end)).filter(|id| !taken.contains(id));
    free.next().map(|id| PagId(id as u16))
}

fn add_target_at(source: &Source, address: &str, number: Option<PagId>) -> Result<u64, Failure> {
    let number = Appended(number);
    let op = Op::AddZone { path: format!("{OST}{address}"), overwrite: false, number };
    let answer = ask(source, op)?;
    answer["added"].as_u64().ok_or_else(|| {
        refused(format!("{source}: the server does not say which zone {address} is"))
    })
}

fn add(args: &PagAddArgs) -> Ended {
    let source = target::source_or_only(args.target.as_ref())?;
    if let Some(target) = args.device.to_str().filter(|device| device.starts_with(OST)) {
        return add_ost(args, &source, target);
    }
    let path = std::path::absolute(&args.device);
    let path =
        path.map_err(|error| Failure::usage(format!("{}: {error}", args.device.display())))?;
    let Some(device) = path.to_str() else {
        let text = format!("{}: the path of a data device is UTF-8", path.display());
        return Err(Failure::usage(text));
    };
    let (owner, number) = owner_of_new(&source, args.server)?;
    let number = Appended(number);
    let op = Op::AddZone { path: device.to_owned(), overwrite: args.force, number };
    let answer = ask(&owner.source, op)?;
    let Some(pag) = answer["added"].as_u64() else {
        return Err(refused(format!("{source}: the server does not say which zone it is")));
    };
    let named = Value::from(device);
    let mds = owner.number.map(|number| format!("mds = {number}\n")).unwrap_or_default();
    let next = format!("[[data]]\npath = {named}\nid = {pag}\n{mds}");
    let (device, source) = (device.to_owned(), source.to_string());
    let report = Added { version: 1, source, pag, device, next };
    output::print_report(args.output, &report, |report| {
        format!(
            "{} is data zone {} of {}\nnow add to the cluster's file of every server:\n\n{}",
            report.device, report.pag, report.source, report.next
        )
    })?;
    Ok(0)
}

/// The server that gets a new device, and the device's number if there are several: none of them
/// knows the zones of the others. Each has numbers of its own, so two devices that are added at
/// once never have one.
fn owner_of_new(source: &Source, asked: Option<u16>) -> Result<(Server, Option<PagId>), Failure> {
    let servers = admin::servers(source)?;
    let count = servers.len();
    let last = count - 1;
    let at = match (asked, count) {
        (Some(at), _) => usize::from(at),
        (None, 1) => 0,
        (None, _) => {
            let text = format!(
                "{source}: the file system has {count} metadata servers, each with its own data zones: \
                 say whose this one is to be, with --server 0 to --server {last}"
            );
            return Err(Failure::usage(text));
        }
    };
    let mut taken = BTreeSet::new();
    if count > 1 {
        for server in &servers {
            taken.extend(zones_of(server)?.into_iter().map(|zone| zone.pag));
        }
    }
    let found = servers.into_iter().nth(at);
    let owner = found.ok_or_else(|| {
        Failure::usage(format!("{source}: there is no server {at}: they are 0 to {last}"))
    })?;
    if count == 1 {
        return Ok((owner, None));
    }
    let is_its = |id: &u64| *id as usize % count == at && !taken.contains(id);
    let number = (0..PAGS_MAX as u64).find(is_its).ok_or_else(|| {
        refused(format!("{source}: server {at} has no number left for a data zone"))
    })?;
    Ok((owner, Some(PagId(number as u16))))
}

/// Adds an object target: its address is kept in the metadata, so nothing is to be written down.
fn add_ost(args: &PagAddArgs, source: &Source, target: &str) -> Ended {
    let address =
        check_address_or(target.trim_start_matches(OST), OST_PORT).map_err(Failure::usage)?;
    let pag = add_target(source, &address)?;
    let (device, source, next) = (format!("{OST}{address}"), source.to_string(), String::new());
    let report = Added { version: 1, source, pag, device, next };
    output::print_report(args.output, &report, |report| {
        let Added { device, pag, source, .. } = report;
        format!(
            "{device} is data zone {pag} of {source}\nnew files lie there below directories with \
             a layout such as `policy=objects zones={pag}`: see `redbud help set-layout`\n"
        )
    })?;
    Ok(0)
}

#[derive(Serialize)]
struct Zones {
    version: u32,
    source: String,
    pags: Vec<Zone>,
}

#[derive(Serialize)]
struct Zone {
    pag: u64,
    /// The metadata server that it belongs to, of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    mds: Option<u16>,
    uuid: String,
    device: String,
    state: String,
    /// Bytes that other servers have of it.
    #[serde(skip_serializing_if = "is_none")]
    bytes_lent: u64,
    /// The shard of the server whose zone it is, if that has lent this one blocks of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    lent_by: Option<u64>,
    /// It is another server's, which may have got back all that it had lent.
    #[serde(skip)]
    is_borrowed: bool,
    /// How the server finds the device.
    device_state: String,
    bytes: u64,
    bytes_free: u64,
    /// Given up by files, not yet free.
    bytes_freed: u64,
    /// In the pools of clients.
    bytes_pooled: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_none(bytes: &u64) -> bool {
    *bytes == 0
}

/// The zones of all metadata servers.
fn zones(source: &Source) -> Result<Vec<Zone>, Failure> {
    let mut all = Vec::new();
    for server in admin::servers(source)? {
        all.extend(zones_of(&server)?);
    }
    all.sort_by_key(|zone| zone.pag);
    Ok(all)
}

/// The metadata servers that have this data zone: one, or of a target all.
fn servers_of(source: &Source, pag: u16) -> Result<Vec<Source>, Failure> {
    let servers = admin::servers(source)?;
    if let [only] = &servers[..] {
        return Ok(vec![only.source.clone()]);
    }
    let mut found = Vec::new();
    for server in servers {
        if zones_of(&server)?.iter().any(|zone| zone.pag == u64::from(pag)) {
            found.push(server.source);
        }
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let text = format!("the file system has no data zone {pag}: `redbud pag list` shows them");
    Err(refused(text))
}

fn zones_of(server: &Server) -> Result<Vec<Zone>, Failure> {
    let mds = server.number;
    let server = admin::status(&server.source)?;
    let bytes = |zone: &Value, key: &str| number(&zone[key]) * BLOCK_U64;
    let is_drained = |zone: &Value| {
        let leaves = [PagUse::Draining, PagUse::Paused].map(PagUse::name);
        leaves.contains(&text(&zone["state"])) && zone["free"] == zone["blocks"]
    };
    let lent = |zone: &Value| -> u64 {
        list(&zone["lent"]).map(|lent| number(&lent["blocks"]) * BLOCK_U64).sum()
    };
    let lender = |zone: &Value| zone["lent"][0]["shard"].as_u64();
    let is_borrowed = |zone: &Value| text(&zone["kind"]) == BORROWED;
    let zone = |zone: &Value| Zone {
        pag: number(&zone["id"]),
        mds,
        bytes_lent: if is_borrowed(zone) { 0 } else { lent(zone) },
        lent_by: lender(zone).filter(|_| is_borrowed(zone)),
        is_borrowed: is_borrowed(zone),
        uuid: text(&zone["uuid"]).to_owned(),
        device: text(&zone["path"]).to_owned(),
        state: if is_drained(zone) { DRAINED } else { text(&zone["state"]) }.to_owned(),
        device_state: text(&zone["device"]).to_owned(),
        bytes: bytes(zone, "blocks"),
        bytes_free: bytes(zone, "free"),
        bytes_freed: bytes(zone, "freed"),
        bytes_pooled: bytes(zone, "pooled"),
    };
    Ok(list(&server["pags"]).map(zone).collect())
}

fn list_all(args: &PagListArgs) -> Ended {
    let source = target::source_or_only(args.target.as_ref())?;
    let mut pags = zones(&source)?;
    let leaves = |zone: &Zone| zone.state != PagUse::InService.name();
    let owners: BTreeMap<u64, bool> =
        pags.iter().filter(|zone| !zone.is_borrowed).map(|zone| (zone.pag, leaves(zone))).collect();
    // One of which nothing is lent any more matters if its state is another one there.
    let is_as_owner = |zone: &Zone| owners.get(&zone.pag) == Some(&leaves(zone));
    pags.retain(|zone| !zone.is_borrowed || zone.lent_by.is_some() || !is_as_owner(zone));
    let report = Zones { version: 1, source: source.to_string(), pags };
    output::print_report(args.output, &report, |report| {
        let head = ["pag", "state", "size", "free", "freed", "in pools", "server", "device"];
        let is_several = report.pags.iter().any(|zone| zone.mds.is_some());
        let head: Vec<&str> = is_several.then_some("mds").into_iter().chain(head).collect();
        let mut table = Columns::new(&head);
        for zone in &report.pags {
            let mds = zone.mds.map(|mds| mds.to_string());
            let mut row: Vec<String> = mds.into_iter().collect();
            let state = match (zone.lent_by, zone.bytes_lent) {
                (Some(shard), _) => format!("{}, lent by server {shard}", zone.state),
                (None, 0) => zone.state.clone(),
                (None, lent) => format!("{}, {} lent", zone.state, human_size(lent)),
            };
            row.extend([
                zone.pag.to_string(),
                state,
                human_size(zone.bytes),
                human_size(zone.bytes_free),
                human_size(zone.bytes_freed),
                human_size(zone.bytes_pooled),
                zone.device_state.clone(),
                zone.device.clone(),
            ]);
            table.row(row);
        }
        table.text()
    })?;
    Ok(0)
}

#[derive(Serialize)]
struct Changed {
    version: u32,
    source: String,
    pag: u16,
    before: String,
    state: &'static str,
}

/// Sets the state of a zone, if it is one of `only_from` now, or if that is empty.
fn set(
    (pag, only_from): (u16, &[PagUse]),
    to: PagUse,
    target: Option<&String>,
    output: Output,
) -> Ended {
    let source = target::source_or_only(target)?;
    let servers = servers_of(&source, pag)?;
    let source = if let [only] = &servers[..] { only.to_string() } else { source.to_string() };
    let of: Vec<u16> = only_from.iter().map(|of| of.number()).collect();
    let (mut changed, mut kept) = (None, None);
    for server in &servers {
        let only_from = of.clone();
        let op = Op::SetZoneState { pag: PagId(pag), state: to.number(), only_from };
        let answer = ask(server, op)?;
        match &answer["kept"] {
            Value::String(state) => kept = kept.or(Some(state.clone())),
            _ => changed = changed.or(Some(text(&answer["before"]).to_owned())),
        }
    }
    // At some of the servers it may have been done before.
    if let (None, Some(state), Some(of)) = (&changed, kept, only_from.first()) {
        let of = of.name();
        return Err(refused(format!("data zone {pag} is {state}, not {of}: nothing to undo")));
    }
    let before = changed.unwrap_or_default();
    let report = Changed { version: 1, source, pag, before, state: to.name() };
    output::print_report(output, &report, |report| {
        let already = if report.before == report.state { " already" } else { "" };
        format!("data zone {} of {} is {}{already}\n", report.pag, report.source, report.state)
    })?;
    Ok(0)
}

/// Empties a zone. To a target of several metadata servers no new files go from any of them. From a
/// zone of which blocks are lent, the servers that have these move their files first.
fn drain_out(args: &PagDrainArgs) -> Ended {
    let source = target::source_or_only(args.target.as_ref())?;
    let all = admin::servers(&source)?;
    if all.len() == 1 {
        return drain::run(args, &[None]);
    }
    let id = PagId(args.pag);
    let of_it = |server: &Server| -> Result<Option<Zone>, Failure> {
        Ok(zones_of(server)?.into_iter().find(|zone| zone.pag == u64::from(id.0)))
    };
    let mut owners = Vec::new();
    for server in &all {
        if let Some(zone) = of_it(server)?.filter(|zone| !zone.is_borrowed) {
            begin_drain(&server.source, id)?;
            owners.push((server.shard(), zone.device.starts_with(OST)));
        }
    }
    let Some(&(owner, is_target)) = owners.first() else { return Err(drain::unknown(id)) };
    if is_target || owners.len() > 1 {
        return Err(drain::target_left(id));
    }
    // The owner lends nothing from here on, so no other server gets blocks of it.
    let mut servers = Vec::new();
    for server in all.iter().filter(|server| server.shard() != owner) {
        if of_it(server)?.is_some() {
            begin_drain(&server.source, id)?;
        }
        servers.push(server.shard());
    }
    servers.push(owner);
    drain::run(args, &servers)
}

/// Lets a zone drain that is in service, or whose drain is paused, at a metadata server.
fn begin_drain(server: &Source, pag: PagId) -> Result<(), Failure> {
    let of = [PagUse::InService, PagUse::Paused, PagUse::Draining];
    let only_from = of.iter().map(|of| of.number()).collect();
    let op = Op::SetZoneState { pag, state: PagUse::Draining.number(), only_from };
    match &ask(server, op)?["kept"] {
        Value::String(state) => Err(refused(format!("data zone {pag} is {state} at {server}"))),
        _ => Ok(()),
    }
}

#[derive(Serialize)]
struct Files {
    version: u32,
    source: String,
    pag: u16,
    files: Vec<Value>,
}

/// The files of one metadata server.
fn files_at(source: &Source, args: &PagFilesArgs) -> Result<Vec<Value>, Failure> {
    let (from, to) = match args.range {
        Some((from, last)) => (from, last.saturating_add(1)),
        None => (0, u64::MAX),
    };
    let (mut at, mut met, mut files) = ((0, 0), BTreeSet::new(), Vec::new());
    loop {
        let mut part = ask(source, Op::ZoneFiles { pag: PagId(args.pag), from, to, at })?;
        if let Value::Array(found) = part["files"].take() {
            files.extend(found.into_iter().filter(|file| met.insert(number(&file["ino"]))));
        }
        let word = |index: usize| text(&part["next"][index]).parse::<u64>();
        at = match (&part["next"], word(0), word(1)) {
            (Value::Null, ..) => return Ok(files),
            (_, Ok(first), Ok(second)) => (first, second),
            _ => return Err(refused(format!("{source}: the server sent no place to go on at"))),
        };
    }
}

fn files(args: &PagFilesArgs) -> Ended {
    let source = target::source_or_only(args.target.as_ref())?;
    let servers = servers_of(&source, args.pag)?;
    let source = if let [only] = &servers[..] { only.to_string() } else { source.to_string() };
    let mut files = Vec::new();
    for server in &servers {
        files.extend(files_at(server, args)?);
    }
    let report = Files { version: 1, source, pag: args.pag, files };
    output::print_report(args.output, &report, |report| {
        let line = |file: &Value| match (&file["path"], &file["orphan"]) {
            (Value::String(path), _) => format!("{path}\n"),
            (_, Value::Bool(true)) => format!("ino {} (removed, still open)\n", file["ino"]),
            _ => format!("ino {}\n", file["ino"]),
        };
        report.files.iter().map(line).collect()
    })?;
    Ok(0)
}
