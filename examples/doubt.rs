//! A real doubt: a process dies in the middle of a charge, and whether the money moved is unknown. Windlass does not
//! guess. It reports the doubt, and a person settles it.
//!
//! `cargo run -p windlass-examples --bin doubt [file]`. The program starts itself once more, as the process that dies.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use windlass::RunId;
use windlass::inbox::{Doubt, Settlement};
use windlass::prelude::*;

/// Set in the process that dies, to the path of the payment provider's ledger.
const DIES: &str = "WINDLASS_EXAMPLE_DIES";

/// Charge a customer's card.
// `once`, which is the default: retried only if it certainly did not happen.
#[tool]
async fn charge(call: &Call, customer: String, cents: u64) -> ToolResult<String> {
    if let Some(ledger) = std::env::var_os(DIES) {
        // The provider takes the money…
        let mut ledger = OpenOptions::new().create(true).append(true).open(ledger)?;
        writeln!(ledger, "{} {customer} {cents}", call.idempotency_key())?;
        // …and before the result is recorded, the process is gone.
        std::process::abort();
    }
    println!("  this line would be a second charge");
    Ok(format!("{customer} paid {cents}"))
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let file = match std::env::args_os().nth(1) {
        Some(file) => PathBuf::from(file),
        None => std::env::temp_dir().join(format!("windlass-doubt-{}.db", std::process::id())),
    };
    if std::env::var_os(DIES).is_some() {
        let windlass = Windlass::open(&file).tool(charge).await?;
        windlass.call(charge::call("Ada", 500u64)).await?;
        return Ok(());
    }

    let ledger = file.with_extension("ledger");
    let child = Command::new(std::env::current_exe().map_err(refused)?).arg(&file).env(DIES, &ledger).status();
    println!("the first process succeeded: {}", child.map_err(refused)?.success());

    // Opening the file continues the run. Its journal says that the charge was about to happen, and nothing after that.
    let windlass = Windlass::open(&file).tool(charge).await?;
    let (run, doubt) = first_doubt(&windlass).await?;
    println!("in doubt: {} at {} (attempt {}): {}", doubt.operation, doubt.path, doubt.attempt, doubt.cause);

    // A person checks the provider's ledger. The key of the call leads to the charge, if there was one.
    let charges = charges_of(&ledger, run)?;
    println!("the provider's ledger has {} charge(s) of run {run}", charges.len());
    let settlement = match charges.first() {
        Some(_) => Settlement::Happened(Ok(Output::value(json!("Ada paid 500")).into())),
        None => Settlement::DidNotHappen,
    };
    windlass.inbox().settle(run, &doubt.path, settlement, "grace", "found it in the provider's ledger").await?;

    // The run continues as if the process had never died.
    let outcome = windlass.run(run).outcome().await?;
    println!("outcome:  {}", outcome.for_model());
    println!("doubts:   {}", windlass.inbox().doubts().await?.len());
    println!("charges:  {}", charges_of(&ledger, run)?.len());
    for record in windlass.run(run).journal().await? {
        if let windlass::run::record::Event::Finished(finished) = record.event
            && let Some(settled) = finished.settled
        {
            println!("journal:  settled by {:?}: {}", settled.by, settled.reason);
        }
    }
    windlass.shutdown().await
}

/// The first doubt that recovery found when the file was opened.
async fn first_doubt(windlass: &Windlass) -> windlass::Result<(RunId, Doubt)> {
    let nothing = || windlass::Error::NotFound("nothing is in doubt".to_owned());
    windlass.inbox().doubts().await?.into_iter().next().ok_or_else(nothing)
}

/// The lines of the ledger that belong to a run: an idempotency key starts with the run's id.
fn charges_of(ledger: &Path, run: RunId) -> windlass::Result<Vec<String>> {
    let text = std::fs::read_to_string(ledger).map_err(refused)?;
    Ok(text.lines().filter(|line| line.starts_with(&run.to_string())).map(str::to_owned).collect())
}

fn refused(error: std::io::Error) -> windlass::Error {
    windlass::Error::System(Box::new(error))
}
