//! Declarations of `#[tool]` about waiting: later answers, signals, events.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass::prelude::*;
use windlass::tool::spec::Recovery;

#[derive(Serialize, Deserialize, JsonSchema)]
struct Verdict {
    ok: bool,
}

/// Ask the office.
#[tool(recovery = owner_bound)]
async fn ask_office(call: &Call, question: String) -> ToolResult<Reply<Verdict>> {
    let _ = (call.reply_key(), question);
    Ok(Reply::later().within(Duration::from_secs(60)))
}

/// Listen and tell.
#[tool(signals(approve = Verdict, count = u32), events(heard = Verdict))]
async fn listen(ctx: &mut Ctx) -> ToolResult<u32> {
    let verdict: Verdict = ctx.receive("approve").await?;
    ctx.emit("heard", &verdict)?;
    ctx.receive("count").await
}

#[test]
fn l06_a_call_whose_answer_comes_later_decodes_to_the_answer() {
    let call: ToolCall<Verdict> = ask_office::call("may I?");
    assert_eq!(call.args()["question"], "may I?");
    assert_eq!(
        Tool::from(ask_office).contract().unwrap().output().unwrap()["properties"]["ok"],
        json!({"type": "boolean"})
    );
    assert_eq!(Tool::from(ask_office).spec().guards.recovery, Recovery::OwnerBound);
}

#[test]
fn l11_l13_signals_and_events_are_declared_in_the_attribute() {
    let tool = Tool::from(listen);
    let names = |list: Vec<String>| list.join(" ");
    assert_eq!(names(tool.channels().signals().map(|(name, _)| name.to_string()).collect()), "approve count");
    assert_eq!(names(tool.channels().events().map(|(name, _)| name.to_string()).collect()), "heard");
}
