//! What a host with object targets reads in a cluster's file; the rest of the file may be missing
//! there.
//!
//!     [targets]
//!     key = "targets.key"
//!
//!     [[ost]]
//!     device  = "/dev/disk/by-id/…"
//!     journal = "/dev/disk/by-id/…"
//!     address = "10.0.0.3:10822"

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use channel::Mode;
use serde::Deserialize;
use toml::Spanned;
use types::{Duration, check_fs_name};

use super::{ConfigError, Reader, read_file};
use crate::address::{OST_PORT, check_address_or};

/// An object target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OstConfig {
    /// The device with its objects.
    pub device: PathBuf,
    /// The device of its journal; `None`: the journal is internal.
    pub journal: Option<PathBuf>,
    /// The address that it listens on, and at which clients find it.
    pub address: String,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetsView {
    /// The file that it was read from.
    pub file: PathBuf,
    /// Name of the file system.
    pub name: String,
    /// What clients have to prove at a target's port; `None`: nothing.
    pub security: Option<Mode>,
    /// The file with the server's secret keys.
    pub key: PathBuf,
    /// The file with the keys that it allows.
    pub allowed: PathBuf,
    /// How long a client may be silent.
    pub lease: Duration,
    /// The file with the key that metadata server and targets share.
    pub target_key: Option<PathBuf>,
    /// The targets of all hosts.
    pub osts: Vec<OstConfig>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTargets {
    pub(super) key: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawOst {
    device: Spanned<PathBuf>,
    journal: Option<Spanned<PathBuf>>,
    address: Spanned<String>,
}

#[derive(Deserialize)]
struct RawView {
    name: Spanned<String>,
    #[serde(default)]
    server: RawServerView,
    #[serde(default)]
    targets: RawTargets,
    #[serde(default)]
    ost: Vec<RawOst>,
}

#[derive(Deserialize, Default)]
struct RawServerView {
    security: Option<Spanned<String>>,
    key: Option<Spanned<PathBuf>>,
    allowed: Option<Spanned<PathBuf>>,
    lease: Option<Spanned<String>>,
}

impl TargetsView {
    /// Reads and checks the file at `path`.
    pub fn read(path: &Path) -> Result<TargetsView, ConfigError> {
        TargetsView::parse(path, &read_file(path)?)
    }

    /// Checks `text`, which came from `file`; relative paths in it start at the file's directory.
    pub fn parse(file: &Path, text: &str) -> Result<TargetsView, ConfigError> {
        let reader = Reader { file, text };
        let raw: RawView = toml::from_str(text).map_err(|error| reader.syntax(&error))?;
        let name = raw.name.get_ref().clone();
        if !check_fs_name(&name) {
            let text = format!("key `name`: `{name}` is not a name of a file system");
            return Err(reader.at(raw.name.span(), text));
        }
        Ok(TargetsView {
            file: file.to_owned(),
            name,
            security: reader.security(raw.server.security.as_ref())?,
            key: reader.beside(raw.server.key.as_ref(), "key"),
            allowed: reader.beside(raw.server.allowed.as_ref(), "allowed"),
            lease: reader.lease(raw.server.lease)?,
            target_key: raw.targets.key.map(|key| reader.path(key.get_ref())),
            osts: reader.osts(raw.ost)?,
        })
    }
}

impl Reader<'_> {
    fn osts(&self, raw: Vec<RawOst>) -> Result<Vec<OstConfig>, ConfigError> {
        let (mut addresses, mut osts) = (BTreeSet::new(), Vec::with_capacity(raw.len()));
        for one in raw {
            let span = one.address.span();
            let address = check_address_or(one.address.get_ref(), OST_PORT)
                .map_err(|text| self.at(span.clone(), format!("key `ost.address`: {text}")))?;
            if !addresses.insert(address.clone()) {
                let text = format!("key `ost.address`: {address} is the address of two targets");
                return Err(self.at(span, text));
            }
            let device = self.path(one.device.get_ref());
            let journal = one.journal.as_ref().map(|journal| self.path(journal.get_ref()));
            if journal.as_ref() == Some(&device) {
                let text = "key `ost.journal`: it is the device of the objects: leave it out for \
                            an internal journal";
                return Err(self.at(one.device.span(), text));
            }
            osts.push(OstConfig { device, journal, address });
        }
        Ok(osts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
name = \"home\"
[server]
security = \"greeting\"
[targets]
key = \"targets.key\"
[[ost]]
device = \"/dev/sdb\"
journal = \"/dev/nvme0n1\"
address = \"10.0.0.3\"
[[ost]]
device = \"ost1.img\"
address = \"10.0.0.3:10900\"
";

    fn parse(text: &str) -> Result<TargetsView, ConfigError> {
        TargetsView::parse(Path::new("/etc/redbud/home.toml"), text)
    }

    #[test]
    fn targets_are_read_without_the_zones_of_the_metadata_server() {
        let view = parse(GOOD).unwrap();
        assert_eq!((view.name.as_str(), view.security), ("home", Some(Mode::Greeting)));
        assert_eq!(view.target_key, Some("/etc/redbud/targets.key".into()));
        let journal = Some("/dev/nvme0n1".into());
        let first =
            OstConfig { device: "/dev/sdb".into(), journal, address: "10.0.0.3:10822".into() };
        assert_eq!(view.osts[0], first);
        assert_eq!(view.osts[1].device, Path::new("/etc/redbud/ost1.img"));
        assert_eq!(view.osts[1].journal, None);
        // The metadata server reads the same file.
        let zones = "[metadata]\npath = 'm'\n[[data]]\npath = 'd'\n";
        let text = format!("{GOOD}{zones}");
        super::super::ClusterFile::parse(Path::new("/home.toml"), &text).unwrap();
    }

    #[test]
    fn errors_name_line_and_key() {
        for (from, to, expected) in [
            ("10.0.0.3:10900", "10.0.0.3:10822", "12: key `ost.address`: 10.0.0.3:10822 is"),
            ("10.0.0.3:10900", "a b", "12: key `ost.address`"),
            ("/dev/nvme0n1", "/dev/sdb", "7: key `ost.journal`"),
            ("journal", "jornal", "8: unknown field `jornal`"),
            ("\"greeting\"", "\"much\"", "3: key `server.security`"),
        ] {
            let text = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(text.contains(&format!("home.toml:{expected}")), "{to}: {text}");
        }
    }
}
