//! The demo's tools, as a program that books trips would have them. Only the slow bank is made for the demo.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::prelude::*;

use super::ledger::{Charge, Ledger};

/// The sources that the demo searches, and how long each takes in milliseconds.
pub(super) const SOURCES: [(&str, u64); 5] =
    [("Northern Air", 700), ("Fjord Rail", 900), ("Harbour Hotels", 600), ("City Rooms", 800), ("Weather Desk", 500)];

/// How long the bank takes to respond after it recorded the charge: long enough to kill the process meanwhile.
const BANK_DELAY: Duration = Duration::from_secs(20);

/// How long it takes to connect to a source.
const CONNECT_DELAY: Duration = Duration::from_millis(60);

/// The ledger of this process.
static LEDGER: OnceLock<Ledger> = OnceLock::new();

fn ledger() -> ToolResult<&'static Ledger> {
    LEDGER.get().ok_or_else(|| ToolError::unavailable("the demo has no ledger"))
}

/// The demo's tools, which record charges in the ledger at `path`.
pub(crate) fn toolbox(path: &Path) -> Result<Toolbox, windlass::tool::RegisterError> {
    LEDGER.get_or_init(|| Ledger::new(path));
    let toolbox = Toolbox::new();
    toolbox.insert(search)?;
    toolbox.insert(charge)?;
    toolbox.insert(book_trip)?;
    toolbox.insert(ask_customer)?;
    toolbox.insert(await_boarding)?;
    Ok(toolbox)
}

/// The result of a search.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
struct Offer {
    /// The source of the offer.
    source: String,
    /// The price.
    cents: u64,
}

/// A booked trip.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
struct Booking {
    /// The destination.
    to: String,
    /// The number of offers.
    offers: usize,
    /// The price.
    cents: u64,
    /// The bank's receipt.
    receipt: String,
}

/// Ask one source for offers.
#[tool(effect = readonly, in_flight = 2, timeout = "10s")]
async fn search(call: &Call, source: String, to: String) -> ToolResult<Offer> {
    tokio::time::sleep(CONNECT_DELAY).await;
    call.progress(&format!("asking {source}"));
    ledger()?.record_search(&call.run().to_string(), &source)?;
    let millis = SOURCES.iter().find(|(name, _)| *name == source).map_or(500, |(_, millis)| *millis);
    tokio::time::sleep(Duration::from_millis(millis)).await;
    Ok(Offer { cents: 2_000 + millis * 10 + to.len() as u64, source })
}

/// Charge a customer's card. Never twice for one booking.
#[tool(approval = "args.cents > 10000", timeout = "30s", reconcile = find_charge)]
async fn charge(call: &Call, customer: String, cents: u64) -> ToolResult<Receipt> {
    let ledger = ledger()?;
    call.progress("asking the bank for the charge");
    let charge = ledger.charge(&call.idempotency_key(), &customer, cents)?;
    call.progress("the bank has made the charge; waiting for its response");
    tokio::time::sleep(BANK_DELAY).await;
    Ok(charge.into())
}

/// The bank's response.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
struct Receipt {
    /// The receipt's number.
    receipt: String,
    /// The amount that was paid.
    cents: u64,
}

impl From<Charge> for Receipt {
    fn from(charge: Charge) -> Self {
        Self { receipt: charge.receipt, cents: charge.cents }
    }
}

/// After a crash during a charge: looks it up in the bank's ledger.
async fn find_charge(call: &Call) -> ToolResult<Reconciled<Receipt>> {
    let key = call.idempotency_key();
    let found = ledger()?.charges()?.into_iter().find(|charge| charge.key == key);
    Ok(found.map_or(Reconciled::DidNotHappen, |charge| Reconciled::Happened(charge.into())))
}

/// Book a trip: search all sources in parallel, then pay.
#[tool]
async fn book_trip(ctx: &mut Ctx, customer: String, to: String) -> ToolResult<Booking> {
    let offers = ctx.call_all(SOURCES.map(|(source, _)| search::call(source, &to))).await?;
    let cents: u64 = offers.iter().map(|offer| offer.cents).sum();
    let receipt = ctx.call(charge::call(&customer, cents)).await?;
    Ok(Booking { to, offers: offers.len(), cents: receipt.cents, receipt: receipt.receipt })
}

/// Ask the customer a question, and wait for the answer without a time limit.
#[tool]
async fn ask_customer(ctx: &mut Ctx, question: String) -> ToolResult<Value> {
    ctx.wait(question).await
}

/// Wait for the signal that boarding begins.
#[tool(signals(boarding = String))]
async fn await_boarding(ctx: &mut Ctx, flight: String) -> ToolResult<String> {
    let gate: String = ctx.receive("boarding").await?;
    Ok(format!("{flight} boards at {gate}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_tools_are_valid() {
        let folder = tempfile::tempdir().unwrap();
        let toolbox = toolbox(&folder.path().join("ledger.jsonl")).unwrap();
        assert_eq!(toolbox.tools().len(), 5);
    }
}
