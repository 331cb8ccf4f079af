//! Where a file lies, as its mount reports it.

use std::path::Path;

/// The zone of each segment, in the order of the file; neighbours on one zone count once.
pub fn zone_order(path: &Path) -> Vec<u16> {
    let mut text = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(path, "user.redbud.layout", &mut text[..]).unwrap();
    let layout: serde_json::Value = serde_json::from_slice(&text[..len]).unwrap();
    let segments = layout.as_array().unwrap().iter();
    let mut zones: Vec<u16> =
        segments.map(|segment| segment["pag"].as_u64().unwrap() as u16).collect();
    zones.dedup();
    zones
}

/// The zones that a file lies on, sorted.
pub fn zones(path: &Path) -> Vec<u16> {
    let mut zones = zone_order(path);
    zones.sort_unstable();
    zones.dedup();
    zones
}
