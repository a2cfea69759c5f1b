//! Invalid files: types and values.

use super::{read, refused};

#[test]
fn an_unknown_section_is_reported_with_a_suggestion() {
    refused(
        "[sever]\nlisten = \"127.0.0.1:1\"\n",
        r#"
error: unknown section `sever` in the file
 --> windlass.toml:1:2
  |
1 | [sever]
  |  ^^^^^ did you mean `server`?
"#,
    );
}

#[test]
fn an_unknown_key_is_reported_with_a_suggestion() {
    refused(
        "[policy]\n  timout = \"5s\"\n",
        r#"
error: unknown key `timout` in [policy]
 --> windlass.toml:2:3
  |
2 |   timout = "5s"
  |   ^^^^^^ did you mean `timeout`?
"#,
    );
}

#[test]
fn an_unknown_key_without_a_suggestion_lists_the_valid_keys() {
    refused(
        "[store]\ncolour = \"red\"\n",
        r#"
error: unknown key `colour` in [store]
 --> windlass.toml:2:1
  |
2 | colour = "red"
  | ^^^^^^
  = help: the valid keys are `file`, `durability` and `shared`
"#,
    );
}

#[test]
fn a_key_of_another_section_is_reported_with_that_section() {
    refused(
        "listen = \"127.0.0.1:1\"\n",
        r#"
error: unknown key `listen` in the file
 --> windlass.toml:1:1
  |
1 | listen = "127.0.0.1:1"
  | ^^^^^^
  = help: `listen` belongs in [server]
"#,
    );
}

#[test]
fn a_duration_needs_its_unit() {
    refused(
        "[policy]\ntimeout = 5\ndeadline = \"5\"\ngrace = \"0s\"\n",
        r#"
error: `policy.timeout` must be a duration such as "5s" or "2m", but is an integer
 --> windlass.toml:2:11
  |
2 | timeout = 5
  |           ^ `5` has no unit; did you mean `5s`?

error: `policy.deadline`: `5` has no unit; did you mean `5s`?
 --> windlass.toml:3:12
  |
3 | deadline = "5"
  |            ^^^
  = help: expected a duration such as "5s" or "2m"

error: `policy.grace`: the duration must not be zero
 --> windlass.toml:4:9
  |
4 | grace = "0s"
  |         ^^^^
  = help: expected a duration such as "5s" or "2m"
"#,
    );
}

#[test]
fn a_size_needs_an_unambiguous_unit() {
    refused(
        "[limits]\nartifact = \"16M\"\n",
        r#"
error: `limits.artifact`: `M` is not a unit of size (expected B, KB, MB, GB, KiB, MiB or GiB)
 --> windlass.toml:2:12
  |
2 | artifact = "16M"
  |            ^^^^^
  = help: expected a size such as "16 MiB"
"#,
    );
}

#[test]
fn an_unknown_choice_is_reported_with_the_choices() {
    refused(
        "[store]\ndurability = \"relax\"\n",
        r#"
error: `store.durability`: "relax" is not a valid value
 --> windlass.toml:2:14
  |
2 | durability = "relax"
  |              ^^^^^^^ did you mean "relaxed"?
  = help: "full": every acknowledged result survives a power cut; "relaxed": faster; a power cut may lose the last moments, but a killed process loses nothing
"#,
    );
}

#[test]
fn a_number_out_of_range_is_reported_with_the_range() {
    refused(
        "[limits]\nin_flight = 0\n[net]\nports = [80, 70000]\n",
        r#"
error: `limits.in_flight` must be an integer of at least 1, but is 0
 --> windlass.toml:2:13
  |
2 | in_flight = 0
  |             ^

error: `net.ports[1]` must be an integer from 1 to 65535, but is 70000
 --> windlass.toml:4:14
  |
4 | ports = [80, 70000]
  |              ^^^^^
"#,
    );
}

#[test]
fn a_string_instead_of_a_list_is_reported_with_the_list() {
    refused(
        "[server]\nallowed_hosts = \"tools.example.com\"\n",
        r#"
error: `server.allowed_hosts` must be a list of strings, each a host such as "tools.example.com", but is a string
 --> windlass.toml:2:17
  |
2 | allowed_hosts = "tools.example.com"
  |                 ^^^^^^^^^^^^^^^^^^^ did you mean ["tools.example.com"]?
"#,
    );
}

#[test]
fn an_address_needs_a_port() {
    refused(
        "[server]\nlisten = \"127.0.0.1\"\n",
        r#"
error: `server.listen`: `127.0.0.1` has no port; did you mean `127.0.0.1:7117`?
 --> windlass.toml:2:10
  |
2 | listen = "127.0.0.1"
  |          ^^^^^^^^^^^
  = help: expected an address such as "127.0.0.1:7117"
"#,
    );
}

#[test]
fn an_origin_is_not_a_host() {
    refused(
        "[server]\nallowed_hosts = [\"https://a.example\"]\nallowed_origins = [\"a.example\"]\n",
        r#"
error: `server.allowed_hosts[0]`: `https://a.example` is an origin, not a host; leave out the scheme
 --> windlass.toml:2:18
  |
2 | allowed_hosts = ["https://a.example"]
  |                  ^^^^^^^^^^^^^^^^^^^
  = help: expected a host such as "tools.example.com"

error: `server.allowed_origins[0]`: `a.example` has no scheme; did you mean `https://a.example`?
 --> windlass.toml:3:20
  |
3 | allowed_origins = ["a.example"]
  |                    ^^^^^^^^^^^
  = help: expected an origin such as "https://app.example.com"
"#,
    );
}

#[test]
fn e26_a_secret_in_plain_text_is_not_printed() {
    let text = "[secrets]\nSTRIPE = \"sk_live_4242\" # shh\n";
    let rendered = read(text).err().expect("it is refused").render(false);
    assert!(!rendered.contains("4242"), "{rendered}");
    refused(
        text,
        r#"
error: `secrets.STRIPE`: a secret must not be written in this file; refer to it with "env:NAME" for an environment variable or "file:PATH" for a file
 --> windlass.toml:2:10
  |
2 | STRIPE = "••••••••••••" # shh
  |          ^^^^^^^^^^^^^^
  = help: expected a reference such as "env:STRIPE_KEY" or "file:/run/secrets/stripe"
"#,
    );
}

#[test]
fn syntax_errors_are_reported_together_with_other_problems() {
    let text = "[server\nlisten = \"127.0.0.1:1\"\n[policy]\ntimout = \"5s\"\nretries = = 3\n";
    let problems = read(text).err().expect("it is refused");
    let lines: Vec<_> = problems.iter().map(|problem| (problem.code, problems.position(problem).unwrap().0)).collect();
    assert_eq!(lines, [("syntax", 1), ("unknown_key", 4), ("syntax", 5)], "{problems}");
}

#[test]
fn a_key_that_is_written_twice_is_refused() {
    refused(
        "[store]\nfile = \"a\"\nfile = \"b\"\n",
        r#"
error: not valid TOML: duplicate key
 --> windlass.toml:3:1
  |
3 | file = "b"
  | ^^^^
  = help: strings are written in quotes, lists in [ ], tables in { }
"#,
    );
}

#[test]
fn a_condition_that_does_not_compile_is_reported_at_the_error() {
    let text = "[policy]\napproval = \"args.cents > \"\n";
    let problems = read(text).err().expect("it is refused");
    let problem = problems.iter().next().unwrap();
    assert_eq!(problem.code, "bad_value");
    assert!(problem.message.starts_with("`policy.approval`: the condition does not compile: "), "{problems}");
    assert_eq!(problems.position(problem).unwrap().0, 2, "{problems}");
    let text = "[policy]\napproval = \"alway\"\n";
    let problems = read(text).err().expect("it is refused");
    assert_eq!(problems.iter().next().unwrap().label.as_deref(), Some("did you mean \"always\"?"), "{problems}");
}

#[test]
fn an_invalid_network_is_refused() {
    let problems = read("[net]\nallow = [\"10.0.0.0/33\"]\n").err().expect("it is refused");
    let problem = problems.iter().next().unwrap();
    assert_eq!(problems.position(problem), Some((2, 10)), "{problems}");
    assert!(problem.message.contains("does not end in a length from 0 to 32"), "{problems}");
}

#[test]
fn a_webhook_needs_a_url_and_a_secret_reference() {
    refused(
        "[webhook]\nsecret = \"hunter2\"\n",
        r#"
error: [webhook] has no `url`
 --> windlass.toml:1:2
  |
1 | [webhook]
  |  ^^^^^^^
  = help: url: The URL that receives a POST for every new inbox item.

error: `webhook.secret`: a secret must not be written in this file
 --> windlass.toml:2:10
  |
2 | secret = "•••••••"
  |          ^^^^^^^^^
  = help: define it in [secrets], and write "${secret:NAME}" here
"#,
    );
}

#[test]
fn a_webhook_needs_a_secret() {
    refused(
        "[webhook]\nurl = \"https://a.example/\"\n",
        r#"
error: [webhook] has no `secret`
 --> windlass.toml:1:2
  |
1 | [webhook]
  |  ^^^^^^^
  = help: secret: The secret that signs each request: "${secret:NAME}", at least 16 bytes.
"#,
    );
}

#[test]
fn a_date_is_refused() {
    refused(
        "[policy]\ntimeout = 2026-11-16\n",
        r#"
error: `policy.timeout` must be a duration such as "5s" or "2m", but is a date
 --> windlass.toml:2:11
  |
2 | timeout = 2026-11-16
  |           ^^^^^^^^^^
"#,
    );
}

#[test]
fn a_missing_file_is_named() {
    let problems = super::super::load(std::path::Path::new("nowhere/windlass.toml")).err().expect("there is none");
    let rendered = problems.render(false);
    assert!(rendered.starts_with("error: could not read nowhere/windlass.toml: "), "{rendered}");
    assert!(rendered.contains("help: name the config file with --config, or create it"), "{rendered}");
    assert_eq!(problems.json()[0]["line"], serde_json::Value::Null);
}

#[test]
fn a_file_that_is_too_large_or_not_utf_8_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windlass.toml");
    for (content, why) in
        [(vec![0xff, 0xfe], "it is not valid UTF-8"), (vec![b' '; 5 << 20], "the size limit of a config file")]
    {
        std::fs::write(&path, content).unwrap();
        let rendered = super::super::load(&path).err().expect("it is refused").to_string();
        assert!(rendered.contains(why), "{rendered}");
    }
}

#[test]
fn a_damaged_file_is_refused_with_positions_and_never_panics() {
    let whole = include_str!("../../../examples/windlass.toml");
    let cuts = (0..whole.len()).step_by(101).filter(|at| whole.is_char_boundary(*at));
    for at in cuts {
        let (before, after) = whole.split_at(at);
        let dropped = after.chars().skip(1).collect::<String>();
        for text in
            [before.to_owned(), format!("{before}{dropped}"), format!("{before}\"{after}"), format!("{before}]{after}")]
        {
            if let Err(problems) = read(&text) {
                let rendered = problems.render(true);
                assert!(problems.iter().all(|problem| problems.position(problem).is_some()), "{rendered}");
            }
        }
    }
}

#[test]
fn at_most_100_problems_are_rendered_but_all_are_counted() {
    let text: String = std::iter::once("[store]\n".to_owned()).chain((0..150).map(|n| format!("x{n} = 1\n"))).collect();
    let problems = read(&text).err().expect("it is refused");
    assert_eq!(problems.count(), (150, 0));
    assert!(problems.render(false).ends_with("\n… and 50 more\n"));
}

#[test]
fn problems_are_available_as_json() {
    let problems = read("[policy]\ntimout = \"5s\"\n").err().expect("it is refused");
    let expected = serde_json::json!([{
        "severity": "error", "code": "unknown_key", "file": "windlass.toml", "line": 2, "column": 1,
        "message": "unknown key `timout` in [policy]", "label": "did you mean `timeout`?", "help": null,
    }]);
    assert_eq!(problems.json(), expected);
}
