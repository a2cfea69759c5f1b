//! What outside systems record about a process that may die.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::life::ProcessLife;

/// The outside systems: counts effects, and survives the process. Clones share it.
#[derive(Clone)]
pub struct Ledger(Arc<LedgerState>);

struct LedgerState {
    effects: Mutex<BTreeMap<String, EffectCount>>,
    keys: Mutex<BTreeSet<String>>,
    notes: Mutex<BTreeMap<String, String>>,
    life: Mutex<Option<Arc<ProcessLife>>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EffectCount {
    pub(super) once: bool,
    pub(super) count: u32,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self(Arc::new(LedgerState {
            effects: Mutex::default(),
            keys: Mutex::default(),
            notes: Mutex::default(),
            life: Mutex::new(None),
        }))
    }

    /// Sets the life of the process that effects belong to.
    pub(super) fn set_life(&self, life: Option<Arc<ProcessLife>>) {
        *self.0.life.lock() = life;
    }

    pub(super) fn effects(&self) -> BTreeMap<String, EffectCount> {
        self.0.effects.lock().clone()
    }

    /// Performs an effect with an idempotency key. It must happen exactly as often as in the undisturbed run.
    pub async fn once(&self, name: &str, key: &str) {
        self.effect(name, Some(key)).await;
    }

    /// Performs an effect that may be repeated if the process dies between its start and its record.
    pub async fn repeatable(&self, name: &str) {
        self.effect(name, None).await;
    }

    async fn effect(&self, name: &str, key: Option<&str>) {
        let life = self.0.life.lock().clone();
        if let Some(life) = &life {
            life.pass(&format!("before effect {name}")).await;
        }
        self.note(name, key);
        if let Some(life) = &life {
            life.pass(&format!("after effect {name}")).await;
        }
    }

    fn note(&self, name: &str, key: Option<&str>) {
        let mut effects = self.0.effects.lock();
        let entry = effects.entry(name.to_owned()).or_default();
        entry.once |= key.is_some();
        entry.count += 1;
        self.0.keys.lock().extend(key.map(str::to_owned));
    }

    /// Whether an effect with this idempotency key happened. A tool's `reconcile` asks this.
    pub fn happened(&self, key: &str) -> bool {
        self.0.keys.lock().contains(key)
    }

    /// Keeps a text outside, such as a reply key that was handed out. The first text for a name is kept.
    pub fn write_down(&self, name: &str, text: impl Into<String>) {
        self.0.notes.lock().entry(name.to_owned()).or_insert_with(|| text.into());
    }

    /// The text that was kept for this name.
    pub fn look_up(&self, name: &str) -> Option<String> {
        self.0.notes.lock().get(name).cloned()
    }

    /// How often an effect has happened so far.
    pub fn count(&self, name: &str) -> u32 {
        self.0.effects.lock().get(name).map_or(0, |effects| effects.count)
    }
}
