//! Reading runs.

use std::pin::pin;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::run::record::Record;
use windlass::run::{Ending, Filter, RunInfo};
use windlass::store::StoreError;
use windlass::{Error, RunId};

use super::calls::accepted;
use super::paging::{PAGE_BYTES, cursor, json_bytes, page_size, read_cursor};
use super::prefix::IdRange;
use crate::access::{Admin, Authorized, Identity, Read, RunReader};
use crate::app::{Shared, wait_time};
use crate::extract::{PathParam, Query, RunParam, run_id};
use crate::refusal::{ApiResult, Refusal};
use crate::response::ok;
use crate::show;
use crate::wire::{
    Accepted, Comparison, Explanation, JournalPage, OutcomeResponse, OutputPage, Run, RunPage, RunState, Time, Trace,
};

/// Most runs that are read for one page: a filter that matches few of them must not delay other requests.
const MAX_SCANNED: usize = 2_000;

/// Runs by state, or by what they wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum StateFilter {
    Queued,
    Running,
    Suspended,
    Held,
    Finished,
    Ok,
    Failed,
    Cancelled,
    Lost,
    InDoubt,
    Inbox,
}

impl StateFilter {
    /// The ending that runs must have.
    fn ending(self) -> Option<Ending> {
        match self {
            Self::Ok => Some(Ending::Ok),
            Self::Failed => Some(Ending::Failed),
            Self::Cancelled => Some(Ending::Cancelled),
            Self::Lost => Some(Ending::Lost),
            _ => None,
        }
    }
}

/// Order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    #[default]
    Newest,
    Oldest,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only runs in this state; `ok`, `failed`, `cancelled`, `lost`: finished with this ending; `in_doubt`: with open
    /// doubts; `inbox`: waiting for a person.
    #[param(inline)]
    state: Option<StateFilter>,
    /// Only runs of this tool, by name or id.
    tool: Option<String>,
    /// Only runs of this session.
    session: Option<String>,
    /// Only runs that act for this principal.
    principal: Option<String>,
    /// Only runs with this cause.
    cause: Option<String>,
    /// Only runs that were created at this time or later.
    #[param(value_type = Option<String>, format = "date-time")]
    created_from: Option<Time>,
    /// Only runs that were created before this time.
    #[param(value_type = Option<String>, format = "date-time")]
    created_before: Option<Time>,
    /// Only child runs of this run.
    #[param(format = "uuid")]
    parent: Option<String>,
    /// Only runs whose id starts with this prefix. Hyphens are ignored.
    #[param(pattern = "^[0-9a-fA-F-]{1,36}$")]
    prefix: Option<String>,
    /// Only the run that was started under this `Idempotency-Key`.
    key: Option<String>,
    /// `newest` (the default) or `oldest` first.
    #[param(inline)]
    order: Option<Order>,
    /// Most runs in the page.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u64>,
    /// `next` of the previous page.
    #[param(pattern = "^[no][0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    cursor: Option<String>,
}

/// List runs
///
/// A page may have fewer runs than `limit` and not be the last one. The last page has no `next`. A token without the scope
/// `admin` sees the runs of its principal only.
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(ListQuery),
    responses((status = 200, description = "A page of runs", body = RunPage)))]
pub(super) async fn list(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    Query(query): Query<ListQuery>,
) -> ApiResult {
    let limit = page_size(query.limit, 500)?;
    let order = query.order.unwrap_or_default();
    let sign = if order == Order::Newest { 'n' } else { 'o' };
    let after = query.cursor.as_deref().map(|text| read_cursor(sign, text)).transpose()?;
    let range = id_range(&query)?;
    let mut after = after.or_else(|| range.edge(order == Order::Newest));
    let Some(filter) = RunFilter::of(&app, &authorized.identity, query)? else {
        return Ok(ok(&RunPage { runs: Vec::new(), next: None }));
    };
    let (mut runs, mut scanned) = (Vec::new(), 0);
    loop {
        let page = match order {
            Order::Newest => app.windlass.latest(filter.indexed.clone(), after, limit).await?,
            Order::Oldest => app.windlass.list(filter.indexed.clone(), after, limit).await?,
        };
        let inside = page.iter().take_while(|info| range.matches(info.run)).count();
        let full = inside == limit;
        scanned += page.len();
        for info in &page[..inside] {
            after = Some(info.run);
            if filter.matches(info) {
                runs.push(show::run(info));
            }
            if runs.len() == limit {
                break;
            }
        }
        let more = full || runs.len() == limit && page[..inside].last().map(|info| info.run) != after;
        if !more || runs.len() == limit || scanned >= MAX_SCANNED {
            let next = after.filter(|_| more).map(|run| cursor(sign, run));
            return Ok(ok(&RunPage { runs, next }));
        }
    }
}

/// The ids that a list may contain: those with the prefix, and those of the time. Ids begin with the time of their
/// creation in milliseconds.
fn id_range(query: &ListQuery) -> ApiResult<IdRange> {
    let prefix = query.prefix.as_deref().map_or(Ok(IdRange::ALL), IdRange::of_prefix)?;
    Ok(prefix.created(query.created_from.map(Time::as_micros), query.created_before.map(Time::as_micros)))
}

/// A filter of runs: the part that an index of the store answers, and the other conditions. An unusual combination is
/// matched here, so that a page ends after [`MAX_SCANNED`] runs.
struct RunFilter {
    indexed: Filter,
    state: Option<StateFilter>,
    tool: Option<String>,
    session: Option<String>,
    created: (Option<i64>, Option<i64>),
}

impl RunFilter {
    /// `None` if the sender sees no such run.
    fn of(app: &Shared, sender: &Identity, query: ListQuery) -> ApiResult<Option<Self>> {
        let ListQuery { state, tool, session, principal, cause, key, parent, created_from, created_before, .. } = query;
        let principal = match (sender.restriction(), principal) {
            (Some(own), Some(asked)) if **own != *asked => return Ok(None),
            (Some(own), _) => Some(own.clone()),
            (None, asked) => asked.map(Into::into),
        };
        let parent = parent.as_deref().map(run_id).transpose()?;
        // Runs are indexed by the id of their tool.
        let by_name = |name: String| app.windlass.toolbox().get(&name).map_or(name, |tool| tool.spec().id.to_string());
        let tool = tool.map(by_name);
        let is_selective = key.is_some() || parent.is_some() || cause.is_some();
        let base = match (&session, state, &tool) {
            _ if is_selective => Filter::default(),
            (Some(session), ..) => Filter::session(session.as_str()),
            (_, Some(state), _) if store_filter(state) != Filter::finished() => store_filter(state),
            _ if principal.is_some() => Filter::default(),
            (_, _, Some(tool)) => Filter::tool(tool.as_str()),
            (_, Some(state), _) => store_filter(state),
            _ => Filter::default(),
        };
        let indexed = Filter { principal, cause: cause.map(Into::into), key: key.map(Into::into), parent, ..base };
        let created = (created_from.map(Time::as_micros), created_before.map(Time::as_micros));
        Ok(Some(Self { indexed, state, tool, session, created }))
    }

    fn matches(&self, info: &RunInfo) -> bool {
        let state = self.state.is_none_or(|state| match state {
            StateFilter::InDoubt => !info.doubts.is_empty(),
            StateFilter::Inbox => !info.doubts.is_empty() || info.parks.iter().any(|park| park.on.needs_person()),
            _ => {
                let has_ending = |ending| info.state == windlass::run::RunState::Finished { ending };
                show::state(&info.state) == run_state(state) && state.ending().is_none_or(has_ending)
            }
        });
        let created = info.created.as_micros();
        state
            && self.tool.as_ref().is_none_or(|tool| **tool == *info.tool)
            && self.session.as_deref().is_none_or(|session| info.session.as_deref() == Some(session))
            && self.created.0.is_none_or(|from| created >= from)
            && self.created.1.is_none_or(|before| created < before)
    }
}

fn store_filter(state: StateFilter) -> Filter {
    match state {
        StateFilter::Queued => Filter::queued(),
        StateFilter::Running => Filter::running(),
        StateFilter::Suspended => Filter::suspended(),
        StateFilter::Held => Filter::held(),
        StateFilter::Finished | StateFilter::Ok | StateFilter::Failed | StateFilter::Cancelled | StateFilter::Lost => {
            Filter::finished()
        }
        StateFilter::InDoubt => Filter::in_doubt(),
        StateFilter::Inbox => Filter::inbox(),
    }
}

fn run_state(state: StateFilter) -> RunState {
    match state {
        StateFilter::Queued => RunState::Queued,
        StateFilter::Running => RunState::Running,
        StateFilter::Suspended => RunState::Suspended,
        StateFilter::Held => RunState::Held,
        StateFilter::Finished
        | StateFilter::Ok
        | StateFilter::Failed
        | StateFilter::Cancelled
        | StateFilter::Lost
        | StateFilter::InDoubt
        | StateFilter::Inbox => RunState::Finished,
    }
}

/// The summary of a run, or 404.
pub(super) async fn info(app: &Shared, run: RunId) -> ApiResult<RunInfo> {
    Ok(app.windlass.runtime().info(run).await?.ok_or(StoreError::NoSuchRun(run))?)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RunQuery {
    /// For a token without the scope `read`: `access` of the response to its own call.
    access: Option<String>,
}

/// Read a run
///
/// Needs the scope `read`. A token with the scope `call` only can read the runs of its own calls, with the `access`
/// value of the 202 response.
#[utoipa::path(get, path = "/v1/runs/{run}", tag = "runs",
    params(("run" = String, Path, format = "uuid"), RunQuery),
    responses((status = 200, description = "The run", body = Run)))]
pub(super) async fn get(
    State(app): State<Shared>,
    reader: RunReader,
    RunParam(run): RunParam,
    Query(query): Query<RunQuery>,
) -> ApiResult {
    reader.may_read(&app, run, query.access.as_deref()).await?;
    Ok(ok(&full_run(&app, reader.identity(), run).await?))
}

/// A run with the fields that lists do not have.
pub(super) async fn full_run(app: &Shared, sender: &Identity, run: RunId) -> ApiResult<Run> {
    let info = info(app, run).await?;
    let mut shown = show::run(&info);
    shown.sentence = Some(sender.explain(app, run).await?.sentence);
    shown.layers = app.windlass.runtime().layers_of(run).await?.names().iter().map(ToString::to_string).collect();
    if let windlass::run::RunState::Finished { .. } = info.state {
        shown.outcomes = match app.windlass.runtime().attach(run).await {
            Ok(outcomes) => Some(show::outcomes(outcomes)),
            Err(Error::Store(StoreError::JournalGone(_))) => None,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(shown)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitQuery {
    /// Longest time to wait for the end of the run; 0 by default.
    #[param(maximum = 300_000)]
    wait_ms: Option<u64>,
    /// For a token without the scope `read`: `access` of the response to its own call.
    access: Option<String>,
}

/// Wait for a run's outcomes
///
/// Also works for a run that another process started, or that continued after a restart. Needs the scope `read`, or the
/// `access` value of the 202 response to an own call.
#[utoipa::path(get, path = "/v1/runs/{run}/outcome", tag = "runs",
    params(("run" = String, Path, format = "uuid"), WaitQuery),
    responses(
        (status = 200, description = "The outcomes of the finished run", body = OutcomeResponse),
        (status = 202, description = "The run has not finished", body = Accepted),
    ))]
pub(super) async fn outcome(
    State(app): State<Shared>,
    reader: RunReader,
    RunParam(run): RunParam,
    Query(query): Query<WaitQuery>,
) -> ApiResult {
    reader.may_read(&app, run, query.access.as_deref()).await?;
    let wait = wait_time(query.wait_ms, 0)?;
    let state = info(&app, run).await?.state;
    let finished = matches!(state, windlass::run::RunState::Finished { .. });
    let attached = match finished {
        true => Some(app.windlass.runtime().attach(run).await),
        false => app.within(wait, pin!(app.windlass.runtime().attach(run))).await,
    };
    match attached {
        Some(Ok(outcomes)) => {
            let batch = app.windlass.runtime().recorded_batch(run).await?;
            let (identity, settled) = batch.map(|batch| (batch.identity, batch.settled)).unwrap_or_default();
            let identity = identity.map(|identity| identity.to_string());
            Ok(ok(&OutcomeResponse { run, identity, settled, outcomes: show::outcomes(outcomes) }))
        }
        Some(Err(Error::Held { .. } | Error::Elsewhere { .. })) | None => {
            let access = query.access.filter(|_| reader.needs_access());
            accepted(&app, reader.identity(), run, access).await
        }
        Some(Err(error)) => Err(error.into()),
    }
}

/// Most bytes of an output in one response.
const OUTPUT_BYTES: u64 = 1 << 20;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OutputQuery {
    /// Path of the call in the run; `/` by default.
    path: Option<String>,
    /// Byte to begin at; 0 by default.
    #[param(maximum = 9_007_199_254_740_991u64)]
    offset: Option<u64>,
    /// Most bytes of text; 1,048,576 by default.
    #[param(minimum = 1, maximum = 1_048_576)]
    limit: Option<u64>,
    /// For a token without the scope `read`: `access` of the response to its own call.
    access: Option<String>,
}

/// Read the text of an output, or a part of it
///
/// The text is the value (a string as it is, anything else as JSON) and the text blocks, each on a new line. Needs the
/// scope `read`, or the `access` value of the 202 response to an own call.
#[utoipa::path(get, path = "/v1/runs/{run}/output", tag = "runs",
    params(("run" = String, Path, format = "uuid"), OutputQuery),
    responses((status = 200, description = "A page of the text", body = OutputPage)))]
pub(super) async fn output(
    State(app): State<Shared>,
    reader: RunReader,
    RunParam(run): RunParam,
    Query(query): Query<OutputQuery>,
) -> ApiResult {
    reader.may_read(&app, run, query.access.as_deref()).await?;
    let path = query.path.as_deref().unwrap_or("/").parse::<windlass::Path>();
    let path = path.map_err(|error| Refusal::bad_request("bad_query", format!("query: `path`: {error}")))?;
    let limit = page_size(Some(query.limit.unwrap_or(OUTPUT_BYTES)), OUTPUT_BYTES)?;
    let offset = query.offset.unwrap_or(0);
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let page = app.windlass.runtime().read_output(run, &path, from, limit).await?;
    let (next_offset, total_bytes) = (page.next_offset.map(|next| next as u64), page.total as u64);
    Ok(ok(&OutputPage { run, path, text: page.text, offset, next_offset, total_bytes }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct JournalQuery {
    /// `next` of the previous page: the sequence number of its last record.
    #[param(maximum = 9_007_199_254_740_991u64)]
    after: Option<u64>,
    /// Most records in the page.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u64>,
}

/// Read a run's journal
#[utoipa::path(get, path = "/v1/runs/{run}/journal", tag = "runs",
    params(("run" = String, Path, format = "uuid"), JournalQuery),
    responses((status = 200, description = "A page of records", body = JournalPage)))]
pub(super) async fn journal(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    RunParam(run): RunParam,
    Query(query): Query<JournalQuery>,
) -> ApiResult {
    let info = authorized.identity.run(&app, run).await?;
    let limit = page_size(query.limit, 1_000)?;
    let from = query.after.map_or(0, |after| after.saturating_add(1));
    if i64::try_from(from).is_err() {
        let detail = "query: `after` is larger than any sequence number; use `next` of the previous page";
        return Err(Refusal::bad_request("bad_cursor", detail));
    }
    let (records, more) = records(&app, run, from, limit).await?;
    let next = more.then(|| from + records.len() as u64 - 1);
    let records = show::journal(&records, from, app.windlass.toolbox(), info.session.as_ref());
    Ok(ok(&JournalPage { records, next }))
}

/// The records of a page, and whether there may be more. Stops with the read that exceeds [`PAGE_BYTES`].
async fn records(app: &Shared, run: RunId, from: u64, limit: usize) -> ApiResult<(Vec<Record>, bool)> {
    let (mut records, mut bytes, mut reads) = (Vec::new(), 0, 4);
    loop {
        let most = reads.min(limit - records.len());
        let page = app.windlass.runtime().journal_page(run, from + records.len() as u64, most).await?;
        let (more, read) = (page.len() == most, page.iter().map(json_bytes).sum::<usize>());
        records.extend(page);
        bytes += read;
        if !more || records.len() == limit || bytes >= PAGE_BYTES {
            return Ok((records, more));
        }
        // Larger reads as long as the records are small.
        reads = if read < PAGE_BYTES / 16 { (reads * 2).min(256) } else { 4 };
    }
}

/// Read the events of a run and its child runs as a tree
#[utoipa::path(get, path = "/v1/runs/{run}/trace", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 200, description = "The tree", body = Trace)))]
pub(super) async fn trace(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    RunParam(run): RunParam,
) -> ApiResult {
    authorized.identity.run(&app, run).await?;
    Ok(ok(&show::trace(&app.windlass.runtime().trace(run).await?)))
}

/// Explain why a run is not running
#[utoipa::path(get, path = "/v1/runs/{run}/explain", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 200, description = "The state of the run, and what has to happen before it continues",
        body = Explanation)))]
pub(super) async fn explain(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    RunParam(run): RunParam,
) -> ApiResult {
    authorized.identity.run(&app, run).await?;
    Ok(ok(&show::explanation(&authorized.identity.explain(&app, run).await?)))
}

/// Export a run as a document
///
/// The document can be imported into another store. It includes secret arguments, so the scope `admin` is required.
#[utoipa::path(get, path = "/v1/runs/{run}/export", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 200, description = "The document", body = Object)))]
pub(super) async fn export(
    State(app): State<Shared>,
    _authorized: Authorized<Admin>,
    RunParam(run): RunParam,
) -> ApiResult {
    Ok(ok(&app.windlass.runtime().export(run).await?))
}

/// Compare two runs
#[utoipa::path(get, path = "/v1/runs/{run}/compare/{other}", tag = "runs",
    params(("run" = String, Path, format = "uuid"), ("other" = String, Path, format = "uuid")),
    responses((status = 200, description = "The differences of the runs", body = Comparison)))]
pub(super) async fn compare(
    State(app): State<Shared>,
    authorized: Authorized<Read>,
    PathParam((run, other)): PathParam<(String, String)>,
) -> ApiResult<Response> {
    let (run, other) = (run_id(&run)?, run_id(&other)?);
    authorized.identity.run(&app, run).await?;
    authorized.identity.run(&app, other).await?;
    Ok(ok(&show::comparison(&app.windlass.runtime().compare(run, other).await?)))
}
