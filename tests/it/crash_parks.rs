//! The crash matrix over everything that waits: for an answer, for a time, for the first of several.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::{First2, First3};
use windlass::inbox::{ReplyResult, Resolution};
use windlass::testing::{CrashMatrix, Ledger, Outside, Report};
use windlass::tool::Reply;
use windlass::{Call, Ctx, Tool, ToolCall, ToolError, park};

use crate::crash::{on_sqlite, once};

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// A matrix whose runs stay in memory while they wait, and one whose runs are suspended at once, also on SQLite.
pub(crate) fn check_parked(matrix: impl Fn() -> CrashMatrix) -> Report {
    let suspended = || matrix().config(|config| config.suspend_after = Duration::ZERO);
    let stays = matrix().run();
    let report = suspended().run();
    let on_disk = on_sqlite(suspended());
    for other in [stays, on_disk] {
        assert_eq!(other.outcome, report.outcome);
        assert_eq!(other.effects, report.effects);
    }
    report
}

pub(crate) fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

/// Waits for a manager and acts once.
fn manager(ledger: &Ledger) -> Vec<Tool> {
    let ask = Tool::durable_fn("ask", "asks the manager", |mut ctx: Ctx, _: Value| async move {
        let word = ctx.wait::<String>("manager").within(3 * HOUR).await;
        let acted = ctx.call_json("act", json!({})).await?;
        Ok(json!([word.map_err(|error| error.kind().to_owned()), acted]))
    });
    vec![ask, once(ledger, "act")]
}

#[test]
fn l10_w03_an_answered_wait_survives_every_crash() {
    let report = check_parked(|| {
        CrashMatrix::new(manager).call(call("ask")).outside(|outside| outside.answer("manager", json!("yes")))
    });
    assert_eq!(report.outcome, json!([[{"Ok": "yes"}, {"done": "act"}]]));
    assert_eq!(report.effects["act"], 1);
    assert!(report.runs >= 12, "{report:?}");
}

#[test]
fn l10_w03_an_answered_wait_survives_a_second_crash_during_every_recovery() {
    check_parked(|| {
        let matrix = CrashMatrix::new(manager).call(call("ask")).crashes(2);
        matrix.outside(|outside| outside.answer("manager", json!("yes")))
    });
}

#[test]
fn l06_an_unanswered_wait_times_out_once_whatever_crashes() {
    let report = check_parked(|| {
        CrashMatrix::new(manager).call(call("ask")).crashes(2).outside(|outside| {
            assert!(outside.time() < 4 * HOUR, "a restart does not begin the time again");
        })
    });
    assert_eq!(report.outcome, json!([[{"Err": "timed_out"}, {"done": "act"}]]));
}

#[test]
fn l10_a_sleep_is_slept_once_whatever_crashes() {
    let report = check_parked(|| {
        let tools = |ledger: &Ledger| {
            let nap = Tool::durable_fn("nap", "sleeps twice", |mut ctx: Ctx, _: Value| async move {
                ctx.sleep(HOUR).await?;
                let acted = ctx.call_json("act", json!({})).await?;
                ctx.sleep(HOUR).await?;
                Ok(acted)
            });
            vec![nap, once(ledger, "act")]
        };
        CrashMatrix::new(tools).call(call("nap")).outside(|outside| assert!(outside.time() < 3 * HOUR))
    });
    assert_eq!(report.outcome, json!([{"done": "act"}]));
}

/// Continues with the operation that completes first.
fn race(_: &Ledger) -> Vec<Tool> {
    let race = Tool::durable_fn("race", "waits for one of three", |mut ctx: Ctx, _: Value| async move {
        let branches = (park::wait::<String>("boss"), park::receive::<i64>("news"), park::sleep(HOUR));
        let first = match ctx.first(branches).await? {
            First3::A(word) => json!({"boss": word}),
            First3::B(news) => json!({"news": news}),
            First3::C(()) => json!("slept"),
        };
        // A losing receive has not consumed anything.
        let rest = match ctx.first((park::receive::<i64>("news"), park::sleep(HOUR))).await? {
            First2::A(news) => json!(news),
            First2::B(()) => json!(null),
        };
        Ok(json!([first, rest]))
    });
    vec![race.signal::<i64>("news")]
}

#[test]
fn l10_every_branch_of_a_first_may_win_and_its_choice_survives_every_crash() {
    let boss = check_parked(|| {
        CrashMatrix::new(race).call(call("race")).outside(|outside| {
            outside.answer("boss", json!("go"));
            if outside.inbox().is_empty() {
                outside.signal("news", json!(1), "first");
            }
        })
    });
    assert_eq!(boss.outcome, json!([[{"boss": "go"}, 1]]));
    let news = check_parked(|| {
        CrashMatrix::new(race).call(call("race")).outside(|outside| {
            outside.signal("news", json!(1), "first");
            outside.signal("news", json!(2), "second");
        })
    });
    assert_eq!(news.outcome, json!([[{"news": 1}, 2]]));
    let slept = check_parked(|| CrashMatrix::new(race).call(call("race")));
    assert_eq!(slept.outcome, json!([["slept", null]]));
}

#[test]
fn l08_a_wait_that_lost_is_revoked_whatever_crashes() {
    let report = check_parked(|| {
        CrashMatrix::new(race).call(call("race")).outside(|outside| {
            if let Some(key) = outside.inbox().iter().find_map(|item| item.key.clone()) {
                outside.ledger().write_down("boss", key);
            }
            let late = outside.ledger().look_up("boss").filter(|_| outside.time() > HOUR);
            if let Some(key) = late {
                let told = outside.resolve(&key, Resolution::Ok { value: json!("late") });
                assert!(matches!(told, None | Some(ReplyResult::Revoked { .. })), "{told:?}");
            }
        })
    });
    assert_eq!(report.outcome, json!([["slept", null]]));
}

/// Hands out a key once and awaits its answer repeatedly.
fn patient(ledger: &Ledger) -> Vec<Tool> {
    let ledger = ledger.clone();
    vec![Tool::durable_fn("patient", "asks and asks", move |mut ctx: Ctx, _: Value| {
        let ledger = ledger.clone();
        async move {
            let mut reply = ctx.open_wait::<u32>("number");
            let key = reply.key().to_owned();
            let l = &ledger;
            ctx.step("hand it out", |_| {
                l.write_down("key", key.clone());
                async move {
                    l.repeatable("handed out").await;
                    Ok(())
                }
            })
            .idempotent()
            .await?;
            let mut tries = 0;
            loop {
                tries += 1;
                match ctx.answer(&mut reply).within(HOUR).await {
                    Err(ToolError::TimedOut { .. }) => {}
                    answer => return Ok(json!([answer?, ctx.answer(&mut reply).await?, tries])),
                }
            }
        }
    })]
}

#[test]
fn l10_an_open_wait_is_awaited_repeatedly_over_every_crash() {
    let report = check_parked(|| {
        CrashMatrix::new(patient).call(call("patient")).outside(|outside| {
            let key = outside.ledger().look_up("key").filter(|_| outside.time() > HOUR + HOUR / 2);
            if let Some(key) = key {
                outside.resolve(&key, Resolution::Ok { value: json!(42) });
            }
        })
    });
    let tries = report.outcome[0][2].as_u64();
    assert_eq!((&report.outcome[0][0], &report.outcome[0][1]), (&json!(42), &json!(42)));
    assert!(tries >= Some(2), "{report:?}");
}

/// A tool whose answer comes later: its key is handed out before the attempt ends.
fn office(ledger: &Ledger) -> Vec<Tool> {
    let ledger = ledger.clone();
    let office = Tool::with_call("office", "asks the office", move |call: Call, _: Value| {
        let ledger = ledger.clone();
        async move {
            ledger.write_down("key", call.reply_key());
            ledger.once("asked", &call.idempotency_key()).await;
            Ok(Reply::<Value>::later().within(HOUR))
        }
    });
    vec![office]
}

/// The office was asked if and only if the ledger says so.
fn pending(script: fn(&Outside<'_>)) -> CrashMatrix {
    CrashMatrix::new(office).call(call("office")).outside(script).person(|ledger, key, _| {
        assert!(!ledger.happened(key), "what was asked is answered in the end, and needs no person");
        windlass::inbox::Settlement::DidNotHappen
    })
}

#[test]
fn l06_a_pending_call_is_answered_whatever_crashes() {
    let report = check_parked(|| {
        pending(|outside| {
            let key = outside.ledger().look_up("key").filter(|_| outside.ledger().count("asked") > 0);
            if let Some(key) = key {
                outside.resolve(&key, Resolution::Ok { value: json!({"stamp": 7}) });
            }
        })
    });
    assert_eq!(report.outcome, json!([{"stamp": 7}]));
    assert_eq!(report.effects["asked"], 1);
}

#[test]
fn l08_a_pending_call_answered_with_a_forged_key_first() {
    let report = check_parked(|| {
        pending(|outside| {
            let Some(key) = outside.ledger().look_up("key").filter(|_| outside.ledger().count("asked") > 0) else {
                return;
            };
            for forged in [crate::parks::forge(&key), key.to_lowercase(), String::new()] {
                let told = outside.resolve(&forged, Resolution::Ok { value: json!("forged") });
                assert!(told.is_none(), "{told:?}");
            }
            outside
                .resolve(&key, Resolution::Err { code: "closed".into(), message: "come tomorrow".into(), data: None });
        })
    });
    assert!(report.outcome[0].to_string().contains("come tomorrow"), "{report:?}");
}

/// The answer comes after the deadline.
#[test]
fn l06_an_unanswered_pending_call_times_out_and_a_late_answer_is_refused() {
    let tools = |ledger: &Ledger| {
        let mut tools = office(ledger);
        tools.push(Tool::durable_fn("visit", "asks and looks", |mut ctx: Ctx, _: Value| async move {
            let told = ctx.call(call("office")).await;
            ctx.sleep(HOUR).await?;
            Ok(json!(told.map_err(|error| error.kind().to_owned())))
        }));
        tools
    };
    let report = check_parked(|| {
        CrashMatrix::new(tools)
            .call(call("visit"))
            .outside(|outside| {
                let late = outside.ledger().look_up("key").filter(|_| outside.time() > HOUR + HOUR / 2);
                if let Some(key) = late {
                    let told = outside.resolve(&key, Resolution::Ok { value: json!("late") });
                    assert!(matches!(told, None | Some(ReplyResult::Already(Err(_)))), "{told:?}");
                }
            })
            .person(|ledger, key, _| match ledger.happened(key) {
                true => windlass::inbox::Settlement::Happened(Err(std::sync::Arc::new(ToolError::TimedOut {
                    message: "the office says that it did not happen".into(),
                }))),
                false => windlass::inbox::Settlement::DidNotHappen,
            })
    });
    assert_eq!(report.outcome, json!([{"Err": "timed_out"}]));
}

/// The answer comes before the attempt has ended.
#[test]
fn l08_an_early_answer_is_kept_whatever_crashes() {
    let slow = |ledger: &Ledger| {
        let ledger = ledger.clone();
        let slow = Tool::durable_fn("slow", "is answered before it waits", move |mut ctx: Ctx, _: Value| {
            let ledger = ledger.clone();
            async move {
                let mut reply = ctx.open_wait::<String>("early");
                ledger.write_down("key", reply.key());
                ctx.sleep(HOUR).await?;
                let word = ctx.answer(&mut reply).within(HOUR).await?;
                Ok(json!(word))
            }
        });
        vec![slow]
    };
    let report = check_parked(|| {
        CrashMatrix::new(slow).call(call("slow")).crashes(2).outside(|outside| {
            if let (Some(key), Some(_)) = (outside.ledger().look_up("key"), outside.root()) {
                outside.resolve(&key, Resolution::Ok { value: json!("early") });
            }
        })
    });
    assert_eq!(report.outcome, json!(["early"]));
}
