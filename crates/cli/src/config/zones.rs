//! The zones in a cluster's file: those of the metadata of each server, their journals, and the
//! data zones, each of which belongs to one server.

use std::collections::BTreeSet;
use std::path::PathBuf;

use label::SLICES_MAX;
use serde::Deserialize;
use toml::Spanned;
use types::PagId;
use types::limits::PAGS_MAX;

use super::{ConfigError, DATA_MIN, JOURNAL_MIN, METADATA_MIN, Reader, Zone};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMetadata {
    pub(super) path: Spanned<PathBuf>,
    pub(super) size: Option<Spanned<String>>,
    pub(super) log: Option<Spanned<String>>,
    pub(super) journal: Option<Spanned<PathBuf>>,
    pub(super) journal_size: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawData {
    path: Spanned<PathBuf>,
    size: Option<Spanned<String>>,
    id: Option<Spanned<u16>>,
    slices: Option<Spanned<u16>>,
    mds: Option<Spanned<u16>>,
}

/// Where the metadata of one server lie.
pub(super) struct Home {
    pub(super) metadata: Zone,
    pub(super) log: Option<u64>,
    pub(super) journal: Option<Zone>,
}

impl Home {
    fn devices(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.metadata.path).chain(self.journal.iter().map(|zone| &zone.path))
    }
}

/// The data zones of one server.
pub(super) type DataZones = Vec<(PagId, Zone)>;

impl Reader<'_> {
    /// What `table` says, which is `metadata` or `mds`.
    pub(super) fn home(&self, table: &str, raw: &RawMetadata) -> Result<Home, ConfigError> {
        let key = |name: &str| format!("{table}.{name}");
        Ok(Home {
            metadata: Zone {
                path: self.path(raw.path.get_ref()),
                size: self.size(&key("size"), raw.size.clone(), METADATA_MIN)?,
            },
            log: self.size(&key("log"), raw.log.clone(), 4 << 20)?,
            journal: self.journal(table, raw)?,
        })
    }

    fn journal(&self, table: &str, raw: &RawMetadata) -> Result<Option<Zone>, ConfigError> {
        let Some(place) = &raw.journal else {
            let Some(size) = &raw.journal_size else { return Ok(None) };
            let text =
                format!("key `{table}.journal_size`: it needs a key `journal`, the file's path");
            return Err(self.at(size.span(), text));
        };
        let path = self.path(place.get_ref());
        if path == self.path(raw.path.get_ref()) {
            let text = format!("key `{table}.journal`: {} is named twice", path.display());
            return Err(self.at(place.span(), text));
        }
        let key = format!("{table}.journal_size");
        let size = self.size(&key, raw.journal_size.clone(), JOURNAL_MIN)?;
        Ok(Some(Zone { path, size }))
    }

    /// The data zones of each server; `homes`: where the metadata of each lie.
    pub(super) fn zones(
        &self,
        raw: &[RawData],
        homes: &[&Home],
    ) -> Result<Vec<DataZones>, ConfigError> {
        let mut paths: BTreeSet<PathBuf> =
            homes.iter().flat_map(|home| home.devices()).cloned().collect();
        let mut zones: Vec<DataZones> = homes.iter().map(|_| Vec::new()).collect();
        let (mut ids, mut next) = (BTreeSet::new(), 0);
        for zone in raw {
            let path = self.path(zone.path.get_ref());
            if homes.iter().any(|home| home.metadata.path == path) {
                let text = format!(
                    "key `data.path`: {} holds the metadata: clients open data devices, so give the \
                     metadata a device of their own",
                    path.display()
                );
                return Err(self.at(zone.path.span(), text));
            }
            if !paths.insert(path.clone()) {
                let text = format!("key `data.path`: {} is named twice", path.display());
                return Err(self.at(zone.path.span(), text));
            }
            let owner = self.owner(zone.mds.as_ref(), homes.len())?;
            let id = match &zone.id {
                Some(id) => *id.get_ref(),
                None => next,
            };
            let slices = self.slices(zone.slices.as_ref())?;
            next = id.saturating_add(slices);
            let span = zone.id.as_ref().map_or(zone.path.span(), Spanned::span);
            let size = self.size("data.size", zone.size.clone(), DATA_MIN * u64::from(slices))?;
            for id in id..next.max(id.saturating_add(1)) {
                if !ids.insert(id) || usize::from(id) >= PAGS_MAX {
                    let text = format!(
                        "key `data.id`: {id} is used twice or not below {PAGS_MAX}: give each zone its own number"
                    );
                    return Err(self.at(span, text));
                }
                zones[owner].push((PagId(id), Zone { path: path.clone(), size }));
            }
        }
        Ok(zones)
    }

    /// The server that a data device belongs to: 0, if the file does not say it.
    fn owner(&self, mds: Option<&Spanned<u16>>, servers: usize) -> Result<usize, ConfigError> {
        let Some(mds) = mds else { return Ok(0) };
        let owner = usize::from(*mds.get_ref());
        if owner < servers {
            return Ok(owner);
        }
        let text = match servers {
            1 => format!("key `data.mds`: there is no server {owner}: there is only server 0"),
            _ => format!(
                "key `data.mds`: there is no server {owner}: the tables [[mds]] are the servers 0 \
                 to {}",
                servers - 1
            ),
        };
        Err(self.at(mds.span(), text))
    }

    fn slices(&self, value: Option<&Spanned<u16>>) -> Result<u16, ConfigError> {
        let Some(value) = value else { return Ok(1) };
        if (1..=SLICES_MAX).contains(&usize::from(*value.get_ref())) {
            return Ok(*value.get_ref());
        }
        let text = format!("key `data.slices`: a device has 1 to {SLICES_MAX} slices");
        Err(self.at(value.span(), text))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::{GOOD, parse};
    use super::*;

    #[test]
    fn slices_of_a_device_have_consecutive_numbers() {
        let text =
            GOOD.replacen("path = \"/dev/sdb\"", "path = \"/dev/sdb\"\nslices = 3\nid = 5", 1);
        let cluster = parse(&text).unwrap();
        let devices = cluster.data_devices();
        let ids = |index: usize| devices[index].1.iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!((devices.len(), ids(0), ids(1)), (2, vec![5, 6, 7], vec![8]));
        assert_eq!(devices[0].0.path, Path::new("/dev/sdb"));
    }

    #[test]
    fn journal_is_a_zone_of_its_own() {
        let with = |keys: &str| parse(&GOOD.replacen("size = \"1G\"", keys, 1));
        let cluster = with("journal = \"log.img\"\njournal_size = \"64M\"").unwrap();
        let path = PathBuf::from("/etc/redbud/log.img");
        assert_eq!(cluster.journal, Some(Zone { path, size: Some(64 << 20) }));
        assert_eq!(parse(GOOD).unwrap().journal, None);
        let cases = [
            ("journal = \"meta.img\"", "home.toml:10: key `metadata.journal`"),
            ("journal = \"/dev/sdb\"", "home.toml:13: key `data.path`"),
            ("journal_size = \"64M\"", "home.toml:10: key `metadata.journal_size`"),
            ("journal = \"l\"\njournal_size = \"4M\"", "home.toml:11: key `metadata.journal_size`"),
        ];
        for (keys, expected) in cases {
            let text = with(keys).unwrap_err().to_string();
            assert!(text.contains(expected), "{keys}: {text}");
        }
    }
}
