//! Lists of runs: a statement for each filter and order, written to match the index that answers it.

use std::sync::Arc;

use rusqlite::params_from_iter;
use rusqlite::types::Value as SqlValue;
use windlass_core::RunId;
use windlass_core::run::state::{RunInfo, RunState};
use windlass_core::store::{Counts, Filter, StateFilter, StoreError};
use windlass_core::time::Timestamp;

use super::checksum::{run_checksum, run_is_intact};
use super::job::EncodedState;
use super::read::{ReadError, Readers, select_infos, size};

/// The order of a list, and the end of its statement.
#[derive(Clone, Copy)]
enum ListOrder {
    OldestFirst,
    NewestFirst,
}

impl ListOrder {
    fn sql(self) -> &'static str {
        match self {
            Self::OldestFirst => "run > ?1 ORDER BY run LIMIT ?2",
            Self::NewestFirst => "run < ?1 ORDER BY run DESC LIMIT ?2",
        }
    }
}

/// Sorts after every id.
const AFTER_EVERY_ID: [u8; 17] = [0xff; 17];

/// Counts unfinished runs by phase, with an index that has only those.
const COUNT_OPEN: &str = "SELECT phase, count(*) FROM runs INDEXED BY runs_open WHERE phase < 4 GROUP BY phase";

/// Counts at most this many runs, in the order of the index.
const COUNT_UNFINISHED: &str = "SELECT phase, count(*) FROM
    (SELECT phase FROM runs INDEXED BY runs_open WHERE phase < 4 LIMIT ?1) GROUP BY phase";

const COUNT_ENDED: &str = "SELECT count(*) FROM runs INDEXED BY runs_ended WHERE ended IS NOT NULL";

const COUNT_INBOX: &str = "SELECT count(*) FROM runs INDEXED BY runs_inbox WHERE doubts IS NOT NULL OR asks = 1";

impl Readers {
    pub(super) fn list(&self, filter: &Filter, after: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
        // The empty value sorts before every id.
        let after = after.map(|run| run.as_bytes().to_vec()).unwrap_or_default();
        self.list_page(filter, ListOrder::OldestFirst, after, limit)
    }

    pub(super) fn latest(
        &self,
        filter: &Filter,
        before: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<RunInfo>, StoreError> {
        let before = before.map_or_else(|| AFTER_EVERY_ID.to_vec(), |run| run.as_bytes().to_vec());
        self.list_page(filter, ListOrder::NewestFirst, before, limit)
    }

    fn list_page(
        &self,
        filter: &Filter,
        order: ListOrder,
        from: Vec<u8>,
        limit: usize,
    ) -> Result<Vec<RunInfo>, StoreError> {
        let (sql, mut arguments) = statement(filter, order)?;
        arguments.splice(..0, [SqlValue::Blob(from), SqlValue::Integer(size(limit))]);
        self.with_reader(None, |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params_from_iter(arguments), |row| Ok(self.info_of(row)))?;
            rows.map(|row| row?).collect()
        })
    }

    pub(super) fn counts(&self) -> Result<Counts, StoreError> {
        self.with_reader(None, |connection| {
            // One snapshot, so that no run is counted twice.
            let view = connection.transaction()?;
            let number = |sql: &str| -> Result<u64, ReadError> {
                let count: i64 = view.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
                Ok(count.unsigned_abs())
            };
            let mut counts =
                Counts { finished: number(COUNT_ENDED)?, inbox: number(COUNT_INBOX)?, ..Counts::default() };
            add_by_phase(&mut counts, view.prepare_cached(COUNT_OPEN)?.query([])?)?;
            Ok(counts)
        })
    }

    pub(super) fn unfinished(&self, limit: u64) -> Result<Counts, StoreError> {
        self.with_reader(None, |connection| {
            let mut counts = Counts::default();
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            add_by_phase(&mut counts, connection.prepare_cached(COUNT_UNFINISHED)?.query([limit])?)?;
            Ok(counts)
        })
    }
}

fn add_by_phase(counts: &mut Counts, mut rows: rusqlite::Rows<'_>) -> rusqlite::Result<()> {
    while let Some(row) = rows.next()? {
        let count = row.get::<_, i64>(1)?.unsigned_abs();
        match row.get::<_, i64>(0)? {
            0 => counts.queued = count,
            1 => counts.running = count,
            2 => counts.suspended = count,
            _ => counts.held = count,
        }
    }
    Ok(())
}

/// The statement of a filter, and its arguments from the third on.
///
/// One condition chooses the index: the first in this order that is set. The others are written so that SQLite does not use
/// theirs (`+column`), because the chosen index keeps the order of the list.
fn statement(filter: &Filter, order: ListOrder) -> Result<(String, Vec<SqlValue>), StoreError> {
    let Filter { state, session, principal, cause, key, parent, tool, created_from, created_before } = filter;
    let (mut conditions, mut arguments) = (Vec::new(), Vec::new());
    let mut add = |column: &str, condition: &str, argument: Option<SqlValue>| {
        let sign = if conditions.is_empty() { "" } else { "+" };
        arguments.extend(argument);
        let number = arguments.len() + 2;
        conditions.push(condition.replace("{}", &format!("{sign}{column}")).replace("?n", &format!("?{number}")));
    };
    let time = |at: &Timestamp| Some(SqlValue::Integer(at.as_micros()));
    let text = |text: &Arc<str>| Some(SqlValue::Text(text.to_string()));
    if let Some(key) = key {
        add("key", "{} = ?n", text(key));
    }
    if let Some(parent) = parent {
        add("parent_run", "{} = ?n", Some(SqlValue::Blob(parent.as_bytes().to_vec())));
    }
    if let Some(cause) = cause {
        add("cause", "{} = ?n", text(cause));
    }
    if let Some(session) = session {
        add("session", "{} = (SELECT id FROM sessions WHERE name = ?n)", text(session));
    }
    let is_first = parent.is_none() && session.is_none() && cause.is_none() && key.is_none();
    match state {
        Some(StateFilter::Queued) => add("phase", "{} = 0 AND phase < 4", None),
        Some(StateFilter::Running) => add("phase", "{} = 1 AND phase < 4", None),
        Some(StateFilter::Suspended) => add("phase", "{} = 2 AND phase < 4", None),
        Some(StateFilter::Held) => add("phase", "{} = 3 AND phase < 4", None),
        Some(StateFilter::InDoubt) => add("doubts", "{} IS NOT NULL", None),
        Some(StateFilter::Inbox) => add("doubts", "({} IS NOT NULL OR asks = 1)", None),
        _ => {}
    }
    if let Some(principal) = principal {
        add("principal", "{} = ?n", text(principal));
    }
    if let Some(tool) = tool {
        add("tool", "{} = ?n", text(tool));
    }
    // Nearly all runs are finished, so an index of those alone would not help.
    match state {
        Some(StateFilter::Finished) => add("phase", "{} = 4", None),
        Some(StateFilter::Ended(ending)) => {
            let state = EncodedState::encode(&RunState::Finished { ending: *ending })?.body;
            add("state", "{} = ?n", Some(SqlValue::Text(state)));
        }
        _ => {}
    }
    if let Some(from) = created_from {
        add("created", "+{} >= ?n", time(from));
    }
    if let Some(before) = created_before {
        add("created", "+{} < ?n", time(before));
    }
    let index = match state {
        Some(StateFilter::InDoubt) if is_first => "INDEXED BY runs_doubted ",
        _ => "",
    };
    conditions.push(order.sql().to_owned());
    Ok((format!("{}{index}WHERE {}", select_infos!(""), conditions.join(" AND ")), arguments))
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::{is_indexed, plan};
    use super::*;
    use windlass_core::run::state::Ending;

    #[test]
    fn b13_every_filter_uses_its_index_in_both_orders() {
        let expected = [
            (Filter::queued(), "runs_open (phase=? AND run"),
            (Filter::running(), "runs_open (phase=? AND run"),
            (Filter::suspended(), "runs_open (phase=? AND run"),
            (Filter::held(), "runs_open (phase=? AND run"),
            (Filter::finished(), "sqlite_autoindex_runs_1 (run"),
            (Filter::state(StateFilter::Ended(Ending::Failed)), "sqlite_autoindex_runs_1 (run"),
            (Filter::in_doubt(), "runs_doubted (run"),
            (Filter::inbox(), "runs_inbox (run"),
            (Filter::session("s"), "runs_by_session (session=? AND run"),
            (Filter::children(RunId::from_bytes([1; 16])), "runs_by_parent (parent_run=? AND run"),
            (Filter::tool("t"), "runs_by_tool (tool=? AND run"),
            (Filter::principal("p"), "runs_by_principal (principal=? AND run"),
            (Filter::cause("c"), "runs_by_cause (cause=? AND run"),
            (Filter { principal: Some("p".into()), ..Filter::inbox() }, "runs_inbox (run"),
            (Filter { principal: Some("p".into()), ..Filter::in_doubt() }, "runs_doubted (run"),
            (Filter { principal: Some("p".into()), ..Filter::held() }, "runs_open (phase=? AND run"),
            (Filter { principal: Some("p".into()), ..Filter::finished() }, "runs_by_principal (principal=? AND run"),
            (Filter { principal: Some("p".into()), ..Filter::tool("t") }, "runs_by_principal (principal=? AND run"),
            (Filter { principal: Some("p".into()), ..Filter::session("s") }, "runs_by_session (session=? AND run"),
            (Filter { cause: Some("c".into()), ..Filter::in_doubt() }, "runs_by_cause (cause=? AND run"),
            (Filter::default(), "sqlite_autoindex_runs_1 (run"),
            (Filter { tool: Some("t".into()), ..Filter::held() }, "runs_open (phase=? AND run"),
            (Filter { tool: Some("t".into()), ..Filter::finished() }, "runs_by_tool (tool=? AND run"),
            (Filter { tool: Some("t".into()), ..Filter::in_doubt() }, "runs_doubted (run"),
            (Filter { session: Some("s".into()), ..Filter::inbox() }, "runs_by_session (session=? AND run"),
            (
                Filter { created_from: Some(Timestamp::default()), ..Filter::session("s") },
                "runs_by_session (session=? AND run",
            ),
        ];
        for (filter, index) in expected {
            for (order, way) in [(ListOrder::OldestFirst, ">?)"), (ListOrder::NewestFirst, "<?)")] {
                let plan = plan(&statement(&filter, order).unwrap().0);
                let start = format!("SEARCH runs USING INDEX {index}{way}");
                assert!(plan.starts_with(&start) && is_indexed(&plan), "{filter:?}: {plan}");
            }
        }
    }

    #[test]
    fn b13_the_run_of_a_key_is_found_by_the_index_of_keys() {
        for filter in [Filter::key("k"), Filter { key: Some("k".into()), session: Some("s".into()), ..Filter::held() }]
        {
            for order in [ListOrder::OldestFirst, ListOrder::NewestFirst] {
                let plan = plan(&statement(&filter, order).unwrap().0);
                assert!(plan.starts_with("SEARCH runs USING INDEX runs_by_key (key=?)") && is_indexed(&plan), "{plan}");
            }
        }
    }

    #[test]
    fn runs_are_counted_with_partial_indexes() {
        for (sql, index) in [(COUNT_OPEN, "runs_open"), (COUNT_ENDED, "runs_ended"), (COUNT_INBOX, "runs_inbox")] {
            let plan = plan(sql);
            assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
    }
}
