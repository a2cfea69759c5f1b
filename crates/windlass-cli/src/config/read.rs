//! The sections about the process: server, store, retention, policy, limits, secrets, webhook.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use windlass::limits;
use windlass::policy::{Policy, Unattended};
use windlass::run::BreakerPolicy;
use windlass::session::FileLimits;
use windlass::store::{Durability, Retention};
use windlass::tool::spec::{Approval, OnDoubt, Retry};

use super::forms;
use super::table;
use super::units;
use super::view::View;

/// The default address of a server.
pub const LISTEN: &str = "127.0.0.1:7117";

/// The default database file.
pub const FILE: &str = "windlass.db";

/// The server's address and its allowed clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Address and port.
    pub listen: SocketAddr,
    /// Further names that are accepted in the Host header.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may call the server.
    pub allowed_origins: Vec<String>,
}

/// The database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The database file.
    pub file: PathBuf,
    /// What a power cut may lose.
    pub durability: Durability,
    /// Whether other programs may read the file while it is open.
    pub shared: bool,
}

/// Settings about people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct People {
    /// Whether a person is available to answer.
    pub attended: bool,
    /// Providers that every session is connected to.
    pub connected: Vec<String>,
    /// The language of texts for people.
    pub locale: String,
}

/// Limits of the process as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most attempts at once.
    pub in_flight: usize,
    /// The most unfinished runs of a session.
    pub session_runs: u64,
    /// Unfinished runs from which on new calls are refused.
    pub unfinished_runs: u64,
    /// When circuit breakers open and close.
    pub breaker: BreakerPolicy,
    /// The largest artifact, in bytes.
    pub artifact: u64,
    /// The limits for the files of a session.
    pub files: FileLimits,
    /// How long a shutdown waits for attempts in flight.
    pub drain: Duration,
}

pub(super) fn server(root: &View<'_>) -> Server {
    let view = root.below("server", &table::SERVER);
    let listen = view.text("listen").and_then(|text| forms::address(text).ok());
    let owned = |texts: Vec<&str>| texts.into_iter().map(str::to_owned).collect();
    Server {
        listen: listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 7117))),
        allowed_hosts: owned(view.texts("allowed_hosts")),
        allowed_origins: owned(view.texts("allowed_origins")),
    }
}

pub(super) fn store(root: &View<'_>, folder: &Path) -> Store {
    let view = root.below("store", &table::STORE);
    let durability = match view.text("durability") {
        Some("relaxed") => Durability::Relaxed,
        _ => Durability::default(),
    };
    let shared = view.flag("shared").unwrap_or(false);
    Store { file: folder.join(view.text("file").unwrap_or(FILE)), durability, shared }
}

pub(super) fn retention(root: &View<'_>) -> Retention {
    let view = root.below("retention", &table::RETENTION);
    let default = Retention::default();
    let time = |key, default| match view.text(key) {
        Some("forever") => Duration::MAX,
        Some(text) => units::duration(text).unwrap_or(default),
        None => default,
    };
    Retention {
        full: time("full", default.full),
        summary: time("summary", default.summary),
        keys: time("keys", default.keys),
        sessions: time("sessions", default.sessions),
    }
}

pub(super) fn people(root: &View<'_>) -> People {
    let view = root.below("policy", &table::POLICY);
    People {
        attended: view.flag("attended").unwrap_or(false),
        connected: view.texts("connected").into_iter().map(str::to_owned).collect(),
        locale: view.text("locale").unwrap_or("en").to_owned(),
    }
}

pub(super) fn limits(root: &View<'_>) -> Limits {
    let view = root.below("limits", &table::LIMITS);
    let breaker = BreakerPolicy::default();
    Limits {
        in_flight: view.count("in_flight").unwrap_or(limits::ATTEMPTS_IN_FLIGHT),
        session_runs: view.count("session_runs").unwrap_or(limits::SESSION_RUNS),
        unfinished_runs: view.count("unfinished_runs").unwrap_or(limits::UNFINISHED_RUNS),
        breaker: BreakerPolicy {
            failures: view.count("breaker_failures").unwrap_or(breaker.failures),
            open_for: view.duration("breaker_open").unwrap_or(breaker.open_for),
            successes: view.count("breaker_successes").unwrap_or(breaker.successes),
        },
        artifact: view.size("artifact").unwrap_or(limits::ARTIFACT_BYTES),
        files: FileLimits {
            file_bytes: view.size("file").unwrap_or(limits::SESSION_FILE_BYTES),
            session_bytes: view.size("session_files").unwrap_or(limits::SESSION_FILES_BYTES),
            count: view.count("session_file_count").unwrap_or(limits::SESSION_FILES),
        },
        drain: view.duration("drain").unwrap_or(limits::DRAIN),
    }
}

/// Reads the keys that [policy] and every tool have.
pub(super) fn policy(view: &View<'_>) -> Policy {
    Policy {
        timeout: view.duration("timeout"),
        deadline: view.duration("deadline"),
        retry: retry(view),
        grace: view.duration("grace"),
        heartbeat: view.duration("heartbeat"),
        on_doubt: view.text("on_doubt").and_then(|word| match word {
            "ask" => Some(OnDoubt::Ask),
            "fail" => Some(OnDoubt::Fail),
            "rerun" => Some(OnDoubt::Rerun),
            _ => None,
        }),
        approval: view.text("approval").and_then(approval),
        approval_within: view.duration("approval_within"),
        unattended: view.text("unattended").and_then(|word| match word {
            "wait" => Some(Unattended::Wait),
            "deny" => Some(Unattended::Deny),
            _ => None,
        }),
        grant_valid: view.duration("grant_valid"),
        output_budget: view.size("output_budget").and_then(|size| usize::try_from(size).ok()),
        loop_limit: view.count("loop_limit"),
        max_depth: view.count("max_depth"),
    }
}

/// Parses an approval; `None` if its condition does not compile, which was already reported.
pub(super) fn approval(text: &str) -> Option<Approval> {
    match text {
        "never" => Some(Approval::Never),
        "always" => Some(Approval::Always),
        condition => forms::condition(condition).is_ok().then(|| Approval::When(condition.into())),
    }
}

fn retry(view: &View<'_>) -> Option<Retry> {
    let retries = |times: u32| Retry::attempts(times.saturating_add(1));
    let Some(table) = view.within("retries", &table::RETRIES) else {
        return view.count("retries").map(retries);
    };
    let default = retries(table.count("times")?);
    Some(Retry {
        base: table.duration("base").unwrap_or(default.base),
        cap: table.duration("cap").unwrap_or(default.cap),
        ..default
    })
}
