//! Events and traces.

use windlass::run::{Activity, Cursor, Position, Trace};

use super::blocked::operation_ref;
use super::value::tagged;
use crate::wire;

pub(crate) fn activity(activity: &Activity) -> wire::Activity {
    let (kind, detail) = tagged(&activity.what, "kind");
    let position = match activity.position {
        Position::Recorded(position) => Some(cursor(position)),
        Position::Live => None,
    };
    wire::Activity {
        run: activity.run,
        position,
        path: activity.path.clone(),
        at: activity.at.into(),
        parent: activity.parent.as_deref().map(operation_ref),
        kind,
        detail,
    }
}

/// A position in a stream, as text.
pub(crate) fn cursor(cursor: Cursor) -> String {
    format!("{}.{}", cursor.record, cursor.index)
}

/// The position that a text denotes; `None` if it is malformed.
pub(crate) fn parse_cursor(text: &str) -> Option<Cursor> {
    let (record, index) = text.trim().split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(record) || !digits(index) {
        return None;
    }
    let record: u64 = record.parse().ok()?;
    // The store uses signed integers.
    i64::try_from(record).ok()?;
    Some(Cursor { record, index: index.parse().ok()? })
}

pub(crate) fn trace(trace: &Trace) -> wire::Trace {
    wire::Trace {
        run: trace.run,
        tool: trace.tool.to_string(),
        parent: trace.parent.as_deref().map(operation_ref),
        activities: trace.activities.iter().map(activity).collect(),
        children: trace.children.iter().map(self::trace).collect(),
        truncated: trace.cut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b12_a_stream_position_round_trips_and_a_malformed_one_is_refused() {
        let position = Cursor { record: 12, index: 3 };
        assert_eq!(parse_cursor(&cursor(position)), Some(position));
        for bad in
            ["", "1", "1.", ".1", "-1.0", "1.-1", "+1.0", "1.0.0", "18446744073709551615.0", "1.99999999999", "a.b"]
        {
            assert_eq!(parse_cursor(bad), None, "{bad}");
        }
    }
}
