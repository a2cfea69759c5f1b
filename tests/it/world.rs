//! Shared fixtures: both kinds of stores, a simulated process, tools that count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use windlass::Tool;
use windlass::store::{Durability, MemoryStore, SqliteStore, Store};
use windlass::testing::SqliteDisk;
use windlass_core::testing::Sim;
use windlass_core::time::Clock;
use windlass_core::{Config, Runtime};

/// A directory for files that need not outlive the machine: in memory if possible.
pub(crate) fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary directory")
}

/// A database file as the disk of a crash matrix or of the simulator, removed at the end of its history.
pub(crate) struct ScratchDisk {
    file: SqliteDisk,
    _dir: TempDir,
}

impl ScratchDisk {
    pub(crate) fn new() -> Self {
        let dir = scratch();
        Self { file: SqliteDisk::new(dir.path().join("test.db")), _dir: dir }
    }
}

impl windlass::testing::Disk for ScratchDisk {
    fn open(&self) -> Arc<dyn Store> {
        self.file.open()
    }
}

/// Runs a test on every embedded store.
pub(crate) fn on_every_store(test: impl Fn(World)) {
    for kind in [Kind::Memory, Kind::Sqlite] {
        test(World::new(kind));
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
}

/// A simulated process on a store.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) store: Arc<dyn Store>,
    disk: Disk,
    /// The number of the process start; run ids differ between starts.
    life: u64,
}

enum Disk {
    Memory(MemoryStore),
    Sqlite(TempDir),
}

impl World {
    pub(crate) fn new(kind: Kind) -> Self {
        let disk = match kind {
            Kind::Memory => Disk::Memory(MemoryStore::new()),
            Kind::Sqlite => Disk::Sqlite(scratch()),
        };
        Self::boot(disk, 1)
    }

    fn boot(disk: Disk, life: u64) -> Self {
        let sim = Sim::new(1);
        let raw: Arc<dyn Store> = match &disk {
            Disk::Memory(store) => {
                store.owners_died();
                Arc::new(store.clone())
            }
            Disk::Sqlite(dir) => {
                let opened = SqliteStore::open_with(dir.path().join("test.db"), Durability::Relaxed);
                Arc::new(opened.expect("the store opens"))
            }
        };
        let store = sim.attach(raw);
        Self { sim, store, disk, life }
    }

    /// The process dies; another one starts on the same disk.
    pub(crate) fn restart(self) -> Self {
        let Self { sim, store, disk, life } = self;
        sim.bury();
        drop(store);
        drop(sim);
        Self::boot(disk, life + 1)
    }

    /// The path of the database, if it is one.
    pub(crate) fn file(&self) -> std::path::PathBuf {
        match &self.disk {
            Disk::Memory(_) => panic!("a store in memory has no file"),
            Disk::Sqlite(dir) => dir.path().join("test.db"),
        }
    }

    pub(crate) fn config(&self, tools: impl IntoIterator<Item = Tool>) -> Config {
        let sim = Arc::new(self.sim.clone());
        let mut config = Config::new(self.store.clone(), sim.clone(), sim);
        config.seed = Some(self.life);
        for tool in tools {
            config.toolbox.insert(tool).expect("the tool is sound");
        }
        config
    }

    /// Another runtime in the same process; its runs have ids of their own.
    pub(crate) fn another(&self, tools: impl IntoIterator<Item = Tool>) -> Config {
        static NEXT: AtomicU32 = AtomicU32::new(1_000);
        let mut config = self.config(tools);
        config.seed = Some(NEXT.fetch_add(1, Ordering::Relaxed).into());
        config
    }

    pub(crate) fn runtime(&self, tools: impl IntoIterator<Item = Tool>) -> Runtime {
        Runtime::new(self.config(tools))
    }

    /// Lets virtual time pass, and everything happen that is due.
    pub(crate) fn pass(&self, time: Duration) {
        let sim = self.sim.clone();
        self.run(async move { sim.sleep(time).await });
    }

    /// Runs a future to its end.
    pub(crate) fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        self.sim.block_on(future).expect("the simulation comes to an end")
    }
}

/// A shared counter.
#[derive(Clone, Default)]
pub(crate) struct Counter(Arc<AtomicU32>);

impl Counter {
    pub(crate) fn add(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A tool without a particular schema, from a function of its arguments.
pub(crate) fn tool<R, Fut>(name: &str, f: impl Fn(Value) -> Fut + Send + Sync + 'static) -> Tool
where
    R: windlass::tool::IntoOutput + 'static,
    Fut: Future<Output = windlass::ToolResult<R>> + Send + 'static,
{
    Tool::new(name, "a test tool", f)
}
