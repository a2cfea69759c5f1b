//! Invalid tools.

use super::{read, refused};

/// A valid tool with additional lines.
fn tool(more: &str) -> String {
    format!("[tool.weather]\ndescription = \"Weather.\"\ncommand = [\"true\"]\n{more}\n")
}

#[test]
fn a_tool_needs_a_body_and_a_description() {
    refused(
        "[tool.weather]\ntags = [\"sky\"]\n",
        r#"
error: [tool.weather] has no `description`
 --> windlass.toml:1:7
  |
1 | [tool.weather]
  |       ^^^^^^^
  = help: description: What the tool does. Models decide by it whether to call the tool.

error: [tool.weather] has neither `command` nor `http`
 --> windlass.toml:1:7
  |
1 | [tool.weather]
  |       ^^^^^^^
  = help: add command = ["…"] or http = { url = "…" }
"#,
    );
}

#[test]
fn an_unknown_effect_is_reported_with_the_effects() {
    refused(
        &tool("effect = \"read-only\""),
        r#"
error: `tool.weather.effect`: "read-only" is not a valid value
 --> windlass.toml:4:10
  |
4 | effect = "read-only"
  |          ^^^^^^^^^^^ did you mean "readonly"?
  = help: "readonly": changes nothing, and may be repeated at any time; "idempotent": may be repeated with the same idempotency key; "once": must not be repeated, unless it is known that it did not happen
"#,
    );
}

#[test]
fn a_tool_name_that_models_cannot_use_is_refused() {
    refused(
        "[tool.\"book flight\"]\ndescription = \"x\"\ncommand = [\"true\"]\n",
        r#"
error: `tool.book flight`: `book flight` is not a valid tool name
 --> windlass.toml:1:7
  |
1 | [tool."book flight"]
  |       ^^^^^^^^^^^^^ did you mean `book_flight`?
  = help: expected a name of 1 to 64 of the characters a-z, A-Z, 0-9, `_`, `-`, `.`
"#,
    );
}

#[test]
fn a_name_with_a_dot_must_be_quoted() {
    refused(
        "[tool.sky.weather]\ndescription = \"x\"\n",
        r#"
error: [tool.sky] has no `description`
 --> windlass.toml:1:7
  |
1 | [tool.sky.weather]
  |       ^^^
  = help: description: What the tool does. Models decide by it whether to call the tool.

error: [tool.sky] has neither `command` nor `http`
 --> windlass.toml:1:7
  |
1 | [tool.sky.weather]
  |       ^^^
  = help: add command = ["…"] or http = { url = "…" }

error: unknown key `weather` in [tool.sky]
 --> windlass.toml:1:11
  |
1 | [tool.sky.weather]
  |           ^^^^^^^
  = help: write a name that contains a dot in quotes: [tool."sky.weather"]
"#,
    );
}

#[test]
fn an_unknown_type_is_reported_with_the_types() {
    refused(
        &tool("input = { city = \"sting\", days = 3 }"),
        r#"
error: `tool.weather.input.city`: `sting` is not a type
 --> windlass.toml:4:18
  |
4 | input = { city = "sting", days = 3 }
  |                  ^^^^^^^ did you mean "string"?
  = help: the types are string, secret, integer, number, boolean, object, array, any; append [] for a list, ? for an optional argument

error: `tool.weather.input.days`: an integer is not a type
 --> windlass.toml:4:34
  |
4 | input = { city = "sting", days = 3 }
  |                                  ^
  = help: write a type such as "string", a list of the allowed values, or a JSON Schema
"#,
    );
}

#[test]
fn an_invalid_schema_is_reported_at_the_error() {
    let text =
        tool("[tool.weather.input]\ntype = \"object\"\n[tool.weather.input.properties]\ncity = { type = \"strin\" }");
    let problems = read(&text).err().expect("it is refused");
    let problem = problems.iter().next().unwrap();
    assert_eq!((problem.code, problems.position(problem)), ("bad_schema", Some((7, 17))), "{problems}");
    assert!(problem.message.starts_with("`tool.weather.input` is not a valid schema: "), "{problems}");
}

#[test]
fn a_contradiction_is_reported_at_its_key() {
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
fn an_invalid_key_expression_is_reported_with_a_suggestion() {
    let problems = read(&tool("concurrency = \"paralel\"")).err().expect("it is refused");
    let problem = problems.iter().next().unwrap();
    assert_eq!(problem.label.as_deref(), Some("did you mean \"parallel\"?"), "{problems}");
    assert_eq!(problems.position(problem), Some((4, 15)), "{problems}");
}

#[test]
fn a_tool_cannot_be_both_a_command_and_a_request() {
    refused(
        &tool("http = { url = \"https://a.example/\" }"),
        r#"
error: [tool.weather] has both `command` and `http`
 --> windlass.toml:4:1
  |
4 | http = { url = "https://a.example/" }
  | ^^^^
  = help: define two tools
"#,
    );
}

#[test]
fn a_sandbox_for_a_request_is_refused() {
    refused(
        "[tool.weather]\ndescription = \"x\"\nhttp = { url = \"https://a.example/\" }\nsandbox = { network = true }\n",
        r#"
error: `tool.weather.sandbox` is for commands, but this tool is an HTTP request
 --> windlass.toml:4:1
  |
4 | sandbox = { network = true }
  | ^^^^^^^
  = help: remove it
"#,
    );
}

#[test]
fn templates_with_unknown_arguments_are_refused() {
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

error: `tool.weather.narration.en.start` uses `{town}`, but the input has no argument `town`
 --> windlass.toml:5:26
  |
5 | narration.en = { start = "Looking up {town}", end = "Done" }
  |                          ^^^^^^^^^^^^^^^^^^^
  = help: the input has `city`
"#,
    );
}

#[test]
fn e26_the_host_of_a_request_must_be_fixed() {
    let text = |url: &str| {
        format!("[tool.t]\ndescription = \"x\"\ninput = {{ h = \"string\" }}\nhttp = {{ url = \"{url}\" }}\n")
    };
    for (url, expected) in [
        ("https://{args.h}/", "host of a URL is fixed"),
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
fn e26_an_undefined_secret_is_reported_with_a_suggestion() {
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
  = help: write ${secret:STRIPE_KEY} where it is needed, or remove it
"#,
    );
}

#[test]
fn an_empty_or_dynamic_command_is_refused() {
    refused(
        "[tool.a]\ndescription = \"x\"\ncommand = []\n[tool.b]\ndescription = \"x\"\ncommand = \"date -u\"\n",
        r#"
error: `tool.a.command` is empty
 --> windlass.toml:3:11
  |
3 | command = []
  |           ^^
  = help: name a program, for example ["wc", "-w"]

error: `tool.b.command` must be a list of strings, but is a string
 --> windlass.toml:6:11
  |
6 | command = "date -u"
  |           ^^^^^^^^^ did you mean ["date", "-u"]?
"#,
    );
    let problems = read("[tool.a]\ndescription = \"x\"\ncommand = [\"{args.p}\"]\ninput = { p = \"string\" }\n");
    let problems = problems.err().expect("it is refused");
    assert!(problems.to_string().contains("the program must be fixed, not an argument of the call"), "{problems}");
}

#[test]
fn exit_codes_and_sandboxes_are_checked() {
    refused(
        &tool("exits = { 0 = \"ok\", 3 = \"unavailble\" }\nsandbox = { level = \"none\", memory = 5 }"),
        r#"
error: `tool.weather.exits.0`: `0` is not a valid exit code (expected 1 to 255)
 --> windlass.toml:4:11
  |
4 | exits = { 0 = "ok", 3 = "unavailble" }
  |           ^
  = help: expected an exit code from 1 to 255

error: `tool.weather.exits.3`: "unavailble" is not a valid value
 --> windlass.toml:4:25
  |
4 | exits = { 0 = "ok", 3 = "unavailble" }
  |                         ^^^^^^^^^^^^ did you mean "unavailable"?
  = help: "ok": the call succeeded, and the output is its result; "failed": the call failed; "retry": nothing was done, so the call may be repeated, even with the effect "once"; "unavailable": the tool is not available now; "invalid_arguments": the arguments are not valid; "denied": the call is not permitted; "in_doubt": the command cannot tell whether it was done

error: `tool.weather.sandbox.level`: "none" is not a valid value
 --> windlass.toml:5:21
  |
5 | sandbox = { level = "none", memory = 5 }
  |                     ^^^^^^
  = help: "required": the command runs in its sandbox or not at all; "best_effort": the command runs in as much of its sandbox as this kernel supports; "off": the command may do everything that this process may

error: `tool.weather.sandbox.memory` must be a size such as "16 MiB", but is an integer
 --> windlass.toml:5:38
  |
5 | sandbox = { level = "none", memory = 5 }
  |                                      ^ `5` has no unit; did you mean `5 B`?
"#,
    );
}

#[test]
fn an_alias_that_another_tool_has_is_refused() {
    refused(
        "[tool.a]\ndescription = \"x\"\ncommand = [\"true\"]\naliases = [\"b\"]\n[tool.b]\ndescription = \"x\"\ncommand = [\"true\"]\n",
        r#"
error: `b` is already a name of the tool `b`
 --> windlass.toml:4:12
  |
4 | aliases = ["b"]
  |            ^^^
  = help: a name must belong to one tool, so that a run always finds the tool it was started with
"#,
    );
}

#[test]
fn reconcile_is_either_a_command_or_a_request() {
    refused(
        &tool("reconcile = { happened_when = [200] }"),
        r#"
error: [tool.weather.reconcile] needs either `command` or `http`
 --> windlass.toml:4:1
  |
4 | reconcile = { happened_when = [200] }
  | ^^^^^^^^^
"#,
    );
    refused(
        &tool("reconcile = { command = [\"true\"], happened_when = \"reporte\" }"),
        r#"
error: `tool.weather.reconcile.happened_when` is for HTTP requests; a command reports the result itself
 --> windlass.toml:4:35
  |
4 | reconcile = { command = ["true"], happened_when = "reporte" }
  |                                   ^^^^^^^^^^^^^
  = help: remove it

error: `tool.weather.reconcile.happened_when`: "reporte" is not a valid value
 --> windlass.toml:4:51
  |
4 | reconcile = { command = ["true"], happened_when = "reporte" }
  |                                                   ^^^^^^^^^ did you mean "reported"?
  = help: "reported": the response body says so, in the format of a reconcile command
"#,
    );
}

#[test]
fn probable_mistakes_are_warnings() {
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
fn a_document_has_one_location_and_no_plain_credentials() {
    refused(
        "[openapi.a]\nbase_url = \"a.example\"\n[openapi.b]\nfile = \"b.json\"\nurl = \"https://b.example/\"\nsecurity = { key = \"hunter2\" }\n",
        r#"
error: [openapi.a] needs either `file` or `url`
 --> windlass.toml:1:10
  |
1 | [openapi.a]
  |          ^
  = help: they name the OpenAPI document

error: `openapi.a.base_url`: a URL begins with `https://` or `http://`
 --> windlass.toml:2:12
  |
2 | base_url = "a.example"
  |            ^^^^^^^^^^^
  = help: write a full URL, for example "https://api.example.com/v1"

error: [openapi.b] needs either `file` or `url`
 --> windlass.toml:5:1
  |
5 | url = "https://b.example/"
  | ^^^
  = help: they name the OpenAPI document

error: `openapi.b.security.key`: a credential must not be written in this file
 --> windlass.toml:6:20
  |
6 | security = { key = "•••••••" }
  |                    ^^^^^^^^^
  = help: define it in [secrets], and write "${secret:NAME}" here
"#,
    );
}
