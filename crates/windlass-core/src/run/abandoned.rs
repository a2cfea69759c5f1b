//! Bodies that were dropped before they ended: what may have happened in them stays visible.

use super::intent::Intent;
use super::machine::Machine;
use super::record::Record;
use super::state::Doubt;
use crate::path::Path;
use crate::store::{Mail, Message};
use crate::time::Timestamp;

impl Machine {
    /// A body was dropped before it ended. Its attempts that may have happened stay visible as doubts, including those
    /// of an earlier owner that it had not asked for again.
    pub(crate) fn abandon_below(&mut self, path: &Path, at: Timestamp) {
        self.abandoned.push(path.clone());
        self.unpark_below(path);
        let below = |intent: &Intent| intent.path.positions().starts_with(path.positions());
        let (lost, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open_intents).into_iter().partition(below);
        self.open_intents = kept;
        for doubt in lost.into_iter().map(Intent::doubt) {
            self.outbox.append(Record { path: doubt.path.clone(), at, asked: None, event: doubt.event() });
            self.open_doubt(doubt);
        }
        let open = self.history.get_mut().map(|history| history.open_below(path));
        for (doubt, recorded) in open.unwrap_or_default() {
            if !recorded {
                self.outbox.append(Record { path: doubt.path.clone(), at, asked: None, event: doubt.event() });
            }
            self.open_doubt(doubt);
        }
        self.record_late_settlements(at);
    }

    /// Records settlements of doubts that no body waits for. The record closes the doubt and names the person.
    pub(super) fn record_late_settlements(&mut self, at: Timestamp) {
        let over = |path: &Path| self.abandoned.iter().any(|above| path.positions().starts_with(above.positions()));
        let open = |mail: &Mail| match &mail.message {
            Message::Settle { path, attempt, .. } if over(path) => {
                self.doubts.iter().find(|doubt| doubt.path == *path && doubt.attempt == *attempt).cloned()
            }
            _ => None,
        };
        let settled: Vec<Doubt> = self.mail.iter().filter_map(open).collect();
        for doubt in settled {
            let Some(mail) = self.take_settlement(&doubt.path, doubt.attempt) else { continue };
            let event = mail.annotation(&doubt);
            self.append(Record { path: doubt.path, at, asked: None, event });
        }
    }
}
