//! Every route for every kind of token: the expected status of each cell is in the table. A route that is missing from
//! the table fails the test.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::{Value, json};
use windlass::Timestamp;

use crate::net::{Answer, Client, until};
use crate::world::World;

/// The columns of the table. The tokens of one scope act for `ada`, who owns what the requests name.
const TOKENS: [&str; 11] =
    ["all", "ada", "bob", "read", "call", "approve", "impersonate", "admin", "none", "revoked", "expired"];

/// What a request names; all of it belongs to `ada`.
#[derive(Clone, Copy, PartialEq)]
enum Names {
    Nothing,
    /// A run that waits for an input, with its item and its reply key.
    Input,
    /// A run that waits for an approval.
    Approval,
    /// A run with a call in doubt.
    Doubt,
    /// A run that waits for a connection.
    Connection,
    /// A run that has ended.
    Ended,
    /// A session with a message, a value, a secret and a file.
    Session,
    /// A session that is closed.
    Closed,
    Artifact,
    /// A client that registered tools.
    Program,
    Token,
}
use Names::{Approval, Artifact, Closed, Connection, Doubt, Ended, Input, Nothing, Program, Session, Token};

/// Method, path, body, what it names, and the status for each token.
type Row = (&'static str, &'static str, Value, Names, &'static str);

#[rustfmt::skip]
fn table() -> Vec<Row> {
    let no = || Value::Null;
    let empty = || json!({});
    let text = || json!({"author": "user", "text": "hi"});
    vec![
        // The columns:                                                            all ada bob rea cal app imp adm non rev exp
        ("GET", "/", no(), Nothing,                                               "200 200 200 200 200 200 200 200 200 200 200"),
        ("GET", "/openapi.json", no(), Nothing,                                   "200 200 200 200 200 200 200 200 200 200 200"),
        ("GET", "/v1/health", no(), Nothing,                                      "200 200 200 200 200 200 200 200 200 200 200"),
        ("GET", "/v1/ready", no(), Nothing,                                       "200 200 200 200 200 200 200 200 200 200 200"),
        ("GET", "/metrics", no(), Nothing,                                        "200 200 200 200 403 403 403 403 401 401 401"),
        // Calls. A session of another principal cannot be called in.
        ("POST", "/v1/calls", json!({"tool": "ask", "wait_ms": 0}), Nothing,      "202 202 202 403 202 403 403 403 401 401 401"),
        ("POST", "/v1/calls", json!({"tool": "add", "session": "{session}"}), Session,
                                                                                  "200 200 404 403 200 403 403 403 401 401 401"),
        ("POST", "/v1/batches", json!({"calls": [{"tool": "add"}], "session": "{session}"}), Session,
                                                                                  "200 200 404 403 200 403 403 403 401 401 401"),
        // Runs.
        ("GET", "/v1/runs", no(), Input,                                          "200 200 200 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/runs/{run}", no(), Input,                                    "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/runs/{run}/outcome", no(), Input,                            "202 202 404 202 403 403 403 403 401 401 401"),
        ("GET", "/v1/runs/{run}/output", no(), Ended,                             "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/runs/{run}/events", no(), Input,                             "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/runs/{run}/journal", no(), Input,                            "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/runs/{run}/trace", no(), Input,                              "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/runs/{run}/explain", no(), Input,                            "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/runs/{run}/compare/{other}", no(), Input,                    "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/runs/{run}/export", no(), Input,                             "200 403 403 403 403 403 403 200 401 401 401"),
        ("POST", "/v1/runs/{run}/cancel", empty(), Input,                         "202 202 404 403 202 403 403 403 401 401 401"),
        ("POST", "/v1/runs/{run}/fork", json!({"at": "start"}), Input,            "201 201 404 403 201 403 403 403 401 401 401"),
        ("POST", "/v1/runs/{run}/signals/{name}", empty(), Input,                 "422 422 404 403 422 403 403 403 401 401 401"),
        ("POST", "/v1/runs/{run}/replay-check", empty(), Input,                   "200 200 404 403 200 403 403 403 401 401 401"),
        ("POST", "/v1/runs/{run}/resume", empty(), Input,                         "409 403 403 403 403 403 403 409 401 401 401"),
        ("POST", "/v1/runs/{run}/finish", json!({"value": 1, "reason": "over"}), Input,
                                                                                  "409 403 403 403 403 403 403 409 401 401 401"),
        ("DELETE", "/v1/runs/{run}", no(), Ended,                                 "204 403 403 403 403 403 403 204 401 401 401"),
        ("POST", "/v1/runs/import", empty(), Nothing,                             "422 403 403 403 403 403 403 422 401 401 401"),
        // The inbox.
        ("GET", "/v1/inbox", no(), Input,                                         "200 200 200 200 403 403 403 403 401 401 401"),
        ("POST", "/v1/inbox", json!({"action": "answer", "ids": ["{id}"], "value": 1}), Input,
                                                                                  "200 200 200 403 403 200 403 403 401 401 401"),
        ("POST", "/v1/inbox/{id}/answer", json!({"value": 1}), Input,             "200 200 404 403 403 200 403 403 401 401 401"),
        ("POST", "/v1/inbox/{id}/approve", empty(), Approval,                     "200 200 404 403 403 200 403 403 401 401 401"),
        ("POST", "/v1/inbox/{id}/deny", empty(), Approval,                        "200 200 404 403 403 200 403 403 401 401 401"),
        ("POST", "/v1/inbox/{id}/settle", json!({"settlement": "give_up", "reason": "over"}), Doubt,
                                                                                  "200 200 404 403 403 200 403 403 401 401 401"),
        ("POST", "/v1/inbox/{id}/connect", empty(), Connection,                   "200 200 404 403 403 200 403 403 401 401 401"),
        // Affects only runs of the sender's principal.
        ("POST", "/v1/connections/post", empty(), Connection,                     "200 200 200 403 403 200 403 403 401 401 401"),
        ("GET", "/v1/connections", no(), Connection,                              "200 200 200 200 403 403 403 403 401 401 401"),
        // Each deletes the connection of its own principal. Those of other principals than ada exist since the row before.
        ("DELETE", "/v1/connections/post", no(), Connection,                      "204 404 204 403 403 404 403 403 401 401 401"),
        // The reply key is the credential.
        ("POST", "/v1/replies/{key}", json!({"value": 1}), Input,                 "200 200 200 200 200 200 200 200 200 200 200"),
        // Tools.
        ("GET", "/v1/tools", no(), Nothing,                                       "200 200 200 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/tools/add", no(), Nothing,                                   "200 200 200 200 403 403 403 403 401 401 401"),
        ("POST", "/v1/tools/add/check", json!({"session": "{session}"}), Session, "200 200 404 200 403 403 403 403 401 401 401"),
        // Client tools belong to the token that registered them.
        ("POST", "/v1/clients", json!({"tools": []}), Nothing,                    "422 422 422 403 422 403 403 403 401 401 401"),
        ("GET", "/v1/clients/{client}/calls", no(), Program,                      "404 200 404 403 404 403 403 403 401 401 401"),
        ("DELETE", "/v1/clients/{client}", no(), Program,                         "404 204 404 403 404 403 403 403 401 401 401"),
        // Sessions.
        ("GET", "/v1/sessions", no(), Session,                                    "200 200 200 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}", no(), Session,                          "200 200 404 200 403 403 403 403 401 401 401"),
        ("PUT", "/v1/sessions/{session}", json!({"title": "T"}), Session,         "200 200 404 403 200 403 403 403 401 401 401"),
        ("DELETE", "/v1/sessions/{session}", no(), Closed,                        "204 403 403 403 403 403 403 204 401 401 401"),
        ("POST", "/v1/sessions/{session}/close", empty(), Session,                "200 200 404 403 200 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}/messages", no(), Session,                 "200 200 404 200 403 403 403 403 401 401 401"),
        ("POST", "/v1/sessions/{session}/messages", text(), Session,              "201 201 404 403 201 403 403 403 401 401 401"),
        // Runs of several principals may share the name of a session that was never opened, so the events are those of
        // the own runs.
        ("GET", "/v1/sessions/{session}/events", no(), Session,                   "200 200 200 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}/data", no(), Session,                     "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}/data/{name}", no(), Session,              "200 200 404 200 403 403 403 403 401 401 401"),
        ("PUT", "/v1/sessions/{session}/data/{name}", json!({"value": 2}), Session,
                                                                                  "204 204 404 403 204 403 403 403 401 401 401"),
        ("DELETE", "/v1/sessions/{session}/data/{name}", no(), Session,           "204 204 404 403 204 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}/secrets", no(), Session,                  "200 200 404 200 403 403 403 403 401 401 401"),
        ("PUT", "/v1/sessions/{session}/secrets/{name}", json!({"value": "x"}), Session,
                                                                                  "204 204 404 403 204 403 403 403 401 401 401"),
        ("DELETE", "/v1/sessions/{session}/secrets/{name}", no(), Session,        "204 204 404 403 204 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}/idle", no(), Session,                     "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}/context", no(), Session,                  "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}/tools", no(), Session,                    "200 200 404 200 403 403 403 403 401 401 401"),
        ("PUT", "/v1/sessions/{session}/tools", empty(), Session,                 "422 422 404 403 422 403 403 403 401 401 401"),
        ("PUT", "/v1/sessions/{session}/tools", json!({"hide": ["pay"]}), Session, "200 200 404 403 200 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}/files", no(), Session,                    "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}/files-search?pattern=ada", no(), Session, "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}/files/{name}", no(), Session,             "200 200 404 200 403 403 403 403 401 401 401"),
        ("GET", "/v1/sessions/{session}/files/none", no(), Session,               "404 404 404 404 403 403 403 403 401 401 401"),
        ("PUT", "/v1/sessions/{session}/files/{name}", json!("x"), Session,       "200 200 404 403 200 403 403 403 401 401 401"),
        ("PUT", "/v1/sessions/{session}/files/sub/new", json!("x"), Session,      "201 201 404 403 201 403 403 403 401 401 401"),
        ("PUT", "/v1/sessions/{session}/files/dir?directory=true", no(), Session, "201 201 404 403 201 403 403 403 401 401 401"),
        ("PUT", "/v1/sessions/{session}/files/{name}", json!("x"), Closed,        "409 409 404 403 409 403 403 403 401 401 401"),
        ("DELETE", "/v1/sessions/{session}/files/{name}", no(), Session,          "204 204 404 403 204 403 403 403 401 401 401"),
        // Artifacts.
        ("POST", "/v1/artifacts?session={session}", json!("content"), Session,    "201 201 404 403 201 403 403 403 401 401 401"),
        ("GET", "/v1/artifacts/{id}?session={session}", no(), Artifact,           "200 200 404 200 403 403 403 403 401 401 401"),
        // Administration.
        ("GET", "/v1/tokens", no(), Nothing,                                      "200 403 403 403 403 403 403 200 401 401 401"),
        ("POST", "/v1/tokens", json!({"name": "new{n}", "scopes": ["read"]}), Nothing,
                                                                                  "201 403 403 403 403 403 403 201 401 401 401"),
        ("DELETE", "/v1/tokens/{id}", no(), Token,                                "204 403 403 403 403 403 403 204 401 401 401"),
        ("POST", "/v1/admin/tidy", empty(), Nothing,                              "200 403 403 403 403 403 403 200 401 401 401"),
        ("POST", "/v1/admin/backup", json!({"to": "{dir}/backup{n}.db"}), Nothing,
                                                                                  "200 403 403 403 403 403 403 200 401 401 401"),
        ("POST", "/v1/admin/check", empty(), Nothing,                             "200 403 403 403 403 403 403 200 401 401 401"),
        ("POST", "/v1/admin/reload", empty(), Nothing,                            "409 403 403 403 403 403 403 409 401 401 401"),
    ]
}

/// The words that a request's placeholders stand for.
#[derive(Clone, Default)]
struct Scene(Vec<(&'static str, String)>);

impl Scene {
    fn fill(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    }

    /// The same request about things that do not exist.
    fn missing(&self) -> Self {
        let run = self.0.iter().find(|(name, _)| *name == "run").map(|(_, run)| run.clone());
        let absent = |(name, value): &(&'static str, String)| {
            let value = match (*name, &run) {
                ("session", _) => "never-there".to_owned(),
                ("id", None) => format!("b3:{}", "0".repeat(64)),
                (_, Some(run)) => value.replace(run.as_str(), NO_RUN),
                _ => value.clone(),
            };
            (*name, value)
        };
        Self(self.0.iter().map(absent).collect())
    }

    fn values(&self, names: &[&str]) -> Vec<String> {
        self.0.iter().filter(|(name, _)| names.contains(name)).map(|(_, value)| value.clone()).collect()
    }
}

const NO_RUN: &str = "01900000-0000-7000-8000-000000000000";

struct Matrix {
    world: World,
    clients: Vec<Client>,
    made: u32,
}

impl Matrix {
    async fn new() -> Self {
        let world = World::new().await;
        let all = ["admin", "read", "call", "approve", "impersonate"];
        let first = world.client.post("/v1/tokens", json!({"name": "all", "scopes": all})).await.is(201);
        let root = world.client.bearing(first["secret"].as_str().unwrap());
        let mut clients = vec![root.clone()];
        for name in &TOKENS[1..] {
            let user = json!(["read", "call", "approve"]);
            let (scopes, principal) = match *name {
                "ada" | "revoked" | "expired" => (user, "ada"),
                "bob" => (user, "bob"),
                "none" => {
                    clients.push(world.client.clone());
                    continue;
                }
                scope => (json!([scope]), "ada"),
            };
            let mut request = json!({"name": name, "scopes": scopes, "principal": principal});
            if *name == "expired" {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
                let soon = Timestamp::from_micros(i64::try_from(now.as_micros()).unwrap() + 2_000_000);
                request["expires"] = json!(soon.to_string());
            }
            let made = root.post("/v1/tokens", request).await.is(201);
            let client = root.bearing(made["secret"].as_str().unwrap());
            match *name {
                "revoked" => drop(root.delete(&format!("/v1/tokens/{}", made["id"].as_str().unwrap())).await.is(204)),
                "expired" => {
                    until(|| async { (client.get("/v1/runs").await.status == 401).then_some(()) }).await;
                }
                _ => {}
            }
            clients.push(client);
        }
        Self { world, clients, made: 0 }
    }

    fn client(&self, name: &str) -> &Client {
        &self.clients[TOKENS.iter().position(|token| *token == name).unwrap()]
    }

    async fn start(&self, tool: &str, args: Value) -> String {
        let call = json!({"tool": tool, "args": args, "wait_ms": 0, "cause": "turn of ada"});
        self.client("ada").post("/v1/calls", call).await.is(202)["run"].as_str().unwrap().to_owned()
    }

    /// Makes what a request names, as `ada`.
    async fn scene(&mut self, names: Names) -> Scene {
        self.made += 1;
        let ada = self.client("ada").clone();
        let dir = self.world.path("").display().to_string();
        let mut words = vec![("n", self.made.to_string()), ("name", "entry".to_owned()), ("dir", dir)];
        let waiting = match names {
            Input => Some(("ask", json!({}))),
            Approval => Some(("pay", json!({"cents": 500}))),
            Doubt => Some(("doubt", json!({}))),
            Connection => Some(("mail", json!({}))),
            _ => None,
        };
        if names == Connection {
            // A connection is kept, so that the next call does not ask for it.
            ada.send("DELETE", "/v1/connections/post", &[], Vec::new().into()).await;
        }
        if let Some((tool, args)) = waiting {
            let run = self.start(tool, args).await;
            let items = format!("/v1/inbox?run={run}");
            let item = until(|| async { ada.get(&items).await.is(200)["items"].as_array().unwrap().first().cloned() });
            let item = item.await;
            words.push(("id", item["id"].as_str().unwrap().to_owned()));
            words.extend(item["key"].as_str().map(|key| ("key", key.to_owned())));
            if names == Input {
                words.push(("other", self.start("ask", json!({})).await));
            }
            words.push(("run", run));
        }
        let session = format!("of-ada-{}", self.made);
        match names {
            Ended => {
                let run = ada.post("/v1/calls", json!({"tool": "charge"})).await.is(200)["run"].clone();
                words.push(("run", run.as_str().unwrap().to_owned()));
            }
            Session | Closed | Artifact => {
                let put = async |path: &str, body: Value| {
                    let headers = [("content-type", "application/json")];
                    let path = format!("/v1/sessions/{session}{path}");
                    assert!(ada.send("PUT", &path, &headers, body.to_string().into()).await.status < 300, "{path}");
                };
                put("", json!({"title": "Title of ada"})).await;
                put("/data/entry", json!({"value": "value of ada"})).await;
                put("/secrets/entry", json!({"value": "hidden"})).await;
                put("/files/entry", json!("file of ada")).await;
                let message = json!({"author": "user", "text": "message of ada"});
                ada.post(&format!("/v1/sessions/{session}/messages"), message).await.is(201);
                if names == Artifact {
                    let stored = ada.post(&format!("/v1/artifacts?session={session}"), json!("content of ada")).await;
                    words.push(("id", stored.is(201)["artifact"].as_str().unwrap().to_owned()));
                }
                if names == Closed {
                    ada.post(&format!("/v1/sessions/{session}/close"), json!({})).await.is(200);
                }
                words.push(("session", session));
            }
            Program => {
                let tool = json!({"name": format!("tool{}", self.made), "description": "d"});
                let client = ada.post("/v1/clients", json!({"tools": [tool], "everywhere": true})).await.is(201);
                words.push(("client", client["client"].as_str().unwrap().to_owned()));
            }
            Token => {
                let request = json!({"name": format!("made{}", self.made), "scopes": ["read"]});
                let made = self.client("all").post("/v1/tokens", request).await.is(201);
                words.push(("id", made["id"].as_str().unwrap().to_owned()));
            }
            _ => {}
        }
        Scene(words)
    }

    async fn send(&self, client: &Client, row: &Row, scene: &Scene) -> Answer {
        let (method, path, body, ..) = row;
        let headers: &[(&str, &str)] = &[("accept", "application/json"), ("content-type", "application/json")];
        let body = if body.is_null() { String::new() } else { scene.fill(&body.to_string()) };
        let response = client.open(method, &scene.fill(path), headers, body.into()).await;
        // A stream has no end.
        if response.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream") {
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            return Answer { status, headers, body: Default::default() };
        }
        crate::net::collect(response).await
    }
}

/// The routes of the API, as method and path.
async fn routes(client: &Client) -> BTreeSet<(String, String)> {
    let api = client.get("/openapi.json").await.is(200);
    let paths = api["paths"].as_object().unwrap().iter();
    let methods = |(path, item): (&String, &Value)| {
        let methods =
            item.as_object().unwrap().keys().filter(|key| ["get", "put", "post", "delete"].contains(&key.as_str()));
        methods.map(|method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
    };
    paths.flat_map(methods).collect()
}

/// Whether a path of the table is an instance of a route.
fn is_of(path: &str, route: &str) -> bool {
    let path = path.split('?').next().unwrap_or(path);
    let (path, route): (Vec<&str>, Vec<&str>) = (path.split('/').collect(), route.split('/').collect());
    path.len() == route.len() && path.iter().zip(&route).all(|(a, b)| a == b || b.starts_with('{'))
}

#[tokio::test(flavor = "multi_thread")]
async fn l28_every_route_answers_every_token_as_the_table_says() {
    let mut matrix = Matrix::new().await;
    let table = table();
    for (method, route) in routes(&matrix.world.client).await {
        // A route without parameters is not an instance of one with.
        let exact = table.iter().any(|row| row.0 == method && row.1.split('?').next() == Some(route.as_str()));
        let found = exact || (route.contains('{') && table.iter().any(|row| row.0 == method && is_of(row.1, &route)));
        assert!(found, "{method} {route} is missing from the table: say what each token gets");
    }
    let mut wrong = Vec::new();
    for row in &table {
        let (method, path, _, names, expected) = row;
        let mut found = Vec::new();
        for (name, client) in TOKENS.iter().zip(matrix.clients.clone()) {
            let scene = matrix.scene(*names).await;
            let answer = matrix.send(&client, row, &scene).await;
            found.push(answer.status.to_string());
            if *name != "bob" {
                continue;
            }
            // What another principal has looks missing, and nothing of it is shown.
            let shown = String::from_utf8_lossy(&answer.body).into_owned();
            let plain = |text: String, scene: &Scene| {
                let ids = scene.values(&["run", "other", "session", "id", "key", "client"]);
                ids.iter().fold(text, |text, id| text.replace(id.as_str(), "…"))
            };
            let of_ada = plain(shown.clone(), &scene);
            assert!(!of_ada.contains("of ada") && !of_ada.contains("\"ada\""), "{method} {path}: {shown}");
            if !matches!(*names, Nothing) && answer.status == 200 {
                let listed = scene.values(&["run", "session"]);
                let leaks = listed.iter().find(|id| shown.contains(id.as_str()) && !path.contains('{'));
                assert!(leaks.is_none() || *path == "/v1/inbox" && *method == "POST", "{method} {path}: {shown}");
            }
            // A session that does not exist may be begun, so its name cannot look free.
            let begins = !path.contains("/{") || (*method, *path) == ("PUT", "/v1/sessions/{session}");
            if answer.status == 404 && !begins {
                let absent = scene.missing();
                let missing = matrix.send(&client, row, &absent).await;
                let missing = (missing.status, plain(String::from_utf8_lossy(&missing.body).into_owned(), &absent));
                assert_eq!((404, of_ada), missing, "{method} {path}");
            }
        }
        let found = found.join(" ");
        if found != *expected {
            wrong.push(format!("{method} {path}\n  found    {found}\n  expected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), table.len(), wrong.join("\n"));
}
