//! Ranges of bytes: the first one of a request, as far as it can be met.

/// What of `size` bytes is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of them.
    Whole,
    /// From the first on up to the last, that one included.
    Part(u64, u64),
    /// Something that is not there.
    Nothing,
}

/// Reads `Range`. What is no range of bytes, or several of them, is met with all there is, as the rules allow.
pub(super) fn wanted(range: Option<&str>, size: u64) -> Wanted {
    let Some(spec) = range.and_then(|range| range.trim().strip_prefix("bytes=")) else { return Wanted::Whole };
    if spec.contains(',') {
        return Wanted::Whole;
    }
    let Some((first, last)) = spec.trim().split_once('-') else { return Wanted::Whole };
    let number = |text: &str| -> Option<u64> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number that is too large is beyond the end like any other that is.
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        (Some(first), _) if first >= size && (last.is_empty() || number(last).is_some()) => Wanted::Nothing,
        (Some(first), None) if last.is_empty() => Wanted::Part(first, size - 1),
        (Some(first), Some(last)) if first <= last => Wanted::Part(first, last.min(size - 1)),
        (None, Some(0)) if first.is_empty() => Wanted::Nothing,
        (None, Some(_)) if first.is_empty() && size == 0 => Wanted::Nothing,
        (None, Some(count)) if first.is_empty() => Wanted::Part(size.saturating_sub(count), size - 1),
        _ => Wanted::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::Wanted::{Nothing, Part, Whole};
    use super::wanted;

    #[test]
    fn l16_ranges_are_met_as_far_as_there_are_bytes() {
        let cases = [
            (None, 10, Whole),
            (Some("bytes=0-3"), 10, Part(0, 3)),
            (Some("bytes=3-"), 10, Part(3, 9)),
            (Some("bytes=-4"), 10, Part(6, 9)),
            (Some("bytes=-40"), 10, Part(0, 9)),
            (Some("bytes=5-99"), 10, Part(5, 9)),
            (Some("bytes=10-"), 10, Nothing),
            (Some("bytes=10-12"), 10, Nothing),
            (Some("bytes=99999999999999999999-"), 10, Nothing),
            (Some("bytes=-0"), 10, Nothing),
            (Some("bytes=0-0"), 0, Nothing),
            (Some("bytes=-1"), 0, Nothing),
            (Some("bytes=3-1"), 10, Whole),
            (Some("bytes=0-1,3-4"), 10, Whole),
            (Some("bytes=a-b"), 10, Whole),
            (Some("bytes=-"), 10, Whole),
            (Some("lines=0-3"), 10, Whole),
        ];
        for (range, size, expected) in cases {
            assert_eq!(wanted(range, size), expected, "{range:?} of {size}");
        }
    }
}
