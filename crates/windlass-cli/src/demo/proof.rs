//! What was proven: looked up afterwards, in the journal and in the world outside.

use windlass_server::wire::{Activity, Ending, Run};

use super::ledger::Ledger;
use super::toolbox::PLACES;
use crate::exit::{Exit, Failure, Result};

/// Something that must be true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) holds: bool,
    pub(super) sentence: String,
}

fn claim(holds: bool, sentence: impl Into<String>) -> Claim {
    Claim { holds, sentence: sentence.into() }
}

/// What must be true after a charge that a process died in.
pub(super) fn of_charge(run: &Run, told: &[Activity], killed: Option<u32>, ledger: &Ledger) -> Result<Vec<Claim>> {
    let id = run.id.to_string();
    let (charges, searches) = (count(ledger.charges_of(&id))?, count(ledger.searches_of(&id))?);
    let any = |kind: &str| told.iter().any(|activity| activity.kind == kind);
    let by_tool =
        told.iter().any(|activity| activity.kind == "settled" && activity.detail.get("by").is_some_and(is_tool));
    let receipt = run.outcomes.iter().flatten().find_map(|outcome| outcome.value.as_ref()?["receipt"].as_str());
    let known = charges.iter().any(|charge| Some(charge.receipt.as_str()) == receipt);
    let died = match killed {
        Some(pid) => format!("process {pid} was killed (SIGKILL) in the middle of the charge, and the run outlived it"),
        None => "no process died by SIGKILL".to_owned(),
    };
    Ok(vec![
        claim(killed.is_some() && any("run_recovered"), died),
        claim(charges.len() == 1, format!("effects counted by the bank: {}", charges.len())),
        claim(any("in_doubt") && by_tool, "the doubt was settled by the tool's own reconcile, not by a guess"),
        claim(
            searches == PLACES.len(),
            format!("{searches} searches were made for {} that were asked for", PLACES.len()),
        ),
        claim(run.ending == Some(Ending::Ok) && known, "the run ended well, with the receipt the bank has"),
    ])
}

/// What must be true after a charge that was denied.
pub(super) fn of_denial(run: &Run, ledger: &Ledger) -> Result<Vec<Claim>> {
    let charges = count(ledger.charges_of(&run.id.to_string()))?;
    let denied = run.outcomes.iter().flatten().any(|outcome| outcome.error.is_some());
    Ok(vec![
        claim(charges.is_empty(), format!("effects counted by the bank: {}", charges.len())),
        claim(run.ending == Some(Ending::Failed) && denied, "the run was told that the charge was denied"),
    ])
}

fn count<T>(read: std::io::Result<T>) -> Result<T> {
    read.map_err(|error| Failure::new(Exit::Failed, format!("the ledger cannot be read: {error}")))
}

/// Whether a doubt was settled by the tool itself.
fn is_tool(by: &serde_json::Value) -> bool {
    by.as_str() == Some("tool")
}
