//! The work of a child and its expected results; both follow from a seed.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::RunId;

/// What runs may consist of: every effect class, every kind of park, other runs, people, undoing, generations.
pub(crate) const TOOLS: [&str; 16] = [
    "look",
    "set",
    "pay",
    "send",
    "retell",
    "wobble",
    "risky",
    "guarded",
    "forbidden",
    "office",
    "chain",
    "waiter",
    "parent",
    "listener",
    "saga",
    "storm",
];
/// Some tools are used twice.
const JOBS: usize = 20;

/// How many numbers a listener receives.
pub(super) const NUMBERS: u64 = 3;

/// The instructions of a child, stored beside its file.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// Whether every commit is synced. A kill does not need it, and it must do no harm.
    pub(crate) full: bool,
}

/// Something that a child starts, with its tag as the key.
pub(super) struct Job {
    pub(super) tool: &'static str,
    pub(super) tag: String,
}

impl Plan {
    pub(super) fn read(dir: &Path) -> Self {
        let text = std::fs::read(dir.join("plan.json")).expect("the plan is there");
        serde_json::from_slice(&text).expect("the plan is one")
    }

    pub(crate) fn write(&self, dir: &Path) {
        let text = serde_json::to_vec(self).expect("JSON");
        std::fs::write(dir.join("plan.json"), text).expect("the plan is written");
    }

    /// Every tool at least once, in an order that follows from the seed.
    pub(super) fn jobs(&self) -> Vec<Job> {
        let mut dice = Dice::new(self.seed);
        let mut left: Vec<&str> = (0..JOBS).map(|n| TOOLS[n % TOOLS.len()]).collect();
        let mut jobs = Vec::new();
        while !left.is_empty() {
            let tool = left.swap_remove(dice.below(left.len()));
            jobs.push(Job { tool, tag: format!("j{}", jobs.len()) });
        }
        jobs
    }
}

/// How often an effect must have happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Often {
    /// Exactly once.
    Once,
    /// Never or once: it was given up while in doubt.
    AtMostOnce,
    /// Once, and once more for each settlement that it did not happen.
    AsTold,
    /// At least once, always under the same key.
    Repeated,
    /// Not at all.
    Never,
}

/// The effects of a run of this tool, with their names in the ledger.
pub(super) fn effects(tool: &str, tag: &str) -> Vec<(String, Often)> {
    use Often::{AsTold, AtMostOnce, Never, Once, Repeated};
    let named = |list: &[(&str, Often)]| list.iter().map(|(name, often)| (format!("{name}:{tag}"), *often)).collect();
    match tool {
        "look" | "set" | "retell" | "office" => named(&[(tool, Repeated)]),
        "pay" | "send" | "guarded" => named(&[(tool, Once)]),
        "napper" => named(&[("pay", Once)]),
        "wobble" => named(&[(tool, AsTold)]),
        "risky" => named(&[(tool, AtMostOnce)]),
        "forbidden" => named(&[(tool, Never)]),
        "chain" => named(&[("set", Repeated), ("look", Repeated), ("pay", Once), ("send", Once)]),
        "waiter" => named(&[("pay", Once)]),
        "parent" => Vec::new(),
        "listener" => (0..NUMBERS).map(|n| (format!("pay:{tag}.{n}"), Once)).collect(),
        "saga" => named(&[("seat", Once), ("room", Repeated), ("no seat", Never), ("no room", Never)]),
        "storm" => named(&[("seat", Once), ("room", Repeated), ("no seat", Once), ("no room", Repeated)]),
        other => panic!("unexpected tool {other}"),
    }
}

/// Whether a run of this tool may end like this: with a value, or with an error of a kind.
pub(super) fn fits(tool: &str, run: RunId, result: Result<&Value, &str>) -> bool {
    let told = json!(run.to_string());
    let value = match tool {
        "risky" if result == Err("in_doubt") => return true,
        "forbidden" => return result == Err("denied"),
        "storm" => return result == Err("failed"),
        "look" | "set" | "pay" | "send" | "retell" | "wobble" | "risky" | "guarded" => json!(tool),
        "office" => told,
        "chain" => json!([3, "set", "pay", "look", "send"]),
        "waiter" => json!([told, told, "pay"]),
        "napper" => json!(1),
        "parent" => json!(2),
        "listener" => json!((0..NUMBERS).collect::<Vec<_>>()),
        "saga" => json!("booked"),
        other => panic!("unexpected tool {other}"),
    };
    result == Ok(&value)
}

/// Choices that follow from a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit.max(1)
    }
}
