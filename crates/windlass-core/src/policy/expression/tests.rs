use serde_json::{Value, json};

use super::*;
#[cfg(feature = "cel")]
use crate::limits;
use crate::policy::{PastCall, Session};
use crate::tool::{Effect, ToolSpec};

fn args() -> Value {
    json!({
        "cents": 20_000, "zero": 0, "huge": u64::MAX, "least": i64::MIN, "half": 1.5, "one": 1.0, "name": "Ann", "nothing": null,
        "list": [1, 2, 3], "nested": {"deep": {"n": 7}},
    })
}

fn holds(source: &str) -> Result<bool, String> {
    let mut spec = ToolSpec::new("charge", "");
    spec.effect = Effect::Idempotent;
    spec.about.tags = vec!["money".to_owned()];
    let call = |tool: &str, ok| PastCall { tool: tool.into(), args: json!({"cents": 5}).into(), ok };
    let history = [call("find", true), call("charge", false)];
    let session = Session { id: Some("s1"), attended: true };
    let args = args();
    let facts =
        Facts { args: &args, tool: Some(&spec), caller: Some("ada"), cause: None, session, history: Some(&history) };
    Expression::parse(source).map_err(|bad| bad.to_string())?.evaluate(&facts)
}

#[cfg(not(feature = "cel"))]
#[test]
fn without_cel_every_condition_is_undecided_and_says_why() {
    let problem = holds("args.cents > 1").unwrap_err();
    assert_eq!(problem, "expression `args.cents > 1`: this build has no CEL; enable the feature `cel`");
}

#[cfg(feature = "cel")]
mod with_cel {
    use super::*;

    #[test]
    fn w07_conditions_see_arguments_tool_session_and_history() {
        for (source, expected) in [
            ("args.cents > 10000", true),
            ("args.cents + 1 == 20001", true),
            ("args.half < 1", false),
            ("args.huge > 5 && args.least < 0", true),
            ("args.nothing == null", true),
            ("args.one == 1 && args.one in [1, 2] && !(args.one != 1)", true),
            ("has(args.missing)", false),
            ("!has(args.missing) || args.missing > 1", true),
            ("args['cents'] >= 20000", true),
            ("args.list.exists(x, x > 2)", true),
            ("args.list.all(x, x in [1, 2])", false),
            ("args.name.startsWith('A') && args.name.matches('^A.n$')", true),
            ("size(args.list) == 3", true),
            ("args.nested.deep.n == 7", true),
            ("type(args.cents) == int", true),
            ("args.?missing.orValue(3) == 3", true),
            ("optional.of(1).hasValue()", true),
            ("tool.name == 'charge' && tool.id == 'charge' && tool.effect == 'idempotent'", true),
            ("tool.destructive || tool.open_world", false),
            ("'money' in tool.tags", true),
            ("session.attended && session.id == 's1'", true),
            ("history.exists(h, h.tool == 'charge' && !h.ok)", true),
            ("history.filter(h, h.ok).size() == 1", true),
            ("history[0].args.cents == 5", true),
            ("args.list.exists(x, history.exists(h, h.args.cents == x + 2))", true),
            (".args.cents > 1", true),
        ] {
            assert_eq!(holds(source), Ok(expected), "{source}");
        }
    }

    #[test]
    fn w07_what_cannot_be_decided_is_an_error_that_names_the_expression_and_a_way_out() {
        for (source, word) in [
            ("args.missing > 1", "there is no `missing`; ask first with has(…)"),
            ("args.name > 1", "convert first"),
            ("args.cents + 1.5 > 1.0", "`+` does not take these; convert first"),
            ("args.huge + 1 > 0", "convert"),
            ("args.least - 1 < 0", "overflows"),
            ("-args.least > 0", "overflows"),
            ("args.least / -1 > 0", "overflows"),
            ("args.cents / args.zero > 0", "divides by zero"),
            ("args.cents % args.zero > 0", "divides by zero"),
            ("args.list[9] == 1", "out of bounds"),
            ("args.list[-1] == 3", "out of bounds"),
            ("args.nothing.deep == 1", "only maps have fields, and `deep` is asked of something else"),
            ("has(args.missing.deep)", "there is no `missing`"),
            ("!has(args.nothing.deep)", "only maps have fields"),
            ("size(1, 2) == 1", "`size` does not take these arguments"),
            ("args.cents", "a number, not true or false"),
            ("args", "a map, not true or false"),
            ("'true'", "a text, not true or false"),
            ("args.name.matches('(')", "matches"),
            ("int('x') == 1", "int"),
        ] {
            let problem = holds(source).unwrap_err();
            assert!(problem.contains(word), "{source}: {problem}");
            assert!(problem.starts_with(&format!("expression `{source}`: ")), "{problem}");
        }
    }

    #[test]
    fn w07_bad_expressions_are_refused_with_their_place() {
        let deep = |open: &str, close: &str| open.repeat(40) + "1" + &close.repeat(40);
        for (source, position, word) in [
            ("", None, "empty"),
            ("args.", Some((1, 6)), "expected identifier after '.', found the end"),
            ("args.a >", Some((1, 9)), "unexpected end of input"),
            ("args.a > )", Some((1, 10)), "unexpected `)`"),
            ("size(args.a", Some((1, 12)), "expected ')', found the end"),
            (
                "args.a > 1 &&\n cent",
                Some((2, 2)),
                "there is no `cent`; an expression sees args, tool, caller, cause, session, history",
            ),
            ("args.a.startswith('x')", Some((1, 8)), "there is no function `startswith`"),
            ("now() > 1", Some((1, 1)), "there is no function `now`"),
            ("timestamp(args.a) > 1", Some((1, 1)), "there is no function `timestamp`"),
            ("9223372036854775808 > 1", Some((1, 1)), "overflows"),
            ("google.protobuf.Any{} == 1", Some((1, 1)), "message types"),
            ("args.a == 'ü", Some((1, 11)), "unexpected character"),
            ("cel.bind(x, 1, x + x) == 2", Some((1, 5)), "there is no function `bind`"),
            ("args.?a.optMap(x, x).hasValue()", Some((1, 9)), "there is no function `optMap`"),
            ("[1].map(x, __result__ + __result__)", None, "a name of the CEL library"),
            ("size(args)(1)", Some((1, 1)), "only functions can be called"),
            ("x > 1 || [1].all(x, x > 0)", Some((1, 1)), "there is no `x`"),
            ("[1].all(x, [1].all(y, [1].all(z, z > y)))", None, "more than 2 loops"),
            (&deep("(", ")"), None, "nests 40 deep"),
            (&deep("[", "]"), None, "nests 40 deep"),
            (&"true ? 1 : ".repeat(40), None, "nests 40 deep"),
            (&("1".to_owned() + &"+1".repeat(200)), None, "too many operators"),
            (&("args".to_owned() + &"[0]".repeat(200)), None, "too many operators"),
            (&"x".repeat(1_025), None, "1025 bytes long, and 1024 is the limit"),
        ] {
            let bad = Expression::parse(source).unwrap_err();
            assert!(bad.problem.contains(word), "{source}: {bad}");
            if position.is_some() {
                assert_eq!(bad.position, position, "{source}: {bad}");
            }
            let said = bad.to_string();
            assert!(said.contains("such as `args.cents > 10000`"), "{said}");
        }
    }

    #[test]
    fn w07_nonsense_never_panics_and_never_overflows_a_small_stack() {
        let pieces = [
            "args",
            ".",
            "x",
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            "?",
            ":",
            "!",
            "-",
            "+",
            "*",
            "/",
            "%",
            "==",
            "<",
            "&&",
            "||",
            " in ",
            "1",
            "1.5",
            "2u",
            "'s'",
            "\"",
            "'",
            "\\",
            "b'\\xff'",
            "null",
            "true",
            "has(",
            ".all(x,",
            "ü",
            "\u{0}",
            "\n",
            "//",
            "r'",
            "'''",
            "9223372036854775807",
            "1e999",
            ".?",
            "[?",
            "@",
            "`a`",
            "\u{1F600}",
        ];
        // A plain generator: the same nonsense every time.
        let mut state = 7u64;
        let mut next = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let sources: Vec<String> =
            (0..300).map(|_| (0..1 + next(24)).map(|_| pieces[next(pieces.len())]).collect()).collect();
        let small = std::thread::Builder::new().stack_size(512 << 10);
        let run = move || {
            let (value, deep) = (args(), (0..60).fold(json!(1), |inner, _| json!({"x": [inner]})));
            for source in &sources {
                for args in [&value, &deep, &Value::Null] {
                    let _either = Expression::from(source.as_str()).evaluate(&Facts::of_args(args));
                }
            }
            for hidden in ["r'\\'", "// '\n"] {
                for opened in ["(", "[", "{", "size(", "[1].all(x,", "!", "-", "true?", "1?1:"] {
                    let text =
                        hidden.to_owned() + &opened.repeat((limits::EXPRESSION_BYTES - hidden.len()) / opened.len());
                    assert!(Expression::parse(&text).is_err(), "{text}");
                }
            }
            assert_eq!(Expression::from("args == args").evaluate(&Facts::of_args(&deep)), Ok(true));
            let chain = "1".to_owned() + &"+1".repeat(limits::EXPRESSION_DEPTH - 2) + " == 63";
            assert_eq!(Expression::from(chain.as_str()).evaluate(&Facts::of_args(&deep)), Ok(true));
            let nested = "(".repeat(32) + "true" + &")".repeat(32);
            assert_eq!(Expression::from(nested.as_str()).evaluate(&Facts::of_args(&deep)), Ok(true));
        };
        small.spawn(run).unwrap().join().unwrap();
    }

    #[test]
    fn w07_what_is_evaluated_on_the_callers_stack_needs_little_of_it() {
        let run = || {
            let deep = (0..15).fold(json!(1), |inner, _| json!({"x": [inner]}));
            for source in [
                "[args].map(x, x).map(x, x).map(x, x).map(x, x).map(x, x).map(x, x).map(x, x)[0] == args".to_owned(),
                "dyn(".repeat(12) + "args" + &")".repeat(12) + " == args",
                "[1].all(x, [1].all(y, ((((((x == y && args == args) || !true) && true) || false) && true) || false)))"
                    .to_owned(),
                "true ? ".repeat(13) + "args == args" + &" : false".repeat(13),
                "!!!!!!!!!!!!(args == args)".to_owned(),
            ] {
                assert_eq!(Expression::parse(&source).unwrap().evaluate(&Facts::of_args(&deep)), Ok(true), "{source}");
            }
        };
        std::thread::Builder::new().stack_size(200 << 10).spawn(run).unwrap().join().unwrap();
    }

    #[test]
    fn w07_loops_over_too_much_end_undecided() {
        let many = json!({"list": vec![1; 60_000]});
        let problem = Expression::from("args.list.all(x, x > 0)").evaluate(&Facts::of_args(&many)).unwrap_err();
        assert!(problem.contains("too much to loop over"), "{problem}");
        let some = json!({"list": vec![1; 5_000]});
        let within = Expression::from("args.list.all(x, args.list.all(y, y == x))");
        let problem = within.evaluate(&Facts::of_args(&some)).unwrap_err();
        assert!(problem.contains("looks at too much"), "{problem}");
        assert_eq!(Expression::from("args.list[59999] == 1").evaluate(&Facts::of_args(&many)), Ok(true));
    }

    #[test]
    fn w07_loops_that_make_more_than_they_look_at_end_undecided() {
        let args = json!({"text": "x".repeat(100), "list": vec![1; 2_000], "few": [0, 0]});
        for (source, turns) in [
            ("[args.text].map(x, x + x + x + x).map(x, x + x + x + x).map(x, x + x + x + x)", "size() == 1"),
            ("[0].map(x, [x, x]).map(x, [x, x]).map(x, [x, x])", "all(x, x == x)"),
            ("args.list.map(x, 0).filter(x, true)", "exists(x, x > 0)"),
        ] {
            let grown = source.to_owned() + &".map(x, [x, x])".repeat(22) + "." + turns;
            let problem = Expression::from(grown.as_str()).evaluate(&Facts::of_args(&args)).unwrap_err();
            assert!(problem.contains("looks at too much"), "{grown}: {problem}");
            let plain = source.to_owned() + ".size() > 0";
            assert_eq!(Expression::from(plain.as_str()).evaluate(&Facts::of_args(&args)), Ok(true), "{plain}");
        }
        let once = Expression::from("args.list.exists(x, 'a'.matches('(x{9}){9}'))");
        assert_eq!(once.evaluate(&Facts::of_args(&args)), Ok(false), "one pattern is compiled once");
        let pattern = "args.list.exists(x, 'a'.matches('(x{9}){9}' + string(x)))";
        let varied = json!({"list": (0..2_000).collect::<Vec<_>>()});
        let problem = Expression::from(pattern).evaluate(&Facts::of_args(&varied)).unwrap_err();
        assert!(problem.contains("looks at too much"), "{problem}");
        let long = json!({"list": [vec![0; 9_000]], "text": "x".repeat(500_000)});
        let scan = "args.list[0].all(x, [args.text].all(y, !y.contains('y')))";
        let problem = Expression::from(scan).evaluate(&Facts::of_args(&long)).unwrap_err();
        assert!(problem.contains("looks at too much"), "{problem}");
    }

    #[test]
    fn w07_history_is_asked_for_only_where_it_is_used() {
        assert!(!Expression::from("args.a > 1").uses_history());
        assert!(!Expression::from("[1].exists(history, history > 0)").uses_history());
        let uses = Expression::from("history.size() > 1");
        assert!(uses.uses_history());
        let problem = uses.evaluate(&Facts::of_args(&Value::Null)).unwrap_err();
        assert!(problem.contains("`history` is not known here"), "{problem}");
    }

    #[test]
    fn texts_are_texts_and_scalars_as_they_are_written() {
        let args = args();
        let text = |source: &str| Expression::from(source).text(&Facts::of_args(&args));
        for (source, expected) in [
            ("args.cents == 1 ? 'x' : args.name", "Ann"),
            ("args.cents", "20000"),
            ("args.huge", "18446744073709551615"),
            ("args.half", "1.5"),
            ("args.zero == 0", "true"),
            ("args.nothing", "null"),
            ("'a-' + string(args.cents)", "a-20000"),
        ] {
            assert_eq!(text(source).as_deref(), Ok(expected), "{source}");
        }
        assert!(text("args.list").unwrap_err().contains("a list, not a text"));
    }

    #[test]
    fn an_expression_is_its_text() {
        let bad = Expression::from("args.");
        assert!(bad.check().is_err() && bad.evaluate(&Facts::of_args(&Value::Null)).is_err());
        let written = serde_json::to_value(&bad).unwrap();
        assert_eq!(written, json!("args."));
        assert_eq!(serde_json::from_value::<Expression>(written).unwrap(), bad);
        assert_eq!(format!("{bad:?}"), "Expression(\"args.\")");
    }
}
