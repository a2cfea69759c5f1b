use serde_json::{Value, json};

use super::*;
use crate::limits;

const MINUTE: Duration = Duration::from_secs(60);

/// A policy that says something in every field, different for each `n`.
fn full(n: u32) -> Policy {
    let time = |base: u32| Some(Duration::from_secs(u64::from(base + n)));
    Policy {
        timeout: time(100),
        deadline: time(200),
        retry: Some(Retry::attempts(n)),
        grace: time(300),
        heartbeat: time(400),
        on_doubt: Some([OnDoubt::Ask, OnDoubt::Fail, OnDoubt::Rerun][n as usize % 3]),
        approval: Some(Approval::When(format!("args.n == {n}").into())),
        approval_within: time(500),
        unattended: Some([Unattended::Wait, Unattended::Deny][n as usize % 2]),
        grant_valid: time(600),
        output_budget: Some(700 + n as usize),
        loop_limit: Some(800 + n),
        max_depth: Some(900 + n as usize),
    }
}

fn bare() -> ToolSpec {
    ToolSpec::new("t", "")
}

fn with(policy: Policy) -> ToolSpec {
    let mut spec = bare();
    spec.apply(policy);
    spec
}

#[test]
fn b03_the_defaults_are_what_the_page_says() {
    let plain = EffectivePolicy::of(&Policy::default(), &bare(), None);
    let expected = EffectivePolicy {
        timeout: MINUTE,
        deadline: None,
        retry: None,
        grace: Duration::from_millis(50),
        heartbeat: None,
        on_doubt: OnDoubt::Ask,
        demands: Default::default(),
        approval_within: 24 * 60 * MINUTE,
        unattended: Unattended::Wait,
        grant_valid: 60 * MINUTE,
        output_budget: 32 * 1_024,
        loop_limit: 5,
        max_depth: 32,
    };
    assert_eq!(plain, expected);
    let mut long = bare();
    long.hints.long_running = true;
    assert_eq!(EffectivePolicy::of(&Policy::default(), &long, None).timeout, limits::LONG_ATTEMPT_TIMEOUT);
    let runtime = Policy { timeout: Some(MINUTE), ..Policy::default() };
    assert_eq!(
        EffectivePolicy::of(&runtime, &long, None).timeout,
        limits::LONG_ATTEMPT_TIMEOUT,
        "the tool says it is long"
    );
}

/// Everything but approval, where demands add up.
fn values(resolved: EffectivePolicy) -> EffectivePolicy {
    EffectivePolicy { demands: Default::default(), ..resolved }
}

#[test]
fn b03_every_field_goes_from_call_over_tool_to_runtime() {
    let of = |n: u32| values(EffectivePolicy::of(&full(n), &bare(), None));
    assert_eq!(values(EffectivePolicy::of(&full(1), &with(full(2)), Some(&full(4)))), of(4), "the call's");
    assert_eq!(values(EffectivePolicy::of(&full(1), &with(full(2)), None)), of(2), "the tool's");
    assert_eq!(values(EffectivePolicy::of(&Policy::default(), &with(full(2)), None)), of(2));
    assert_eq!(values(EffectivePolicy::of(&full(1), &bare(), None)), of(1), "the runtime's");
    assert_eq!(values(EffectivePolicy::of(&full(1), &bare(), Some(&full(4)))), of(4));
    // Each level says one thing only.
    let call = Policy { loop_limit: Some(2), ..Policy::default() };
    let tool = with(Policy { output_budget: Some(64), ..Policy::default() });
    let runtime = Policy { max_depth: Some(3), ..Policy::default() };
    let resolved = EffectivePolicy::of(&runtime, &tool, Some(&call));
    assert_eq!((resolved.loop_limit, resolved.output_budget, resolved.max_depth), (2, 64, 3));
}

#[test]
fn b03_a_tool_gives_back_the_policy_it_was_given() {
    assert_eq!(with(full(3)).policy(), full(3));
    assert_eq!(bare().policy(), Policy::default());
}

#[test]
fn b03_one_policy_over_another_fills_only_what_is_open() {
    let over = |a: &Policy, b: &Policy| Policy { approval: None, ..a.over(b) };
    let silent = |policy: Policy| Policy { approval: None, ..policy };
    assert_eq!(over(&full(1), &full(2)), silent(full(1)));
    assert_eq!(full(1).over(&Policy::default()), full(1));
    assert_eq!(Policy::default().over(&full(1)), full(1));
}

fn approval(approval: Approval) -> Policy {
    Policy { approval: Some(approval), ..Policy::default() }
}

fn need(runtime: Approval, tool: Approval, call: Approval, args: &Value) -> Option<String> {
    let spec = with(approval(tool));
    let resolved = EffectivePolicy::of(&approval(runtime), &spec, Some(&approval(call)));
    resolved.approval(&Facts::of_args(args)).map(|need| need.to_string())
}

#[test]
fn e07_no_level_takes_back_what_another_asks_for() {
    use Approval::{Always, Never};
    let args = json!({"n": 1});
    assert_eq!(need(Never, Never, Never, &args), None);
    for (runtime, tool, call, whose) in [
        (Always, Never, Never, "the runtime asks for it always"),
        (Never, Always, Never, "the tool asks for it always"),
        (Never, Never, Always, "the call asks for it always"),
    ] {
        assert_eq!(need(runtime, tool, call, &args).as_deref(), Some(whose));
    }
    let merged = |a: Approval, b: Approval| approval(a).over(&approval(b)).approval.unwrap();
    assert_eq!(merged(Never, Always), Always);
    assert_eq!(merged(Always, Never), Always);
    assert_eq!(merged(Never, Approval::When("args.a".into())), Approval::When("args.a".into()));
    let joined = merged(Approval::When("args.a".into()), Approval::When("args.b".into()));
    assert_eq!(joined, Approval::When("(args.a) || (args.b)".into()));
}

#[cfg(feature = "cel")]
#[test]
fn e07_conditions_add_up_and_an_undecided_one_asks() {
    let when = |source: &str| Approval::When(source.into());
    let ask = |args: Value| need(when("args.n > 5"), when("args.m > 5"), Approval::Never, &args);
    assert_eq!(ask(json!({"n": 1, "m": 1})), None);
    assert_eq!(ask(json!({"n": 9, "m": 1})).as_deref(), Some("the runtime asks for it when `args.n > 5`, which holds"));
    assert_eq!(ask(json!({"n": 1, "m": 9})).as_deref(), Some("the tool asks for it when `args.m > 5`, which holds"));
    assert_eq!(
        ask(json!({"n": 1})).as_deref(),
        Some(
            "the tool asks for it on a condition that cannot be decided: expression `args.m > 5`: there is no `m`; ask \
             first with has(…)"
        )
    );
    let history = EffectivePolicy::of(&approval(when("history.size() > 3")), &bare(), None);
    assert!(history.uses_history());
    assert!(history.approval(&Facts::of_args(&Value::Null)).is_some(), "a history that was not collected asks");
}

#[cfg(not(feature = "cel"))]
#[test]
fn e07_without_cel_every_condition_asks() {
    let said = need(Approval::Never, Approval::When("args.n > 5".into()), Approval::Never, &json!({"n": 1}));
    assert!(said.unwrap().contains("this build has no CEL"));
}

#[test]
fn b03_a_policy_that_cannot_work_is_refused_by_name() {
    assert_eq!(full(1).check(), Ok(()));
    let zero = Some(Duration::ZERO);
    for (policy, word) in [
        (Policy { timeout: zero, ..Policy::default() }, "a `timeout` of zero"),
        (Policy { deadline: zero, ..Policy::default() }, "a `deadline` of zero"),
        (Policy { heartbeat: zero, ..Policy::default() }, "a `heartbeat` of zero"),
        (Policy { approval_within: zero, ..Policy::default() }, "a `approval_within` of zero"),
        (Policy { grant_valid: zero, ..Policy::default() }, "a `grant_valid` of zero"),
        (Policy { retry: Some(Retry::attempts(0)), ..Policy::default() }, "zero attempts"),
        (Policy { output_budget: Some(0), ..Policy::default() }, "`output_budget` of zero"),
        (Policy { loop_limit: Some(0), ..Policy::default() }, "`loop_limit` of zero"),
    ] {
        let problem = policy.check().unwrap_err().to_string();
        assert!(problem.starts_with("policy: ") && problem.contains(word), "{problem}");
    }
    assert_eq!(Policy { grace: zero, ..Policy::default() }.check(), Ok(()), "no grace is a grace");
    #[cfg(feature = "cel")]
    {
        let problem = approval(Approval::When("args.".into())).check().unwrap_err().to_string();
        assert!(problem.starts_with("policy: approval: expression `args.`, line 1, column 6: "), "{problem}");
    }
}

#[test]
fn b03_a_policy_is_written_down_and_read_back() {
    let written = serde_json::to_value(full(1)).unwrap();
    assert_eq!(written["approval"], json!({"when": "args.n == 1"}));
    assert_eq!(serde_json::from_value::<Policy>(written).unwrap(), full(1));
    assert_eq!(serde_json::to_value(Policy::default()).unwrap(), json!({}), "silence takes no room");
    // What earlier versions wrote for a call's limits.
    let old = json!({"timeout": {"secs": 1, "nanos": 500_000_000}});
    let expected = Policy { timeout: Some(Duration::from_millis(1_500)), ..Policy::default() };
    assert_eq!(serde_json::from_value::<Policy>(old).unwrap(), expected);
}
