//! Where a contender runs a workload.

use super::loops::{Ext4, Store, Yard};
use super::virtual_disk::Virtual;
use super::{Contender, Measured, Place, Played, Settings};
use bench::Res;

/// A contender on its disk.
pub enum Site<'a> {
    /// A store on the papers' disk, in virtual time.
    Virtual(Virtual),
    /// A store on a loop device.
    Store(Store<'a>),
    /// The kernel's file system on a loop device.
    Ext4(Ext4<'a>),
}

impl<'a> Site<'a> {
    /// The contenders that run in `yard`, on loop devices, or else on the virtual disk.
    pub fn contenders(yard: Option<&Yard>) -> Vec<Contender> {
        let kernels = if yard.is_some() { &Contender::KERNELS[..] } else { &[] };
        [&Contender::STORES, kernels].concat()
    }

    /// What [`Site::new`] makes with such a yard.
    pub fn place(yard: Option<&Yard>) -> Place {
        yard.map_or(Place::Virtual, |_| Place::Loop)
    }

    /// Formats its disk, with a directory for each of so many processes.
    pub fn new(
        yard: Option<&'a Yard>,
        contender: Contender,
        settings: Settings,
        dirs: u64,
    ) -> Res<Site<'a>> {
        let Some(yard) = yard else {
            return Virtual::new(contender, settings, dirs).map(Site::Virtual);
        };
        match contender {
            Contender::Ext4Linear | Contender::Ext4Hashed => {
                Ext4::new(yard, contender, settings, dirs).map(Site::Ext4)
            }
            _ => Store::new(yard, contender, settings, dirs).map(Site::Store),
        }
    }

    /// Does a stage, with nothing cached, and tells what it took.
    pub fn stage<W: Played>(&self, workload: &W, stage: W::Stage) -> Res<Measured> {
        match self {
            Site::Virtual(site) => site.stage(workload, stage),
            Site::Store(site) => site.stage(workload, stage),
            Site::Ext4(site) => site.stage(workload, stage),
        }
    }
}
