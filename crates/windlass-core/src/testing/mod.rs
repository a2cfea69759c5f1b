//! Utilities for testing tools and stores: a seeded executor with a virtual clock, a crash matrix, a simulator, and a
//! suite of checks for stores.

mod around;
pub(crate) mod chaos;
mod crash;
mod faulty;
mod sim;
mod still;
pub mod store_suite;
mod watched;

pub use around::{Around, Asked, Request};
pub use chaos::{Chaos, Story};
pub use crash::{CrashMatrix, Disk, Ledger, MemoryDisk, Outside, Report};
pub use faulty::{Fault, FaultyStore};
pub use sim::{Sim, block_on};
pub use still::still;
pub use watched::Watched;

#[cfg(test)]
impl crate::call::Origin {
    pub(crate) fn for_test(
        run: crate::RunId,
        generation: u32,
        signer: std::sync::Arc<crate::run::reply::Signer>,
    ) -> Self {
        use std::sync::{Arc, Weak};

        use crate::activity::watchers::Watchers;
        use crate::call::Reach;
        use crate::store::MemoryStore;
        use crate::tool::Effect;

        let watchers = Arc::new(Watchers::new(Arc::new(Sim::new(1))));
        let (reach, home) =
            (Arc::new(Reach { signer, watchers, store: Arc::new(MemoryStore::default()) }), Weak::new());
        let (lasts, effect) = (std::time::Duration::ZERO, Effect::Once);
        Self { run, generation, session: None, attribution: None, reach, home, lasts, effect }
    }
}
