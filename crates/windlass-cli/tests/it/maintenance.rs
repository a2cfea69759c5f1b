//! `check`, `doctor`, `gc`, `backup`, `restore`

use serde_json::Value;

use crate::world::{World, both_ways, has};

#[test]
fn check_has_output_for_people_programs_and_editors() {
    let world = World::new();
    has(&world.ok(&["check"]), &["echo", "readonly", "needs approval if args.cents > 100"]);
    assert_eq!(world.json(&["check"])["ok"], true);
    let schema: Value = serde_json::from_str(&world.ok(&["check", "--schema"])).unwrap();
    assert!(schema["properties"]["tool"].is_object(), "{schema}");
    has(&World::empty().fails(3, &["check"]), &["windlass.toml", "--config"]);
}

#[test]
fn check_reports_everything_that_a_server_refuses() {
    let world = World::empty();
    let hook = |secret: &str| format!("[webhook]\nurl = \"https://chat.example.com/\"\n{secret}");
    let key = "secret = \"${secret:KEY}\"\n[secrets]\nKEY = \"env:HOOK_KEY\"\n";
    for (config, set, words) in [
        (hook(""), "", &["[webhook] has no `secret`"][..]),
        (hook(key), "", &["`webhook.secret`", "HOOK_KEY"]),
        (hook(key), "short", &["`webhook.secret`", "shorter than 16 bytes"]),
    ] {
        world.write("windlass.toml", &config);
        for args in [&["check"][..], &["serve", "--listen", "127.0.0.1:0"]] {
            let mut command = world.command(args);
            if !set.is_empty() {
                command.env("HOOK_KEY", set);
            }
            let output = command.output().unwrap();
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
            has(&text, words);
        }
    }
    assert!(!world.path("windlass.db").exists(), "the config is refused before the file is opened");
    let valid = world.command(&["check"]).env("HOOK_KEY", "0123456789abcdef").output().unwrap();
    assert!(valid.status.success(), "{}", String::from_utf8_lossy(&valid.stdout));
}

#[test]
fn doctor_reports_config_file_server_and_sandbox() {
    both_ways(|world, backend| {
        if backend == crate::world::Backend::File {
            has(&world.run(&["doctor"]).out, &["windlass.db does not exist yet"]);
        }
        world.ok(&["call", "echo", "--args", r#"{"text": "x"}"#]);
        let done = world.run(&["doctor"]);
        has(&done.out, &["✓ program", "✓ config", "5 tools", "✓ file", "✓ files", "sandbox"]);
        if backend == crate::world::Backend::Server {
            has(&done.out, &["✓ server", "is up"]);
        }
        let report: Value = serde_json::from_str(&world.run(&["--json", "doctor"]).out).unwrap();
        assert!(report["findings"].as_array().is_some_and(|all| all.len() >= 4), "{report}");
    });
}

#[test]
fn w09_gc_reports_what_it_removed() {
    both_ways(|world, _| {
        world.ok(&["call", "echo", "--args", r#"{"text": "x"}"#]);
        has(&world.ok(&["gc"]), &["0 runs summarized, 0 runs and 0 artifacts removed"]);
        assert_eq!(world.json(&["gc"])["removed"], 0);
    });
}

#[test]
fn a_backup_is_restored_and_nothing_is_overwritten() {
    both_ways(|world, backend| {
        let run = world.json(&["call", "echo", "--args", r#"{"text": "kept"}"#])["run"].as_str().unwrap().to_owned();
        has(&world.ok(&["backup", "copy.db"]), &["copy.db"]);
        assert!(world.path("copy.db").exists());
        has(&world.fails(4, &["backup", "copy.db"]), &["copy.db", "overwrites nothing"]);
        if backend == crate::world::Backend::Server {
            has(&world.fails(4, &["restore", "copy.db", "--replace"]), &["stop it first"]);
            world.ok(&["--file", "other.db", "restore", "copy.db"]);
            assert_eq!(world.json(&["--file", "other.db", "runs", "show", &run])["run"]["id"], run.as_str());
            return;
        }
        let later = world.json(&["call", "echo", "--args", r#"{"text": "lost"}"#])["run"].as_str().unwrap().to_owned();
        has(&world.fails(4, &["restore", "copy.db"]), &["--replace"]);
        has(&world.ok(&["restore", "copy.db", "--replace"]), &["before-restore-1", "restored "]);
        assert_eq!(world.json(&["runs", "show", &run])["run"]["outcomes"][0]["value"]["text"], "kept");
        world.fails(3, &["runs", "show", &later]);
        let aside = world.path("windlass.db.before-restore-1").display().to_string();
        assert_eq!(world.json(&["--file", &aside, "runs", "show", &later])["run"]["id"], later.as_str());
        has(&world.fails(3, &["restore", "nothing.db"]), &["the backup nothing.db does not exist"]);
        world.write("garbage.db", "garbage");
        world.fails(5, &["restore", "garbage.db", "--replace"]);
    });
}

#[test]
fn e26_secrets_are_encrypted_and_the_key_file_is_named() {
    let world = World::empty();
    let tool = r#"
        [tool.login]
        description = "Logs in."
        command = ["sh", "-c", "cat > /dev/null; echo '\"in\"'"]
        input = { password = "secret", to = "string" }
        effect = "readonly"
        sandbox = { level = "best_effort" }
    "#;
    world.write("windlass.toml", tool);
    let args = r#"{"password": "hunter2-hunter2", "to": "Oslo"}"#;
    let run = world.json(&["call", "login", "--args", args])["run"].as_str().unwrap().to_owned();
    let output = world.run(&["backup", "copy.db"]);
    has(&output.err, &["the backup does not contain the key", "windlass.db-key"]);
    assert!(world.json(&["backup", "again.db"])["key_file"].as_str().unwrap().ends_with("windlass.db-key"));
    let files = std::fs::read_dir(world.path("")).unwrap().map(|file| file.unwrap().path());
    for file in files.filter(|path| path.is_file()) {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(15).any(|window| window == b"hunter2-hunter2"), "{}", file.display());
    }
    has(&world.ok(&["runs", "export", &run]), &["hunter2-hunter2"]);
    world.ok(&["runs", "export", &run, "--to", "run.json"]);

    let output = world.run(&["--file", "other.db", "restore", "copy.db"]);
    has(&output.err, &["other.db-key", "put the key file of the original there"]);
    has(&world.fails(1, &["--file", "other.db", "doctor"]), &["✗ key", "other.db-key", "✓ file"]);
    has(&world.fails(4, &["--file", "other.db", "runs", "show", &run]), &[&run, "other.db-key", "put the key back"]);
    has(&world.ok(&["--file", "other.db", "runs", "list"]), &["login"]);
    std::fs::copy(world.path("windlass.db-key"), world.path("other.db-key")).unwrap();
    assert!(!world.run(&["--file", "other.db", "doctor"]).out.contains("other.db-key"));
    world.ok(&["--file", "other.db", "runs", "show", &run]);
    #[cfg(unix)]
    for name in ["windlass.db", "windlass.db-key", "windlass.db-lock", "copy.db", "other.db", "run.json"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(world.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[cfg(unix)]
#[test]
fn w08_doctor_reports_missing_write_permissions() {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    let world = World::new();
    let allow = |name: &str, mode: u32| {
        std::fs::set_permissions(world.path(name), Permissions::from_mode(mode)).unwrap();
    };
    // Root may write everywhere, so the test runs as another user.
    let is_root = Command::new("sh").args(["-c", "test $(id -u) = 0"]).status().unwrap().success();
    let doctor = |args: &[&str]| {
        let own = world.command(&[args, &["doctor"]].concat());
        if !is_root {
            return own;
        }
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--clear-groups", "--"]).arg(own.get_program()).args(own.get_args());
        other.current_dir(world.path(""));
        other
    };
    let output = |args: &[&str]| {
        let output = doctor(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    allow("", 0o777);
    if is_root && !output(&[]).1.contains("file") {
        return eprintln!("skipped: no other user of this machine can run the program");
    }
    has(&output(&[]).1, &["✓ file", "does not exist yet"]);
    allow("", 0o555);
    let (code, text) = output(&[]);
    has(&text, &["✗ file", "this user may not create files in"]);
    assert_eq!(code, Some(1));
    allow("", 0o777);
    let (code, text) = output(&["--file", "nowhere/app.db"]);
    has(&text, &["✗ file", "nowhere", "does not exist"]);
    assert_eq!(code, Some(1));
    world.ok(&["call", "echo", "--args", r#"{"text": "x"}"#]);
    for name in ["windlass.db", "windlass.db-lock"] {
        allow(name, 0o444);
    }
    if is_root {
        let (code, text) = output(&[]);
        has(&text, &["✗ file", "this user may not write"]);
        assert_eq!(code, Some(1));
    }
}
