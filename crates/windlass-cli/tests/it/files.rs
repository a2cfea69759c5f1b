//! `windlass files`, on a file and through a server

use serde_json::json;

use crate::world::{World, has};

#[test]
fn e15_files_are_put_listed_printed_saved_and_deleted_with_and_without_a_server() {
    for remote in [false, true] {
        let world = World::new();
        let server = remote.then(|| world.serve(&[]));
        world.ok(&["sessions", "open", "ada"]);
        let notes = world.path("notes.md");
        std::fs::write(&notes, "# Rome\nnight train\n").unwrap();
        let put = world.ok(&["files", "put", "ada", "notes.md", "trip/rome.md", "--new"]);
        has(&put, &["/trip/rome.md  19 bytes  b3:"]);
        let hash = put.trim_end().rsplit("  ").next().unwrap().to_owned();
        has(&world.fails(4, &["files", "put", "ada", "notes.md", "trip/rome.md", "--new"]), &["has changed", &hash]);
        assert_eq!(world.ok(&["files", "cat", "ada", "/workspace/trip/rome.md"]), "# Rome\nnight train\n");

        let piped =
            world.run_with(&["--json", "files", "put", "ada", "-", "trip/rome.md", "--if-hash", &hash], "day\n");
        assert_eq!(piped.code, 0, "{}", piped.err);
        let entry: serde_json::Value = serde_json::from_str(&piped.out).unwrap();
        assert_eq!(
            (&entry["path"], &entry["size"], &entry["kind"]),
            (&json!("/trip/rome.md"), &json!(4), &json!("file"))
        );
        let stale = ["files", "put", "ada", "notes.md", "trip/rome.md", "--if-hash", &hash];
        has(&world.fails(4, &stale), &["has changed", entry["hash"].as_str().unwrap()]);
        assert_eq!(world.ok(&["files", "cat", "ada", "trip/rome.md"]), "day\n", "it was not written");

        // Several pieces of bytes that are not text.
        let large: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        std::fs::write(world.path("large.bin"), &large).unwrap();
        world.ok(&["files", "put", "ada", "large.bin", "große datei %2e.bin"]);
        has(&world.ok(&["files", "get", "ada", "große datei %2e.bin", "copy.bin"]), &["copy.bin  3000000 bytes"]);
        assert!(std::fs::read(world.path("copy.bin")).unwrap() == large);
        assert_eq!(world.ok(&["files", "get", "ada", "trip/rome.md"]), "rome.md  4 bytes\n");
        assert_eq!(std::fs::read_to_string(world.path("rome.md")).unwrap(), "day\n");
        assert_eq!(world.ok(&["files", "get", "ada", "trip/rome.md", "-"]), "day\n");
        assert!(!world.path("rome.md.part").exists());

        has(&world.ok(&["files", "ls", "ada"]), &["PATH", "/trip/", "/große datei %2e.bin", "3000000"]);
        assert!(!world.ok(&["files", "ls", "ada", "trip"]).contains("große"));
        let all = world.json(&["files", "ls", "ada", "-R"]);
        assert_eq!(all["files"].as_array().unwrap().len(), 3);

        has(&world.fails(3, &["files", "cat", "ada", "none"]), &["no file \"none\""]);
        has(&world.fails(3, &["files", "get", "ada", "none"]), &["no file \"none\""]);
        assert!(!world.path("none").exists() && !world.path("none.part").exists());
        has(&world.fails(3, &["files", "ls", "bob"]), &["no session \"bob\""]);
        has(&world.fails(3, &["files", "put", "bob", "notes.md", "x"]), &["no session \"bob\""]);
        has(&world.fails(3, &["files", "put", "ada", "nowhere.md", "x"]), &["nowhere.md does not exist"]);
        has(&world.fails(4, &["files", "cat", "ada", "trip"]), &["is a directory"]);
        has(&world.fails(4, &["files", "rm", "ada", "trip"]), &["is not empty"]);
        for path in ["../x", "a/../../x", "a\\x", "a//x", ""] {
            has(&world.fails(2, &["files", "cat", "ada", path]), &["path"]);
            has(&world.fails(2, &["files", "put", "ada", "notes.md", path]), &["path"]);
        }
        assert_eq!(world.ok(&["files", "rm", "ada", "trip", "-r"]), "trip deleted\n");
        has(&world.fails(3, &["files", "rm", "ada", "trip", "-r"]), &["no file"]);
        world.ok(&["sessions", "close", "ada"]);
        has(&world.fails(4, &["files", "put", "ada", "notes.md", "late"]), &["session \"ada\" is closed"]);
        if let Some(server) = server {
            assert_eq!(server.stop(), 0);
        }
    }
}
