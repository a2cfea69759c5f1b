use serde_json::json;
use windlass::{Effect, ToolError};

use super::*;
use crate::net;
use crate::secret::{Redactor, Reference};

fn options() -> Options {
    let client = Client::new(net::Options::default()).unwrap();
    let security = [("key".to_owned(), "k".parse().unwrap())].into();
    Options { security, ..Options::new(client) }
}

fn petstore() -> Value {
    serde_saphyr::from_str(include_str!("petstore.yaml")).unwrap()
}

pub(super) fn view(document: &Value) -> DocumentView {
    Arc::new(parse(&document.to_string()).unwrap()).view()
}

fn import(document: &Value, options: &Options) -> Result<Import, Vec<Problem>> {
    super::tools(Document::split(&document.to_string()).map_err(|problem| vec![problem])?, options)
}

/// The tools of a document, with no operation left out.
fn tools(document: &Value, options: &Options) -> Result<Vec<Tool>, Vec<Problem>> {
    let import = import(document, options)?;
    assert_eq!(import.left_out, []);
    Ok(import.tools.into_iter().map(|imported| imported.tool).collect())
}

fn by_name<'t>(tools: &'t [Tool], name: &str) -> &'t Tool {
    let names: Vec<&str> = tools.iter().map(|tool| &*tool.spec().name).collect();
    tools.iter().find(|tool| &*tool.spec().name == name).unwrap_or_else(|| panic!("{name} is not among {names:?}"))
}

fn input(tools: &[Tool], name: &str) -> Value {
    by_name(tools, name).contract().unwrap().input().clone()
}

#[test]
fn each_operation_is_a_tool() {
    let tools = tools(&petstore(), &options()).unwrap();
    let made: Vec<(&str, Effect)> = tools.iter().map(|tool| (&*tool.spec().name, tool.spec().effect)).collect();
    assert_eq!(
        made,
        [
            ("listPets", Effect::Readonly),
            ("create_pet", Effect::Once),
            ("put_pets_petId_photos_id", Effect::Idempotent),
            ("search", Effect::Readonly),
        ]
    );
    let list = by_name(&tools, "listPets").spec();
    assert_eq!(list.about.description, "List all pets\n\nIn pages.");
    assert_eq!(
        (list.about.title.as_deref(), list.about.tags.join(" ")),
        (Some("List all pets"), "pets read".to_owned())
    );
    assert!(list.hints.open_world);
    assert_eq!(by_name(&tools, "search").spec().about.description, "POST /search");
}

#[test]
fn parameters_and_body_are_one_schema() {
    let tools = tools(&petstore(), &options()).unwrap();
    assert_eq!(
        input(&tools, "listPets"),
        json!({
            "type": "object",
            "properties": {
                "limit": {
                    "type": "integer", "exclusiveMaximum": 100, "default": 20, "examples": [5], "description": "How many"
                },
                "tags": {"type": "array", "items": {"type": "string"}},
                "status": {"type": "array", "items": {"type": "string", "enum": ["sold", "free"]}},
                "X-Trace": {"type": "string"},
            },
            "required": [],
            "additionalProperties": false
        })
    );
    assert_eq!(
        input(&tools, "put_pets_petId_photos_id"),
        json!({
            "type": "object",
            "properties": {
                "petId": {"type": "integer", "exclusiveMinimum": 0, "description": "Whose"},
                "path_id": {"type": "string"},
                "query_id": {"type": ["string", "null"]},
            },
            "required": ["path_id", "petId"],
            "additionalProperties": false
        })
    );
}

#[test]
fn references_are_inlined_and_recursive_ones_become_definitions() {
    let tools = tools(&petstore(), &options()).unwrap();
    let pet = |with_id: bool| {
        let mut pet = json!({
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string"},
                "kind": {"type": ["string", "null"], "enum": ["cat", "dog", null]},
                "owner": {"anyOf": [
                    {"allOf": [{"type": "object", "properties": {
                        "password": {"type": "string", "format": "password", "writeOnly": true}
                    }}]},
                    {"type": "null"}
                ]},
                "parent": {"$ref": "#/$defs/Pet"},
            }
        });
        if with_id {
            pet["required"] = json!(["id", "name"]);
            pet["properties"]["id"] = json!({"type": "integer", "readOnly": true});
        }
        pet
    };
    let created = by_name(&tools, "create_pet").contract().unwrap();
    assert_eq!(created.input()["properties"]["body"], json!({"$ref": "#/$defs/Pet"}));
    assert_eq!(
        created.input()["$defs"],
        json!({"Pet": pet(false)}),
        "properties set by the server are not in requests"
    );
    assert_eq!(created.input()["required"], json!(["body"]));
    let output = created.output().unwrap();
    assert_eq!(output["anyOf"], json!([{"$ref": "#/$defs/Pet"}, {"type": "null"}]));
    assert_eq!(output["$defs"], json!({"Pet": pet(true)}));
    let fine = json!({"body": {"name": "Rex", "kind": null, "parent": {"name": "Lassie", "owner": null}}});
    assert!(created.check_arguments(&fine).is_ok());
    let error = created.check_arguments(&json!({"body": {"name": "Rex", "parent": {"name": 5}}})).unwrap_err();
    let ToolError::InvalidArguments { violations } = error else { panic!("{error}") };
    assert_eq!(violations[0].pointer, "/body/parent/name");
}

/// The request of an operation, as text.
fn request(document: &Value, label: (&str, &str), args: Value, options: &Options) -> Result<String, ToolError> {
    let document = view(document);
    let item = document.at(&format!("#/paths/{}", document::escaped(label.1))).unwrap();
    let operation = Operation::read(&document, label.1, &item, label.0, options).unwrap();
    let request = operation.request(&args, &options.secrets, &mut Redactor::default())?;
    let mut headers: Vec<String> =
        request.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    headers.retain(|header| !header.starts_with("accept"));
    headers.sort();
    let body = String::from_utf8(request.body.to_vec()).unwrap();
    Ok(format!("{} {} [{}] {body}", request.method, request.url, headers.join(", ")).trim_end().to_owned())
}

#[test]
fn arguments_are_sent_where_their_parameters_belong() {
    let petstore = petstore();
    for (label, args, expected) in [
        (("get", "/pets"), json!({}), "GET https://eu.pets.example:8443/v2/pets [x-api-key: k]"),
        (
            ("get", "/pets"),
            json!({"limit": 5, "tags": ["a b", "c"], "status": ["sold", "free"], "X-Trace": "t"}),
            "GET https://eu.pets.example:8443/v2/pets?limit=5&status=sold,free&tags=a%20b&tags=c [x-api-key: k, x-trace: t]",
        ),
        (
            ("post", "/pets"),
            json!({"body": {"name": "Rex"}}),
            "POST https://eu.pets.example:8443/v2/pets [content-type: application/json, x-api-key: k] {\"name\":\"Rex\"}",
        ),
        (
            ("put", "/pets/{petId}/photos/{id}"),
            json!({"petId": 5, "path_id": "a/b?c", "query_id": "q&r"}),
            "PUT https://eu.pets.example:8443/v2/pets/5/photos/a%2Fb%3Fc?id=q%26r []",
        ),
        (
            ("post", "/search"),
            json!({"body": {"q": "a b&c", "list": [1, 2], "deep": {"x": true}}}),
            "POST https://eu.pets.example:8443/v2/search [content-type: application/x-www-form-urlencoded] \
             deep%5Bx%5D=true&list=1&list=2&q=a%20b%26c",
        ),
    ] {
        assert_eq!(request(&petstore, label, args, &options()).unwrap(), expected);
    }
    for id in ["..", "a/../b", ""] {
        let args = json!({"petId": 5, "path_id": id});
        let error = request(&petstore, ("put", "/pets/{petId}/photos/{id}"), args, &options()).unwrap_err();
        let ToolError::InvalidArguments { violations } = error else { panic!("{error}") };
        assert_eq!(violations[0].pointer, "/path_id");
    }
    let args = json!({"X-Trace": "a\r\nX-Api-Key: b"});
    assert_eq!(request(&petstore, ("get", "/pets"), args, &options()).unwrap_err().kind(), "invalid_arguments");
}

#[test]
fn credentials_come_from_secrets() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("p"), "pass").unwrap();
    let secrets = Secrets::new([("p".to_owned(), Reference::File(dir.path().join("p")))]);
    let security = [("basic".to_owned(), "ann:${secret:p}".parse().unwrap())].into();
    let options = Options { secrets, security, base: Some("https://other.example/api/".to_owned()), ..options() };
    let args = json!({"petId": 5, "path_id": "x"});
    let sent = request(&petstore(), ("put", "/pets/{petId}/photos/{id}"), args, &options).unwrap();
    assert_eq!(sent, "PUT https://other.example/api/pets/5/photos/x [authorization: Basic YW5uOnBhc3M=]");
    let expected =
        "#/security: the operation needs `key`; configure it in `security`, or leave the operation out with `exclude`";
    let left_out = import(&petstore(), &options).unwrap().left_out;
    let left_out: Vec<String> = left_out.iter().map(|it| format!("{} {}", it.operation, it.problem)).collect();
    assert_eq!(left_out, [format!("GET /pets {expected}"), format!("POST /pets {expected}")]);
    let none = Options { exclude: vec!["PUT *".to_owned(), "search".to_owned()], ..options };
    let problems: Vec<String> = import(&petstore(), &none).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(problems, [expected], "once, not for each operation");
    for (scheme, expected) in [
        (json!({"type": "http", "scheme": "Bearer"}), "GET https://a.example/x [authorization: Bearer t]"),
        (json!({"type": "oauth2", "flows": {}}), "GET https://a.example/x [authorization: Bearer t]"),
        (json!({"type": "apiKey", "in": "query", "name": "key"}), "GET https://a.example/x?key=t []"),
    ] {
        let document = json!({
            "openapi": "3.1.0", "servers": [{"url": "https://a.example"}],
            "paths": {"/x": {"get": {"security": [{"s": []}]}}}, "components": {"securitySchemes": {"s": scheme}}
        });
        let options = Options { security: [("s".to_owned(), "t".parse().unwrap())].into(), ..self::options() };
        assert_eq!(request(&document, ("get", "/x"), json!({}), &options).unwrap(), expected);
    }
}

#[test]
fn operations_are_selected_by_patterns() {
    let names = |include: &[&str], exclude: &[&str], deprecated| {
        let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        let options = Options { include: own(include), exclude: own(exclude), deprecated, ..options() };
        let tools = tools(&petstore(), &options).unwrap();
        tools.iter().map(|tool| tool.spec().name.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&["tag:pets"], &[], Deprecated::Skip), "listPets create_pet");
    assert_eq!(names(&["tag:p*"], &["create*"], Deprecated::Skip), "listPets");
    assert_eq!(names(&["POST *"], &[], Deprecated::Skip), "create_pet search");
    assert_eq!(names(&["*Photo"], &[], Deprecated::Skip), "");
    assert_eq!(names(&["*Photo"], &[], Deprecated::Mark), "dropPhoto");
    let prefixed = Options { prefix: "pets_".to_owned(), deprecated: Deprecated::Mark, ..options() };
    let tools = tools(&petstore(), &prefixed).unwrap();
    assert_eq!(by_name(&tools, "pets_dropPhoto").spec().about.description, "Deprecated.");
}

/// A document of 3.1 with one operation.
fn one(operation: Value, components: Value) -> Value {
    json!({
        "openapi": "3.1.0", "servers": [{"url": "https://a.example"}],
        "paths": {"/x": {"post": operation}}, "components": components
    })
}

#[test]
fn schemas_of_3_1_are_unchanged() {
    let schema = json!({
        "type": ["object", "null"],
        "properties": {
            "n": {"exclusiveMinimum": 0, "type": "number"},
            "t": {"$ref": "#/components/schemas/T", "description": "beside"},
            "u": {"$ref": "#/components/schemas/T", "minLength": 2},
            "const": {"const": 1}, "tuple": {"prefixItems": [{"$ref": "#/components/schemas/T"}], "items": false}
        }
    });
    let operation = json!({"requestBody": {"content": {"application/vnd.x+json": {"schema": schema}}}});
    let document = one(operation, json!({"schemas": {"T": {"type": "string", "description": "there", "$id": "x"}}}));
    let tools = tools(&document, &options()).unwrap();
    let body = &input(&tools, "post_x")["properties"]["body"];
    let text = json!({"type": "string", "description": "there"});
    assert_eq!(body["type"], json!(["object", "null"]));
    assert_eq!(body["properties"]["n"], json!({"exclusiveMinimum": 0, "type": "number"}));
    assert_eq!(body["properties"]["t"], json!({"type": "string", "description": "beside"}));
    assert_eq!(body["properties"]["u"], json!({"minLength": 2, "allOf": [text]}));
    assert_eq!(body["properties"]["tuple"], json!({"prefixItems": [text], "items": false}));
    let sent = request(&document, ("post", "/x"), json!({"body": null}), &options()).unwrap();
    assert_eq!(sent, "POST https://a.example/x [content-type: application/vnd.x+json] null");
}

#[test]
fn schemas_with_many_references_stay_small() {
    let mut schemas = serde_json::Map::new();
    for n in 0..30 {
        let next = json!({"$ref": format!("#/components/schemas/S{}", n + 1)});
        schemas.insert(format!("S{n}"), json!({"type": "object", "properties": {"a": next, "b": next}}));
    }
    schemas.insert("S30".to_owned(), json!({"type": "string"}));
    let body = json!({"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}});
    let document = one(json!({"requestBody": body}), json!({"schemas": schemas}));
    let tools = tools(&document, &options()).unwrap();
    let schema = input(&tools, "post_x");
    assert_eq!(schema["properties"]["body"], json!({"$ref": "#/$defs/S0"}));
    assert_eq!(schema["$defs"].as_object().unwrap().len(), 31, "each once, not a billion times");
}

#[test]
fn mutually_recursive_schemas_terminate() {
    let schemas = json!({
        "A": {"properties": {"b": {"$ref": "#/components/schemas/B"}}},
        "B": {"properties": {"a": {"$ref": "#/components/schemas/A"}, "inner": {"$ref": "#/components/schemas/B/properties/a"}}},
        "Self": {"$ref": "#/components/schemas/Self"},
        "All": {"allOf": [{"type": "object"}, {"not": {"$ref": "#/components/schemas/Part"}}]},
        "Part": {"oneOf": [{"$ref": "#/components/schemas/All"}]}
    });
    let body = |name: &str| json!({"requestBody": {"content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}}}});
    let tools = tools(&one(body("A"), json!({"schemas": schemas})), &options()).unwrap();
    let names: Vec<String> = input(&tools, "post_x")["$defs"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["A", "B", "a"]);
    for name in ["Self", "All"] {
        let problems = import(&one(body(name), json!({"schemas": schemas})), &options()).unwrap_err();
        assert!(problems[0].message.contains("refers directly to itself"), "{problems:?}");
    }
}

#[test]
fn the_schemas_of_a_large_document_are_created_lazily() {
    let mut paths = serde_json::Map::new();
    for n in 0..200 {
        let broken = json!({"name": "x", "in": "query", "schema": {"$ref": "#/nowhere"}});
        let fine = json!({"name": "x", "in": "query", "schema": {"type": "string"}});
        let parameters = if n == 7 { vec![broken] } else { vec![fine] };
        paths.insert(format!("/p{n}"), json!({"get": {"operationId": format!("op{n}"), "parameters": parameters}}));
    }
    let document = json!({"openapi": "3.1.0", "servers": [{"url": "https://a.example"}], "paths": paths});
    let before = windlass::tool::Contract::compiled();
    let tools = tools(&document, &options()).unwrap();
    let toolbox = windlass::Toolbox::new();
    for tool in tools {
        toolbox.insert(tool).unwrap();
    }
    assert_eq!(windlass::tool::Contract::compiled(), before, "no schema was compiled");
    assert!(toolbox.get("op0").unwrap().contract().is_ok());
    let error = toolbox.get("op7").unwrap().contract().err().unwrap().to_string();
    assert!(error.contains("#/paths/~1p7/get/parameters/0/schema: `#/nowhere` does not exist"), "{error}");
}

#[test]
fn e26_operations_that_cannot_become_tools_are_left_out_and_reported() {
    let text = json!({"content": {"text/plain": {"schema": {"type": "string"}}}});
    let cookie = json!([{"name": "c", "in": "cookie", "required": true}]);
    let broken = json!([{"name": "q", "in": "query", "schema": {"$ref": "#/nowhere"}}]);
    let document = json!({
        "openapi": "3.1.0", "servers": [{"url": "https://a.example"}],
        "paths": {
            "/fine": {"get": {"operationId": "fine"}},
            "/raw": {"post": {"operationId": "raw", "requestBody": text}, "get": {"operationId": "raw"}},
            "/cookie": {"get": {"parameters": cookie}},
            "/schema": {"get": {"parameters": broken}},
            "/gone": {"$ref": "#/components/pathItems/Gone"},
        }
    });
    let import = import(&document, &options()).unwrap();
    let names: Vec<String> = import.tools.iter().map(|it| it.tool.spec().name.to_string()).collect();
    assert_eq!(names, ["fine", "raw"], "the others keep their names");
    let mut left_out: Vec<String> =
        import.left_out.iter().map(|it| format!("{} {}", it.operation, it.problem)).collect();
    left_out.sort();
    let expected = [
        "/gone #/paths/~1gone: `#/components/pathItems/Gone` does not exist in the document",
        "GET /cookie #/paths/~1cookie/get/parameters/0: the cookie `c` is required, but cookies are not supported",
        "GET /schema #/paths/~1schema/get/parameters/0/schema: `#/nowhere` does not exist in the document",
        "POST /raw #/paths/~1raw/post/requestBody/content: a body in `text/plain` is not supported; only JSON and forms are",
    ];
    assert_eq!(left_out, expected);
}

#[test]
fn e26_a_revision_changes_with_everything_its_operation_refers_to() {
    let revisions = |document: &Value| -> Vec<u64> {
        import(document, &options()).unwrap().tools.iter().map(|imported| imported.revision).collect()
    };
    let body = json!({"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}});
    let base = json!({
        "openapi": "3.1.0", "servers": [{"url": "https://a.example"}],
        "paths": {"/a": {"post": {"requestBody": body}, "get": {}}, "/b": {"get": {}}},
        "components": {"schemas": {
            "A": {"properties": {"b": {"$ref": "#/components/schemas/B/properties/c"}}},
            "B": {"properties": {"c": {"$ref": "#/components/schemas/A"}, "d": {"type": "string"}}}
        }}
    });
    let before = revisions(&base);
    for (pointer, value, changed) in [
        ("/components/schemas/B/properties/d/type", json!("integer"), [false, true, false]),
        ("/components/schemas/A", json!({}), [false, true, false]),
        ("/paths/~1b/get", json!({"summary": "new"}), [false, false, true]),
        ("/servers/0/url", json!("https://b.example"), [true, true, true]),
        ("/paths/~1a/get", json!({}), [false, false, false]),
    ] {
        let mut document = base.clone();
        *document.pointer_mut(pointer).unwrap() = value;
        let now: Vec<bool> = revisions(&document).iter().zip(&before).map(|(now, before)| now != before).collect();
        assert_eq!(now, changed, "{pointer}");
    }
}

#[test]
fn e26_an_object_cannot_take_the_name_of_another_parameter() {
    let document = json!({
        "openapi": "3.0.0", "servers": [{"url": "https://a.example"}],
        "paths": {"/x": {"get": {"security": [{"k": []}], "parameters": [
            {"name": "filter", "in": "query", "schema": {"type": "object"}},
            {"name": "admin", "in": "query", "schema": {"type": "boolean"}}
        ]}}},
        "components": {"securitySchemes": {"k": {"type": "apiKey", "in": "query", "name": "api key"}}}
    });
    let options = Options { security: [("k".to_owned(), "t".parse().unwrap())].into(), ..options() };
    let sent = request(&document, ("get", "/x"), json!({"filter": {"a&b": "c=d"}}), &options).unwrap();
    assert_eq!(sent, "GET https://a.example/x?a%26b=c%3Dd&api%20key=t []");
    for name in ["admin", "api key"] {
        let error = request(&document, ("get", "/x"), json!({"filter": {name: "1"}}), &options).unwrap_err();
        assert!(error.to_string().contains("is the name of another parameter"), "{error}");
    }
}

#[test]
fn problems_have_a_location() {
    let with = |change: fn(&mut Value)| {
        let mut document = one(json!({"responses": {}}), json!({}));
        change(&mut document);
        document
    };
    for (document, expected) in [
        (json!({"swagger": "2.0"}), "#/swagger: Swagger 2 is not supported"),
        (json!({"openapi": "4.0.0"}), "#/openapi: version 4.0.0 is not supported"),
        (json!([]), "#/openapi: this is not an OpenAPI document"),
        (with(|d| d["servers"] = json!([])), "#: the document has no server"),
        (with(|d| d["servers"] = json!([{"url": "/v1"}])), "#/servers/0: the server `/v1` is relative; set `base_url`"),
        (with(|d| d["servers"] = json!([{"url": "https://{x}/"}])), "#/servers/0: the variable `x` has no value"),
        (with(|d| d["servers"] = json!([{"url": "ftp://x/"}])), "#/servers/0: the server `ftp://x/` is not valid"),
        (
            with(|d| d["paths"]["/x"]["post"]["x-windlass-effect"] = json!("twice")),
            "#/paths/~1x/post: `x-windlass-effect` must be",
        ),
        (
            with(|d| d["paths"]["/x"]["post"]["requestBody"] = json!({"content": {"multipart/form-data": {}}})),
            "#/paths/~1x/post/requestBody/content: a body in `multipart/form-data` is not supported",
        ),
        (
            with(|d| d["paths"]["/x"]["post"]["parameters"] = json!([{"name": "y", "in": "path"}])),
            "#/paths/~1x/post: the parameter `y` is not in the path",
        ),
        (
            with(|d| d["paths"] = json!({"/{z}": {"get": {}}})),
            "#/paths/~1{z}/get: the path has `{z}`, but there is no such parameter",
        ),
        (
            with(|d| {
                d["paths"]["/x"]["post"]["requestBody"] =
                    json!({"content": {"application/json": {"schema": {"items": 5}}}});
            }),
            "#/paths/~1x/post/requestBody/content/application~1json/schema/items: a schema must be an object or a boolean",
        ),
        (with(|d| d["security"] = json!([{"none": []}])), "#/security: the operation needs `none`"),
    ] {
        let problems = tools(&document, &options()).err().unwrap_or_default();
        let problem = problems.first().map(ToString::to_string).unwrap_or_default();
        assert!(problem.starts_with(expected), "{problem:?} instead of {expected}");
    }
    assert!(parse("{").err().unwrap().message.contains("not JSON"));
    assert!(parse("a: [").err().unwrap().message.contains("neither JSON nor YAML"));
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn e26_an_argument_of_an_operation_stays_within_its_placeholder(id in any::<String>(), query in any::<String>()) {
            let args = json!({"petId": 1, "path_id": id, "query_id": query});
            let Ok(sent) = request(&petstore(), ("put", "/pets/{petId}/photos/{id}"), args, &options()) else { return Ok(()) };
            let expected = format!(
                "PUT https://eu.pets.example:8443/v2/pets/1/photos/{}?id={} []",
                crate::encode::strict(&id),
                crate::encode::strict(&query)
            );
            prop_assert_eq!(sent, expected);
        }
    }
}
