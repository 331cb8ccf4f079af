//! Sizes and times as people write them.

use crate::Duration;

const SUFFIXES: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// Reads a size in bytes: digits, then nothing or K, M, G, T, P (powers of 1024; "KiB" and "k"
/// too).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = text[digits.len()..].to_ascii_uppercase();
    let suffix = suffix.strip_suffix("IB").or(suffix.strip_suffix('B')).unwrap_or(&suffix);
    let shift = match suffix.chars().next() {
        None => Some(0),
        Some(letter) if suffix.len() == 1 => {
            SUFFIXES.iter().find(|(known, _)| *known == letter).map(|(_, shift)| *shift)
        }
        Some(_) => None,
    };
    let number = digits.parse::<u64>().ok();
    number.zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift)).ok_or_else(|| {
        format!("`{text}` is no size: write bytes, or a number with K, M, G, T or P")
    })
}

/// `bytes` with an IEC suffix and at most one decimal: "15.9G".
pub fn human_size(bytes: u64) -> String {
    let Some(&(letter, shift)) = SUFFIXES.iter().rev().find(|(_, shift)| bytes >> shift > 0) else {
        return bytes.to_string();
    };
    let tenths = (u128::from(bytes) * 10).div_ceil(1u128 << shift);
    match tenths % 10 {
        _ if tenths >= 100 => format!("{}{letter}", tenths.div_ceil(10)),
        0 => format!("{}{letter}", tenths / 10),
        tenth => format!("{}.{tenth}{letter}", tenths / 10),
    }
}

/// Reads a time: a number with `ms`, `s`, `m` or `h`; bare numbers are seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale_ms = match &text[digits.len()..] {
        "ms" => Some(1),
        "" | "s" => Some(1000),
        "m" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let number = digits.parse::<u64>().ok();
    number
        .zip(scale_ms)
        .and_then(|(number, scale)| number.checked_mul(scale))
        .map(Duration::from_millis)
        .ok_or_else(|| format!("`{text}` is no time: write a number with ms, s, m or h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_with_every_suffix() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("16G", 16 << 30),
            ("1KiB", 1024),
            ("2m", 2 << 20),
            ("3TB", 3 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "G", "1X", "-1", "1.5G", "99999999P", "1KK"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_print_rounded_up_like_df() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (1025, "1.1K"),
            (16 << 30, "16G"),
            (u64::MAX, "16384P"),
        ] {
            assert_eq!(human_size(bytes), text);
        }
    }

    #[test]
    fn times_read_with_their_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "5d", "1.5s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
