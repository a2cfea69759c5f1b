//! The demo's tools: what a program that books trips would bring. Nothing here knows that it is a demo, but for the bank
//! that takes its time.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::prelude::*;

use super::ledger::{Charge, Ledger};

/// Where the demo searches.
pub(super) const PLACES: [(&str, u64); 5] =
    [("Northern Air", 700), ("Fjord Rail", 900), ("Harbour Hotels", 600), ("City Rooms", 800), ("Weather Desk", 500)];

/// How long the bank keeps the line open after it took the money: long enough for somebody to pull the plug.
const BANK: Duration = Duration::from_secs(20);

/// How long it takes until a place listens.
const CONNECT: Duration = Duration::from_millis(60);

/// The world outside. A process has one.
static WORLD: OnceLock<Ledger> = OnceLock::new();

fn world() -> ToolResult<&'static Ledger> {
    WORLD.get().ok_or_else(|| ToolError::unavailable("the demo has no ledger"))
}

/// The tools, charging in the ledger at `path`.
pub(crate) fn toolbox(path: &Path) -> Result<Toolbox, windlass::RegisterError> {
    WORLD.get_or_init(|| Ledger::new(path));
    let toolbox = Toolbox::new();
    toolbox.insert(search)?;
    toolbox.insert(charge)?;
    toolbox.insert(book_trip)?;
    toolbox.insert(ask_customer)?;
    toolbox.insert(await_boarding)?;
    Ok(toolbox)
}

/// What a search found.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
struct Offer {
    /// Where it was found.
    place: String,
    /// What it costs.
    cents: u64,
}

/// A trip that was booked.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
struct Booking {
    /// Where to.
    to: String,
    /// How many offers there were.
    offers: usize,
    /// What it cost.
    cents: u64,
    /// The bank's receipt.
    receipt: String,
}

/// Ask one place for offers.
#[tool(effect = readonly, in_flight = 2, timeout = "10s")]
async fn search(call: &Call, place: String, to: String) -> ToolResult<Offer> {
    tokio::time::sleep(CONNECT).await;
    call.progress(&format!("asking {place}"));
    world()?.searched(&call.run().to_string(), &place)?;
    let millis = PLACES.iter().find(|(name, _)| *name == place).map_or(500, |(_, millis)| *millis);
    tokio::time::sleep(Duration::from_millis(millis)).await;
    Ok(Offer { cents: 2_000 + millis * 10 + to.len() as u64, place })
}

/// Charge a customer's card. Never twice for one booking.
#[tool(approval = "args.cents > 10000", timeout = "30s", reconcile = find_charge)]
async fn charge(call: &Call, customer: String, cents: u64) -> ToolResult<Receipt> {
    let world = world()?;
    call.progress("the bank is asked to take the money");
    let charge = world.charge(&call.idempotency_key(), &customer, cents)?;
    call.progress("the bank has taken the money; its answer is on the way");
    tokio::time::sleep(BANK).await;
    Ok(charge.into())
}

/// What the bank answers.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
struct Receipt {
    /// The receipt's number.
    receipt: String,
    /// How much was paid.
    cents: u64,
}

impl From<Charge> for Receipt {
    fn from(charge: Charge) -> Self {
        Self { receipt: charge.receipt, cents: charge.cents }
    }
}

/// After a crash in the middle of a charge: does the bank have it?
async fn find_charge(call: &Call) -> ToolResult<Reconciled<Receipt>> {
    let key = call.idempotency_key();
    let found = world()?.charges()?.into_iter().find(|charge| charge.key == key);
    Ok(found.map_or(Reconciled::DidNotHappen, |charge| Reconciled::Happened(charge.into())))
}

/// Book a trip: search everywhere at once, then pay.
#[tool]
async fn book_trip(ctx: &mut Ctx, customer: String, to: String) -> ToolResult<Booking> {
    let offers = ctx.call_all(PLACES.map(|(place, _)| search::call(place, &to))).await?;
    let cents: u64 = offers.iter().map(|offer| offer.cents).sum();
    let receipt = ctx.call(charge::call(&customer, cents)).await?;
    Ok(Booking { to, offers: offers.len(), cents: receipt.cents, receipt: receipt.receipt })
}

/// Ask the customer something, and wait for the answer for as long as it takes.
#[tool]
async fn ask_customer(ctx: &mut Ctx, question: String) -> ToolResult<Value> {
    ctx.wait(question).await
}

/// Wait until boarding begins: the gate says so by a signal.
#[tool(signals(boarding = String))]
async fn await_boarding(ctx: &mut Ctx, flight: String) -> ToolResult<String> {
    let gate: String = ctx.receive("boarding").await?;
    Ok(format!("{flight} boards at {gate}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_of_the_demo_are_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let toolbox = toolbox(&folder.path().join("ledger.jsonl")).unwrap();
        assert_eq!(toolbox.tools().len(), 5);
    }
}
