//! Durations and sizes as people write them.

use std::time::Duration;

/// Unit, and how many milliseconds it is.
const TIMES: [(&str, u64); 6] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];

/// Unit, and how many bytes it is.
const SIZES: [(&str, u64); 7] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// `5s`, `500ms`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parts = parts(text)?;
    let mut total: u64 = 0;
    for (number, unit) in parts {
        let Some((_, millis)) = TIMES.iter().find(|(name, _)| *name == unit) else {
            return Err(match unit {
                "" => format!("`{text}` has no unit; did you mean `{number}s`?"),
                other => format!("`{other}` is no unit of time; use ms, s, m, h, d or w"),
            });
        };
        total = number.checked_mul(*millis).and_then(|part| total.checked_add(part)).ok_or("it is too long")?;
    }
    Ok(Duration::from_millis(total))
}

/// `16 MiB`, `512 KB`, `100 B`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let parts = parts(text)?;
    let [(number, unit)] = parts[..] else { return Err("a size is one number and one unit".to_owned()) };
    let Some((_, bytes)) = SIZES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        return Err(match unit {
            "" => format!("`{text}` has no unit; did you mean `{number} B`?"),
            other => format!("`{other}` is no unit of size; use B, KB, MB, GB, KiB, MiB or GiB"),
        });
    };
    number.checked_mul(*bytes).ok_or_else(|| "it is too large".to_owned())
}

/// `10/s`.
pub(crate) fn rate(text: &str) -> Result<u32, String> {
    let parse = |number: &str| number.trim().parse::<u32>().ok();
    match text.split_once('/').map(|(number, unit)| (parse(number), unit.trim())) {
        Some((Some(0), "s")) => Err("a rate of zero would never let a call start".to_owned()),
        Some((Some(number), "s")) => Ok(number),
        Some((Some(_), unit)) => Err(format!("`{unit}` is not understood; rates are per second, such as `10/s`")),
        _ => Err(format!("`{text}` is not a rate; write calls per second, such as `10/s`")),
    }
}

fn parts(text: &str) -> Result<Vec<(u64, &str)>, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("it is empty".to_owned());
    }
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let number = number.parse().map_err(|_| format!("`{text}` does not start with a whole number"))?;
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if unit.is_empty() && !after.is_empty() {
            return Err(format!("`{text}` is not made of whole numbers and units"));
        }
        parts.push((number, unit));
        rest = after.trim_start();
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, millis) in
            [("5s", 5_000), ("500ms", 500), ("2m", 120_000), ("1h30m", 5_400_000), ("1h 30m", 5_400_000), ("0s", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for (text, problem) in [
            ("5", "`5` has no unit; did you mean `5s`?"),
            ("", "it is empty"),
            ("5 parsecs", "`parsecs` is no unit of time; use ms, s, m, h, d or w"),
            ("soon", "`soon` does not start with a whole number"),
            ("-5s", "`-5s` does not start with a whole number"),
            ("1.5s", "`1.5s` is not made of whole numbers and units"),
            ("99999999999999999999w", "`99999999999999999999w` does not start with a whole number"),
            ("9999999999999999w", "it is too long"),
        ] {
            assert_eq!(duration(text), Err(problem.to_owned()), "{text}");
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [("16 MiB", 16 << 20), ("16mib", 16 << 20), ("512 KB", 512_000), ("100 B", 100)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for (text, problem) in [
            ("16", "`16` has no unit; did you mean `16 B`?"),
            ("16M", "`M` is no unit of size; use B, KB, MB, GB, KiB, MiB or GiB"),
            ("1 KB 5 B", "a size is one number and one unit"),
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
        assert!(rate("0/s").unwrap_err().contains("never"));
    }
}
