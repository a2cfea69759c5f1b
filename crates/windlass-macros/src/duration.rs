//! Durations in attributes: `200ms`, `5s`, `2m`, `1h`, `3d`.

/// The units in milliseconds. `ms` comes before `s`, because it also ends in `s`.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// The milliseconds of a duration, or why it is invalid.
pub(crate) fn millis(text: &str) -> Result<u64, String> {
    let Some((digits, factor)) = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))
    else {
        return Err(format!("`{text}` has no unit (`ms`, `s`, `m`, `h` or `d`)"));
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("`{text}` must be one whole number and one unit"));
    }
    match digits.parse::<u64>().ok().and_then(|count| count.checked_mul(factor)) {
        None => Err(format!("`{text}` is too long")),
        Some(0) => Err(format!("`{text}` must be longer than zero")),
        Some(millis) => Ok(millis),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        for (text, expected) in
            [("200ms", 200), ("5s", 5_000), ("2m", 120_000), ("1h", 3_600_000), ("3d", 259_200_000), ("007s", 7_000)]
        {
            assert_eq!(millis(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_durations_are_explained() {
        for (text, word) in [
            ("", "no unit"),
            ("5", "no unit"),
            ("5 s", "whole number"),
            ("s", "whole number"),
            ("1.5s", "whole number"),
            ("-1s", "whole number"),
            ("+1s", "whole number"),
            ("1m30s", "whole number"),
            ("5us", "whole number"),
            ("5w", "no unit"),
            ("0s", "longer than zero"),
            ("99999999999999999999s", "too long"),
            ("18446744073709551615d", "too long"),
        ] {
            let problem = millis(text).unwrap_err();
            assert!(problem.contains(word), "{text}: {problem}");
        }
    }
}
