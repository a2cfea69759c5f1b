//! Inspecting runs: their activities, traces, layers and explanations.

use std::sync::Arc;

use super::Runtime;
use crate::activity::trace::Tracer;
use crate::activity::watchers::WatchTarget;
use crate::activity::{Cursor, Trace, Watch};
use crate::admit::TargetState;
use crate::attribution::check_attribution;
use crate::call::identity::RecordedBatches;
use crate::call::{Outcome, OutcomeCall, prepare};
use crate::error::{Error, Result};
use crate::explain::{Explainer, Explanation};
use crate::id::RunId;
use crate::limits;
use crate::path::Path;
use crate::policy::{DryRun, Hypothetical, Prediction, Verdict, joined};
use crate::run::recall::SessionCalls;
use crate::run::record::{Event, OpKind, Record};
use crate::run::state::RunInfo;
use crate::tool::Layers;
use crate::tool::projection::ModelView;
use crate::value::Digest;

/// What the journal says about a batch that is a run of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedBatch {
    /// The digest of its calls; see [`batch_identity`](crate::call::batch_identity). `None` until all of them are
    /// recorded.
    pub identity: Option<Digest>,
    /// The indices of the calls that have ended, in the order in which their ends were recorded. The order is that of
    /// the journal, so calls that ended before a crash come first.
    pub settled: Vec<u32>,
}

impl RecordedBatch {
    fn of(journal: &[Record]) -> Self {
        let mut batches = RecordedBatches::default();
        journal.iter().for_each(|record| batches.note(record));
        let ended = journal.iter().filter(|record| matches!(record.event, Event::Finished(_)));
        let index = |record: &Record| match record.path.positions() {
            [index] => Some(*index),
            _ => None,
        };
        Self { identity: batches.identity(&Path::root()), settled: ended.filter_map(index).collect() }
    }
}

impl Runtime {
    /// Watches a run from a cursor on: first what the store has, then what happens, in order and without gaps, until
    /// the run ends. A watch that starts at the [`cursor`](Watch::cursor) of an earlier one, in this process or
    /// another, misses nothing and sees nothing twice.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if the run is not in the store.
    pub async fn watch(&self, run: RunId, from: Cursor) -> Result<Watch> {
        // Subscribe first, so that no change is missed while the run is looked up.
        let watch = self.watching(WatchTarget::Run(run), from);
        self.arrived(run).await;
        if self.kernel.store.info(run).await?.is_none() {
            return Err(Error::NotFound(format!(
                "there is no run {run} to watch; start it first, and watch it by the id that `start` returned"
            )));
        }
        Ok(watch)
    }

    /// Watches every run of a session, in the order in which the store accepted their records. It never ends. The
    /// session need not have runs yet.
    pub fn watch_session(&self, session: impl Into<Arc<str>>, from: Cursor) -> Watch {
        self.watching(WatchTarget::Session(session.into()), from)
    }

    /// Creates a watch. If workers share the store, it polls for what other workers write.
    pub(super) fn watching(&self, target: WatchTarget, from: Cursor) -> Watch {
        let watch = Watch::new(self.kernel.clone(), target, from);
        match self.kernel.lease.renew_interval() {
            Some(look) => watch.look_every(look.min(limits::WATCH_POLL)),
            None => watch,
        }
    }

    /// Everything recorded about a run and the runs it started, as a tree.
    pub async fn trace(&self, run: RunId) -> Result<Trace> {
        Tracer::new(&self.kernel).trace(run).await
    }

    /// What is recorded about a run of a batch; `None` for a run of one call.
    pub async fn recorded_batch(&self, run: RunId) -> Result<Option<RecordedBatch>> {
        let first = self.kernel.store.page(run, 0, 1).await?;
        let is_batch = |record: &Record| record.asked.as_ref().is_some_and(|asked| asked.kind == OpKind::Batch);
        if !first.first().is_some_and(is_batch) {
            return Ok(None);
        }
        Ok(Some(RecordedBatch::of(&self.kernel.store.journal(run, 0).await?)))
    }

    /// Why a run waits and what would make it continue; for a finished run, how it ended.
    pub async fn explain(&self, run: RunId) -> Result<Explanation> {
        self.explain_with(run, false).await
    }

    /// The same for a reader that sees only runs of the run's principal: no other run is named.
    pub async fn explain_to_principal(&self, run: RunId) -> Result<Explanation> {
        self.explain_with(run, true).await
    }

    async fn explain_with(&self, run: RunId, only_own: bool) -> Result<Explanation> {
        self.arrived(run).await;
        let explainer = Explainer { kernel: &self.kernel, now: self.kernel.env.clock.now(), only_own };
        explainer.explain(run, 0).await
    }

    /// The circuit breakers of this process, by target: those that an attempt was made at.
    pub fn breakers(&self) -> Vec<TargetState> {
        self.kernel.admission.breakers.all(self.kernel.env.clock.ticks())
    }

    /// The run that has this key, if it is still kept.
    pub async fn keyed(&self, key: &str) -> Result<Option<RunId>> {
        Ok(self.kernel.store.keyed(key.into()).await?)
    }

    /// The layers that a run was called through.
    pub async fn layers_of(&self, run: RunId) -> Result<Layers> {
        self.arrived(run).await;
        Ok(self.kernel.layers_of(run).await?)
    }

    /// Predicts what would happen to a call that is made here now, in its session and for its principal. Nothing is run or
    /// recorded; only middleware and the tool's `prepare` are asked, which must not change anything.
    pub async fn predict(&self, mut case: Hypothetical) -> Result<Prediction> {
        let kernel = &self.kernel;
        case.attended |= kernel.env.attended;
        case.connections.extend(kernel.env.providers.connected.iter().cloned());
        let of = crate::store::ConnectionsOf::Principal(case.principal.as_deref().map(Into::into));
        let now = kernel.env.clock.now();
        let kept = kernel.store.connections().list_connections(of).await?.into_iter().filter(|kept| kept.is_valid(now));
        case.connections.extend(kept.map(|kept| kept.key.provider.to_string()));
        case.principal.iter().try_for_each(|principal| check_attribution("principal", principal))?;
        case.cause.iter().try_for_each(|cause| check_attribution("cause", cause))?;
        let session: Option<Arc<str>> = case.session.as_deref().map(Into::into);
        let here = kernel.toolbox_in(&self.toolbox, session.as_ref()).await?;
        let snapshot = here.with_layers(&case.call.layers).map(|toolbox| toolbox.snapshot());
        if let Ok(snapshot) = snapshot
            && let Some(error) = kernel
                .loop_refusals(session.as_ref(), &snapshot, std::slice::from_ref(&case.call))
                .await?
                .pop()
                .flatten()
        {
            return Ok(Prediction::refused(case.call.tool().to_owned(), error));
        }
        let dry_run = DryRun { toolbox: &here, policy: &kernel.env.policy, middleware: &kernel.env.middleware };
        let of_session = match &session {
            Some(session) if dry_run.uses_history(&case) => kernel.session_calls(session, None).await?,
            _ => SessionCalls::None,
        };
        let history = match of_session {
            SessionCalls::None => Some(case.history.clone()),
            SessionCalls::Known(calls) => joined(Some(calls), Some(&case.history)),
            SessionCalls::TooMany => None,
        };
        let mut entered = match dry_run.enter(&case) {
            Ok(entered) => entered,
            Err(prediction) => return Ok(*prediction),
        };
        let answered = if case.prepare { prepare::ask(kernel, &mut entered, session).await } else { Ok(false) };
        Ok(match answered {
            Ok(false) => entered.guarded(&case, history.as_deref()),
            Ok(true) => entered.ends(Verdict::Answered),
            Err(error) => entered.ends(Verdict::Refused(error)),
        })
    }

    /// The outcomes of the root calls, from the journal.
    pub(super) fn recorded_outcomes(&self, info: &RunInfo, journal: &[Record]) -> Vec<Outcome> {
        let run = info.run;
        let asked_at = |path: &Path| journal.iter().find_map(|r| r.asked.as_ref().filter(|_| r.path == *path));
        let batch = asked_at(&Path::root()).is_some_and(|asked| asked.kind == OpKind::Batch);
        let finished = journal.iter().filter(|record| record.path.depth() == usize::from(batch));
        let mut found: Vec<Outcome> = finished
            .filter_map(|record| {
                let Event::Finished(finished) = &record.event else { return None };
                let of_call = || journal.iter().filter(|other| other.path == record.path);
                let first = of_call().next().unwrap_or(record);
                let (result, times) = (finished.answer(), finished.took(record.at, first.at));
                let asked = asked_at(&record.path);
                let tool = asked.and_then(|asked| self.kernel.tool_of(asked, info.session.as_ref()));
                let args = asked.and_then(|asked| asked.input.clone()).unwrap_or_default();
                let own = asked.and_then(|asked| asked.limits.as_deref());
                let layers = asked.map(|asked| asked.layers.clone()).unwrap_or_default();
                let has_reader = info.session.is_some() && self.kernel.env.toolbox.has_reader(&layers);
                let model_view = ModelView::of(tool.as_ref(), &args, (own, &self.kernel.env.policy), has_reader);
                let prepared = of_call().find_map(|other| match &other.event {
                    Event::Prepared(prepared) => Some(prepared.clone()),
                    _ => None,
                });
                let prepared = prepared.unwrap_or_default();
                let call = OutcomeCall {
                    tool: asked.map(|asked| asked.name.clone()).unwrap_or_default(),
                    name: asked.map(|asked| asked.as_asked().clone()).unwrap_or_default(),
                    args,
                    metadata: asked.and_then(|asked| asked.metadata.clone()),
                    rewritten: prepared.args,
                    found: tool,
                    secrets: asked
                        .filter(|asked| !asked.unresolved)
                        .map(|asked| (asked.secrets.clone(), prepared.secrets)),
                };
                let id = asked.and_then(|asked| asked.call_id.clone());
                Some(Outcome { run, path: record.path.clone(), id, call, result, times, model_view })
            })
            .collect();
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }

    /// Waits until a run that was started a moment ago is in the store.
    pub(super) async fn arrived(&self, run: RunId) {
        if let Some(driven) = self.driven(run) {
            driven.run.flush().await;
        }
    }
}
