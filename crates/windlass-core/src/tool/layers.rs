//! Layers of a toolbox: named overlays, kept in one registry, that a scope stacks on one another.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::toolbox::{RegisterError, Table};

/// Longest name of a layer: as long as that of a tool.
const NAME_CHARS: usize = 64;

/// What generated names begin with. `~` is in no name that a program may choose.
const UNNAMED: &str = "~";

/// The layers of a scope by name, the lowest first. Empty for the scope of a runtime's own toolbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Arc<str>>", into = "Vec<Arc<str>>")]
pub struct Layers(Option<Arc<[Arc<str>]>>);

impl Layers {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Their names, the lowest first.
    pub fn names(&self) -> &[Arc<str>] {
        self.0.as_deref().unwrap_or_default()
    }

    /// The same with one more on top. A layer that is on top already is not stacked on itself.
    #[must_use]
    pub fn with(&self, name: &Arc<str>) -> Self {
        match self.names().last() {
            Some(top) if top == name => self.clone(),
            _ => self.names().iter().chain([name]).cloned().collect(),
        }
    }

    /// The same with these on top.
    #[must_use]
    pub fn and(&self, above: &Self) -> Self {
        above.names().iter().fold(self.clone(), |layers, name| layers.with(name))
    }
}

impl FromIterator<Arc<str>> for Layers {
    fn from_iter<I: IntoIterator<Item = Arc<str>>>(names: I) -> Self {
        let names: Arc<[Arc<str>]> = names.into_iter().collect();
        Self((!names.is_empty()).then_some(names))
    }
}

impl From<Vec<Arc<str>>> for Layers {
    fn from(names: Vec<Arc<str>>) -> Self {
        names.into_iter().collect()
    }
}

impl From<Layers> for Vec<Arc<str>> {
    fn from(layers: Layers) -> Self {
        layers.names().to_vec()
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" > "))
    }
}

/// A layer that is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no layer `{0}`")]
pub struct NoLayer(pub Arc<str>);

/// What one toolbox or layer has by itself.
#[derive(Default)]
pub(super) struct Tools {
    pub(super) own: Arc<Table>,
    pub(super) sources: Vec<(Arc<str>, Arc<Table>)>,
    /// Hides most of what is below, in a layer that shows only some.
    pub(super) only: Option<Arc<Table>>,
}

/// A layer of its own, wherever it is stacked.
pub(super) struct Layer {
    name: Arc<str>,
    pub(super) tools: RwLock<Tools>,
    /// The registry that knows an unnamed layer for as long as the layer lives.
    registry: Weak<Root>,
}

impl Drop for Layer {
    fn drop(&mut self) {
        if self.name.starts_with(UNNAMED)
            && let Some(registry) = self.registry.upgrade()
        {
            registry.layers.write().remove(&self.name);
        }
    }
}

/// A stack of layers, seen from its top.
pub(super) struct Stack {
    pub(super) layer: Arc<Layer>,
    pub(super) below: Option<Arc<Stack>>,
    pub(super) names: Layers,
}

/// What all scopes of a toolbox share: the tools at the bottom, and every layer there is.
#[derive(Default)]
pub(super) struct Root {
    pub(super) tools: RwLock<Tools>,
    layers: RwLock<BTreeMap<Arc<str>, Registered>>,
}

enum Registered {
    Named(Arc<Layer>),
    Unnamed(Weak<Layer>),
}

impl Registered {
    fn layer(&self) -> Option<Arc<Layer>> {
        match self {
            Self::Named(layer) => Some(layer.clone()),
            Self::Unnamed(layer) => layer.upgrade(),
        }
    }
}

impl Root {
    /// The layer with this name, made if there is none yet.
    pub(super) fn named(self: &Arc<Self>, name: &str) -> Result<Arc<Layer>, RegisterError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > NAME_CHARS || !name.chars().all(legal) {
            return Err(RegisterError::LayerName(name.to_owned()));
        }
        let mut layers = self.layers.write();
        if let Some(layer) = layers.get(name).and_then(Registered::layer) {
            return Ok(layer);
        }
        let layer = self.make(name.into());
        layers.insert(layer.name.clone(), Registered::Named(layer.clone()));
        Ok(layer)
    }

    /// A layer whose generated name no other process has: a run that is left in it is not taken for another's.
    pub(super) fn unnamed(self: &Arc<Self>) -> Arc<Layer> {
        let layer = self.make(format!("{UNNAMED}{}", Uuid::new_v4().simple()).into());
        self.layers.write().insert(layer.name.clone(), Registered::Unnamed(Arc::downgrade(&layer)));
        layer
    }

    fn make(self: &Arc<Self>, name: Arc<str>) -> Arc<Layer> {
        Arc::new(Layer { name, tools: RwLock::default(), registry: Arc::downgrade(self) })
    }

    pub(super) fn get(&self, name: &Arc<str>) -> Result<Arc<Layer>, NoLayer> {
        let found = self.layers.read().get(name).and_then(Registered::layer);
        found.ok_or_else(|| NoLayer(name.clone()))
    }

    pub(super) fn remove(&self, name: &str) -> bool {
        let removed = self.layers.write().remove(name);
        removed.is_some()
    }

    /// Every layer, sorted by name.
    pub(super) fn all(&self) -> Vec<Arc<Layer>> {
        self.layers.read().values().filter_map(Registered::layer).collect()
    }
}

impl Layer {
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }
}

impl Stack {
    /// This layer on top of what is below.
    pub(super) fn on(below: Option<&Arc<Self>>, layer: Arc<Layer>) -> Arc<Self> {
        if let Some(top) = below.filter(|top| Arc::ptr_eq(&top.layer, &layer)) {
            return top.clone();
        }
        let names = below.map(|below| below.names.clone()).unwrap_or_default().with(&layer.name);
        Arc::new(Self { layer, below: below.cloned(), names })
    }
}
