//! `[openapi.NAME]` with a very large document.

use serde_json::{Map, Value, json};

use crate::world::{Server, World, has};

/// As many as in GitHub's document.
const OPERATIONS: usize = 1_200;
const SCHEMAS: usize = 960;
/// The memory limit for a server with such a document: a few times the size of its text.
const MAX_MEMORY: u64 = 100 << 20;

fn schema(n: usize) -> Value {
    let text = |m: usize| json!({"type": "string", "description": format!("The property {m} of {n}, {}", "and so on. ".repeat(6))});
    let mut properties: Map<String, Value> = (0..6).map(|m| (format!("property_{m}"), text(m))).collect();
    for (name, of) in [("next", n / 16), ("owner", n % 7)].into_iter().filter(|(_, of)| *of < n) {
        properties.insert(name.to_owned(), json!({"$ref": format!("#/components/schemas/s{of}")}));
    }
    json!({"type": "object", "properties": properties})
}

fn operation(n: usize) -> Value {
    let media = |schema: usize, examples: Value| {
        json!({"application/json": {
            "schema": {"$ref": format!("#/components/schemas/s{schema}")}, "examples": examples
        }})
    };
    let example = json!({"deep": (0..30).map(|m| json!({"id": m, "url": "https://api.example/x", "list": [1, 2, 3]})).collect::<Vec<_>>()});
    json!({
        "operationId": format!("group/operation-{n}"),
        "summary": format!("Do what {n} does"), "description": "A sentence about it. ".repeat(20),
        "parameters": [{"$ref": "#/components/parameters/page"}, {"$ref": "#/components/parameters/id"}],
        "requestBody": {"content": media(n % SCHEMAS, json!({}))},
        "responses": {"200": {"description": "Done", "content": media((n * 7) % SCHEMAS, json!({"usual": {"value": example}}))}}
    })
}

/// A document with schemas that refer to one another, and two operations that cannot be tools.
fn large() -> String {
    let schemas: Map<String, Value> = (0..SCHEMAS).map(|n| (format!("s{n}"), schema(n))).collect();
    let mut paths: Map<String, Value> =
        (0..OPERATIONS).map(|n| (format!("/things/{{id}}/x{n}"), json!({"post": operation(n)}))).collect();
    let text = json!({"content": {"text/plain": {"schema": {"type": "string"}}}});
    for name in ["raw", "upload"] {
        paths.insert(format!("/{name}"), json!({"post": {"operationId": name, "requestBody": text}}));
    }
    let document = json!({
        "openapi": "3.0.3", "info": {"title": "Large", "version": "1"}, "servers": [{"url": "https://api.example"}],
        "paths": paths,
        "components": {"schemas": schemas, "parameters": {
            "page": {"name": "page", "in": "query", "schema": {"type": "integer"}, "description": "Which page"},
            "id": {"name": "id", "in": "path", "required": true, "schema": {"type": "string"}, "description": "Whose"}
        }}
    });
    serde_json::to_string_pretty(&document).unwrap()
}

/// The peak memory of the server in bytes.
fn peak(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[test]
fn e26_a_large_document_is_used_but_for_what_cannot_be_and_takes_little_memory() {
    let world = World::empty();
    let document = large();
    assert!(document.len() > 10 << 20, "{} bytes are not large", document.len());
    world.write("api.json", &document);
    world.write("windlass.toml", "[openapi.big]\nfile = \"api.json\"\n");
    let left_out = ["2 operations left out, `POST /raw`, `POST /upload`", "a body in `text/plain` is not supported"];
    let checked = world.ok(&["check"]);
    has(&checked, &left_out);
    has(&checked, &["1200 tools, 1 warning"]);
    let server = world.serve(&[]);
    assert!(peak(&server) < MAX_MEMORY, "{} bytes at the start", peak(&server));
    assert_eq!(world.json(&["tools", "list"])["tools"].as_array().map(Vec::len), Some(OPERATIONS));
    assert!(peak(&server) < MAX_MEMORY, "{} bytes once its tools were listed", peak(&server));
    let shown = world.json(&["tools", "show", "big_group_operation-959"]);
    let listed = world.json(&["tools", "list"]);
    assert!(
        listed["tools"].as_array().unwrap().iter().all(|tool| tool.get("input_schema").is_none()),
        "none is loaded"
    );
    let next = "/input_schema/properties/body/properties/next/properties/property_0/type";
    assert_eq!(shown.pointer(next), Some(&json!("string")), "{shown}");
    assert_eq!(server.stop(), 0);
}

#[test]
fn e26_a_server_logs_the_operations_that_it_leaves_out() {
    let world = World::empty();
    let text = json!({"content": {"text/plain": {}}});
    let paths = json!({"/raw": {"post": {"requestBody": text}}, "/fine": {"get": {"operationId": "fine"}}});
    let servers = json!([{"url": "https://api.example"}]);
    world.write("api.json", &json!({"openapi": "3.1.0", "servers": servers, "paths": paths}).to_string());
    world.write("windlass.toml", "[openapi.a]\nfile = \"api.json\"\n");
    let mut child = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut child = child.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let log = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let warning = log.map_while(Result::ok).find(|line| line.contains("POST /raw"));
    child.kill().unwrap();
    child.wait().unwrap();
    has(
        &warning.unwrap_or_default(),
        &["[openapi.a]: 1 operation left out", "a body in `text/plain` is not supported"],
    );
}
