//! The calls of a run that have finished, for conditions that look at `history`. Most runs have no such condition, so
//! nothing is collected before one asks: what was recorded by then is in the journal, and is read from there.

use std::sync::Arc;

use serde_json::Value;

use super::PastCall;
use crate::path::Path;
use crate::run::record::{Event, OpKind, Record};

/// Most calls that a condition can look at: more cannot be looped over anyway. Of a longer history nothing is known, so that
/// a condition on it asks: the calls that were left out could be the ones it is about.
const KEPT: usize = 5_000;

/// The finished calls of one run, once a condition has asked for them.
#[derive(Default)]
pub(crate) enum PastCalls {
    /// No condition has asked.
    #[default]
    Unwanted,
    /// The first records of the journal are being read; what came after them is noted.
    Reading(Box<(u64, Vec<Noted>)>),
    Known(Box<Collected>),
}

/// What a record says of a call.
pub(crate) enum Noted {
    Asked(Path, Arc<str>, Arc<Value>),
    Finished(Path, bool),
    /// The calls before it belong to the generation before.
    Continued,
}

#[derive(Default)]
pub(crate) struct Collected {
    /// Calls that were asked for and have not ended.
    open: Vec<(Path, Arc<str>, Arc<Value>)>,
    finished: Vec<PastCall>,
    /// There were more than are kept.
    too_many: bool,
}

impl PastCalls {
    /// A condition asks: `later` is what was recorded after the first `before` records, which are to be read.
    pub(crate) fn want<'a>(&mut self, before: u64, later: impl Iterator<Item = &'a Record>) {
        let mut noted = Vec::new();
        later.for_each(|record| Noted::of(record, |one| noted.push(one)));
        *self = Self::Reading(Box::new((before, noted)));
        if before == 0 {
            self.read(&[]);
        }
    }

    /// How many records are to be read, if any.
    pub(crate) fn wanted(&self) -> Option<u64> {
        match self {
            Self::Reading(reading) => Some(reading.0),
            _ => None,
        }
    }

    /// What the journal had before.
    pub(crate) fn read(&mut self, journal: &[Record]) {
        let Self::Reading(reading) = self else { return };
        let mut collected = Collected::default();
        journal.iter().for_each(|record| Noted::of(record, |one| collected.note(one)));
        std::mem::take(&mut reading.1).into_iter().for_each(|noted| collected.note(noted));
        *self = Self::Known(Box::new(collected));
    }

    pub(crate) fn is_known(&self) -> bool {
        matches!(self, Self::Known(_))
    }

    /// The calls that have finished; nothing where they are not known, or too many.
    pub(crate) fn finished(&self) -> Option<&[PastCall]> {
        match self {
            Self::Known(calls) if !calls.too_many => Some(&calls.finished),
            _ => None,
        }
    }

    /// Something was recorded.
    #[inline]
    pub(crate) fn note(&mut self, record: &Record) {
        match self {
            Self::Unwanted => {}
            Self::Reading(reading) => Noted::of(record, |one| reading.1.push(one)),
            Self::Known(calls) => Noted::of(record, |one| calls.note(one)),
        }
    }
}

/// The calls of a journal that have finished, oldest first; `None` if there are too many.
pub(crate) fn finished_calls(journal: &[Record]) -> Option<Vec<PastCall>> {
    let mut collected = Collected::default();
    journal.iter().for_each(|record| Noted::of(record, |one| collected.note(one)));
    (!collected.too_many).then_some(collected.finished)
}

/// Both histories, the older one first; `None` if one of them is not known, or both together are too long.
pub(crate) fn joined(older: Option<Vec<PastCall>>, newer: Option<&[PastCall]>) -> Option<Vec<PastCall>> {
    let (mut all, newer) = (older?, newer?);
    all.extend_from_slice(newer);
    (all.len() <= KEPT).then_some(all)
}

impl Noted {
    fn of(record: &Record, mut note: impl FnMut(Self)) {
        if let Event::Continued { .. } = record.event {
            note(Self::Continued);
        }
        if let Some(asked) = record.asked.as_ref().filter(|asked| asked.kind == OpKind::Call) {
            note(Self::Asked(record.path.clone(), asked.name.clone(), asked.input.clone().unwrap_or_default()));
        }
        if let Event::Finished(finished) = &record.event {
            note(Self::Finished(record.path.clone(), finished.answer().is_ok()));
        }
    }
}

impl Collected {
    fn note(&mut self, noted: Noted) {
        match noted {
            Noted::Continued => *self = Self::default(),
            Noted::Asked(path, tool, args) => self.open.push((path, tool, args)),
            Noted::Finished(path, ok) => {
                let Some(index) = self.open.iter().position(|(open, _, _)| *open == path) else { return };
                let (_, tool, args) = self.open.swap_remove(index);
                self.push(PastCall { tool, args, ok });
            }
        }
    }

    fn push(&mut self, call: PastCall) {
        if self.too_many || self.finished.len() == KEPT {
            self.too_many = true;
            self.finished = Vec::new();
        } else {
            self.finished.push(call);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record::{Asked, Finished};
    use crate::time::{Times, Timestamp};
    use crate::tool::{Effect, Output};

    fn call(n: u32) -> Record {
        let finished = Finished {
            result: Ok(Arc::new(Output::default())),
            told: None,
            attempts: 1,
            times: Times::default(),
            settled: None,
        };
        let asked = Asked::operation(OpKind::Call, "pay".into(), None, Effect::Once);
        let path = Path::root().child(n);
        Record { path, at: Timestamp::default(), asked: Some(asked), event: Event::Finished(finished) }
    }

    #[test]
    fn w07_what_was_recorded_before_during_and_after_reading_is_known_in_order() {
        let mut past = PastCalls::default();
        past.note(&call(0));
        past.want(2, [call(2)].iter());
        past.note(&call(3));
        assert!(past.finished().is_none(), "not read yet");
        past.read(&[call(0), call(1)]);
        past.note(&call(4));
        assert_eq!(past.finished().map(<[PastCall]>::len), Some(5));
    }

    #[test]
    fn w07_a_history_too_long_to_keep_is_not_known() {
        let mut past = PastCalls::default();
        past.want(0, std::iter::empty());
        (0..KEPT as u32).for_each(|n| past.note(&call(n)));
        assert_eq!(past.finished().map(<[PastCall]>::len), Some(KEPT));
        past.note(&call(KEPT as u32));
        assert!(past.finished().is_none(), "a part of it could miss the call that matters");
    }
}
