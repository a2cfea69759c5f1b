//! Layers of a toolbox: named overlays in one registry, which a scope stacks on top of each other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::toolbox::{RegisterError, ToolTable};

/// Longest name of a layer; the same as for a tool.
const NAME_CHARS: usize = 64;

/// Prefix of generated names. Names chosen by a program cannot contain `~`.
const UNNAMED_PREFIX: &str = "~";

/// The names of the layers of a scope, the lowest first. Empty for the runtime's own toolbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Arc<str>>", into = "Vec<Arc<str>>")]
pub struct Layers(Option<Arc<[Arc<str>]>>);

impl Layers {
    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The names, the lowest first.
    pub fn names(&self) -> &[Arc<str>] {
        self.0.as_deref().unwrap_or_default()
    }

    /// These layers with one more on top. A layer that is already on top is not added again.
    #[must_use]
    pub fn with(&self, name: &Arc<str>) -> Self {
        match self.names().last() {
            Some(top) if top == name => self.clone(),
            _ => self.names().iter().chain([name]).cloned().collect(),
        }
    }

    /// These layers with the others on top.
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

/// No layer of this name is registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no layer `{0}`")]
pub struct NoLayer(pub Arc<str>);

/// Sources by name, with their tools.
pub(super) type Sources = Vec<(Arc<str>, Arc<ToolTable>)>;

/// The tools of one layer, or of the toolbox below all layers.
#[derive(Default)]
pub(super) struct LayerTools {
    pub(super) own: Arc<ToolTable>,
    pub(super) sources: Sources,
    /// The sources whose tools belong to one session, by its name.
    pub(super) by_session: FxHashMap<Arc<str>, Sources>,
    /// For a layer that shows only some names of the layers below: hides all others.
    pub(super) only: Option<Arc<ToolTable>>,
}

/// A layer, shared by all stacks that contain it.
pub(super) struct Layer {
    name: Arc<str>,
    pub(super) tools: RwLock<LayerTools>,
    /// The registry, from which an unnamed layer removes itself when it is dropped.
    registry: Weak<LayerRegistry>,
}

impl Drop for Layer {
    fn drop(&mut self) {
        if self.name.starts_with(UNNAMED_PREFIX)
            && let Some(registry) = self.registry.upgrade()
        {
            registry.layers.write().remove(&self.name);
        }
    }
}

/// A stack of layers, referred to by its top.
pub(super) struct LayerStack {
    pub(super) layer: Arc<Layer>,
    pub(super) below: Option<Arc<LayerStack>>,
    pub(super) names: Layers,
}

/// What all scopes of a toolbox share: the tools below all layers, and the registered layers.
#[derive(Default)]
pub(super) struct LayerRegistry {
    pub(super) tools: RwLock<LayerTools>,
    layers: RwLock<BTreeMap<Arc<str>, RegisteredLayer>>,
}

/// A registered layer. Named layers live until they are removed, unnamed ones until their last toolbox is dropped.
enum RegisteredLayer {
    Named(Arc<Layer>),
    Unnamed(Weak<Layer>),
}

impl RegisteredLayer {
    fn layer(&self) -> Option<Arc<Layer>> {
        match self {
            Self::Named(layer) => Some(layer.clone()),
            Self::Unnamed(layer) => layer.upgrade(),
        }
    }
}

impl LayerRegistry {
    /// The layer with this name. It is created if it does not exist.
    pub(super) fn named(self: &Arc<Self>, name: &str) -> Result<Arc<Layer>, RegisterError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > NAME_CHARS || !name.chars().all(legal) {
            return Err(RegisterError::LayerName(name.to_owned()));
        }
        let mut layers = self.layers.write();
        if let Some(layer) = layers.get(name).and_then(RegisteredLayer::layer) {
            return Ok(layer);
        }
        let layer = self.make(name.into());
        layers.insert(layer.name.clone(), RegisteredLayer::Named(layer.clone()));
        Ok(layer)
    }

    /// A new layer with a generated name that is unique across processes, so that no other process resolves a run of
    /// this layer to a layer of its own.
    pub(super) fn unnamed(self: &Arc<Self>) -> Arc<Layer> {
        let layer = self.make(format!("{UNNAMED_PREFIX}{}", Uuid::new_v4().simple()).into());
        self.layers.write().insert(layer.name.clone(), RegisteredLayer::Unnamed(Arc::downgrade(&layer)));
        layer
    }

    fn make(self: &Arc<Self>, name: Arc<str>) -> Arc<Layer> {
        Arc::new(Layer { name, tools: RwLock::default(), registry: Arc::downgrade(self) })
    }

    pub(super) fn get(&self, name: &Arc<str>) -> Result<Arc<Layer>, NoLayer> {
        let found = self.layers.read().get(name).and_then(RegisteredLayer::layer);
        found.ok_or_else(|| NoLayer(name.clone()))
    }

    pub(super) fn remove(&self, name: &str) -> bool {
        let removed = self.layers.write().remove(name);
        removed.is_some()
    }

    /// Every layer, sorted by name.
    pub(super) fn all(&self) -> Vec<Arc<Layer>> {
        self.layers.read().values().filter_map(RegisteredLayer::layer).collect()
    }
}

impl Layer {
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }
}

impl LayerStack {
    /// Puts the layer on top of a stack, unless it is already there.
    pub(super) fn on(below: Option<&Arc<Self>>, layer: Arc<Layer>) -> Arc<Self> {
        if let Some(top) = below.filter(|top| Arc::ptr_eq(&top.layer, &layer)) {
            return top.clone();
        }
        let names = below.map(|below| below.names.clone()).unwrap_or_default().with(&layer.name);
        Arc::new(Self { layer, below: below.cloned(), names })
    }
}
