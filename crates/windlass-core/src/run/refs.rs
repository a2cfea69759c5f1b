//! The artifacts that a run refers to: those that its outcomes mention and the run has a right to.
//!
//! That right comes from the attempt that stored or opened the artifact, from a child that referred to it, or from the
//! journal. Any other artifact id in an outcome is only text: it keeps nothing alive and gives no access.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::record::{Event, Record, Recorded};
use crate::path::Path;
use crate::store::ArtifactId;
use crate::tool::artifact::mentioned;

#[derive(Default)]
pub(super) struct Refs {
    /// References that the store has, or is about to get.
    stored: BTreeSet<ArtifactId>,
    /// Artifacts that an outcome may refer to, by the operation whose outcome is recorded next.
    vouched: BTreeMap<Path, Vec<ArtifactId>>,
}

impl Refs {
    /// The references in the journal of an earlier owner.
    pub(super) fn of_past(records: &[Record]) -> Self {
        Self { stored: referred(records).collect(), vouched: BTreeMap::new() }
    }

    /// Allows the outcome at `path` to refer to these artifacts.
    pub(super) fn vouch(&mut self, path: &Path, artifacts: Vec<ArtifactId>) {
        if !artifacts.is_empty() {
            self.vouched.insert(path.clone(), artifacts);
        }
    }

    /// Adds the references to an outcome that is about to be recorded. Returns those that are new for the run.
    pub(super) fn record(&mut self, record: &mut Record) -> Vec<ArtifactId> {
        // Nearly all runs use no artifacts, and their outcomes are not searched.
        if self.stored.is_empty() && self.vouched.is_empty() {
            return Vec::new();
        }
        let Event::Finished(finished) = &mut record.event else { return Vec::new() };
        let vouched = self.vouched.remove(&record.path).unwrap_or_default();
        let mut fresh = self.mark(&mut finished.result, &vouched);
        fresh.retain(|artifact| self.stored.insert(*artifact));
        fresh
    }

    /// The outcome with its references.
    pub(super) fn marked(&self, result: &Recorded) -> Recorded {
        let mut result = result.clone();
        if !self.stored.is_empty() {
            self.mark(&mut result, &[]);
        }
        result
    }

    fn mark(&self, result: &mut Recorded, vouched: &[ArtifactId]) -> Vec<ArtifactId> {
        let Ok(output) = result else { return Vec::new() };
        let mut refs = mentioned(output);
        refs.retain(|artifact| self.stored.contains(artifact) || vouched.contains(artifact));
        refs.sort_unstable();
        refs.dedup();
        if output.refs != refs {
            Arc::make_mut(output).refs.clone_from(&refs);
        }
        refs
    }
}

/// The references in the outcomes of a journal.
pub(crate) fn referred(records: &[Record]) -> impl Iterator<Item = ArtifactId> {
    records.iter().flat_map(|record| match &record.event {
        Event::Finished(finished) => finished.result.as_ref().map_or(&[][..], |output| &output.refs).to_vec(),
        _ => Vec::new(),
    })
}

/// Removes the references of an outcome, which belong to another store.
pub(crate) fn strip(result: &mut Recorded) {
    if let Ok(output) = result
        && !output.refs.is_empty()
    {
        Arc::make_mut(output).refs.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::park::finished;
    use crate::run::record::OpOutcome;
    use crate::store::Stored;
    use crate::time::{Times, Timestamp};
    use crate::tool::{Artifact, Output};

    fn outcome(path: &str, artifacts: &[&[u8]]) -> Record {
        let all: Vec<Artifact> = artifacts.iter().map(|bytes| stored(bytes)).collect();
        let result = Ok(Arc::new(Output::value(json!(all))));
        finished(&path.parse().unwrap(), &OpOutcome { result, at: Timestamp::default(), times: Times::default() })
    }

    fn stored(bytes: &[u8]) -> Artifact {
        Artifact::stored("a/b", Stored { id: ArtifactId::of(bytes), size: 1 })
    }

    fn refs(record: &Record) -> Vec<ArtifactId> {
        referred(std::slice::from_ref(record)).collect()
    }

    #[test]
    fn l16_an_outcome_refers_only_to_artifacts_that_were_vouched_for() {
        let (a, b) = (ArtifactId::of(b"a"), ArtifactId::of(b"b"));
        let mut all = Refs::default();
        all.vouch(&"0".parse().unwrap(), vec![a, b]);
        let mut elsewhere = outcome("1", &[b"a"]);
        assert_eq!((all.record(&mut elsewhere), refs(&elsewhere)), (vec![], vec![]), "vouched for at another path");
        let mut first = outcome("0", &[b"a", b"a", b"stranger"]);
        assert_eq!((all.record(&mut first), refs(&first)), (vec![a], vec![a]));
        let mut second = outcome("2", &[b"a", b"b"]);
        assert_eq!((all.record(&mut second), refs(&second)), (vec![], vec![a]), "known, and never mentioned in time");
        let past = Refs::of_past(&[first]);
        let Event::Finished(last) = &outcome("9", &[b"a", b"b"]).event else { panic!() };
        assert_eq!(past.marked(&last.result).unwrap().refs, [a], "by the journal alone");
    }

    #[test]
    fn l16_references_that_an_outcome_claims_by_itself_are_ignored() {
        let mut forged = outcome("0", &[b"a"]);
        if let Event::Finished(finished) = &mut forged.event {
            finished.result = Ok(Arc::new(Output { refs: vec![ArtifactId::of(b"a")], ..Output::default() }));
        }
        let mut all = Refs::default();
        all.vouch(&"1".parse().unwrap(), vec![ArtifactId::of(b"b")]);
        assert!(all.record(&mut forged).is_empty() && refs(&forged).is_empty());
    }
}
