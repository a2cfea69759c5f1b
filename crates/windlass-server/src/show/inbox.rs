//! What waits for people, as a list of items that each have a name of their own.

use std::fmt;
use std::str::FromStr;

use windlass::{
    About, Awaited, Blocked, Doubt, Error, Path, Question, RunId, RunInfo, RunState, StoreError, Timestamp, Windlass,
};

use crate::refusal::Answer;
use crate::wire::{InboxItem, InboxKind};

/// Names one item: one question of one run, and not the same again later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ItemId {
    pub(crate) run: RunId,
    pub(crate) generation: u32,
    pub(crate) kind: InboxKind,
    pub(crate) path: Path,
    /// Of an approval since when, in microseconds, because a grant that is void is asked for again; of a doubt which attempt;
    /// of anything else nothing, for a path is asked it once.
    pub(crate) mark: i64,
}

impl ItemId {
    /// The question it is, where whoever answers first counts.
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

fn letter(kind: InboxKind) -> &'static str {
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
        write!(f, "{}.{}.{}.{path}.{}", self.run, self.generation, letter(self.kind), self.mark)
    }
}

impl FromStr for ItemId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split('.').collect();
        let [run, generation, kind, path, mark] = parts[..] else { return Err(()) };
        let kinds = [InboxKind::Approval, InboxKind::Doubt, InboxKind::Input, InboxKind::Connection];
        let kind = kinds.into_iter().find(|known| letter(*known) == kind).ok_or(())?;
        let path = if path == "root" { "/".to_owned() } else { path.replace('-', "/") };
        let id = Self {
            run: run.parse().map_err(drop)?,
            generation: generation.parse().map_err(drop)?,
            kind,
            path: path.parse().map_err(drop)?,
            mark: mark.parse().map_err(drop)?,
        };
        // One item has one name.
        if id.to_string() == text { Ok(id) } else { Err(()) }
    }
}

/// Something that waits, and its name.
pub(crate) struct Item {
    pub(crate) id: ItemId,
    pub(crate) what: What,
}

pub(crate) enum What {
    Park(Awaited),
    Doubt(Doubt),
}

/// Everything of a run that waits for somebody.
pub(crate) fn items(windlass: &Windlass, info: &RunInfo) -> Vec<Item> {
    let (run, generation) = (info.run, info.generation);
    let name = |kind, path: &Path, mark| ItemId { run, generation, kind, path: path.clone(), mark };
    let parks = windlass.awaited(info).into_iter().filter_map(|awaited| {
        let kind = match awaited.park.on {
            Blocked::Approval { .. } => InboxKind::Approval,
            Blocked::Input { .. } => InboxKind::Input,
            Blocked::Connection { .. } => InboxKind::Connection,
            _ => return None,
        };
        let mark = if kind == InboxKind::Approval { awaited.park.since.as_micros() } else { 0 };
        let id = name(kind, &awaited.park.path, mark);
        Some(Item { id, what: What::Park(awaited) })
    });
    let doubts = info.doubts.iter().map(|doubt| {
        let id = name(InboxKind::Doubt, &doubt.path, doubt.attempt.into());
        Item { id, what: What::Doubt(doubt.clone()) }
    });
    parks.chain(doubts).collect()
}

impl Item {
    /// What people see of items of one run. Reply keys are only for those who may answer.
    pub(crate) async fn shown(
        windlass: &Windlass,
        info: &RunInfo,
        items: &[Self],
        with_keys: bool,
    ) -> Answer<Vec<InboxItem>> {
        let paths: Vec<Path> = items.iter().map(|item| item.id.path.clone()).collect();
        let mut calls = match windlass.asked_calls(info.run, &paths).await {
            // It is asked for all the same, and whoever decides is told why that cannot be.
            Err(Error::Store(StoreError::Sealed { .. } | StoreError::Damaged { .. })) => Vec::new(),
            calls => calls?,
        }
        .into_iter();
        let moves = match info.state {
            RunState::Finished { .. } => Vec::new(),
            _ => windlass.explain(info.run).await?.moves,
        };
        let shown = items.iter().map(|item| {
            let sentence = moves.iter().find(|one| one.path == item.id.path).map(|one| one.sentence.clone());
            let args = calls.next().flatten().and_then(|call| call.shown);
            item.one(info, sentence, args, with_keys)
        });
        Ok(shown.collect())
    }

    fn one(
        &self,
        info: &RunInfo,
        sentence: Option<String>,
        args: Option<serde_json::Value>,
        with_keys: bool,
    ) -> InboxItem {
        let (operation, why, since, until, key) = match &self.what {
            What::Park(awaited) => {
                let park = &awaited.park;
                let why = match &park.on {
                    Blocked::Approval { why, .. } => why.clone(),
                    Blocked::Input { name, .. } => name.to_string(),
                    Blocked::Connection { provider } => provider.to_string(),
                    _ => String::new(),
                };
                let key = awaited.key.clone().filter(|_| with_keys);
                (park.operation.clone(), why, park.since, park.until, key)
            }
            What::Doubt(doubt) => (doubt.operation.clone(), doubt.why(), doubt.since, None, None),
        };
        let otherwise = || {
            format!(
                "{operation} at {} waits because of this: {why}; settle it, answer it or decide about it",
                self.id.path
            )
        };
        InboxItem {
            id: self.id.to_string(),
            kind: self.id.kind,
            run: info.run,
            path: self.id.path.clone(),
            tool: info.tool.to_string(),
            session: info.session.as_deref().map(str::to_owned),
            sentence: sentence.unwrap_or_else(otherwise),
            operation,
            args,
            why,
            since: since.into(),
            until: until.map(Into::into),
            key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w12_an_item_has_one_name_and_nonsense_has_none() {
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
