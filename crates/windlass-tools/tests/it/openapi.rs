//! The operations of a document against a real server.

use serde_json::json as value;
use windlass::Windlass;
use windlass::tool::spec::Retry;
use windlass_tools::openapi::{Options, parse, tools};
use windlass_tools::secret::{Reference, Secrets};

use crate::server::{Reply, Server, json, response};

const DOCUMENT: &str = "
openapi: 3.1.0
info: { title: Notes, version: '1' }
servers: [ { url: 'https://notes.example/v1' } ]
security: [ { token: [] } ]
paths:
  /notes/{id}:
    parameters: [ { name: id, in: path, required: true, schema: { type: string } } ]
    get:
      operationId: read
      responses:
        200: { description: Note, content: { application/json: { schema: { $ref: '#/components/schemas/Note' } } } }
    put:
      operationId: write
      requestBody: { required: true, content: { application/json: { schema: { $ref: '#/components/schemas/Note' } } } }
      responses: { 204: { description: Kept } }
components:
  schemas:
    Note: { type: object, required: [text], properties: { text: { type: string } } }
  securitySchemes:
    token: { type: http, scheme: bearer }
";

#[tokio::test]
async fn operations_work_like_other_tools() {
    let server = Server::start(|request, n| match (request.method.as_str(), n) {
        ("PUT", 1) => Reply::Cut(vec![]),
        ("PUT", _) => response(204, "", ""),
        (_, 3) => json(200, r#"{"text": "hi"}"#),
        _ => json(200, r#"{"words": 1}"#),
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t"), "t0k3n").unwrap();
    let options = Options {
        secrets: Secrets::new([("notes".to_owned(), Reference::File(dir.path().join("t")))]),
        security: [("token".to_owned(), "${secret:notes}".parse().unwrap())].into(),
        base: Some(server.url("/v1")),
        ..Options::new(server.client())
    };
    let quickly = Retry { base: std::time::Duration::from_millis(1), ..Retry::attempts(3) };
    let mut builder = Windlass::in_memory();
    for imported in tools(parse(DOCUMENT).unwrap(), &options).unwrap().tools {
        builder = builder.tool(imported.tool.retry(quickly));
    }
    let windlass = builder.await.unwrap();
    let wrong = windlass.call_json("write", value!({"id": "a", "body": {"text": 5}})).await.unwrap();
    assert_eq!(wrong.error().unwrap().kind(), "invalid_arguments");
    assert!(server.requests().is_empty(), "arguments are checked before the request is sent");
    let kept = windlass.call_json("write", value!({"id": "a/b", "body": {"text": "hi"}})).await.unwrap();
    assert_eq!(kept.value(), Some(&value!(null)), "{kept:?}");
    let read = windlass.call_json("read", value!({"id": "a/b"})).await.unwrap();
    assert_eq!(read.value(), Some(&value!({"text": "hi"})));
    let odd = windlass.call_json("read", value!({"id": "c"})).await.unwrap();
    assert!(odd.error().unwrap().to_string().contains("text"), "the response does not match its schema: {odd:?}");
    let requests = server.requests();
    let lines: Vec<String> =
        requests.iter().map(|request| format!("{} {} {}", request.method, request.target, request.body)).collect();
    assert_eq!(
        lines,
        [
            "PUT /v1/notes/a%2Fb {\"text\":\"hi\"}",
            "PUT /v1/notes/a%2Fb {\"text\":\"hi\"}",
            "GET /v1/notes/a%2Fb ",
            "GET /v1/notes/c "
        ]
    );
    assert_eq!(requests[0].headers["idempotency-key"], requests[1].headers["idempotency-key"]);
    assert!(requests.iter().all(|request| request.headers["authorization"] == "Bearer t0k3n"));
}
