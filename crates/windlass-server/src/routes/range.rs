//! The `Range` header.

/// The requested bytes of an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteRange {
    /// The whole artifact.
    Whole,
    /// From the first to the last byte, inclusive.
    Part(u64, u64),
    /// A range beyond the end.
    Unsatisfiable,
}

/// Parses `Range` for an artifact of `size` bytes. A malformed header, other units and several ranges are ignored, as
/// RFC 9110 allows.
pub(super) fn parse_range(range: Option<&str>, size: u64) -> ByteRange {
    let Some(spec) = range.and_then(|range| range.trim().strip_prefix("bytes=")) else { return ByteRange::Whole };
    if spec.contains(',') {
        return ByteRange::Whole;
    }
    let Some((first, last)) = spec.trim().split_once('-') else { return ByteRange::Whole };
    let number = |text: &str| -> Option<u64> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number that overflows is beyond the end.
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        (Some(first), _) if first >= size && (last.is_empty() || number(last).is_some()) => ByteRange::Unsatisfiable,
        (Some(first), None) if last.is_empty() => ByteRange::Part(first, size - 1),
        (Some(first), Some(last)) if first <= last => ByteRange::Part(first, last.min(size - 1)),
        (None, Some(0)) if first.is_empty() => ByteRange::Unsatisfiable,
        (None, Some(_)) if first.is_empty() && size == 0 => ByteRange::Unsatisfiable,
        (None, Some(count)) if first.is_empty() => ByteRange::Part(size.saturating_sub(count), size - 1),
        _ => ByteRange::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::ByteRange::{Part, Unsatisfiable, Whole};
    use super::parse_range;

    #[test]
    fn l16_a_range_is_limited_to_the_size_of_the_artifact() {
        let cases = [
            (None, 10, Whole),
            (Some("bytes=0-3"), 10, Part(0, 3)),
            (Some("bytes=3-"), 10, Part(3, 9)),
            (Some("bytes=-4"), 10, Part(6, 9)),
            (Some("bytes=-40"), 10, Part(0, 9)),
            (Some("bytes=5-99"), 10, Part(5, 9)),
            (Some("bytes=10-"), 10, Unsatisfiable),
            (Some("bytes=10-12"), 10, Unsatisfiable),
            (Some("bytes=99999999999999999999-"), 10, Unsatisfiable),
            (Some("bytes=-0"), 10, Unsatisfiable),
            (Some("bytes=0-0"), 0, Unsatisfiable),
            (Some("bytes=-1"), 0, Unsatisfiable),
            (Some("bytes=3-1"), 10, Whole),
            (Some("bytes=0-1,3-4"), 10, Whole),
            (Some("bytes=a-b"), 10, Whole),
            (Some("bytes=-"), 10, Whole),
            (Some("lines=0-3"), 10, Whole),
        ];
        for (range, size, expected) in cases {
            assert_eq!(parse_range(range, size), expected, "{range:?} of {size}");
        }
    }
}
