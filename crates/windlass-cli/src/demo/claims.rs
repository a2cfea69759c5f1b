//! The claims of the demo, checked afterwards against the journal and the bank's ledger.

use windlass_server::wire::{Activity, Ending, Run};

use super::ledger::Ledger;
use super::toolbox::SOURCES;
use crate::exit::{Exit, Failure, Result};

/// A claim, and whether it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) holds: bool,
    pub(super) sentence: String,
}

fn claim(holds: bool, sentence: impl Into<String>) -> Claim {
    Claim { holds, sentence: sentence.into() }
}

/// The claims about a charge during which a process was killed.
pub(super) fn of_charge(
    run: &Run,
    activities: &[Activity],
    killed: Option<u32>,
    ledger: &Ledger,
) -> Result<Vec<Claim>> {
    let id = run.id.to_string();
    let (charges, searches) = (read(ledger.charges_of(&id))?, read(ledger.searches_of(&id))?);
    let any = |kind: &str| activities.iter().any(|activity| activity.kind == kind);
    let settled_by_tool =
        activities.iter().any(|activity| activity.kind == "settled" && activity.detail.get("by").is_some_and(is_tool));
    let receipt = run.outcomes.iter().flatten().find_map(|outcome| outcome.value.as_ref()?["receipt"].as_str());
    let in_ledger = charges.iter().any(|charge| Some(charge.receipt.as_str()) == receipt);
    let died = match killed {
        Some(pid) => format!("process {pid} was killed (SIGKILL) during the charge, and the run survived"),
        None => "no process was killed by SIGKILL".to_owned(),
    };
    Ok(vec![
        claim(killed.is_some() && any("run_recovered"), died),
        claim(charges.len() == 1, format!("charges in the bank's ledger: {}", charges.len())),
        claim(any("in_doubt") && settled_by_tool, "the doubt was settled by the tool's own reconcile function"),
        claim(
            searches == SOURCES.len(),
            format!("searches made: {searches}, one for each of the {} requested", SOURCES.len()),
        ),
        claim(run.ending == Some(Ending::Ok) && in_ledger, "the run succeeded, with the receipt in the bank's ledger"),
    ])
}

/// The claims about a charge that was denied.
pub(super) fn of_denial(run: &Run, ledger: &Ledger) -> Result<Vec<Claim>> {
    let charges = read(ledger.charges_of(&run.id.to_string()))?;
    let denied = run.outcomes.iter().flatten().any(|outcome| outcome.error.is_some());
    Ok(vec![
        claim(charges.is_empty(), format!("charges in the bank's ledger: {}", charges.len())),
        claim(run.ending == Some(Ending::Failed) && denied, "the run failed, because the charge was denied"),
    ])
}

fn read<T>(result: std::io::Result<T>) -> Result<T> {
    result.map_err(|error| Failure::new(Exit::Failed, format!("could not read the ledger: {error}")))
}

/// Whether the tool itself settled the doubt.
fn is_tool(by: &serde_json::Value) -> bool {
    by.as_str() == Some("tool")
}
