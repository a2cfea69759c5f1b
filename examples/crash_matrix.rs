//! Your own tools through every crash: the process dies before and after every commit and around every effect, and
//! neither the outcome nor the number of effects may change.
//!
//! In your project this would be a test. Here it is a program, so that you can see its report.

use std::cell::Cell;
use std::path::PathBuf;

use windlass::inbox::Settlement;
use windlass::prelude::*;
use windlass::testing::{CrashMatrix, Ledger, Report, SqliteDisk};

/// The tools under test, created again for every start of the process. The ledger is the outside world, and survives.
fn tools(ledger: &Ledger) -> Vec<Tool> {
    let (provider, books) = (ledger.clone(), ledger.clone());
    // `once`, and able to find out by itself whether it happened.
    let charge = Tool::with_call("charge", "Charge a card.", move |call, _: Value| {
        let provider = provider.clone();
        async move {
            provider.once("charge", &call.idempotency_key()).await;
            Ok("receipt 1".to_owned())
        }
    })
    .reconcile(move |call| {
        let charged = books.happened(&call.idempotency_key());
        async move { Ok(if charged { Reconciled::Happened("receipt 1".to_owned()) } else { Reconciled::DidNotHappen }) }
    });

    let (prices, airline) = (ledger.clone(), ledger.clone());
    let trip = Tool::durable_fn("trip", "Book a trip.", move |mut ctx: Ctx, _: Value| {
        let (prices, airline) = (prices.clone(), airline.clone());
        async move {
            // A crash may repeat the lookup, but never the charge.
            let fare: u64 = ctx
                .step("look up the fare", |_| async {
                    prices.repeatable("look-up").await;
                    Ok(120)
                })
                .readonly()
                .await?;
            // `once`, and only a person can find out whether it happened.
            let seat: String = ctx
                .step("reserve a seat", |attempt| {
                    let airline = &airline;
                    async move {
                        airline.once("seat", &attempt.key()).await;
                        Ok("12A".to_owned())
                    }
                })
                .await?;
            let receipt = ctx.call_json("charge", json!({})).await?;
            Ok(json!({"fare": fare, "seat": seat, "receipt": receipt}))
        }
    });
    vec![charge, trip]
}

/// The person who answers the inbox, and asks the airline whether it has seen the key.
fn person(ledger: &Ledger, key: &str, _doubt: &windlass::inbox::Doubt) -> Settlement {
    match ledger.happened(key) {
        true => Settlement::Happened(Ok(Output::value(json!("12A")).into())),
        false => Settlement::DidNotHappen,
    }
}

fn print(title: &str, report: &Report) {
    println!("{title}: {} crash points, {} disturbed runs", report.points, report.runs);
    println!("  outcome: {}", report.outcome);
    for (name, count) in &report.effects {
        println!("  {name}: {count}");
    }
}

fn main() -> windlass::Result<()> {
    // Each panics, with the crash and the whole history, if the outcome or a count differs.
    let charge = || CrashMatrix::new(tools).call(ToolCall::new("charge", json!({})));
    let trip = || CrashMatrix::new(tools).call(ToolCall::new("trip", json!({}))).person(person);

    print("a charge, in memory", &charge().run());
    let report = trip().run();
    print("a trip, in memory", &report);
    println!("  its points:");
    for point in &report.log {
        println!("    {point}");
    }
    print("a trip, two crashes each", &trip().crashes(2).run());
    print("a question, with its answer", &question().run());

    let folder = tempfile::tempdir().map_err(|error| windlass::Error::System(Box::new(error)))?;
    print("a charge, on SQLite", &charge().disk(fresh(folder.path().join("charge"))).run());
    print("a trip, on SQLite", &trip().disk(fresh(folder.path().join("trip"))).run());
    Ok(())
}

/// A body that waits needs an answer: `outside` is called whenever nothing else can proceed.
fn question() -> CrashMatrix {
    CrashMatrix::new(|ledger| {
        let ask = |mut ctx: Ctx, _: Value| async move {
            let yes: bool = ctx.wait("manager").within(std::time::Duration::from_secs(3_600)).await?;
            if yes { ctx.call_json("charge", json!({})).await } else { Ok(json!("not charged")) }
        };
        let mut tools = tools(ledger);
        tools.push(Tool::durable_fn("ask", "Ask the manager, then charge.", ask));
        tools
    })
    .call(ToolCall::new("ask", json!({})))
    .outside(|outside| outside.answer("manager", json!(true)))
}

/// A new file for every history; all processes of one history open the same file.
fn fresh(prefix: PathBuf) -> impl Fn() -> SqliteDisk {
    let histories = Cell::new(0);
    move || {
        histories.set(histories.get() + 1);
        SqliteDisk::new(prefix.with_extension(format!("{}.db", histories.get())))
    }
}
