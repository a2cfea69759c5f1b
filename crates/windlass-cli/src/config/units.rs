//! Durations, sizes and rates in config files.

use std::time::Duration;

/// The units of time, in milliseconds.
const TIMES: [(&str, u64); 6] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];

/// The units of size, in bytes.
const SIZES: [(&str, u64); 7] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// Parses a duration: `5s`, `500ms`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let expected = "expected for example `500ms`, `10s`, `5m`, `2h`, `3d`";
    let parts = parts(text).ok_or_else(|| format!("`{text}` is not a valid duration ({expected})"))?;
    let mut total: u64 = 0;
    for (number, unit) in parts {
        let Some((_, millis)) = TIMES.iter().find(|(name, _)| *name == unit) else {
            return Err(match unit {
                "" => format!("`{text}` has no unit; did you mean `{number}s`?"),
                other => format!("`{other}` is not a unit of time (expected ms, s, m, h, d or w)"),
            });
        };
        let sum = number.checked_mul(*millis).and_then(|part| total.checked_add(part));
        total = sum.ok_or_else(|| format!("`{text}` is too long"))?;
    }
    Ok(Duration::from_millis(total))
}

/// Parses a size: `16 MiB`, `512 KB`, `100 B`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let invalid = || format!("`{text}` is not a valid size (expected for example `512 KB`, `16 MiB`)");
    let parts = parts(text).ok_or_else(invalid)?;
    let [(number, unit)] = parts[..] else { return Err(invalid()) };
    let Some((_, bytes)) = SIZES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        return Err(match unit {
            "" => format!("`{text}` has no unit; did you mean `{number} B`?"),
            other => format!("`{other}` is not a unit of size (expected B, KB, MB, GB, KiB, MiB or GiB)"),
        });
    };
    number.checked_mul(*bytes).ok_or_else(|| format!("`{text}` is too large"))
}

/// Parses a rate: `10/s`.
pub(crate) fn rate(text: &str) -> Result<u32, String> {
    let parse = |number: &str| number.trim().parse::<u32>().ok();
    match text.split_once('/').map(|(number, unit)| (parse(number), unit.trim())) {
        Some((Some(0), "s")) => Err("a rate of zero would let no call start".to_owned()),
        Some((Some(number), "s")) => Ok(number),
        Some((Some(_), unit)) => {
            Err(format!("`{unit}` is not a valid unit (rates are per second, for example `10/s`)"))
        }
        _ => Err(format!("`{text}` is not a valid rate (expected calls per second, for example `10/s`)")),
    }
}

/// The numbers of a text with their units, which may be missing; `None` if the text is not made of numbers and units.
fn parts(text: &str) -> Option<Vec<(u64, &str)>> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let number = number.parse().ok()?;
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if unit.is_empty() && !after.is_empty() {
            return None;
        }
        parts.push((number, unit));
        rest = after.trim_start();
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, millis) in
            [("5s", 5_000), ("500ms", 500), ("2m", 120_000), ("1h30m", 5_400_000), ("1h 30m", 5_400_000), ("0s", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for (text, problem) in [
            ("5", "`5` has no unit; did you mean `5s`?"),
            ("5 parsecs", "`parsecs` is not a unit of time (expected ms, s, m, h, d or w)"),
            ("9999999999999999w", "`9999999999999999w` is too long"),
        ] {
            assert_eq!(duration(text), Err(problem.to_owned()), "{text}");
        }
        for text in ["", "banana", "-5s", "1.5s", "99999999999999999999w"] {
            let expected = "(expected for example `500ms`, `10s`, `5m`, `2h`, `3d`)";
            assert_eq!(duration(text), Err(format!("`{text}` is not a valid duration {expected}")), "{text}");
        }
    }

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [("16 MiB", 16 << 20), ("16mib", 16 << 20), ("512 KB", 512_000), ("100 B", 100)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for (text, problem) in [
            ("16", "`16` has no unit; did you mean `16 B`?"),
            ("16M", "`M` is not a unit of size (expected B, KB, MB, GB, KiB, MiB or GiB)"),
            ("1 KB 5 B", "`1 KB 5 B` is not a valid size (expected for example `512 KB`, `16 MiB`)"),
        ] {
            assert_eq!(size(text), Err(problem.to_owned()), "{text}");
        }
    }

    #[test]
    fn rates_are_per_second() {
        assert_eq!(rate("10/s"), Ok(10));
        assert_eq!(rate("10 / s"), Ok(10));
        assert!(rate("10/m").unwrap_err().contains("per second"));
        assert!(rate("10").unwrap_err().contains("`10/s`"));
        assert!(rate("0/s").unwrap_err().contains("no call"));
    }
}
