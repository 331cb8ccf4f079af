//! Where new blocks of a file go: the layout policies of directories, and the turns of the data
//! zones (paper 002, section 4.2: RF-FileRound and RF-Striping).
//!
//! A layout is text, so that people can read and set it: words `key=value` with spaces between
//! them. It is kept with a directory as the attribute [`ATTRIBUTE`], and everything created there
//! inherits it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use types::limits::{BLOCK_U64, FILE_SIZE_MAX, PAGS_MAX};
use types::{Ino, Name, PagId, ShardId, name_hash};

/// The attribute under which a server keeps the layout of a directory, and that of a file.
pub const ATTRIBUTE: &[u8] = b"trusted.redbud.layout";

/// Blocks of a part of a striped file, if the layout does not say: 32 MiB (002, section 6.1).
pub const PART: u64 = (32 << 20) / BLOCK_U64;
/// Zones of a striped file, if the layout does not say; and zones of which one client keeps free
/// blocks at once.
pub const ZONES_AT_ONCE: usize = 8;

/// Targets of one object file at most.
pub const TARGETS_MAX: usize = 64;
/// Blocks of a stripe unit of an object file, if the layout does not say: 1 MiB, one request.
pub const UNIT: u64 = (1 << 20) / BLOCK_U64;

/// The place of block `at` of an object file with stripe units of `part` blocks on `targets`
/// targets: which target, which block of the object there, and the block of the file where the
/// next unit begins.
pub fn object_place(at: u64, part: u64, targets: usize) -> (usize, u64, u64) {
    let (unit, targets) = (at / part, targets.max(1) as u64);
    let block = unit / targets * part + at % part;
    ((unit % targets) as usize, block, (unit + 1).saturating_mul(part))
}

/// Which zone the next blocks of a file go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// A file lies on one zone as a whole; files take turns (RF-FileRound).
    #[default]
    FileRound,
    /// Parts of a file lie on one zone after the other (RF-Striping).
    Striping {
        /// Blocks of a part.
        part: u64,
        /// Number of zones; 0: all that the layout allows, at most [`ZONES_AT_ONCE`].
        width: u16,
    },
    /// Units of a file lie in objects on one target after the other (001, section 3.1).
    Objects {
        /// Blocks of a unit.
        part: u64,
        /// Number of targets; 0: one.
        width: u16,
    },
}

/// Which metadata server gets a new directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Home {
    /// That of its parent: a subtree stays together.
    #[default]
    Parent,
    /// That of this shard.
    Shard(ShardId),
    /// They take turns. What is made in such a directory does not inherit this.
    Spread,
}

/// Do new files of a directory go to the metadata servers that their names choose? What is made in
/// the directory does not inherit this.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spread {
    /// As soon as there are many names in it.
    #[default]
    Auto,
    /// They do.
    On,
    /// They go to the directory's own server.
    Off,
}

/// The shard to which a name in a spread directory goes, among all shards of the namespace, in
/// order. Without any it is
/// the first.
pub fn shard_of_name(name: &Name, shards: &[ShardId]) -> ShardId {
    let nth = name_hash(name.as_bytes()) % shards.len().max(1) as u64;
    shards.get(nth as usize).copied().unwrap_or_default()
}

/// The layout of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Where new directories go.
    pub home: Home,
    /// Where new files go.
    pub spread: Spread,
    /// The policy.
    pub policy: Policy,
    /// The zones that may be used, in order; empty: all.
    pub zones: Vec<PagId>,
}

/// Text that is no layout, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadLayout(String);

impl fmt::Display for BadLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadLayout {}

impl Layout {
    /// Reads the value of [`ATTRIBUTE`].
    ///
    /// # Errors
    /// Says which word is wrong.
    pub fn from_attribute(value: &[u8]) -> Result<Layout, BadLayout> {
        let text = std::str::from_utf8(value)
            .map_err(|_| BadLayout("the layout is not text".to_owned()))?;
        text.parse()
    }

    /// What a new directory or file inherits, on the same server or on another one, whose zones are
    /// others.
    pub fn of_child(mut self, is_elsewhere: bool) -> Layout {
        self.spread = Spread::Auto;
        if self.home == Home::Spread {
            self.home = Home::Parent;
        }
        if is_elsewhere {
            self.zones.clear();
        }
        self
    }

    /// Do new files lie in objects?
    pub fn is_objects(&self) -> bool {
        matches!(self.policy, Policy::Objects { .. })
    }

    /// For block `at` of the file: the place of its zone among `zones` zones, and the block where
    /// the next part begins. `None`: the whole file lies on one zone.
    pub fn stripe(&self, ino: Ino, at: u64, zones: usize) -> Option<(usize, u64)> {
        let Policy::Striping { part, width } = self.policy else { return None };
        let zones = zones.max(1);
        let width = if width == 0 { ZONES_AT_ONCE } else { usize::from(width) }.min(zones);
        let turn = (at / part) % width as u64;
        // Files begin at different zones: those of a directory, which count on from a multiple of
        // 2^24, and the first ones of several directories.
        let first = (ino.0 + (ino.0 >> 24)) % zones as u64;
        let nth = ((first + turn) % zones as u64) as usize;
        Some((nth, (at / part + 1) * part))
    }
}

impl Layout {
    /// The number of the part, from 0 on, that ends at this block of the file; 0 if there are none.
    pub fn part_before(&self, end: u64) -> u64 {
        match self.policy {
            Policy::Striping { part, .. } => (end / part).saturating_sub(1),
            Policy::FileRound | Policy::Objects { .. } => 0,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.policy {
            Policy::FileRound => f.write_str("policy=fileround")?,
            Policy::Striping { part, width } | Policy::Objects { part, width } => {
                let is_objects = matches!(self.policy, Policy::Objects { .. });
                let name = if is_objects { "objects" } else { "striping" };
                write!(f, "policy={name} part={}", part * BLOCK_U64)?;
                if width > 0 {
                    write!(f, " width={width}")?;
                }
            }
        }
        for (nth, zone) in self.zones.iter().enumerate() {
            write!(f, "{}{zone}", if nth == 0 { " zones=" } else { "," })?;
        }
        match self.home {
            Home::Parent => {}
            Home::Shard(shard) => write!(f, " mds={shard}")?,
            Home::Spread => f.write_str(" mds=spread")?,
        }
        match self.spread {
            Spread::Auto => Ok(()),
            Spread::On => f.write_str(" spread=on"),
            Spread::Off => f.write_str(" spread=off"),
        }
    }
}

impl FromStr for Layout {
    type Err = BadLayout;

    fn from_str(text: &str) -> Result<Layout, BadLayout> {
        let (mut kind, mut part, mut width) = (Kind::FileRound, None, None);
        let (mut zones, mut home, mut spread) = (Vec::new(), Home::Parent, Spread::Auto);
        for word in text.split_ascii_whitespace() {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| BadLayout(format!("`{word}` is not of the form key=value")))?;
            match key {
                "policy" => kind = kind_of(value)?,
                "part" => part = Some(part_of(value)?),
                "width" => width = Some(width_of(value)?),
                "zones" => zones = zones_of(value)?,
                "mds" => home = home_of(value)?,
                "spread" => spread = spread_of(value)?,
                _ => {
                    return Err(BadLayout(format!(
                        "`{key}` is unknown: a layout has policy, part, width, zones, mds and spread"
                    )));
                }
            }
        }
        let policy = match kind {
            Kind::Striping => {
                Policy::Striping { part: part.unwrap_or(PART), width: width.unwrap_or(0) }
            }
            Kind::Objects => {
                Policy::Objects { part: part.unwrap_or(UNIT), width: width.unwrap_or(0) }
            }
            Kind::FileRound if part.is_some() || width.is_some() => {
                let text = "part and width belong to policy=striping and policy=objects";
                return Err(BadLayout(text.to_owned()));
            }
            Kind::FileRound => Policy::FileRound,
        };
        Ok(Layout { home, spread, policy, zones })
    }
}

/// A policy without its numbers.
enum Kind {
    FileRound,
    Striping,
    Objects,
}

fn kind_of(value: &str) -> Result<Kind, BadLayout> {
    match value {
        "fileround" => Ok(Kind::FileRound),
        "striping" => Ok(Kind::Striping),
        "objects" => Ok(Kind::Objects),
        _ => Err(BadLayout(format!("policy `{value}` is none of fileround, striping and objects"))),
    }
}

/// Bytes, or a number with K, M or G (powers of 1024), in blocks.
fn part_of(value: &str) -> Result<u64, BadLayout> {
    let shift = match value.as_bytes().last() {
        Some(b'K' | b'k') => 10,
        Some(b'M' | b'm') => 20,
        Some(b'G' | b'g') => 30,
        _ => 0,
    };
    let digits = if shift > 0 { &value[..value.len() - 1] } else { value };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    match bytes {
        Some(bytes) if bytes > 0 && bytes.is_multiple_of(BLOCK_U64) && bytes <= FILE_SIZE_MAX => {
            Ok(bytes / BLOCK_U64)
        }
        _ => Err(BadLayout(format!(
            "part `{value}` is no number of bytes above 0 that is a multiple of {BLOCK_U64}"
        ))),
    }
}

fn width_of(value: &str) -> Result<u16, BadLayout> {
    let width = value.parse::<u16>().ok().filter(|&width| usize::from(width) <= ZONES_AT_ONCE);
    width.ok_or_else(|| {
        BadLayout(format!("width `{value}` is no number of zones from 0 to {ZONES_AT_ONCE}"))
    })
}

fn home_of(value: &str) -> Result<Home, BadLayout> {
    match value.parse::<u8>() {
        Ok(shard) => Ok(Home::Shard(ShardId(shard))),
        Err(_) if value == "spread" => Ok(Home::Spread),
        Err(_) if value == "parent" => Ok(Home::Parent),
        Err(_) => Err(BadLayout(format!(
            "mds `{value}` is none of parent, spread and the number of a metadata server"
        ))),
    }
}

fn spread_of(value: &str) -> Result<Spread, BadLayout> {
    match value {
        "auto" => Ok(Spread::Auto),
        "on" => Ok(Spread::On),
        "off" => Ok(Spread::Off),
        _ => Err(BadLayout(format!("spread `{value}` is none of auto, on and off"))),
    }
}

/// Numbers and ranges of numbers with commas between them.
fn zones_of(value: &str) -> Result<Vec<PagId>, BadLayout> {
    let bad = || BadLayout(format!("zones `{value}` is no list such as 0,2-4"));
    let mut zones = Vec::new();
    for item in value.split(',') {
        let (from, to) = item.split_once('-').unwrap_or((item, item));
        let (from, to): (u16, u16) =
            (from.parse().map_err(|_| bad())?, to.parse().map_err(|_| bad())?);
        if from > to || usize::from(to) >= PAGS_MAX {
            return Err(bad());
        }
        zones.extend((from..=to).map(PagId));
    }
    zones.sort_unstable();
    zones.dedup();
    Ok(zones)
}

/// A zone that could take the next turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The zone.
    pub id: PagId,
    /// Its free blocks, as far as known.
    pub free: Option<u64>,
    /// Bytes that are on their way to its device.
    pub busy: u64,
}

/// Steps in which free space counts: zones of about the same free space take plain turns.
const STEPS: u64 = 16;
/// So many bytes on their way count as nothing to do.
const IDLE: u64 = 4 << 20;

/// Whose turn it is: round robin, weighted by free space and by how busy a device is (002, section
/// 4.2, the improved allocation logic). Each turn adds to a zone's credit what it weighs; the zone
/// with most credit gets the turn and pays for it.
#[derive(Clone, Default, Debug)]
pub struct Turns {
    credits: BTreeMap<PagId, i128>,
    /// The zone of the small files, and how many blocks of its chunk are left.
    chunk: Option<(PagId, u64)>,
}

impl Turns {
    /// The zone of the next file. `None` without candidates. Of equal ones the first is taken.
    pub fn next(&mut self, candidates: &[Candidate]) -> Option<PagId> {
        self.credits.retain(|id, _| candidates.iter().any(|zone| zone.id == *id));
        let most = candidates.iter().filter_map(|zone| zone.free).max().unwrap_or(1).max(1);
        let mut sum = 0;
        for zone in candidates {
            let free = zone.free.unwrap_or(most).min(most);
            let steps = (u128::from(free) * u128::from(STEPS)).div_ceil(u128::from(most)).max(1);
            let weight = (steps << 20) * u128::from(IDLE) / u128::from(zone.busy.max(IDLE));
            *self.credits.entry(zone.id).or_default() += weight as i128;
            sum += weight as i128;
        }
        // `max_by_key` would take the last of equal ones.
        let mut best: Option<(PagId, i128)> = None;
        for zone in candidates {
            let credit = self.credits[&zone.id];
            if best.is_none_or(|(_, most)| credit > most) {
                best = Some((zone.id, credit));
            }
        }
        let (id, _) = best?;
        *self.credits.entry(id).or_default() -= sum;
        Some(id)
    }

    /// The zone for `need` blocks of a small file: that of the current chunk, until a chunk of
    /// `chunk` blocks is used up. Then a zone takes its turn.
    pub fn next_small(&mut self, candidates: &[Candidate], need: u64, chunk: u64) -> Option<PagId> {
        if let Some((id, left)) = self.chunk
            && left > 0
            && candidates.iter().any(|zone| zone.id == id)
        {
            self.chunk = Some((id, left.saturating_sub(need)));
            return Some(id);
        }
        let id = self.next(candidates)?;
        self.chunk = Some((id, chunk.saturating_sub(need)));
        Some(id)
    }

    /// The zone of the current chunk.
    pub fn current(&self) -> Option<PagId> {
        self.chunk.map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(id: u16, free: u64) -> Candidate {
        Candidate { id: PagId(id), free: Some(free), busy: 0 }
    }

    #[test]
    fn units_of_an_object_file_take_turns_and_leave_no_gaps_in_the_objects() {
        let mut next = [0; 3];
        for at in 0..100 {
            let (target, block, end) = object_place(at, 4, 3);
            assert_eq!((target as u64, end), (at / 4 % 3, (at / 4 + 1) * 4));
            assert_eq!(block, next[target]);
            next[target] += 1;
        }
        assert_eq!(object_place(u64::MAX, 256, 1), (0, u64::MAX, u64::MAX));
    }

    fn turns(turns: &mut Turns, candidates: &[Candidate], count: usize) -> Vec<u16> {
        (0..count).map(|_| turns.next(candidates).unwrap().0).collect()
    }

    #[test]
    fn layouts_are_text() {
        for text in [
            "policy=fileround",
            "policy=fileround zones=0,2,7",
            "policy=striping part=1048576",
            "policy=striping part=33554432 width=4 zones=1,2",
            "policy=objects part=1048576 width=4 zones=5",
            "policy=fileround spread=on",
            "policy=fileround zones=1 mds=spread spread=off",
        ] {
            let layout: Layout = text.parse().unwrap();
            assert_eq!(layout.to_string(), text);
            assert_eq!(Layout::from_attribute(text.as_bytes()).unwrap(), layout);
        }
        let layout: Layout = "policy=striping part=2M zones=3,1-2,2".parse().unwrap();
        assert_eq!(layout.to_string(), "policy=striping part=2097152 zones=1,2,3");
        assert_eq!("".parse::<Layout>().unwrap(), Layout::default());
        assert_eq!(
            "policy=striping".parse::<Layout>().unwrap().policy,
            Policy::Striping { part: 8192, width: 0 }
        );
    }

    #[test]
    fn bad_layouts_name_the_word() {
        for (text, word) in [
            ("striping", "striping"),
            ("policy=round", "round"),
            ("policy=striping part=1000", "1000"),
            ("policy=striping part=0", "0"),
            ("policy=striping part=99999999999999999999", "999"),
            ("policy=striping part=17179869184G", "17179869184G"),
            ("policy=striping width=9", "9"),
            ("part=1M", "striping"),
            ("zones=", "zones"),
            ("zones=3-1", "3-1"),
            ("zones=1024", "1024"),
            ("size=3", "size"),
            ("spread=yes", "yes"),
            ("policy=striping part=é", "é"),
        ] {
            let error = text.parse::<Layout>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(Layout::from_attribute(&[0xff]).is_err());
    }

    #[test]
    fn names_choose_shards_for_ever() {
        let shards = [ShardId(0), ShardId(1), ShardId(2)];
        let chosen = |text: &str| shard_of_name(&Name::new(text.as_bytes()).unwrap(), &shards).0;
        assert_eq!(["a", "b", "rank.0001", "rank.0002"].map(chosen), [2, 1, 2, 2]);
        assert_eq!(shard_of_name(&Name::new(b"a").unwrap(), &[]), ShardId(0));
    }

    #[test]
    fn what_is_made_in_a_spread_directory_is_not_spread() {
        let layout: Layout = "policy=fileround spread=on".parse().unwrap();
        assert_eq!(layout.of_child(false), Layout::default());
    }

    #[test]
    fn parts_of_a_striped_file_lie_on_one_zone_after_the_other() {
        let layout: Layout = "policy=striping part=8K width=3".parse().unwrap();
        let nth = |at| layout.stripe(Ino(7), at, 4).unwrap();
        assert_eq!(nth(0), (3, 2));
        assert_eq!(nth(1), (3, 2));
        assert_eq!((nth(2), nth(4), nth(6)), ((0, 4), (1, 6), (3, 8)));
        assert_eq!(layout.stripe(Ino(8), 0, 4).unwrap().0, 0, "another file begins elsewhere");
        let first = |ino| layout.stripe(Ino(ino), 0, 4).unwrap().0;
        assert_eq!([9, 10, 11, 12].map(|directory| first(directory << 24)), [1, 2, 3, 0]);
        assert_eq!(layout.stripe(Ino(8), 3, 1).unwrap(), (0, 4));
        assert_eq!(Layout::default().stripe(Ino(7), 0, 4), None);
    }

    #[test]
    fn equal_zones_take_plain_turns() {
        let zones = [zone(1, 1000), zone(2, 990), zone(3, 970)];
        assert_eq!(turns(&mut Turns::default(), &zones, 7), [1, 2, 3, 1, 2, 3, 1]);
        let unknown = zones.map(|zone| Candidate { free: None, ..zone });
        assert_eq!(turns(&mut Turns::default(), &unknown, 4), [1, 2, 3, 1]);
        assert_eq!(Turns::default().next(&[]), None);
    }

    #[test]
    fn roomy_and_idle_zones_get_more_turns() {
        let zones = [zone(1, 1000), zone(2, 250)];
        let order = turns(&mut Turns::default(), &zones, 10);
        assert_eq!(order.iter().filter(|&&id| id == 2).count(), 2, "{order:?}");
        let busy = [Candidate { busy: 3 * IDLE, ..zone(1, 1000) }, zone(2, 1000)];
        let order = turns(&mut Turns::default(), &busy, 8);
        assert_eq!(order.iter().filter(|&&id| id == 1).count(), 2, "{order:?}");
    }

    #[test]
    fn zone_that_comes_back_has_no_old_credit() {
        let mut state = Turns::default();
        let zones = [zone(1, 9), zone(2, 9)];
        turns(&mut state, &zones[..1], 50);
        assert_eq!(turns(&mut state, &zones, 4), [1, 2, 1, 2]);
    }

    #[test]
    fn small_files_share_a_chunk() {
        let mut state = Turns::default();
        let zones = [zone(1, 9000), zone(2, 9000)];
        let order: Vec<u16> = (0..9).map(|_| state.next_small(&zones, 4, 10).unwrap().0).collect();
        assert_eq!(order, [1, 1, 1, 2, 2, 2, 1, 1, 1]);
        assert_eq!(state.next_small(&zones[1..], 4, 10), Some(PagId(2)), "zone 1 is away");
        assert_eq!(state.current(), Some(PagId(2)));
    }
}
