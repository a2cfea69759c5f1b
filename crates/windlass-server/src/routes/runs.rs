//! Looking at runs.

use std::pin::pin;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::record::Record;
use windlass::{Error, Filter, RunId, RunInfo, StoreError};

use super::calls::accepted;
use super::paging::{PAGE_BYTES, cursor, json_bytes, page_size, read_cursor};
use super::prefix::Prefix;
use crate::access::{Admin, May, Read};
use crate::answer::ok;
use crate::app::{Shared, patience};
use crate::extract::{InRun, Place, Query, run_id};
use crate::refusal::{Answer, Refusal};
use crate::show;
use crate::wire::{Accepted, Comparison, Explanation, JournalPage, OutcomeAnswer, Run, RunPage, Trace};

/// Runs that are looked at for one page: a filter that fits few of them must not hold up everybody else.
const LOOKED_AT: usize = 2_000;

/// Which runs a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Which {
    Queued,
    Running,
    Suspended,
    Held,
    Finished,
    Doubted,
    Inbox,
}

/// In which order.
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
    /// Only runs in this state, or with open doubts, or that wait for a person.
    #[param(inline)]
    state: Option<Which>,
    /// Only runs of this tool, by name or id.
    tool: Option<String>,
    /// Only runs of this session.
    session: Option<String>,
    /// Only runs that this run spawned.
    #[param(format = "uuid")]
    parent: Option<String>,
    /// Only runs whose id begins like this; hyphens do not count.
    #[param(pattern = "^[0-9a-fA-F-]{1,36}$")]
    prefix: Option<String>,
    /// `newest` first unless said.
    #[param(inline)]
    order: Option<Order>,
    /// Most runs in the answer.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u64>,
    /// `next` of the page before.
    #[param(pattern = "^[no][0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    cursor: Option<String>,
}

/// List runs
///
/// A page may have fewer runs than asked for, and still not be the last: `next` says so.
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(ListQuery),
    responses((status = 200, description = "A page of runs", body = RunPage)))]
pub(super) async fn list(State(app): State<Shared>, _may: May<Read>, Query(query): Query<ListQuery>) -> Answer {
    let limit = page_size(query.limit, 500)?;
    let order = query.order.unwrap_or_default();
    let sign = if order == Order::Newest { 'n' } else { 'o' };
    let prefix = query.prefix.as_deref().map(Prefix::read).transpose()?;
    let after = query.cursor.as_deref().map(|text| read_cursor(sign, text)).transpose()?;
    let mut after = after.or_else(|| prefix.and_then(|prefix| prefix.edge(order == Order::Newest)));
    let wanted = Wanted::of(&app, query)?;
    let (mut runs, mut looked) = (Vec::new(), 0);
    loop {
        let page = match order {
            Order::Newest => app.windlass.latest(wanted.filter.clone(), after, limit).await?,
            Order::Oldest => app.windlass.list(wanted.filter.clone(), after, limit).await?,
        };
        let inside = page.iter().take_while(|info| prefix.is_none_or(|prefix| prefix.has(info.run))).count();
        let full = inside == limit;
        looked += page.len();
        for info in &page[..inside] {
            after = Some(info.run);
            if wanted.fits(info) {
                runs.push(show::run(info));
            }
            if runs.len() == limit {
                break;
            }
        }
        let more = full || runs.len() == limit && page[..inside].last().map(|info| info.run) != after;
        if !more || runs.len() == limit || looked >= LOOKED_AT {
            let next = after.filter(|_| more).map(|run| cursor(sign, run));
            return Ok(ok(&RunPage { runs, next }));
        }
    }
}

/// What is wanted: what an index answers, and the rest.
struct Wanted {
    filter: Filter,
    state: Option<Which>,
    tool: Option<String>,
    session: Option<String>,
    parent: Option<RunId>,
}

impl Wanted {
    fn of(app: &Shared, query: ListQuery) -> Answer<Self> {
        let ListQuery { state, tool, session, parent, .. } = query;
        let parent = parent.as_deref().map(run_id).transpose()?;
        // Runs are listed under the id of their tool.
        let by_name = |name: String| app.windlass.toolbox().get(&name).map_or(name, |tool| tool.spec().id.to_string());
        let tool = tool.map(by_name);
        let filter = match (parent, &session, state, &tool) {
            (Some(parent), ..) => Filter::Children(parent),
            (_, Some(session), ..) => Filter::Session(session.as_str().into()),
            (_, _, Some(state), _) if state != Which::Finished => filter(state),
            (_, _, _, Some(tool)) => Filter::Tool(tool.as_str().into()),
            (_, _, Some(state), _) => filter(state),
            _ => Filter::All,
        };
        Ok(Self { filter, state, tool, session, parent })
    }

    fn fits(&self, info: &RunInfo) -> bool {
        let state = self.state.is_none_or(|which| match which {
            Which::Doubted => !info.doubts.is_empty(),
            Which::Inbox => !info.doubts.is_empty() || info.parks.iter().any(|park| park.on.needs_person()),
            _ => show::state(&info.state) == plain(which),
        });
        state
            && self.tool.as_ref().is_none_or(|tool| **tool == *info.tool)
            && self.session.as_deref().is_none_or(|session| info.session.as_deref() == Some(session))
            && self.parent.is_none_or(|parent| info.parent.as_ref().is_some_and(|found| found.0 == parent))
    }
}

fn filter(which: Which) -> Filter {
    match which {
        Which::Queued => Filter::Queued,
        Which::Running => Filter::Running,
        Which::Suspended => Filter::Suspended,
        Which::Held => Filter::Held,
        Which::Finished => Filter::Finished,
        Which::Doubted => Filter::Doubted,
        Which::Inbox => Filter::Inbox,
    }
}

fn plain(which: Which) -> crate::wire::State {
    use crate::wire::State;
    match which {
        Which::Queued => State::Queued,
        Which::Running => State::Running,
        Which::Suspended => State::Suspended,
        Which::Held => State::Held,
        Which::Finished | Which::Doubted | Which::Inbox => State::Finished,
    }
}

/// A run's row; 404 if there is none.
pub(super) async fn info(app: &Shared, run: RunId) -> Answer<RunInfo> {
    Ok(app.windlass.info(run).await?.ok_or(StoreError::NoSuchRun(run))?)
}

/// Look at a run
#[utoipa::path(get, path = "/v1/runs/{run}", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 200, description = "The run", body = Run)))]
pub(super) async fn get(State(app): State<Shared>, _may: May<Read>, InRun(run): InRun) -> Answer {
    Ok(ok(&whole(&app, run).await?))
}

/// A run with its sentence and, if it is finished, its outcomes.
pub(super) async fn whole(app: &Shared, run: RunId) -> Answer<Run> {
    let info = info(app, run).await?;
    let mut shown = show::run(&info);
    shown.sentence = Some(app.windlass.explain(run).await?.sentence);
    shown.layers = app.windlass.layers_of(run).await?.names().iter().map(ToString::to_string).collect();
    if let windlass::RunState::Finished { .. } = info.state {
        shown.outcomes = match app.windlass.attach(run).await {
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
    /// How long to wait for the end; not at all unless said.
    #[param(maximum = 300_000)]
    wait_ms: Option<u64>,
}

/// Wait for a run's outcomes
///
/// Also of a run that another process started, or that this one went on with after a restart.
#[utoipa::path(get, path = "/v1/runs/{run}/outcome", tag = "runs",
    params(("run" = String, Path, format = "uuid"), WaitQuery),
    responses(
        (status = 200, description = "It is finished", body = OutcomeAnswer),
        (status = 202, description = "It goes on", body = Accepted),
    ))]
pub(super) async fn outcome(
    State(app): State<Shared>,
    _may: May<Read>,
    InRun(run): InRun,
    Query(query): Query<WaitQuery>,
) -> Answer {
    let wait = patience(query.wait_ms, 0)?;
    let state = info(&app, run).await?.state;
    let finished = matches!(state, windlass::RunState::Finished { .. });
    let attached = match finished {
        true => Some(app.windlass.attach(run).await),
        false => app.within(wait, pin!(app.windlass.attach(run))).await,
    };
    match attached {
        Some(Ok(outcomes)) => Ok(ok(&OutcomeAnswer { run, outcomes: show::outcomes(outcomes) })),
        Some(Err(Error::Held { .. } | Error::Elsewhere { .. })) | None => accepted(&app, run).await,
        Some(Err(error)) => Err(error.into()),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct JournalQuery {
    /// `next` of the page before: the number of its last record.
    #[param(maximum = 9_007_199_254_740_991u64)]
    after: Option<u64>,
    /// Most records in the answer.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u64>,
}

/// Read a run's journal
#[utoipa::path(get, path = "/v1/runs/{run}/journal", tag = "runs",
    params(("run" = String, Path, format = "uuid"), JournalQuery),
    responses((status = 200, description = "A page of records", body = JournalPage)))]
pub(super) async fn journal(
    State(app): State<Shared>,
    _may: May<Read>,
    InRun(run): InRun,
    Query(query): Query<JournalQuery>,
) -> Answer {
    let limit = page_size(query.limit, 1_000)?;
    let from = query.after.map_or(0, |after| after.saturating_add(1));
    if i64::try_from(from).is_err() {
        return Err(Refusal::bad_request("bad_cursor", "`after` is beyond what a journal has"));
    }
    let (records, more) = records(&app, run, from, limit).await?;
    let next = more.then(|| from + records.len() as u64 - 1);
    let records = show::journal(&records, from, app.windlass.toolbox());
    Ok(ok(&JournalPage { records, next }))
}

/// Records of a page, up to [`PAGE_BYTES`] of them and one more read, and whether there may be others.
async fn records(app: &Shared, run: RunId, from: u64, limit: usize) -> Answer<(Vec<Record>, bool)> {
    let (mut records, mut bytes, mut reads) = (Vec::new(), 0, 4);
    loop {
        let most = reads.min(limit - records.len());
        let page = app.windlass.journal_page(run, from + records.len() as u64, most).await?;
        let (more, read) = (page.len() == most, page.iter().map(json_bytes).sum::<usize>());
        records.extend(page);
        bytes += read;
        if !more || records.len() == limit || bytes >= PAGE_BYTES {
            return Ok((records, more));
        }
        // As long as they are small.
        reads = if read < PAGE_BYTES / 16 { (reads * 2).min(256) } else { 4 };
    }
}

/// See a run and the runs it started as a tree
#[utoipa::path(get, path = "/v1/runs/{run}/trace", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 200, description = "The tree", body = Trace)))]
pub(super) async fn trace(State(app): State<Shared>, _may: May<Read>, InRun(run): InRun) -> Answer {
    Ok(ok(&show::trace(&app.windlass.trace(run).await?)))
}

/// Why is it not running?
#[utoipa::path(get, path = "/v1/runs/{run}/explain", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 200, description = "Why, and what would move it", body = Explanation)))]
pub(super) async fn explain(State(app): State<Shared>, _may: May<Read>, InRun(run): InRun) -> Answer {
    Ok(ok(&show::explanation(&app.windlass.explain(run).await?)))
}

/// Export a run as a document
///
/// For another store. It is whole, with the secrets of arguments, so it needs the scope `admin`.
#[utoipa::path(get, path = "/v1/runs/{run}/export", tag = "runs", params(("run" = String, Path, format = "uuid")),
    responses((status = 200, description = "The document", body = Object)))]
pub(super) async fn export(State(app): State<Shared>, _may: May<Admin>, InRun(run): InRun) -> Answer {
    Ok(ok(&app.windlass.export(run).await?))
}

/// Where do two runs differ?
#[utoipa::path(get, path = "/v1/runs/{run}/compare/{other}", tag = "runs",
    params(("run" = String, Path, format = "uuid"), ("other" = String, Path, format = "uuid")),
    responses((status = 200, description = "Where they differ", body = Comparison)))]
pub(super) async fn compare(
    State(app): State<Shared>,
    _may: May<Read>,
    Place((run, other)): Place<(String, String)>,
) -> Answer<Response> {
    let (run, other) = (run_id(&run)?, run_id(&other)?);
    Ok(ok(&show::comparison(&app.windlass.compare(run, other).await?)))
}
