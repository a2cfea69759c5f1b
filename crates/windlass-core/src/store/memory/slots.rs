//! What attempts of all workers occupy while they run: sessions, and the slots of tools with limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};

use super::super::{Slot, SlotRequest};
use crate::id::{RunId, WorkerId};
use crate::time::Timestamp;

/// The amount that an exclusive attempt takes of its session. Any other attempt takes one.
const WHOLE: u32 = u32::MAX;

/// Attempts that run or wait for a slot.
#[derive(Default)]
pub(super) struct Slots {
    /// In order of arrival.
    all: BTreeMap<u64, SlotHolder>,
    by_name: FxHashMap<(WorkerId, u64), u64>,
    /// The amount of each resource in use.
    used: FxHashMap<Resource, u32>,
    /// When the next attempt of a tool with a rate limit may start.
    next_start: FxHashMap<Arc<str>, Timestamp>,
    last: u64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Resource {
    Session(Arc<str>),
    Tool(Arc<str>),
}

/// An attempt that holds or waits for its resources.
struct SlotHolder {
    request: SlotRequest,
    /// The resources it needs, in the order in which it takes them, each with the amount and the total.
    needs: Vec<(Resource, u32, u32)>,
    /// The number of needs that are met.
    has: usize,
    /// When it may start, once all needs are met.
    starts: Option<Timestamp>,
}

impl Slots {
    /// Adds a request, or returns the state of an earlier one.
    pub(super) fn enter(&mut self, request: SlotRequest, now: Timestamp) -> Slot {
        let name = (request.worker, request.slot);
        let number = *self.by_name.entry(name).or_insert_with(|| {
            self.last += 1;
            let session = request.session.as_ref().map(|(session, exclusive)| {
                (Resource::Session(session.clone()), if *exclusive { WHOLE } else { 1 }, WHOLE)
            });
            let tool = request.tool.as_ref().and_then(|tool| {
                let most = tool.in_flight?;
                Some((Resource::Tool(tool.id.clone()), 1, most))
            });
            let needs = session.into_iter().chain(tool).collect();
            self.all.insert(self.last, SlotHolder { request, needs, has: 0, starts: None });
            self.last
        });
        self.serve(now);
        match self.all.get(&number).and_then(|holder| holder.starts) {
            Some(starts) => Slot::Granted(starts.since(now)),
            None => Slot::Queued,
        }
    }

    /// Releases a slot. Returns the runs whose attempts were granted theirs.
    pub(super) fn leave(&mut self, worker: WorkerId, slot: u64, now: Timestamp) -> Vec<RunId> {
        if let Some(number) = self.by_name.remove(&(worker, slot)) {
            self.give_back(number);
        }
        self.serve(now)
    }

    /// Releases the slots of workers whose lease is over.
    pub(super) fn expire(&mut self, is_over: impl Fn(WorkerId) -> bool) {
        let gone = self.by_name.extract_if(|(worker, _), _| is_over(*worker)).map(|(_, number)| number);
        gone.collect::<Vec<u64>>().into_iter().for_each(|number| self.give_back(number));
    }

    fn give_back(&mut self, number: u64) {
        let Some(holder) = self.all.remove(&number) else { return };
        for (resource, amount, _) in holder.needs.into_iter().take(holder.has) {
            match self.used.get_mut(&resource) {
                Some(used) if *used > amount => *used -= amount,
                _ => drop(self.used.remove(&resource)),
            }
        }
    }

    /// Grants free resources in order of arrival. An attempt that waits for a resource blocks later attempts for it.
    fn serve(&mut self, now: Timestamp) -> Vec<RunId> {
        let (mut blocked, mut granted) = (FxHashSet::default(), Vec::new());
        for holder in self.all.values_mut().filter(|holder| holder.starts.is_none()) {
            while let Some((resource, amount, most)) = holder.needs.get(holder.has) {
                let used = self.used.get(resource).copied().unwrap_or(0);
                if blocked.contains(resource) || used > most - (*amount).min(*most) {
                    blocked.insert(resource.clone());
                    break;
                }
                *self.used.entry(resource.clone()).or_default() += amount;
                holder.has += 1;
            }
            if holder.has == holder.needs.len() {
                let rate = holder.request.tool.as_ref().and_then(|tool| Some((&tool.id, tool.per_second?)));
                let starts = rate.map_or(now, |(tool, per_second)| {
                    let next = self.next_start.entry(tool.clone()).or_insert(now);
                    let starts = (*next).max(now);
                    *next = starts + Duration::from_secs(1) / per_second.max(1);
                    starts
                });
                holder.starts = Some(starts);
                granted.push(holder.request.run);
            }
        }
        granted
    }
}
