//! Bad tools, and what is said of them.

use super::{read, refused};

/// A tool that would be fine but for `more`.
fn tool(more: &str) -> String {
    format!("[tool.weather]\ndescription = \"Weather.\"\ncommand = [\"true\"]\n{more}\n")
}

#[test]
fn a_tool_needs_something_to_do_and_a_description() {
    refused(
        "[tool.weather]\ntags = [\"sky\"]\n",
        r#"
error: [tool.weather] lacks `description`
 --> windlass.toml:1:7
  |
1 | [tool.weather]
  |       ^^^^^^^
  = help: description: What the tool does, for the model that decides whether to call it.

error: [tool.weather] does nothing
 --> windlass.toml:1:7
  |
1 | [tool.weather]
  |       ^^^^^^^
  = help: give it a command = ["…"] or http = { url = "…" }
"#,
    );
}

#[test]
fn an_unknown_effect_is_told_the_effects() {
    refused(
        &tool("effect = \"read-only\""),
        r#"
error: `tool.weather.effect` cannot be "read-only"
 --> windlass.toml:4:10
  |
4 | effect = "read-only"
  |          ^^^^^^^^^^^ did you mean "readonly"?
  = help: "readonly": changes nothing and may be repeated freely; "idempotent": may be repeated with the same idempotency key; "once": must not be repeated unless it is known not to have happened
"#,
    );
}

#[test]
fn a_name_models_cannot_call_is_refused() {
    refused(
        "[tool.\"book flight\"]\ndescription = \"x\"\ncommand = [\"true\"]\n",
        r#"
error: `tool.book flight`: `book flight` is not a tool name: models take 1 to 64 of the characters a-z, A-Z, 0-9, `_`, `-`, `.`
 --> windlass.toml:1:7
  |
1 | [tool."book flight"]
  |       ^^^^^^^^^^^^^ did you mean `book_flight`?
  = help: write a name of 1 to 64 of the characters a-z, A-Z, 0-9, `_`, `-`, `.`
"#,
    );
}

#[test]
fn a_name_with_a_dot_is_quoted() {
    refused(
        "[tool.sky.weather]\ndescription = \"x\"\n",
        r#"
error: [tool.sky] lacks `description`
 --> windlass.toml:1:7
  |
1 | [tool.sky.weather]
  |       ^^^
  = help: description: What the tool does, for the model that decides whether to call it.

error: [tool.sky] does nothing
 --> windlass.toml:1:7
  |
1 | [tool.sky.weather]
  |       ^^^
  = help: give it a command = ["…"] or http = { url = "…" }

error: unknown key `weather` in [tool.sky]
 --> windlass.toml:1:11
  |
1 | [tool.sky.weather]
  |           ^^^^^^^
  = help: a name with a dot is quoted: [tool."sky.weather"]
"#,
    );
}

#[test]
fn a_type_that_is_none_is_told_the_types() {
    refused(
        &tool("input = { city = \"sting\", days = 3 }"),
        r#"
error: `tool.weather.input.city`: `sting` is not a type
 --> windlass.toml:4:18
  |
4 | input = { city = "sting", days = 3 }
  |                  ^^^^^^^ did you mean "string"?
  = help: types are string, secret, integer, number, boolean, object, array, any; end with [] for a list, with ? if it may be left out

error: `tool.weather.input.days`: an integer is not a type
 --> windlass.toml:4:34
  |
4 | input = { city = "sting", days = 3 }
  |                                  ^
  = help: write a type such as "string", a list of the allowed words, or a JSON Schema
"#,
    );
}

#[test]
fn a_schema_that_does_not_compile_is_marked_where_it_is_wrong() {
    let text =
        tool("[tool.weather.input]\ntype = \"object\"\n[tool.weather.input.properties]\ncity = { type = \"strin\" }");
    let problems = read(&text).err().expect("it is refused");
    let problem = problems.iter().next().unwrap();
    assert_eq!((problem.code, problems.position(problem)), ("bad_schema", Some((7, 17))), "{problems}");
    assert!(problem.message.starts_with("the schema `tool.weather.input` cannot be used: "), "{problems}");
}

#[test]
fn a_contradiction_is_marked_at_its_key() {
    refused(
        &tool("effect = \"readonly\"\nhints = [\"destructive\"]"),
        r#"
error: [tool.weather] contradicts itself: a readonly tool destroys nothing; drop `destructive` or change the effect
 --> windlass.toml:5:1
  |
5 | hints = ["destructive"]
  | ^^^^^
"#,
    );
    refused(
        &tool("retries = 3\nhints = [\"destructive\"]"),
        r#"
error: [tool.weather] contradicts itself: a destructive tool is never retried automatically
 --> windlass.toml:4:1
  |
4 | retries = 3
  | ^^^^^^^
"#,
    );
}

#[test]
fn a_key_expression_that_does_not_parse_is_refused_with_its_near_miss() {
    let problems = read(&tool("concurrency = \"paralel\"")).err().expect("it is refused");
    let problem = problems.iter().next().unwrap();
    assert_eq!(problem.label.as_deref(), Some("did you mean \"parallel\"?"), "{problems}");
    assert_eq!(problems.position(problem), Some((4, 15)), "{problems}");
}

#[test]
fn a_command_and_a_request_are_two_tools() {
    refused(
        &tool("http = { url = \"https://a.example/\" }"),
        r#"
error: [tool.weather] has both a command and a request
 --> windlass.toml:4:1
  |
4 | http = { url = "https://a.example/" }
  | ^^^^
  = help: make two tools of it
"#,
    );
}

#[test]
fn a_request_has_no_sandbox() {
    refused(
        "[tool.weather]\ndescription = \"x\"\nhttp = { url = \"https://a.example/\" }\nsandbox = { network = true }\n",
        r#"
error: `tool.weather.sandbox` is about commands, and this tool is a request
 --> windlass.toml:4:1
  |
4 | sandbox = { network = true }
  | ^^^^^^^
  = help: take it out
"#,
    );
}

#[test]
fn templates_name_arguments_the_input_has() {
    refused(
        r#"[tool.weather]
description = "x"
input = { city = "string" }
http = { url = "https://a.example/{args.ciyt}?d={args.days}", headers = { x-city = "{args.city}" } }
narration.en = { start = "Looking up {town}", end = "Done" }
"#,
        r#"
error: `tool.weather.http.url`: the input has no argument `ciyt`
 --> windlass.toml:4:36
  |
4 | http = { url = "https://a.example/{args.ciyt}?d={args.days}", headers = { x-city = "{args.city}" } }
  |                                    ^^^^^^^^^ did you mean `city`?

error: `tool.weather.http.url`: the input has no argument `days`
 --> windlass.toml:4:50
  |
4 | http = { url = "https://a.example/{args.ciyt}?d={args.days}", headers = { x-city = "{args.city}" } }
  |                                                  ^^^^^^^^^
  = help: the input has `city`

error: `tool.weather.narration.en.start` shows `{town}`, but the input has no argument `town`
 --> windlass.toml:5:26
  |
5 | narration.en = { start = "Looking up {town}", end = "Done" }
  |                          ^^^^^^^^^^^^^^^^^^^
  = help: the input has `city`
"#,
    );
}

#[test]
fn e26_the_host_of_a_request_is_written_out() {
    let text = |url: &str| {
        format!("[tool.t]\ndescription = \"x\"\ninput = {{ h = \"string\" }}\nhttp = {{ url = \"{url}\" }}\n")
    };
    for (url, expected) in [
        ("https://{args.h}/", "host of an address is literal"),
        ("ftp://a.example/", "only `https:`"),
        ("a.example/x", "begins with `https://`"),
        ("http://169.254.169.254/latest", "169.254.169.254"),
        ("http://localhost:8080/", "localhost"),
    ] {
        let problems = read(&text(url)).err().unwrap_or_else(|| panic!("{url} was accepted"));
        let problem = problems.iter().next().unwrap();
        assert!(problem.message.contains(expected), "{problems}");
        assert_eq!(problems.position(problem), Some((4, 16)), "{problems}");
    }
}

#[test]
fn e26_a_secret_that_is_not_there_is_named_with_its_near_miss() {
    refused(
        r#"[tool.t]
description = "x"
command = ["true"]
env = { KEY = "${secret:STRIP_KEY}" }
[secrets]
STRIPE_KEY = "env:PATH"
"#,
        r#"
error: `tool.t.env.KEY`: there is no secret `STRIP_KEY`
 --> windlass.toml:4:16
  |
4 | env = { KEY = "${secret:STRIP_KEY}" }
  |                ^^^^^^^^^^^^^^^^^^^ did you mean `STRIPE_KEY`?

warning: the secret `STRIPE_KEY` is not used
 --> windlass.toml:6:1
  |
6 | STRIPE_KEY = "env:PATH"
  | ^^^^^^^^^^
  = help: write ${secret:STRIPE_KEY} where it is needed, or take it out
"#,
    );
}

#[test]
fn a_command_that_can_never_run_is_refused() {
    refused(
        "[tool.a]\ndescription = \"x\"\ncommand = []\n[tool.b]\ndescription = \"x\"\ncommand = \"date -u\"\n",
        r#"
error: `tool.a.command` is empty
 --> windlass.toml:3:11
  |
3 | command = []
  |           ^^
  = help: name a program: ["wc", "-w"]

error: `tool.b.command` is a text, but must be a list, each of it a text that is not empty
 --> windlass.toml:6:11
  |
6 | command = "date -u"
  |           ^^^^^^^^^ did you mean ["date", "-u"]?
"#,
    );
    let problems = read("[tool.a]\ndescription = \"x\"\ncommand = [\"{args.p}\"]\ninput = { p = \"string\" }\n");
    let problems = problems.err().expect("it is refused");
    assert!(problems.to_string().contains("which program is run is not up to a call"), "{problems}");
}

#[test]
fn exit_codes_and_sandboxes_are_checked() {
    refused(
        &tool("exits = { 0 = \"ok\", 3 = \"unavailble\" }\nsandbox = { level = \"none\", memory = 5 }"),
        r#"
error: `tool.weather.exits.0`: `0` is not an exit code; use 1 to 255
 --> windlass.toml:4:11
  |
4 | exits = { 0 = "ok", 3 = "unavailble" }
  |           ^
  = help: write an exit code from 1 to 255

error: `tool.weather.exits.3` cannot be "unavailble"
 --> windlass.toml:4:25
  |
4 | exits = { 0 = "ok", 3 = "unavailble" }
  |                         ^^^^^^^^^^^^ did you mean "unavailable"?
  = help: "ok": it worked, and its output counts; "failed": it failed; "retry": it did nothing, and may be tried again, also if it acts once; "unavailable": it cannot work now; "invalid_arguments": the arguments are wrong; "denied": it may not do that; "in_doubt": it may have been done, and the command cannot tell

error: `tool.weather.sandbox.level` cannot be "none"
 --> windlass.toml:5:21
  |
5 | sandbox = { level = "none", memory = 5 }
  |                     ^^^^^^
  = help: "required": it is kept to its sandbox, or it is not run; "best_effort": it is kept to it as far as this kernel can; "off": it may do whatever this process may

error: `tool.weather.sandbox.memory` is an integer, but must be a size such as "16 MiB"
 --> windlass.toml:5:38
  |
5 | sandbox = { level = "none", memory = 5 }
  |                                      ^ `5` has no unit; did you mean `5 B`?
"#,
    );
}

#[test]
fn a_name_belongs_to_one_tool() {
    refused(
        "[tool.a]\ndescription = \"x\"\ncommand = [\"true\"]\naliases = [\"b\"]\n[tool.b]\ndescription = \"x\"\ncommand = [\"true\"]\n",
        r#"
error: `b` is the name of the tool `b` already
 --> windlass.toml:4:12
  |
4 | aliases = ["b"]
  |            ^^^
  = help: a name belongs to one tool, so that a run always finds the tool it was started with
"#,
    );
}

#[test]
fn a_doubt_is_settled_one_way() {
    refused(
        &tool("reconcile = { happened_when = [200] }"),
        r#"
error: [tool.weather.reconcile] needs one of `command` and `http`
 --> windlass.toml:4:1
  |
4 | reconcile = { happened_when = [200] }
  | ^^^^^^^^^
"#,
    );
    refused(
        &tool("reconcile = { command = [\"true\"], happened_when = \"tld\" }"),
        r#"
error: `tool.weather.reconcile.happened_when` is about requests; a command says what happened itself
 --> windlass.toml:4:35
  |
4 | reconcile = { command = ["true"], happened_when = "tld" }
  |                                   ^^^^^^^^^^^^^
  = help: take it out

error: `tool.weather.reconcile.happened_when` cannot be "tld"
 --> windlass.toml:4:51
  |
4 | reconcile = { command = ["true"], happened_when = "tld" }
  |                                                   ^^^^^ did you mean "told"?
  = help: "told": the answer says so, in the words a reconciling command uses
"#,
    );
}

#[test]
fn what_probably_is_not_meant_is_warned_of() {
    let text = r#"[tool.t]
description = "x"
command = ["no-such-program-anywhere"]
effect = "readonly"
on_doubt = "fail"
input = { cents = "integer" }
approval = "args.cent > 5"
dir = "no/such/folder"
[tool.u]
description = "x"
http = { url = "https://a.example/", headers = { Authorization = "Bearer abc" } }
"#;
    let config = read(text).unwrap_or_else(|problems| panic!("{problems}"));
    let warnings = config.warnings();
    let found: Vec<_> = warnings.iter().map(|problem| (problem.code, warnings.position(problem).unwrap())).collect();
    let expected = [
        ("no_program", (3, 12)),
        ("no_use", (5, 1)),
        ("unknown_argument", (7, 12)),
        ("no_file", (8, 1)),
        ("written_secret", (11, 66)),
    ];
    assert_eq!(found, expected, "{warnings}");
    assert!(!warnings.to_string().contains("abc"), "{warnings}");
    assert!(warnings.to_string().contains("did you mean `cents`?"), "{warnings}");
}

#[test]
fn a_document_has_one_place_and_no_written_credentials() {
    refused(
        "[openapi.a]\nbase_url = \"a.example\"\n[openapi.b]\nfile = \"b.json\"\nurl = \"https://b.example/\"\nsecurity = { key = \"hunter2\" }\n",
        r#"
error: [openapi.a] needs one of `file` and `url`
 --> windlass.toml:1:10
  |
1 | [openapi.a]
  |          ^
  = help: say where the OpenAPI document is

error: `openapi.a.base_url`: an address begins with `https://` or `http://`
 --> windlass.toml:2:12
  |
2 | base_url = "a.example"
  |            ^^^^^^^^^^^
  = help: write a whole address, such as "https://api.example.com/v1"

error: [openapi.b] needs one of `file` and `url`
 --> windlass.toml:5:1
  |
5 | url = "https://b.example/"
  | ^^^
  = help: say where the OpenAPI document is

error: `openapi.b.security.key`: a credential is never written into this file
 --> windlass.toml:6:20
  |
6 | security = { key = "•••••••" }
  |                    ^^^^^^^^^
  = help: put it into [secrets] and write "${secret:NAME}"
"#,
    );
}
