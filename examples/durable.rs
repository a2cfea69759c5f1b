//! A durable tool: a body made of operations. Each is journaled. After a crash the body is entered again, and recorded
//! operations return their results from the journal.
//!
//! `cargo run -p windlass-examples --bin durable [file]`

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass::Path;
use windlass::prelude::*;
use windlass::run::record::{Event, Record};

/// Number of effects outside of this program.
static EFFECTS: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Trip {
    customer: String,
    city: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Booking {
    seat: String,
    receipt: String,
    room: String,
    car: String,
    weather: Vec<String>,
}

/// Find a hotel room.
#[tool(effect = readonly)]
async fn find_room(city: String) -> ToolResult<String> {
    Ok(format!("a room in {city}"))
}

/// Find a car.
#[tool(effect = readonly)]
async fn find_car(city: String) -> ToolResult<String> {
    Ok(format!("a car in {city}"))
}

/// Forecast the weather.
#[tool(effect = readonly)]
async fn weather(city: String, day: u32) -> ToolResult<String> {
    Ok(format!("day {day} in {city}: {}", ["sun", "rain"][day as usize % 2]))
}

/// Charge a customer's card.
// Without an effect class it is `once`, the strictest.
#[tool]
async fn charge(call: &Call, customer: String, cents: u64) -> ToolResult<String> {
    // A payment provider would get this key, and refuse to charge twice under it.
    let _key = call.idempotency_key();
    EFFECTS.fetch_add(1, Ordering::Relaxed);
    Ok(format!("{customer} paid {cents}"))
}

/// Book a whole trip.
// `&mut Ctx` makes the body durable. It also makes the operations run in the order of the code, so that they can be
// matched with the journal.
#[tool]
async fn book_trip(ctx: &mut Ctx, trip: Trip) -> ToolResult<Booking> {
    // Readonly: repeated freely. Its input is part of its identity: if a later version of this code makes the same step
    // with other input, the run is held and shows the difference, instead of using the recorded result.
    let cents: u64 = ctx.step("look up the fare", |_| async { Ok(120) }).readonly().input(&trip).await?;

    // Idempotent: repeated with the same key, which the airline recognizes.
    let seat: String = ctx
        .step("reserve a seat", |attempt| async move {
            let _key = attempt.key();
            EFFECTS.fetch_add(1, Ordering::Relaxed);
            Ok("12A".to_owned())
        })
        .idempotent()
        .await?;

    // A child call has everything that a root call has: schema, limits, effect class, journal.
    let receipt = ctx.call(charge::call(&trip.customer, cents)).await?;

    // Several calls at once: a tuple for different types, an array or a vector for one type.
    let (room, car) = ctx.call_all((find_room::call(&trip.city), find_car::call(&trip.city))).await?;
    let weather = ctx.call_all([1u32, 2, 3].map(|day| weather::call(&trip.city, day))).await?;

    // Several steps at once. A step is `once` by default.
    let mail = || async {
        EFFECTS.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    ctx.steps_all((step("mail the customer", |_| mail()), step("mail the hotel", |_| mail()))).await?;

    Ok(Booking { seat, receipt, room, car, weather: weather.into() })
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "durable.db".to_owned());
    let windlass = open(&file).await?;

    // `start` returns at once with the id of the run, with which any process can wait for its end.
    let trip = Trip { customer: "Ada".to_owned(), city: "Oslo".to_owned() };
    let run = windlass.start(book_trip::call(&trip)).await?.id();
    let outcome = windlass.run(run).outcome().await?;
    println!("booked: {}", outcome.for_model());
    println!("effects: {}", EFFECTS.load(Ordering::Relaxed));

    println!("journal:");
    outline(&windlass.run(run).journal().await?);

    // A recorded result is never computed again: it is returned from the journal, in this process or the next.
    windlass.shutdown().await?;
    let windlass = open(&file).await?;
    let outcome = windlass.run(run).outcome().await?;
    println!("attached again: {}", outcome.for_model()["receipt"]);
    println!("effects: {}", EFFECTS.load(Ordering::Relaxed));
    windlass.shutdown().await
}

async fn open(file: &str) -> windlass::Result<Windlass> {
    Windlass::open(file).tool(find_room).tool(find_car).tool(weather).tool(charge).tool(book_trip).await
}

/// Prints a journal for people: one line for each path in the run, with its events.
fn outline(journal: &[Record]) {
    let mut paths: BTreeMap<&Path, (String, Vec<&str>)> = BTreeMap::new();
    for record in journal {
        let (asked, events) = paths.entry(&record.path).or_default();
        if let Some(what) = &record.asked {
            *asked = what.to_string();
        }
        events.push(match &record.event {
            Event::Accepted => "accepted",
            Event::Entered => "entered",
            Event::Intended { .. } => "intended",
            Event::Finished(finished) if finished.result.is_ok() => "finished",
            Event::Finished(_) => "failed",
            _ => "other",
        });
    }
    for (path, (asked, events)) in paths {
        let path = path.to_string();
        println!("  {path:<4} {asked:<28} {}", events.join(", "));
    }
}
