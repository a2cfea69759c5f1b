//! Pages of lists, and cursors.

use windlass::RunId;

use crate::refusal::{ApiResult, Refusal};

/// Checks `limit` of a request.
pub(super) fn page_size(limit: Option<u64>, most: u64) -> ApiResult<usize> {
    let limit = limit.unwrap_or(100.min(most));
    if (1..=most).contains(&limit) {
        return Ok(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    Err(Refusal::bad_request("bad_query", format!("query: `limit` must be 1 to {most}")))
}

/// The cursor after `run`. `list` identifies the list and its order, so that a cursor is not used with another list.
pub(super) fn cursor(list: char, run: RunId) -> String {
    format!("{list}{run}")
}

pub(super) fn read_cursor(list: char, text: &str) -> ApiResult<RunId> {
    let bad = || {
        let detail = "query: `cursor` does not belong to this list; use `next` of the previous page with the same \
                      order, or leave it out to start with the first page";
        Refusal::bad_request("bad_cursor", detail)
    };
    let run = text.strip_prefix(list).ok_or_else(bad)?;
    // Other spellings of the same id are refused.
    run.parse::<RunId>().ok().filter(|parsed| parsed.to_string() == run).ok_or_else(bad)
}

/// A page ends when its items exceed this size, even if it has fewer than `limit`.
pub(super) const PAGE_BYTES: usize = 4 << 20;

/// The size of a value as JSON.
pub(super) fn json_bytes(value: &impl serde::Serialize) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).map_or(usize::MAX, |()| count.0)
}
