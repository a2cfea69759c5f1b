//! Sessions in this process: what the runs of a session share while they are driven here.

pub(crate) mod check;
pub(crate) mod files;
pub(crate) mod grep;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::admit::Fifo;

/// The queues of sessions whose runs are driven here. A session without driven runs costs nothing.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<BTreeMap<Arc<str>, Weak<Fifo>>>);

impl Sessions {
    /// The queue in which the attempts of a session wait, either exclusive or shared.
    pub(crate) fn exclusivity(&self, session: &Arc<str>) -> Arc<Fifo> {
        let mut sessions = self.0.lock();
        if let Some(turns) = sessions.get(session).and_then(Weak::upgrade) {
            return turns;
        }
        sessions.retain(|_, turns| turns.strong_count() > 0);
        let turns = Fifo::session();
        sessions.insert(session.clone(), Arc::downgrade(&turns));
        turns
    }
}
