//! Makes, opens and closes a target.
//!
//! Invariants:
//! - the label comes last: an interrupted format leaves a device that no opening accepts;
//! - the front slice has the log, 1/48 of the device and at least 8 MiB; the other slice has the
//!   rest but for the label's second copy;
//! - an opening serves nothing before it knows all free runs and all fenced clients.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use engine::clients::NEXT_CLIENT;
use engine::cost::Cost;
use engine::device::Device;
use engine::device::label::LabelCondition;
use engine::device::log::Devices;
use engine::device::shared;
use engine::error::StoreError;
use engine::format::features::Features;
use engine::store::Store;
use engine::store::mkfs;
use engine::store::open::OpenOptions;
use env::{Disk, Env};
use label::{Label, Slice, SliceKind};
use types::limits::BLOCK_U64;
use types::{ClientId, ShardId};

use super::adopt;
use super::flight::{Content, Flight};
use super::format::{FENCED, FREE, SHAPE, Shape, free_of};
use super::space::Space;
use super::{Counters, FormatOptions, NewJournal, ObjectStore, Options};

/// Blocks of the front slice besides the log, at least.
const FRONT_MIN: u64 = 2048;
/// The part of the device that the front slice has besides the log: so much that each block of an
/// object may be a segment of its own ([`super::promises`]).
const FRONT_PART: u64 = 48;
/// Blocks of the content slice at least.
const CONTENT_MIN: u64 = 256;
/// Entries that an opening reads in one transaction.
const STEP: usize = 1024;

fn refused(disk: &Disk, text: &str) -> StoreError {
    StoreError::Refused(format!("{}: {text}", disk.path()).into())
}

/// Blocks of the front slice of a device of `blocks` blocks, with a log of `log_bytes` in it.
fn front(blocks: u64, log_bytes: u64) -> u64 {
    (log_bytes / BLOCK_U64).saturating_add((blocks / FRONT_PART).max(FRONT_MIN))
}

impl ObjectStore {
    /// Makes a target on `disk`, with its journal on `journal` if that is given.
    ///
    /// # Errors
    /// `Refused` if a device carries a Redbud label (without force) or is too small, or if
    /// `journal` has no room beside other journals; `Io`.
    pub async fn format(
        env: &Env,
        disk: &Disk,
        journal: Option<NewJournal<'_>>,
        options: &FormatOptions<'_>,
    ) -> Result<(), StoreError> {
        // Room for an internal log stays set aside, so that the log can move back.
        let log_bytes = match journal {
            Some(_) => engine::format::superblock::LOG_BYTES_MIN,
            None => options.log_bytes,
        };
        let blocks = disk.size() / BLOCK_U64;
        let front = front(blocks, log_bytes);
        let content = blocks.saturating_sub(1).saturating_sub(front);
        if content < CONTENT_MIN {
            let least = (front + CONTENT_MIN + 1) * BLOCK_U64;
            let text = format!(
                "{} bytes are too few for an object target with a log of {log_bytes} bytes; it needs \
                 at least {least}",
                disk.size()
            );
            return Err(refused(disk, &text));
        }
        let home = Device::of(&Device::whole(env, disk), 0, front);
        let Some(journal) = journal else {
            return make(Devices { home, log: None }, (content, log_bytes), options).await;
        };
        let log = Some(journal.begin(env, disk, options).await?);
        let made = make(Devices { home, log }, (content, log_bytes), options).await;
        made.and(journal.end().await)
    }

    /// Opens a target; recovers it if it was not closed.
    ///
    /// # Errors
    /// `Refused`, `Io`, `Corrupt`, `DamagedLog`.
    pub async fn open(
        env: &Env,
        disk: &Disk,
        journal: Option<&Disk>,
        options: Options,
    ) -> Result<Rc<ObjectStore>, StoreError> {
        let found = label::read(disk).await.map_err(|none| {
            let text = format!("is no object target: {none}");
            refused(disk, &text)
        })?;
        let (target, content) = slices(disk, &found.label)?;
        let condition = found.damage.map_or(LabelCondition::Whole, LabelCondition::OneCopy);
        let devices = Devices {
            home: Device::of(&Device::whole(env, disk), target.start, target.blocks),
            log: journal.map(|disk| Device::whole(env, disk)),
        };
        let opening = OpenOptions {
            cache_bytes: options.cache_bytes,
            commit_interval: options.commit_interval,
            ..OpenOptions::default()
        };
        let engine = Store::open_unlabelled(devices, opening, condition).await?;
        if let Some(journal) = journal {
            // A format that added a slice may have been interrupted.
            shared::mend_label(journal).await?;
        }
        let shape = engine.run(Cost::READ, |txn| txn.setting(SHAPE)).await?.0;
        let shape = shape.and_then(|bytes| Shape::decode(&bytes));
        let Some(shape) = shape.filter(|shape| shape.blocks == content.blocks) else {
            let text = "its records say another size of the content slice than its label; restore the \
                        device from a backup";
            return Err(refused(disk, text));
        };
        let space = Rc::new(Space::new(content.blocks));
        load_free(&engine, &space).await?;
        let fenced = load_fenced(&engine).await?;
        let adopted = adopt::load(&engine).await?;
        let content = Content {
            env: env.clone(),
            disk: disk.clone(),
            start: content.start,
            blocks: content.blocks,
        };
        let flight = Rc::new(Flight::new(content));
        engine.set_barrier(flight.clone());
        Ok(Rc::new(ObjectStore {
            target: target.uuid,
            checksums: shape.checksums,
            engine,
            space,
            promises: Rc::default(),
            flight,
            fenced: RefCell::new(fenced),
            adopted: RefCell::new(adopted),
            counters: RefCell::new(Counters::default()),
        }))
    }

    /// Makes everything durable, and closes the store.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.engine.close().await
    }
}

/// Makes the front slice on `devices.home`, which begins at the front of its disk, then the label.
/// `content` blocks follow.
async fn make(
    devices: Devices,
    (content, log_bytes): (u64, u64),
    options: &FormatOptions<'_>,
) -> Result<(), StoreError> {
    let Device { env, disk, .. } = devices.home.clone();
    let front = devices.home.blocks();
    let plan = mkfs::FormatOptions {
        name: options.fs_name,
        uuid: options.fs,
        shard: ShardId(0),
        log_bytes,
        features: Features::NONE,
        force: options.force,
    };
    let store = Store::begin_format_in(devices, options.target, &plan).await?;
    let shape = Shape { blocks: content, checksums: options.checksums };
    let first = store.run(Cost::STEP, |txn| {
        txn.set_root(NEXT_CLIENT, 1)?;
        txn.set_setting(SHAPE, &shape.encode())?;
        FREE.insert(txn, &1u64.to_be_bytes(), &(content - 1).to_le_bytes())?;
        Ok(())
    });
    first.await?;
    store.close().await?;
    let journal = store.superblock().journal.map(|journal| journal.uuid);
    let slices = vec![
        Slice {
            kind: SliceKind::Target { journal },
            start: 0,
            blocks: front,
            uuid: options.target,
        },
        Slice {
            kind: SliceKind::Content { target: options.target },
            start: front,
            blocks: content,
            uuid: env.random_uuid(),
        },
    ];
    // The label has the last block.
    let blocks = front + content + 1;
    let label = Label::new(options.fs, options.fs_name, options.target, blocks, slices);
    let written = label::write_new(&disk, &label).await;
    written.map_err(|error| StoreError::io("writing the label of", disk.path(), &error))
}

/// The two slices of a target.
fn slices(disk: &Disk, label: &Label) -> Result<(Slice, Slice), StoreError> {
    let target = label.slices.iter().find(|it| matches!(it.kind, SliceKind::Target { .. }));
    let content = label.slices.iter().find(
        |it| matches!(it.kind, SliceKind::Content { target: of } if target.is_some_and(|it| it.uuid == of)),
    );
    let (Some(target), Some(content)) = (target, content) else {
        let text = format!(
            "its label says that it holds {} of file system `{}`, not an object target with its \
             content; name the device of the target instead",
            label.contents(),
            label.fs_name
        );
        return Err(refused(disk, &text));
    };
    if label.blocks != disk.size() / BLOCK_U64 {
        let text = format!(
            "the target was made for {} bytes, but the device has {}; give the device its former size \
             back",
            label.blocks.saturating_mul(BLOCK_U64),
            disk.size()
        );
        return Err(refused(disk, &text));
    }
    Ok((*target, *content))
}

/// Reads all free runs.
async fn load_free(engine: &Store, space: &Space) -> Result<(), StoreError> {
    let mut from = Some(0u64);
    while let Some(at) = from {
        let found = engine.run(Cost::READ, |txn| FREE.range(txn, &at.to_be_bytes(), STEP)).await?.0;
        for (key, value) in &found {
            let run = free_of(key, value);
            if !space.holds(run) {
                let text = "a run of free content blocks lies outside the content slice";
                return Err(StoreError::corrupt(engine::format::roots::ROOTS_BLOCK, text));
            }
            space.learn(run);
        }
        from = found.last().and_then(|(key, _)| u64::from_be_bytes(*key).checked_add(1));
    }
    Ok(())
}

/// Reads all fenced clients.
async fn load_fenced(engine: &Store) -> Result<BTreeSet<ClientId>, StoreError> {
    let (mut out, mut from) = (BTreeSet::new(), Some(0u64));
    while let Some(at) = from {
        let found = engine.run(Cost::READ, |txn| FENCED.range(txn, &at.to_be_bytes(), STEP));
        let found = found.await?.0;
        out.extend(found.iter().map(|(key, _)| ClientId(u64::from_be_bytes(*key))));
        from = found.last().and_then(|(key, _)| u64::from_be_bytes(*key).checked_add(1));
    }
    Ok(out)
}
