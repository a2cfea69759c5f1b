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
