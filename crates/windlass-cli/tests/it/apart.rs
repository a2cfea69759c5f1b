//! What a server lives by is kept from its commands: a config that gives it to one is refused by every command that reads it.

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
    for (tool, args, by, kept) in [
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
            let said = format!("{}{}", done.out, done.err);
            assert_eq!(done.code, 2, "{tool}: windlass {}: {said}", args.join(" "));
            assert!(said.contains(&format!("`tool.snoop.{by}` is ")), "{tool}: {said}");
            assert!(said.contains(kept) && said.contains("a folder of its own"), "{tool}: {said}");
        }
    }
}

#[test]
fn e26_what_stands_beside_a_database_is_kept_behind_every_link_to_it() {
    for end in ["-wal", "-shm", "-journal", "-lock", "-key", "-tokens", "-commands"] {
        let world = world(&format!("sandbox = {{ write = [\"data/real.db{end}\"] }}"));
        symlink("data/next.db", world.path("link.db")).unwrap();
        symlink("real.db", world.path("data/next.db")).unwrap();
        // Before the file is there, and after.
        for _ in 0..2 {
            let said = world.run(&["check", "--file", "link.db"]);
            assert_eq!(said.code, 2, "{end}: {said:?}");
            assert!(said.out.contains("`tool.snoop.sandbox.write` is "), "{}", said.out);
            assert!(said.out.contains(&format!("data/real.db{end}")), "{}", said.out);
            world.write("data/real.db", "");
        }
    }
}

#[test]
fn e26_a_link_in_the_middle_of_the_way_to_the_config_is_kept() {
    let world = world("dir = \"links\"");
    for folder in ["links", "real"] {
        std::fs::create_dir(world.path(folder)).unwrap();
    }
    std::fs::rename(world.path("windlass.toml"), world.path("real/v1.toml")).unwrap();
    symlink("../real/v1.toml", world.path("links/cur.toml")).unwrap();
    symlink("links/cur.toml", world.path("windlass.toml")).unwrap();
    let said = world.run(&["check"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.out.contains("`tool.snoop.dir` is ") && said.out.contains("the config"), "{}", said.out);
}

#[test]
fn e26_programs_that_run_without_a_sandbox_cannot_be_replaced_from_one() {
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
    for (tool, program, kept) in [
        (&*own, "ls", "the program that starts commands"),
        ("dir = \"work\"", "work/deploy.sh", "the unsandboxed program of `tool.deploy`"),
        ("sandbox = { write = [\"work/link\"] }", "data/deploy.sh", "the unsandboxed program of `tool.deploy`"),
    ] {
        for command in [&["check"][..], &["call", "snoop"]] {
            let done = world_with(tool, program).run(command);
            let said = format!("{}{}", done.out, done.err);
            assert!(done.code == 2 && said.contains(kept) && said.contains("a folder of its own"), "{tool}: {said}");
        }
    }
    // To read it is not to replace it.
    for (tool, program) in [("dir = \"work\"", "data/deploy.sh"), ("sandbox = { read = [\"data\"] }", "data/deploy.sh")]
    {
        let done = world_with(tool, program).run(&["check"]);
        assert_eq!(done.code, 0, "{tool}: {}{}", done.out, done.err);
    }
}

#[test]
fn e26_a_folder_too_large_to_look_for_hard_links_is_a_warning() {
    let world = world("dir = \"work\"");
    world.write("windlass.db", "");
    std::fs::hard_link(world.path("windlass.db"), world.path("other-name.db")).unwrap();
    // Few files with a hundred thousand names: that is quick.
    for part in 0..4 {
        let folder = world.path(&format!("work/{part}-part"));
        std::fs::create_dir(&folder).unwrap();
        world.write(&format!("work/{part}"), "");
        for number in 0..25_000 {
            std::fs::hard_link(world.path(&format!("work/{part}")), folder.join(number.to_string())).unwrap();
        }
    }
    let said = world.run(&["check"]);
    assert_eq!(said.code, 0, "{said:?}");
    for word in ["1 warning", "tool.snoop.dir", "too many files", "the database", "hard link"] {
        assert!(said.out.contains(word), "{word}: {}", said.out);
    }
}

#[test]
fn e26_what_is_no_business_of_the_server_is_not_refused() {
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
fn e26_another_name_of_the_database_is_found_in_a_commands_folder() {
    let world = world("dir = \"work\"");
    world.write("windlass.db", "");
    std::fs::create_dir(world.path("work/inner")).unwrap();
    std::fs::hard_link(world.path("windlass.db"), world.path("work/inner/copy.db")).unwrap();
    let said = world.run(&["check"]);
    assert_eq!(said.code, 2, "{said:?}");
    for word in ["tool.snoop.dir", "work/inner/copy.db", "another name of the database", "windlass.db"] {
        assert!(said.out.contains(word), "{word}: {}", said.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e26_a_config_that_comes_to_give_away_its_servers_files_is_not_taken_up() {
    let world = world("dir = \"work\"");
    let server = world.serve(&[]);
    let text = world.read("windlass.toml");
    world.write("windlass.toml", &text.replace("dir = \"work\"", "dir = \".\""));
    let answer = Client::new(&server.url).ask("POST", "/v1/admin/reload", None, "").await.unwrap();
    assert!(answer.status >= 400 && answer.body.to_string().contains("a folder of its own"), "{answer:?}");
}
