//! Which tools a session shows, and the copy of it that its runs read.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::toolbox::ToolTable;

/// The tools that a session shows. By default it shows all of them.
///
/// A tool that a session does not show can be neither listed nor called in it, nor used by the bodies of its runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionTools {
    /// The only tools that it shows, by name; `None` if it shows all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<BTreeSet<Arc<str>>>,
    /// Tools that it hides, whatever else names them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub hidden: BTreeSet<Arc<str>>,
    /// Tools that it shows in addition to `shown`. They are listed with their schemas, also if they would be deferred.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub revealed: BTreeSet<Arc<str>>,
}

impl SessionTools {
    /// Whether it shows all tools and names none.
    pub fn is_default(&self) -> bool {
        self.shown.is_none() && self.hidden.is_empty() && self.revealed.is_empty()
    }

    /// Whether it shows the tool of this name.
    pub fn shows(&self, name: &str) -> bool {
        let is_shown = self.shown.as_ref().is_none_or(|shown| shown.contains(name)) || self.revealed.contains(name);
        is_shown && !self.hidden.contains(name)
    }

    /// The number of names in it.
    pub fn len(&self) -> usize {
        self.shown.as_ref().map_or(0, BTreeSet::len) + self.hidden.len() + self.revealed.len()
    }

    /// Whether it names no tool.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every name in it, sorted.
    pub fn names(&self) -> BTreeSet<Arc<str>> {
        self.shown.iter().flatten().chain(&self.hidden).chain(&self.revealed).cloned().collect()
    }

    /// What it is after a change.
    #[must_use]
    pub fn after(&self, change: &ToolsChange) -> Self {
        let mut tools = if change.reset { Self::default() } else { self.clone() };
        if let Some(only) = &change.only {
            tools.revealed.clear();
            tools.hidden.retain(|name| !only.contains(name));
            tools.shown = Some(only.iter().cloned().collect());
        }
        for name in &change.show {
            tools.hidden.remove(name);
            tools.shown.iter_mut().for_each(|shown| shown.extend([name.clone()]));
        }
        tools.revealed.extend(change.reveal.iter().cloned());
        for name in &change.hide {
            tools.revealed.remove(name);
            tools.shown.iter_mut().for_each(|shown| shown.retain(|other| other != name));
            tools.hidden.insert(name.clone());
        }
        tools
    }

    /// The table that hides what the session does not show; `None` if it shows all.
    fn table(&self) -> Option<Arc<ToolTable>> {
        let only = self.shown.as_ref().map(|shown| shown.union(&self.revealed).cloned().collect());
        (only.is_some() || !self.hidden.is_empty()).then(|| Arc::new(ToolTable::hiding(&self.hidden, only)))
    }
}

/// A change of the tools that a session shows. Its parts are applied in the order of the fields, so `hide` wins. Making
/// the same change again changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolsChange {
    /// Shows all tools, as a new session does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// Shows only these tools. Replaces what was shown and revealed before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<Arc<str>>>,
    /// Shows these tools too, and no longer hides them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub show: Vec<Arc<str>>,
    /// Reveals these tools. A hidden tool stays hidden.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reveal: Vec<Arc<str>>,
    /// Hides these tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hide: Vec<Arc<str>>,
}

impl ToolsChange {
    /// Shows these tools.
    pub fn show<N: Into<Arc<str>>>(names: impl IntoIterator<Item = N>) -> Self {
        Self { show: all(names), ..Self::default() }
    }

    /// Shows only these tools.
    pub fn only<N: Into<Arc<str>>>(names: impl IntoIterator<Item = N>) -> Self {
        Self { only: Some(all(names)), ..Self::default() }
    }

    /// Hides these tools.
    pub fn hide<N: Into<Arc<str>>>(names: impl IntoIterator<Item = N>) -> Self {
        Self { hide: all(names), ..Self::default() }
    }

    /// Reveals these tools.
    pub fn reveal<N: Into<Arc<str>>>(names: impl IntoIterator<Item = N>) -> Self {
        Self { reveal: all(names), ..Self::default() }
    }

    /// Shows all tools.
    pub fn reset() -> Self {
        Self { reset: true, ..Self::default() }
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Every name in it.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.only.iter().flatten().chain(&self.show).chain(&self.reveal).chain(&self.hide)
    }
}

fn all<N: Into<Arc<str>>>(names: impl IntoIterator<Item = N>) -> Vec<Arc<str>> {
    names.into_iter().map(Into::into).collect()
}

/// The tools that a session shows now. The store keeps it current for as long as a run, or another reader, holds it, so
/// that a call reads nothing from the store.
pub struct LiveTools {
    session: Arc<str>,
    state: RwLock<LiveState>,
}

#[derive(Clone, Default)]
enum LiveState {
    /// Not read from the store yet.
    #[default]
    Unread,
    /// It shows all tools.
    All,
    Some(Arc<SessionTools>, Option<Arc<ToolTable>>),
}

impl From<SessionTools> for LiveState {
    fn from(tools: SessionTools) -> Self {
        if tools.is_default() {
            return Self::All;
        }
        let table = tools.table();
        Self::Some(Arc::new(tools), table)
    }
}

impl LiveTools {
    fn unread(session: Arc<str>) -> Self {
        Self { session, state: RwLock::default() }
    }

    /// For a reader that needs the tools which belong to a session, whether the session shows them or not.
    pub(crate) fn all(session: Arc<str>) -> Self {
        Self { session, state: RwLock::new(LiveState::All) }
    }

    /// The name of the session.
    pub fn session(&self) -> &Arc<str> {
        &self.session
    }

    /// What the session shows.
    pub fn now(&self) -> Arc<SessionTools> {
        match &*self.state.read() {
            LiveState::Some(tools, _) => tools.clone(),
            LiveState::Unread | LiveState::All => Arc::default(),
        }
    }

    /// Whether it was read from the store.
    pub fn is_read(&self) -> bool {
        !matches!(*self.state.read(), LiveState::Unread)
    }

    /// Takes over what was read from the store, unless a later change is known.
    pub fn read(&self, tools: SessionTools) {
        let mut state = self.state.write();
        if matches!(*state, LiveState::Unread) {
            *state = tools.into();
        }
    }

    pub(super) fn table(&self) -> Option<Arc<ToolTable>> {
        match &*self.state.read() {
            LiveState::Some(_, table) => table.clone(),
            LiveState::Unread | LiveState::All => None,
        }
    }
}

impl fmt::Debug for LiveTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveTools").field("session", &self.session).field("now", &self.now()).finish()
    }
}

/// Sessions that a store keeps [`LiveTools`] of although nothing holds them.
const RECENT: usize = 256;

/// The [`LiveTools`] of a store: of every session in which runs are driven, and of a bounded number of recent ones.
#[derive(Default)]
pub struct LiveSessions(Mutex<LiveTable>);

#[derive(Default)]
struct LiveTable {
    by_name: FxHashMap<Arc<str>, Weak<LiveTools>>,
    recent: VecDeque<Arc<LiveTools>>,
    /// The size of `by_name` at which entries that nothing holds are removed.
    sweep_at: usize,
}

impl LiveSessions {
    /// The tools of a session. A store that gets one that is not [read](LiveTools::is_read) reads the session's row
    /// after this call, and hands it to [`LiveTools::read`].
    pub fn get(&self, name: &Arc<str>) -> Arc<LiveTools> {
        let mut table = self.0.lock();
        if let Some(live) = table.by_name.get(name).and_then(Weak::upgrade) {
            return live;
        }
        let live = Arc::new(LiveTools::unread(name.clone()));
        if table.by_name.len() >= table.sweep_at.max(2 * RECENT) {
            table.by_name.retain(|_, live| live.strong_count() > 0);
            table.sweep_at = 2 * table.by_name.len();
        }
        table.by_name.insert(name.clone(), Arc::downgrade(&live));
        if table.recent.len() >= RECENT {
            table.recent.pop_front();
        }
        table.recent.push_back(live.clone());
        live
    }

    /// Takes over a change that is in the store.
    pub fn changed(&self, name: &str, tools: SessionTools) {
        let live = self.0.lock().by_name.get(name).and_then(Weak::upgrade);
        if let Some(live) = live {
            *live.state.write() = tools.into();
        }
    }

    /// The sessions that are held now.
    pub fn held(&self) -> Vec<Arc<LiveTools>> {
        self.0.lock().by_name.values().filter_map(Weak::upgrade).collect()
    }

    /// Takes over what the store has, after it may have missed changes.
    pub fn replaced(&self, live: &LiveTools, tools: SessionTools) {
        *live.state.write() = tools.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    #[test]
    fn l20_a_change_of_shown_tools_is_idempotent_and_hiding_wins() {
        let all = SessionTools::default();
        assert!(all.shows("a") && all.is_default() && all.is_empty());
        let hidden = all.after(&ToolsChange::hide(["a"]));
        assert_eq!((hidden.shows("a"), hidden.shows("b")), (false, true));
        assert_eq!(hidden.after(&ToolsChange::hide(["a"])), hidden);
        assert!(!hidden.after(&ToolsChange::reveal(["a"])).shows("a"), "a hidden tool is not revealed");
        assert_eq!(hidden.after(&ToolsChange::show(["a"])), all);
        let only = hidden.after(&ToolsChange::only(["a", "b"]));
        assert_eq!((only.shows("a"), only.shows("b"), only.shows("c")), (true, true, false));
        let revealed = only.after(&ToolsChange::reveal(["c"]));
        assert!(revealed.shows("c") && !revealed.shows("d"));
        assert_eq!(revealed.after(&ToolsChange::only(["b"])).revealed, set(&[]));
        assert_eq!(revealed.after(&ToolsChange::show(["d"])).shown, Some(set(&["a", "b", "d"])));
        assert_eq!(revealed.after(&ToolsChange::reset()), all);
        let both = ToolsChange { hide: vec!["a".into()], ..ToolsChange::show(["a"]) };
        assert!(!all.after(&both).shows("a"));
        assert!(!only.after(&ToolsChange::hide(["a"])).shows("a"));
    }

    #[test]
    fn l20_the_tools_of_idle_sessions_take_bounded_memory() {
        let live = LiveSessions::default();
        let held = live.get(&"held".into());
        for number in 0..10 * RECENT {
            live.get(&format!("s{number}").into());
        }
        assert!(live.held().len() <= RECENT + 1, "{}", live.held().len());
        assert!(live.0.lock().by_name.len() <= 3 * RECENT);
        assert!(Arc::ptr_eq(&held, &live.get(&"held".into())), "a session that is held is never forgotten");
    }

    #[test]
    fn l20_a_change_is_not_overwritten_by_an_earlier_read() {
        let live = LiveSessions::default();
        let tools = live.get(&"s".into());
        assert!(!tools.is_read());
        live.changed("s", SessionTools::default().after(&ToolsChange::hide(["a"])));
        tools.read(SessionTools::default());
        assert!(tools.is_read() && !tools.now().shows("a"));
    }
}
