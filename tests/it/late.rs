//! Answers, decisions and settlements that come early, late, twice, or at any other moment: each gets a true reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::{About, Awaited, Blocked, Question, ReplyResult, Resolution, Settlement};
use windlass::store::{Driving, Durability, Queries, SqliteStore};
use windlass::{Ctx, Error, Path, RunId, Tool, ToolCall};
use windlass_core::Runtime;
use windlass_core::run::record::{Event, Record};
use windlass_core::run::state::Park;
use windlass_core::spawn::Spawn;
use windlass_core::store::{Change, Commit, Creation, Guard};
use windlass_core::testing::block_on;
use windlass_core::time::Timestamp;

use crate::world::{Counter, World, on_every_store, scratch, tool};

const MOMENT: Duration = Duration::from_secs(1);
/// Turns of other tasks between the first and the second message: from none to more than are needed.
const TURNS: usize = 60;

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

/// Lets the other tasks run this many turns.
async fn turns(count: usize) {
    for _ in 0..count {
        let mut waited = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut waited, true) {
                return std::task::Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
    }
}

/// Acts once, and is always in doubt.
fn act() -> Tool {
    tool("act", |_| async { Err::<Value, _>(windlass::ToolError::in_doubt("the line broke")) })
}

/// Two of them at once.
fn both() -> Tool {
    Tool::durable_fn("both", "two at once", |mut ctx: Ctx, _: Value| async move {
        let (a, b) = ctx.call_all((call("act"), call("act"))).await?;
        Ok(json!([a, b]))
    })
}

fn start(world: &World, runtime: &Runtime, name: &str) -> RunId {
    let run = runtime.start_unconfirmed(call(name)).expect("it starts");
    world.pass(MOMENT);
    run
}

fn happened(value: &str) -> Settlement {
    Settlement::Happened(Ok(Arc::new(json!(value).into())))
}

fn inbox(world: &World, runtime: &Runtime) -> Vec<Awaited> {
    let runtime = runtime.clone();
    world.run(async move { runtime.inbox().await }).expect("the store answers")
}

fn value(world: &World, runtime: &Runtime, run: RunId) -> Value {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].value().cloned().expect("it ends well")
}

#[test]
fn w01_l08_a_doubt_can_be_settled_at_any_moment_after_another() {
    on_every_store(|world| {
        let runtime = world.runtime([act(), both()]);
        for between in 0..TURNS {
            let run = start(&world, &runtime, "both");
            let teller = runtime.clone();
            world.run(async move {
                let doubts = teller.info(run).await.unwrap().unwrap().doubts;
                assert_eq!(doubts.len(), 2);
                for (doubt, word) in doubts.iter().zip(["one", "two"]) {
                    let settled = teller.settle(run, &doubt.path, happened(word), "ada", "looked").await;
                    assert!(settled.is_ok(), "{word} after {between} turns: {settled:?}");
                    turns(between).await;
                }
            });
            assert_eq!(value(&world, &runtime, run), json!(["one", "two"]));
        }
    });
}

#[test]
fn w01_l08_a_repeated_settlement_gets_the_one_that_counted() {
    on_every_store(|world| {
        let runtime = world.runtime([act(), both()]);
        for between in 0..TURNS {
            let run = start(&world, &runtime, "both");
            let teller = runtime.clone();
            world.run(async move {
                let info = teller.info(run).await.unwrap().unwrap();
                for doubt in &info.doubts {
                    let (path, about) = (doubt.path.clone(), About::Doubt(doubt.attempt));
                    let question = Question { run, generation: info.generation, path, about };
                    teller.settle_once(&question, happened("one"), "ada", "looked").await.unwrap();
                    turns(between).await;
                    let late = teller.settle_once(&question, Settlement::GiveUp, "bob", "no idea").await;
                    assert!(matches!(late, Err(Error::Conflict(_))), "{late:?}");
                    let counted = teller.counted(&question).await.unwrap();
                    let counted = counted.unwrap_or_else(|| panic!("nothing counts after {between} turns"));
                    assert_eq!((counted.what, &*counted.by), ("happened", "ada"));
                }
            });
            assert_eq!(value(&world, &runtime, run), json!(["one", "one"]));
        }
    });
}

/// Two waits, one after the other.
fn asks() -> Tool {
    Tool::durable_fn("asks", "waits twice", |mut ctx: Ctx, _: Value| async move {
        let one: Value = ctx.wait("one").await?;
        ctx.step("between", |_| async { Ok(1) }).await?;
        let two: Value = ctx.wait("two").await?;
        Ok(json!([one, two]))
    })
}

#[test]
fn l08_a_repeated_answer_gets_the_one_that_counted() {
    on_every_store(|world| {
        let runtime = world.runtime([asks()]);
        for between in 0..TURNS {
            let run = start(&world, &runtime, "asks");
            let mut said = Vec::new();
            for _ in 0..2 {
                let key = inbox(&world, &runtime).remove(0).key.unwrap();
                // One answer is being processed while the other comes, and the first one counts for both.
                let (first, second) = (runtime.clone(), runtime.clone());
                let counted = world.run(async move {
                    let answer = |word: &str| Resolution::Ok { value: json!(word) };
                    let late = async {
                        turns(between).await;
                        second.resolve(&key, answer("late")).await
                    };
                    let both = futures_util::future::join(first.resolve(&key, answer("first")), late);
                    let (one, other) = both.await;
                    let (counted, told) = match (one.unwrap(), other.unwrap()) {
                        (ReplyResult::Accepted, ReplyResult::Already(Ok(told))) => ("first", told),
                        (ReplyResult::Already(Ok(told)), ReplyResult::Accepted) => ("late", told),
                        wrong => panic!("after {between} turns: {wrong:?}"),
                    };
                    assert_eq!(told.value, json!(counted));
                    counted
                });
                said.push(counted);
                world.pass(MOMENT);
            }
            assert_eq!(value(&world, &runtime, run), json!(said));
        }
    });
}

/// Two calls that need approval, at once.
fn wants() -> Tool {
    Tool::durable_fn("wants", "two at once", |mut ctx: Ctx, _: Value| async move {
        let (a, b) = ctx.call_all((call("pay"), call("pay"))).await?;
        Ok(json!([a, b]))
    })
}

fn pay(paid: &Counter) -> Tool {
    let paid = paid.clone();
    let pay = Tool::new("pay", "pays", move |_: Value| {
        paid.add();
        async { Ok(json!("paid")) }
    });
    pay.effect(windlass::Effect::Readonly).with(|spec| spec.guards.approval = windlass::tool::spec::Approval::Always)
}

async fn decide(runtime: &Runtime, item: &Awaited, granted: bool, by: &str) -> windlass::Result<()> {
    let Blocked::Approval { digest, .. } = &item.park.on else { panic!("{item:?}") };
    runtime.decide(item.run, &item.park.path, digest, granted, (by, "looked")).await
}

#[test]
fn l08_a_decision_counts_at_any_moment_after_a_restart_and_a_repeated_one_is_recognized() {
    on_every_store(|mut world| {
        for between in 0..TURNS {
            let paid = Counter::default();
            let runtime = world.runtime([pay(&paid), wants()]);
            let run = start(&world, &runtime, "wants");
            let items = inbox(&world, &runtime);
            assert_eq!(items.len(), 2);
            drop(runtime);
            world = world.restart();
            let runtime = world.runtime([pay(&paid), wants()]);
            let recovering = runtime.clone();
            world.sim.spawn(Box::pin(async move { drop(recovering.recover().await) }));
            let teller = runtime.clone();
            world.run(async move {
                for item in items {
                    turns(between).await;
                    let said = decide(&teller, &item, true, "ada").await;
                    assert!(said.is_ok(), "after {between} turns: {said:?}");
                    turns(between).await;
                    let late = decide(&teller, &item, false, "bob").await;
                    assert!(matches!(late, Err(Error::Conflict(_))), "{late:?}");
                    let about = About::Approval(item.park.since);
                    let question = Question { run, generation: 0, path: item.park.path.clone(), about };
                    let counted = teller.counted(&question).await.unwrap();
                    let counted = counted.unwrap_or_else(|| panic!("nothing counts after {between} turns"));
                    assert_eq!((counted.what, &*counted.by), ("approved", "ada"));
                }
            });
            assert_eq!(value(&world, &runtime, run), json!(["paid", "paid"]));
            assert_eq!(paid.get(), 2);
        }
    });
}

#[test]
fn l08_a_journal_is_never_older_than_the_row_of_its_run() {
    let dir = scratch();
    let store = SqliteStore::open_with(dir.path().join("test.db"), Durability::Relaxed).expect("it opens");
    let run = RunId::from_bytes([7; 16]);
    let write = |seq: u64, changes: Vec<Change>| {
        let guard = Guard::Owner { run, epoch: 1, expected_seq: seq };
        block_on(store.commit(Commit { guard, changes }).get()).expect("it is written");
    };
    let at = |n: u64| Timestamp::from_micros(i64::try_from(n).expect("few"));
    let record = |n: u64| Record { path: Path::root(), at: at(n), asked: None, event: Event::Entered };
    // Each commit appends a record, and stores their number in the run's row.
    let park = |n: u64| {
        let on = Blocked::Input { name: "word".into(), at: None };
        Change::Parks(vec![Park { path: Path::root(), operation: "wait".to_owned(), on, since: at(n), until: None }])
    };
    write(0, vec![Change::Create(Creation::default()), Change::Append(vec![record(0)]), park(0)]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (1..5_000).for_each(|n| write(n, vec![Change::Append(vec![record(n)]), park(n)]));
            done.store(true, Ordering::Release);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let info = block_on(store.info(run)).expect("it reads").expect("it is there");
                    let said = u64::try_from(info.parks[0].since.as_micros()).expect("few");
                    let records = block_on(store.journal(run, said)).expect("it reads");
                    assert!(
                        !records.is_empty(),
                        "the row says that there is a record {said}, and the journal does not"
                    );
                }
            });
        }
    });
}
