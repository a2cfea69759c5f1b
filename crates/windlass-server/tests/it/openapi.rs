//! The OpenAPI description: complete, and matched by the responses.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn l23_the_openapi_description_covers_every_response() {
    let world = World::new().await;
    let api = world.client.get("/openapi.json").await.is(200);
    assert!(api["openapi"].as_str().unwrap().starts_with("3.1"), "{}", api["openapi"]);
    let paths = api["paths"].as_object().unwrap();
    assert!(paths.len() > 40, "{}", paths.len());
    let mut ids = BTreeSet::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            let operation_name = format!("{method} {path}");
            assert!(operation["summary"].is_string(), "{operation_name}: no summary");
            assert!(
                ids.insert(operation["operationId"].as_str().unwrap().to_owned()),
                "{operation_name}: duplicate operation id"
            );
            let answers = operation["responses"].as_object().unwrap();
            for status in ["400", "401", "403", "404", "421", "429", "500", "503"] {
                let problem = &answers[status]["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(problem, "#/components/schemas/Problem", "{operation_name} {status}");
            }
            for parameter in path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()) {
                let known = operation["parameters"].as_array().unwrap();
                assert!(
                    known.iter().any(|one| one["name"] == parameter && one["in"] == "path"),
                    "{operation_name}: {parameter}"
                );
            }
            if method == "post" {
                let known = operation["parameters"].as_array().unwrap();
                assert!(known.iter().any(|one| one["name"] == "idempotency-key"), "{operation_name}");
            }
        }
    }
    let mut missing = Vec::new();
    references(&api, &mut |name: &str| {
        if api.pointer(name.trim_start_matches('#')).is_none() {
            missing.push(name.to_owned());
        }
    });
    assert_eq!(missing, Vec::<String>::new());
}

fn references(value: &Value, found: &mut impl FnMut(&str)) {
    match value {
        Value::Object(map) => {
            map.get("$ref").and_then(Value::as_str).into_iter().for_each(&mut *found);
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l23_responses_match_the_openapi_description() {
    let world = World::new().await;
    let api = world.client.get("/openapi.json").await.is(200);
    let run = world.call("steps", json!({"n": 1})).await["run"].as_str().unwrap().to_owned();
    world.start("pay", json!({"cents": 500})).await;
    world.item().await;
    let answers = [
        ("/v1/runs/{run}", format!("/v1/runs/{run}")),
        ("/v1/runs", "/v1/runs".to_owned()),
        ("/v1/runs/{run}/outcome", format!("/v1/runs/{run}/outcome")),
        ("/v1/runs/{run}/journal", format!("/v1/runs/{run}/journal")),
        ("/v1/runs/{run}/trace", format!("/v1/runs/{run}/trace")),
        ("/v1/runs/{run}/explain", format!("/v1/runs/{run}/explain")),
        ("/v1/inbox", "/v1/inbox".to_owned()),
        ("/v1/tools", "/v1/tools".to_owned()),
        ("/v1/tools/{name}", "/v1/tools/pay".to_owned()),
        ("/v1/health", "/v1/health".to_owned()),
        ("/", "/".to_owned()),
    ];
    for (route, path) in answers {
        let schema = &api["paths"][route]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{route}");
        let mut whole = schema.clone();
        whole["components"] = api["components"].clone();
        let validator = jsonschema::draft202012::new(&whole).unwrap();
        let answer = world.client.get(&path).await.is(200);
        let wrong: Vec<String> =
            validator.iter_errors(&answer).map(|error| format!("{error} at {}", error.instance_path())).collect();
        assert_eq!(wrong, Vec::<String>::new(), "{route}: {answer}");
    }
}
