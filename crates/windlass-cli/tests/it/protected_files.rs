//! A config that grants a command access to the server's own files is refused.

use std::os::unix::fs::{PermissionsExt, symlink};

use crate::http::Client;
use crate::world::World;

fn world(tool: &str) -> World {
    let world = World::empty();
    for folder in ["work", "data", "keys"] {
        std::fs::create_dir(world.path(folder)).unwrap();
    }
    symlink(".", world.path("here")).unwrap();
    symlink("../data", world.path("work/link")).unwrap();
    world.write("keys/token", "hush");
    std::fs::set_permissions(world.path("keys/token"), std::fs::Permissions::from_mode(0o600)).unwrap();
    world.write(
        "windlass.toml",
        &format!(
            "[secrets]\nTOKEN = \"file:keys/token\"\n\n[tool.snoop]\ndescription = \"Looks around.\"\ncommand = [\"ls\"]\n\
             env = {{ TOKEN = \"${{secret:TOKEN}}\" }}\n{tool}\n"
        ),
    );
    world
}

#[test]
fn e26_a_config_that_gives_a_command_its_servers_files_is_refused() {
    for (tool, args, key, file) in [
        ("dir = \".\"", &[][..], "dir", "windlass.db"),
        ("dir = \"here\"", &[], "dir", "windlass.db"),
        ("dir = \"work/..\"", &[], "dir", "windlass.db"),
        ("dir = \"/\"", &[], "dir", "windlass.db"),
        ("sandbox = { read = [\".\"] }", &[], "sandbox.read", "windlass.db"),
        ("sandbox = { read = [\"windlass.toml\"] }", &[], "sandbox.read", "windlass.toml"),
        ("sandbox = { write = [\"work\", \"windlass.db-wal\"] }", &[], "sandbox.write", "windlass.db-wal"),
        ("sandbox = { write = [\"windlass.db-commands\"] }", &[], "sandbox.write", "windlass.db-commands"),
        ("sandbox = { write = [\"windlass.db-tokens\"] }", &[], "sandbox.write", "windlass.db-tokens"),
        ("sandbox = { write = [\"windlass.db-journal\"] }", &[], "sandbox.write", "windlass.db-journal"),
        ("sandbox = { read = [\"keys\"], level = \"best_effort\" }", &[], "sandbox.read", "keys/token"),
        ("dir = \"data\"", &["--file", "data/other.db"], "dir", "data/other.db"),
        ("dir = \"work/link\"", &["--file", "data/other.db"], "dir", "data/other.db"),
        ("dir = \"data\"", &["--file", "work/link/other.db"], "dir", "other.db"),
        ("dir = \"work\"", &["--file", "work/link/other.db"], "dir", "work/link/other.db"),
    ] {
        let world = world(tool);
        for command in [&["check"][..], &["call", "snoop"], &["serve", "--listen", "127.0.0.1:0"]] {
            let args = [command, args].concat();
            let done = world.run(&args);
            let output = format!("{}{}", done.out, done.err);
            assert_eq!(done.code, 2, "{tool}: windlass {}: {output}", args.join(" "));
            assert!(output.contains(&format!("`tool.snoop.{key}` is ")), "{tool}: {output}");
            assert!(output.contains(file) && output.contains("a separate folder"), "{tool}: {output}");
        }
    }
}

#[test]
fn e26_companion_files_of_a_linked_database_are_protected() {
    for end in ["-wal", "-shm", "-journal", "-lock", "-key", "-tokens", "-commands"] {
        let world = world(&format!("sandbox = {{ write = [\"data/real.db{end}\"] }}"));
        symlink("data/next.db", world.path("link.db")).unwrap();
        symlink("real.db", world.path("data/next.db")).unwrap();
        // Before the file exists, and after.
        for _ in 0..2 {
            let output = world.run(&["check", "--file", "link.db"]);
            assert_eq!(output.code, 2, "{end}: {output:?}");
            assert!(output.out.contains("`tool.snoop.sandbox.write` is "), "{}", output.out);
            assert!(output.out.contains(&format!("data/real.db{end}")), "{}", output.out);
            world.write("data/real.db", "");
        }
    }
}

#[test]
fn e26_a_link_on_the_way_to_the_config_is_protected() {
    let world = world("dir = \"links\"");
    for folder in ["links", "real"] {
        std::fs::create_dir(world.path(folder)).unwrap();
    }
    std::fs::rename(world.path("windlass.toml"), world.path("real/v1.toml")).unwrap();
    symlink("../real/v1.toml", world.path("links/cur.toml")).unwrap();
    symlink("links/cur.toml", world.path("windlass.toml")).unwrap();
    let output = world.run(&["check"]);
    assert_eq!(output.code, 2, "{output:?}");
    assert!(output.out.contains("`tool.snoop.dir` is ") && output.out.contains("the config"), "{}", output.out);
}

#[test]
fn e26_sandboxed_commands_cannot_replace_unsandboxed_programs() {
    let windlass = std::path::Path::new(env!("CARGO_BIN_EXE_windlass"));
    let world_with = |tool: &str, program: &str| {
        let world = world(tool);
        let deploy = format!(
            "\n[tool.deploy]\ndescription = \"Deploys.\"\ncommand = [\"{program}\"]\nsandbox = {{ level = \"off\" }}\n"
        );
        world.write("windlass.toml", &(world.read("windlass.toml") + &deploy));
        for name in ["work/deploy.sh", "data/deploy.sh"] {
            world.write(name, "#!/bin/sh\n");
            std::fs::set_permissions(world.path(name), std::fs::Permissions::from_mode(0o700)).unwrap();
        }
        world
    };
    let own = format!("dir = \"{}\"", windlass.parent().unwrap().display());
    for (tool, program, file) in [
        (&*own, "ls", "the program that starts commands"),
        ("dir = \"work\"", "work/deploy.sh", "the unsandboxed program of `tool.deploy`"),
        ("sandbox = { write = [\"work/link\"] }", "data/deploy.sh", "the unsandboxed program of `tool.deploy`"),
    ] {
        for command in [&["check"][..], &["call", "snoop"]] {
            let done = world_with(tool, program).run(command);
            let output = format!("{}{}", done.out, done.err);
            assert!(
                done.code == 2 && output.contains(file) && output.contains("a separate folder"),
                "{tool}: {output}"
            );
        }
    }
    // Reading the program is allowed.
    for (tool, program) in [("dir = \"work\"", "data/deploy.sh"), ("sandbox = { read = [\"data\"] }", "data/deploy.sh")]
    {
        let done = world_with(tool, program).run(&["check"]);
        assert_eq!(done.code, 0, "{tool}: {}{}", done.out, done.err);
    }
}

#[test]
fn e26_a_folder_too_large_to_search_for_hard_links_is_a_warning() {
    let world = world("dir = \"work\"");
    world.write("windlass.db", "");
    std::fs::hard_link(world.path("windlass.db"), world.path("other-name.db")).unwrap();
    // A hundred thousand hard links to a few files are created quickly.
    for part in 0..4 {
        let folder = world.path(&format!("work/{part}-part"));
        std::fs::create_dir(&folder).unwrap();
        world.write(&format!("work/{part}"), "");
        for number in 0..25_000 {
            std::fs::hard_link(world.path(&format!("work/{part}")), folder.join(number.to_string())).unwrap();
        }
    }
    let output = world.run(&["check"]);
    assert_eq!(output.code, 0, "{output:?}");
    for word in ["1 warning", "tool.snoop.dir", "too many files", "the database", "hard link"] {
        assert!(output.out.contains(word), "{word}: {}", output.out);
    }
}

#[test]
fn e26_folders_without_protected_files_are_accepted() {
    for (tool, args) in [
        ("dir = \"work\"", &[][..]),
        ("dir = \"data\"", &["--file", "keys/other.db"]),
        ("dir = \"work\"\nsandbox = { read = [\"data\"], level = \"best_effort\" }", &[]),
        ("dir = \".\"\nsandbox = { level = \"off\" }", &[]),
    ] {
        let world = world(tool);
        let done = world.run(&[&["check"][..], args].concat());
        assert_eq!(done.code, 0, "{tool}: {}{}", done.out, done.err);
        assert!(done.out.contains("0 warnings"), "{tool}: {}", done.out);
    }
}

#[test]
fn e26_a_hard_link_to_the_database_in_a_commands_folder_is_refused() {
    let world = world("dir = \"work\"");
    world.write("windlass.db", "");
    std::fs::create_dir(world.path("work/inner")).unwrap();
    std::fs::hard_link(world.path("windlass.db"), world.path("work/inner/copy.db")).unwrap();
    let output = world.run(&["check"]);
    assert_eq!(output.code, 2, "{output:?}");
    for word in ["tool.snoop.dir", "work/inner/copy.db", "a hard link to the database", "windlass.db"] {
        assert!(output.out.contains(word), "{word}: {}", output.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e26_a_reload_that_would_grant_access_to_the_servers_files_is_refused() {
    let world = world("dir = \"work\"");
    let server = world.serve(&[]);
    let text = world.read("windlass.toml");
    world.write("windlass.toml", &text.replace("dir = \"work\"", "dir = \".\""));
    let answer = Client::new(&server.url).ask("POST", "/v1/admin/reload", None, "").await.unwrap();
    assert!(answer.status >= 400 && answer.body.to_string().contains("a separate folder"), "{answer:?}");
}
