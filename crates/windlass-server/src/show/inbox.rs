//! Inbox items and their ids.

use std::fmt;
use std::str::FromStr;

use windlass::inbox::{About, Awaited, Blocked, Doubt, Question};
use windlass::run::explain::Why;
use windlass::run::{RunInfo, RunState, idempotency_key};
use windlass::store::StoreError;
use windlass::{Error, Path, RunId, Timestamp, Windlass};

use crate::refusal::ApiResult;
use crate::wire::{InboxItem, InboxKind};

/// Id of an item: one question of one run. If the same question is asked again later, it has another id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ItemId {
    pub(crate) run: RunId,
    pub(crate) generation: u32,
    pub(crate) kind: InboxKind,
    pub(crate) path: Path,
    /// Approval: the time in microseconds, because approval is requested again when a grant expires. Doubt: the
    /// attempt. Zero for other kinds, because a path has only one such question.
    pub(crate) mark: i64,
}

impl ItemId {
    /// The question to which the first decision counts. Inputs are resolved by reply key instead.
    pub(crate) fn question(&self) -> Option<Question> {
        let about = match self.kind {
            InboxKind::Approval => About::Approval(Timestamp::from_micros(self.mark)),
            InboxKind::Doubt => About::Doubt(u32::try_from(self.mark).ok()?),
            InboxKind::Connection => About::Connection,
            InboxKind::Input => return None,
        };
        Some(Question { run: self.run, generation: self.generation, path: self.path.clone(), about })
    }
}

fn kind_code(kind: InboxKind) -> &'static str {
    match kind {
        InboxKind::Approval => "a",
        InboxKind::Doubt => "d",
        InboxKind::Input => "i",
        InboxKind::Connection => "c",
    }
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let positions: Vec<String> = self.path.positions().iter().map(u32::to_string).collect();
        let path = if positions.is_empty() { "root".to_owned() } else { positions.join("-") };
        write!(f, "{}.{}.{}.{path}.{}", self.run, self.generation, kind_code(self.kind), self.mark)
    }
}

impl FromStr for ItemId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split('.').collect();
        let [run, generation, kind, path, mark] = parts[..] else { return Err(()) };
        let kinds = [InboxKind::Approval, InboxKind::Doubt, InboxKind::Input, InboxKind::Connection];
        let kind = kinds.into_iter().find(|candidate| kind_code(*candidate) == kind).ok_or(())?;
        let path = if path == "root" { "/".to_owned() } else { path.replace('-', "/") };
        let id = Self {
            run: run.parse().map_err(drop)?,
            generation: generation.parse().map_err(drop)?,
            kind,
            path: path.parse().map_err(drop)?,
            mark: mark.parse().map_err(drop)?,
        };
        // Other spellings of the same id are refused.
        if id.to_string() == text { Ok(id) } else { Err(()) }
    }
}

/// An inbox item.
pub(crate) struct Item {
    pub(crate) id: ItemId,
    pub(crate) cause: ItemCause,
}

pub(crate) enum ItemCause {
    Park(Awaited),
    Doubt(Doubt),
}

/// All inbox items of a run.
pub(crate) fn items(windlass: &Windlass, info: &RunInfo) -> Vec<Item> {
    let (run, generation) = (info.run, info.generation);
    let id = |kind, path: &Path, mark| ItemId { run, generation, kind, path: path.clone(), mark };
    let parks = windlass.runtime().awaited(info).into_iter().filter_map(|awaited| {
        let kind = match awaited.park.on {
            Blocked::Approval { .. } => InboxKind::Approval,
            Blocked::Input { .. } => InboxKind::Input,
            Blocked::Connection { .. } => InboxKind::Connection,
            _ => return None,
        };
        let mark = if kind == InboxKind::Approval { awaited.park.since.as_micros() } else { 0 };
        let id = id(kind, &awaited.park.path, mark);
        Some(Item { id, cause: ItemCause::Park(awaited) })
    });
    let doubts = info.doubts.iter().map(|doubt| {
        let id = id(InboxKind::Doubt, &doubt.path, doubt.attempt.into());
        Item { id, cause: ItemCause::Doubt(doubt.clone()) }
    });
    parks.chain(doubts).collect()
}

impl Item {
    /// The items of one run as the API shows them. `with_keys`: the client may answer, so it gets the reply keys.
    pub(crate) async fn shown(
        windlass: &Windlass,
        info: &RunInfo,
        items: &[Self],
        with_keys: bool,
    ) -> ApiResult<Vec<InboxItem>> {
        let paths: Vec<Path> = items.iter().map(|item| item.id.path.clone()).collect();
        let mut calls = match windlass.runtime().asked_calls(info.run, &paths).await {
            // The item is still listed. A decision about it is refused with this error.
            Err(Error::Store(StoreError::Sealed { .. } | StoreError::Damaged { .. })) => Vec::new(),
            calls => calls?,
        }
        .into_iter();
        let moves = match info.state {
            RunState::Finished { .. } => Vec::new(),
            _ => windlass.runtime().explain_to_principal(info.run).await?.moves,
        };
        let shown = items.iter().map(|item| {
            let sentence = moves.iter().find(|one| one.path == item.id.path).map(|one| one.sentence.clone());
            let args = calls.next().flatten().and_then(|call| call.shown);
            let recorded = moves.iter().filter(|one| one.path == item.id.path).find_map(|one| match &one.why {
                Why::InMailbox { message } => Some(message.clone()),
                _ => None,
            });
            InboxItem { recorded, ..item.to_wire(info, sentence, args, with_keys) }
        });
        Ok(shown.collect())
    }

    fn to_wire(
        &self,
        info: &RunInfo,
        sentence: Option<String>,
        args: Option<serde_json::Value>,
        with_keys: bool,
    ) -> InboxItem {
        let (operation, why, since, until, key) = match &self.cause {
            ItemCause::Park(awaited) => {
                let park = &awaited.park;
                let why = match &park.on {
                    Blocked::Approval { why, .. } => why.clone(),
                    Blocked::Input { name, .. } => name.to_string(),
                    Blocked::Connection { provider, .. } => provider.to_string(),
                    _ => String::new(),
                };
                let key = awaited.key.clone().filter(|_| with_keys);
                (park.operation.clone(), why, park.since, park.until, key)
            }
            ItemCause::Doubt(doubt) => (doubt.operation.clone(), doubt.why(), doubt.since, None, None),
        };
        let is_doubt = self.id.kind == InboxKind::Doubt;
        let otherwise = || format!("{operation} at {} waits for a person: {why}", self.id.path);
        InboxItem {
            id: self.id.to_string(),
            kind: self.id.kind,
            run: info.run,
            path: self.id.path.clone(),
            tool: info.tool.to_string(),
            session: info.session.as_deref().map(str::to_owned),
            principal: info.principal.as_deref().map(str::to_owned),
            cause: info.cause.as_deref().map(str::to_owned),
            sentence: sentence.unwrap_or_else(otherwise),
            operation,
            args,
            why,
            recorded: None,
            since: since.into(),
            until: until.map(Into::into),
            idempotency_key: is_doubt.then(|| idempotency_key(info.run, info.generation, &self.id.path)),
            key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w12_an_item_id_round_trips_and_a_malformed_one_is_refused() {
        let run: RunId = "01900000-0000-7000-8000-000000000000".parse().unwrap();
        for (path, kind) in [("/", InboxKind::Doubt), ("2/0", InboxKind::Approval), ("7", InboxKind::Input)] {
            let id = ItemId { run, generation: 3, kind, path: path.parse().unwrap(), mark: 17 };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let good = format!("{run}.0.a.root.1");
        assert!(good.parse::<ItemId>().is_ok());
        for bad in
            ["", "x", &format!("{run}.0.z.root.1"), &format!("{run}.00.a.root.1"), &format!("{good}.1"), &good[1..]]
        {
            assert!(bad.parse::<ItemId>().is_err(), "{bad}");
        }
    }
}
