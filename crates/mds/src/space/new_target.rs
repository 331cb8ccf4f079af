//! Object targets as data zones: at the start of the server, and added while it serves.
//!
//! | what answers | the table | what `add` does |
//! |---|---|---|
//! | no target of this file system, or one that does not accept the server's key | – | refuses |
//! | a target | has not its UUID | enters it, with the number that is asked for, or the next |
//! | a target | has it, at another address | goes on with it at this address |
//! | a target | has it, at this address | nothing: it answers with its number |
//!
//! Invariants:
//! - the file system has the feature `object-files`, durably, before a file lies in an object;
//! - numbers for objects are durably taken before one is used;
//! - the address of a target is in the metadata: nobody has to name it again.

use mfs::{Cost, PagState, StoreError, TARGET_ADDRESS_MAX, ZoneKind};
use proto::mds::{PagInfo, TARGET_ZONE};
use types::{PagId, Transno};

use super::Space;
use super::new_zone::{Adding, Entering, new_number};
use crate::error::ServeError;
use crate::targets::NO_KEY;

/// What is before the address of a target where a zone may also be a device.
pub(super) const TARGET_PREFIX: &str = "ost:";

impl Space {
    /// A target of the table, as clients get to know it.
    ///
    /// # Errors
    /// The cluster's file names a device for its number; the store's.
    pub(super) async fn learn_target(&self, state: &PagState) -> Result<PagInfo, ServeError> {
        let (runtime, id) = (&self.runtime, state.id);
        if let Some(place) = runtime.config.pags.iter().find(|place| place.id == id) {
            let path = &place.path;
            return Err(ServeError::Device(format!(
                "{path}: the configuration names it as data zone {id}, which is an object target"
            )));
        }
        let (path, _) = runtime.mfs.run(Cost::READ, |txn| txn.space().target_address(id)).await?;
        self.states.borrow_mut().insert(id, (state.state, Transno::ZERO));
        let (uuid, device, blocks) = (state.uuid, state.device, state.total + 1);
        Ok(PagInfo { id, uuid, device, blocks, kind: TARGET_ZONE, path })
    }

    /// Goes on with the targets of the table, and takes numbers for objects.
    pub(super) async fn begin_targets(&self) -> Result<(), ServeError> {
        let zones = self.zones();
        let targets: Vec<&PagInfo> = zones.iter().filter(|it| it.kind == TARGET_ZONE).collect();
        if targets.is_empty() {
            return Ok(());
        }
        // An earlier server may have died before the superblocks said so.
        let is_new = self.runtime.mfs.add_object_files();
        self.take_numbers().await?;
        if is_new {
            self.runtime.mfs.settle().await?;
        }
        if !self.targets.has_key() {
            self.runtime.log(NO_KEY);
        }
        for zone in targets {
            self.targets.begin((zone.id, zone.uuid), &zone.path, None);
        }
        Ok(())
    }

    async fn take_numbers(&self) -> Result<(), StoreError> {
        let mfs = &self.runtime.mfs;
        let (numbers, transno) = mfs.run(Cost::SMALL, |txn| txn.space().take_objects()).await?;
        self.runtime.wait_durable(transno).await?;
        self.targets.set_numbers(numbers);
        Ok(())
    }

    /// Makes the target at `address` a data zone, with this number if it is new.
    pub(super) async fn add_target(
        &self,
        address: &str,
        number: Option<PagId>,
    ) -> Result<PagId, String> {
        if self.adding.replace(true) {
            return Err("another device is being added: try again when that is done".into());
        }
        let _adding = Adding(&self.adding);
        if !self.targets.has_key() {
            return Err(format!("ost:{address}: {NO_KEY}"));
        }
        if address.len() > TARGET_ADDRESS_MAX {
            return Err(format!(
                "ost:{address}: an address has {TARGET_ADDRESS_MAX} bytes at most"
            ));
        }
        let info = self.targets.look_at(address).await?;
        let (table, _) = self.pags().await?;
        let known = table.iter().find(|zone| zone.uuid == info.uuid);
        if let Some(known) = known {
            return self.take_address(known, address, info.free).await;
        }
        let id = new_number(&table, number).map_err(|why| format!("ost:{address}: {why}"))?;
        let runtime = &self.runtime;
        let entering = Entering::begin(self);
        let is_new = runtime.mfs.add_object_files();
        let entered = runtime.mfs.run(Cost::SMALL, |txn| {
            txn.space().set_target_address(id, address)?;
            txn.space().add_target(id, info.uuid, info.blocks)
        });
        let failed = |error: StoreError| {
            runtime.note_failure(&error, "entering an object target");
            format!("ost:{address}: {error}")
        };
        let (_, transno) = entered.await.map_err(failed)?;
        runtime.wait_durable(transno).await.map_err(failed)?;
        if !self.targets.has_numbers() {
            self.take_numbers().await.map_err(failed)?;
        }
        if is_new {
            runtime.mfs.settle().await.map_err(failed)?;
        }
        let (uuid, blocks, path) = (info.uuid, info.blocks + 1, address.to_owned());
        let zone = PagInfo { id, uuid, device: uuid, blocks, kind: TARGET_ZONE, path };
        self.zones.borrow_mut().push(zone);
        self.targets.begin((id, uuid), address, Some(info.free));
        drop(entering);
        runtime.log(&format!("ost:{address} is data zone {id} now, with {} blocks", info.blocks));
        self.announce_zones();
        Ok(id)
    }

    /// A target that is a zone already: goes on with it at this address.
    async fn take_address(
        &self,
        known: &PagState,
        address: &str,
        free: u64,
    ) -> Result<PagId, String> {
        let (id, runtime) = (known.id, &self.runtime);
        if known.kind != ZoneKind::Target {
            return Err(format!("ost:{address}: its UUID is that of data zone {id}, a device"));
        }
        if self.targets.address(id).as_deref() == Some(address) {
            return Ok(id);
        }
        let set = runtime.mfs.run(Cost::SMALL, |txn| txn.space().set_target_address(id, address));
        let failed = |error: StoreError| {
            runtime.note_failure(&error, "setting the address of an object target");
            format!("ost:{address}: {error}")
        };
        let (_, transno) = set.await.map_err(failed)?;
        runtime.wait_durable(transno).await.map_err(failed)?;
        for zone in self.zones.borrow_mut().iter_mut().filter(|zone| zone.id == id) {
            address.clone_into(&mut zone.path);
        }
        self.targets.begin((id, known.uuid), address, Some(free));
        runtime.log(&format!("data zone {id} is at ost:{address} from now on"));
        self.announce_zones();
        Ok(id)
    }

    /// The zones that are targets.
    pub fn target_ids(&self) -> Vec<PagId> {
        self.targets.ids()
    }

    /// Are all zones targets? Then files lie there without a layout that says so.
    pub fn has_only_targets(&self) -> bool {
        let targets = self.targets.ids().len();
        targets > 0 && self.zones.borrow().len() == targets
    }

    /// May new files of a layout with these zones lie on this target?
    pub fn takes_files(&self, id: PagId, zones: &[PagId]) -> bool {
        let states = self.states.borrow();
        let serves = states.get(&id).is_none_or(|(state, _)| state.grants());
        serves && (zones.is_empty() || zones.contains(&id))
    }
}
