//! Bad files, and what is said of them: shape and values.

use super::{read, refused};

#[test]
fn an_unknown_section_is_named_with_its_near_miss() {
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
fn an_unknown_key_is_named_with_its_near_miss() {
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
fn an_unknown_key_without_a_near_miss_lists_what_there_is() {
    refused(
        "[store]\ncolour = \"red\"\n",
        r#"
error: unknown key `colour` in [store]
 --> windlass.toml:2:1
  |
2 | colour = "red"
  | ^^^^^^
  = help: there are `file`, `durability` and `shared`
"#,
    );
}

#[test]
fn a_key_of_another_section_is_sent_there() {
    refused(
        "listen = \"127.0.0.1:1\"\n",
        r#"
error: unknown key `listen` in the file
 --> windlass.toml:1:1
  |
1 | listen = "127.0.0.1:1"
  | ^^^^^^
  = help: `listen` belongs into [server]
"#,
    );
}

#[test]
fn a_duration_needs_its_unit() {
    refused(
        "[policy]\ntimeout = 5\ndeadline = \"5\"\ngrace = \"0s\"\n",
        r#"
error: `policy.timeout` is an integer, but must be a duration such as "5s" or "2m"
 --> windlass.toml:2:11
  |
2 | timeout = 5
  |           ^ `5` has no unit; did you mean `5s`?

error: `policy.deadline`: `5` has no unit; did you mean `5s`?
 --> windlass.toml:3:12
  |
3 | deadline = "5"
  |            ^^^
  = help: write a duration such as "5s" or "2m"

error: `policy.grace`: a time of zero would let nothing through
 --> windlass.toml:4:9
  |
4 | grace = "0s"
  |         ^^^^
  = help: write a duration such as "5s" or "2m"
"#,
    );
}

#[test]
fn a_size_needs_a_unit_people_agree_on() {
    refused(
        "[limits]\nartifact = \"16M\"\n",
        r#"
error: `limits.artifact`: `M` is no unit of size; use B, KB, MB, GB, KiB, MiB or GiB
 --> windlass.toml:2:12
  |
2 | artifact = "16M"
  |            ^^^^^
  = help: write a size such as "16 MiB"
"#,
    );
}

#[test]
fn an_unknown_choice_is_told_the_choices() {
    refused(
        "[store]\ndurability = \"relax\"\n",
        r#"
error: `store.durability` cannot be "relax"
 --> windlass.toml:2:14
  |
2 | durability = "relax"
  |              ^^^^^^^ did you mean "relaxed"?
  = help: "full": what was answered survives a power cut; "relaxed": faster; a power cut may lose the last moments, a killed process loses nothing
"#,
    );
}

#[test]
fn a_number_out_of_range_is_told_the_range() {
    refused(
        "[limits]\nin_flight = 0\n[net]\nports = [80, 70000]\n",
        r#"
error: `limits.in_flight` is 0, but must be a whole number from 1
 --> windlass.toml:2:13
  |
2 | in_flight = 0
  |             ^

error: `net.ports[1]` is 70000, but must be a whole number from 1 to 65535
 --> windlass.toml:4:14
  |
4 | ports = [80, 70000]
  |              ^^^^^
"#,
    );
}

#[test]
fn a_text_where_a_list_belongs_is_shown_as_a_list() {
    refused(
        "[server]\nallowed_hosts = \"tools.example.com\"\n",
        r#"
error: `server.allowed_hosts` is a text, but must be a list, each of it a host such as "tools.example.com"
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
  = help: write an address such as "127.0.0.1:7117"
"#,
    );
}

#[test]
fn an_origin_is_no_host() {
    refused(
        "[server]\nallowed_hosts = [\"https://a.example\"]\nallowed_origins = [\"a.example\"]\n",
        r#"
error: `server.allowed_hosts[0]`: `https://a.example` is an origin, not a host; leave out the scheme
 --> windlass.toml:2:18
  |
2 | allowed_hosts = ["https://a.example"]
  |                  ^^^^^^^^^^^^^^^^^^^
  = help: write a host such as "tools.example.com"

error: `server.allowed_origins[0]`: `a.example` has no scheme; did you mean `https://a.example`?
 --> windlass.toml:3:20
  |
3 | allowed_origins = ["a.example"]
  |                    ^^^^^^^^^^^
  = help: write an origin such as "https://app.example.com"
"#,
    );
}

#[test]
fn e26_a_secret_that_was_written_out_is_not_repeated() {
    let text = "[secrets]\nSTRIPE = \"sk_live_4242\" # shh\n";
    let said = read(text).err().expect("it is refused").render(false);
    assert!(!said.contains("4242"), "{said}");
    refused(
        text,
        r#"
error: `secrets.STRIPE`: a secret is never written into this file; write where it is kept: "env:NAME" for an environment variable, "file:PATH" for a file
 --> windlass.toml:2:10
  |
2 | STRIPE = "••••••••••••" # shh
  |          ^^^^^^^^^^^^^^
  = help: write a reference such as "env:STRIPE_KEY" or "file:/run/secrets/stripe"
"#,
    );
}

#[test]
fn what_is_not_toml_is_shown_with_everything_else_that_is_wrong() {
    let text = "[server\nlisten = \"127.0.0.1:1\"\n[policy]\ntimout = \"5s\"\nretries = = 3\n";
    let problems = read(text).err().expect("it is refused");
    let places: Vec<_> = problems.iter().map(|problem| (problem.code, problems.position(problem).unwrap().0)).collect();
    assert_eq!(places, [("syntax", 1), ("unknown_key", 4), ("syntax", 5)], "{problems}");
}

#[test]
fn a_key_that_is_written_twice_is_refused() {
    refused(
        "[store]\nfile = \"a\"\nfile = \"b\"\n",
        r#"
error: this is not TOML: duplicate key
 --> windlass.toml:3:1
  |
3 | file = "b"
  | ^^^^
  = help: texts stand in quotes, lists in [ ], tables in { }
"#,
    );
}

#[test]
fn a_condition_that_does_not_compile_is_marked_where_it_breaks() {
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
fn an_allowance_that_is_none_is_refused() {
    let problems = read("[net]\nallow = [\"10.0.0.0/33\"]\n").err().expect("it is refused");
    let problem = problems.iter().next().unwrap();
    assert_eq!(problems.position(problem), Some((2, 10)), "{problems}");
    assert!(problem.message.contains("ends in no length from 0 to 32"), "{problems}");
}

#[test]
fn a_webhook_needs_an_address_and_a_reference() {
    refused(
        "[webhook]\nsecret = \"hunter2\"\n",
        r#"
error: [webhook] lacks `url`
 --> windlass.toml:1:2
  |
1 | [webhook]
  |  ^^^^^^^
  = help: url: Gets a POST whenever something comes into the inbox.

error: `webhook.secret`: a secret is never written into this file
 --> windlass.toml:2:10
  |
2 | secret = "•••••••"
  |          ^^^^^^^^^
  = help: put it into [secrets] and write "${secret:NAME}"
"#,
    );
}

#[test]
fn a_webhook_without_a_secret_could_be_anybodys() {
    refused(
        "[webhook]\nurl = \"https://a.example/\"\n",
        r#"
error: [webhook] lacks `secret`
 --> windlass.toml:1:2
  |
1 | [webhook]
  |  ^^^^^^^
  = help: secret: Signs each request: "${secret:NAME}", of at least 16 bytes.
"#,
    );
}

#[test]
fn a_date_is_of_no_use() {
    refused(
        "[policy]\ntimeout = 2026-11-16\n",
        r#"
error: `policy.timeout` is a date, but must be a duration such as "5s" or "2m"
 --> windlass.toml:2:11
  |
2 | timeout = 2026-11-16
  |           ^^^^^^^^^^
"#,
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let problems = super::super::load(std::path::Path::new("nowhere/windlass.toml")).err().expect("there is none");
    let said = problems.render(false);
    assert!(said.starts_with("error: nowhere/windlass.toml cannot be read: "), "{said}");
    assert!(said.contains("help: name the config file with --config, or create it"), "{said}");
    assert_eq!(problems.json()[0]["line"], serde_json::Value::Null);
}

#[test]
fn a_file_that_is_no_text_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windlass.toml");
    for (content, why) in [(vec![0xff, 0xfe], "it is not UTF-8"), (vec![b' '; 5 << 20], "which no config has")] {
        std::fs::write(&path, content).unwrap();
        let said = super::super::load(&path).err().expect("it is refused").to_string();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_broken_file_is_refused_with_places_and_never_panics() {
    let whole = include_str!("../../../examples/windlass.toml");
    let cuts = (0..whole.len()).step_by(101).filter(|at| whole.is_char_boundary(*at));
    for at in cuts {
        let (before, after) = whole.split_at(at);
        let dropped = after.chars().skip(1).collect::<String>();
        for text in
            [before.to_owned(), format!("{before}{dropped}"), format!("{before}\"{after}"), format!("{before}]{after}")]
        {
            if let Err(problems) = read(&text) {
                let said = problems.render(true);
                assert!(problems.iter().all(|problem| problems.position(problem).is_some()), "{said}");
            }
        }
    }
}

#[test]
fn many_problems_are_shown_in_part_and_counted_in_full() {
    let text: String = std::iter::once("[store]\n".to_owned()).chain((0..150).map(|n| format!("x{n} = 1\n"))).collect();
    let problems = read(&text).err().expect("it is refused");
    assert_eq!(problems.count(), (150, 0));
    assert!(problems.render(false).ends_with("\n… and 50 more\n"));
}

#[test]
fn problems_are_data_too() {
    let problems = read("[policy]\ntimout = \"5s\"\n").err().expect("it is refused");
    let expected = serde_json::json!([{
        "severity": "error", "code": "unknown_key", "file": "windlass.toml", "line": 2, "column": 1,
        "message": "unknown key `timout` in [policy]", "label": "did you mean `timeout`?", "help": null,
    }]);
    assert_eq!(problems.json(), expected);
}
