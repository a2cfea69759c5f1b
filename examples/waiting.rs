//! A run that waits for people: it costs a row in the file, not a task in memory, and outlives the process that started
//! it.
//!
//! `cargo run -p windlass-examples --bin waiting [file]`. The program opens the file twice, like two processes one
//! after the other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use windlass::RunId;
use windlass::inbox::{Awaited, Blocked};
use windlass::prelude::*;

const DAY: Duration = Duration::from_secs(86_400);

/// Charge a customer's card.
#[tool(approval = "args.cents > 10000")]
async fn charge(customer: String, cents: u64) -> ToolResult<String> {
    Ok(format!("{customer} paid {cents}"))
}

/// Book a trip, once the manager has agreed to it.
#[tool]
async fn book(ctx: &mut Ctx, customer: String) -> ToolResult<String> {
    let seat: String = ctx
        .step("reserve a seat", |_| async { Ok("12A".to_owned()) })
        .undo_idempotent(|seat: String, _| async move {
            println!("  seat {seat} is free again");
            Ok(())
        })
        .await?;
    // A race: the journal records which came first.
    let word = match ctx.first((park::wait::<String>("the manager"), park::sleep(3 * DAY))).await? {
        First2::A(word) => word,
        First2::B(()) => return Err(ToolError::failed("the manager did not answer for three days")),
    };
    // Printed in a step, because the body is entered several times and would print it each time.
    ctx.step("tell", |_| {
        println!("  the manager says to {customer}: {word}");
        async { Ok(()) }
    })
    .await?;
    let receipt = ctx.call(charge::call(&customer, 24_000u64)).await?;
    Ok(format!("{seat}: {receipt}"))
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let file = match std::env::args_os().nth(1) {
        Some(file) => PathBuf::from(file),
        None => std::env::temp_dir().join(format!("windlass-waiting-{}.db", std::process::id())),
    };
    let bob = first_life(&file).await?;
    second_life(&file, bob).await
}

/// Starts two runs under our own keys, and shuts down.
async fn first_life(file: &Path) -> windlass::Result<RunId> {
    let windlass = Windlass::open(file).tool(charge).tool(book).await?;
    let ada = windlass.start(book::call("Ada").key("order 1")).await?.id();
    let bob = windlass.start(book::call("Bob").key("order 2")).await?.id();
    // The same key again, as after a lost response: the same run.
    assert_eq!(windlass.start(book::call("Ada").key("order 1")).await?.id(), ada);
    inbox(&windlass, is_input).await?;
    windlass.shutdown().await?;
    println!("the process is gone, the runs wait");
    Ok(bob)
}

/// Answers the runs, then approves one charge and denies the other.
async fn second_life(file: &Path, bob: RunId) -> windlass::Result<()> {
    let windlass = Windlass::open(file).tool(charge).tool(book).await?;
    for item in inbox(&windlass, is_input).await? {
        if let Some(key) = item.key {
            windlass.inbox().resolve(&key, Resolution::Ok { value: json!("go ahead") }).await?;
        }
    }
    println!("both are answered");
    for item in inbox(&windlass, |on| matches!(on, Blocked::Approval { .. })).await? {
        if item.run == bob {
            windlass.inbox().deny(&item, "grace", "owes us money").await?;
        } else {
            windlass.inbox().approve(&item, "grace", "a good customer").await?;
        }
        let outcome = windlass.run(item.run).outcome().await?;
        println!("{}", outcome.for_model());
    }
    windlass.shutdown().await
}

fn is_input(on: &Blocked) -> bool {
    matches!(on, Blocked::Input { .. })
}

/// The inbox, once both runs wait for something of this kind.
async fn inbox(windlass: &Windlass, kind: fn(&Blocked) -> bool) -> windlass::Result<Vec<Awaited>> {
    loop {
        let mut items = windlass.inbox().waiting().await?;
        items.retain(|item| kind(&item.park.on));
        if items.len() == 2 {
            return Ok(items);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
