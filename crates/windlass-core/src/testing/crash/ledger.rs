//! What the world outside knows of a process that may die.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::life::Life;

/// The world outside: counts effects, and outlives the process.
#[derive(Clone)]
pub struct Ledger(Arc<Books>);

struct Books {
    effects: Mutex<BTreeMap<String, Effects>>,
    keys: Mutex<BTreeSet<String>>,
    notes: Mutex<BTreeMap<String, String>>,
    life: Mutex<Option<Arc<Life>>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    pub(super) once: bool,
    pub(super) count: u32,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self(Arc::new(Books {
            effects: Mutex::default(),
            keys: Mutex::default(),
            notes: Mutex::default(),
            life: Mutex::new(None),
        }))
    }

    /// Whose life the effects are part of.
    pub(super) fn lives(&self, life: Option<Arc<Life>>) {
        *self.0.life.lock() = life;
    }

    pub(super) fn effects(&self) -> BTreeMap<String, Effects> {
        self.0.effects.lock().clone()
    }

    /// An effect that must happen exactly as often as in the undisturbed run, done under an idempotency key.
    pub async fn once(&self, name: &str, key: &str) {
        self.effect(name, Some(key)).await;
    }

    /// An effect that may be repeated when a crash falls between its start and its record.
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

    /// Whether a once effect happened under this key: what a tool's `reconcile` asks the outside for.
    pub fn happened(&self, key: &str) -> bool {
        self.0.keys.lock().contains(key)
    }

    /// Keeps something outside, such as a reply key that was handed out. The first word under a name stays.
    pub fn write_down(&self, name: &str, text: impl Into<String>) {
        self.0.notes.lock().entry(name.to_owned()).or_insert_with(|| text.into());
    }

    /// What was written down under this name.
    pub fn look_up(&self, name: &str) -> Option<String> {
        self.0.notes.lock().get(name).cloned()
    }

    /// How often an effect has happened so far.
    pub fn count(&self, name: &str) -> u32 {
        self.0.effects.lock().get(name).map_or(0, |effects| effects.count)
    }
}
