//! Cursors: where a list goes on, as text that says which list it belongs to.

use windlass::RunId;

use crate::refusal::{Answer, Refusal};

/// How many things a page has, as a request says it.
pub(super) fn page_size(limit: Option<u64>, most: u64) -> Answer<usize> {
    let limit = limit.unwrap_or(100.min(most));
    if (1..=most).contains(&limit) {
        return Ok(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    Err(Refusal::bad_request("bad_query", format!("limit is 1 to {most}")))
}

/// After the run `run`, in the list that `list` stands for.
pub(super) fn cursor(list: char, run: RunId) -> String {
    format!("{list}{run}")
}

pub(super) fn read_cursor(list: char, text: &str) -> Answer<RunId> {
    let bad = || {
        let why = "the cursor is none of this list; use `next` of the page before, with the same order, or leave it out to \
                   begin anew";
        Refusal::bad_request("bad_cursor", why)
    };
    let run = text.strip_prefix(list).ok_or_else(bad)?;
    // One place has one name.
    run.parse::<RunId>().ok().filter(|found| found.to_string() == run).ok_or_else(bad)
}

/// Bytes of what a page shows, after which it ends though it may have more; the rest is on the next one.
pub(super) const PAGE_BYTES: usize = 4 << 20;

/// How long something is as JSON.
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
