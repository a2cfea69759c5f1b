//! Secrets in the environment of a command.

use std::fs;

use serde_json::json;
use windlass_tools::sandbox::{Level, support};
use windlass_tools::secret::{Reference, Secrets};

use crate::world::{World, call, tool};

#[tokio::test]
async fn e26_a_command_gets_current_secrets_and_its_output_is_redacted() {
    let world = World::new();
    let file = world.base().join("token");
    let script = "test \"$TOKEN\" = 'Bearer second-hunter2' && echo fine && exit; echo \"it is $TOKEN\" >&2; exit 1";
    let mut command = world.sh(script);
    command.sandbox.level = if support().is_whole() { Level::Required } else { Level::BestEffort };
    command.secret_env = [("TOKEN".to_owned(), "Bearer ${secret:token}".parse().unwrap())].into();
    command.secrets = Secrets::new([("token".to_owned(), Reference::File(file.clone()))]);

    let missing = call(command.clone(), json!({})).await.result.unwrap_err();
    assert_eq!(missing.kind(), "unavailable");
    assert!(missing.to_string().contains("env.TOKEN: secret `token`: file:"), "{missing}");

    fs::write(&file, "first-hunter2").unwrap();
    let failed = call(command.clone(), json!({})).await.result.unwrap_err().to_string();
    assert!(failed.contains("it is Bearer [secret token]") && !failed.contains("hunter2"), "{failed}");

    fs::write(&file, "second-hunter2").unwrap();
    assert_eq!(call(command, json!({})).await.value(), Some(&json!("fine")), "replacing it needs no restart");
}

#[tokio::test]
async fn e27_e26_a_command_gets_the_secrets_of_its_session_and_prints_none() {
    let world = World::new();
    let mut command = world.sh("echo \"it is $TOKEN\"");
    command.sandbox.level = if support().is_whole() { Level::Required } else { Level::BestEffort };
    command.secret_env = [("TOKEN".to_owned(), "${secret:token}".parse().unwrap())].into();
    command.secrets = Secrets::new([("token".to_owned(), "session:rail".parse().unwrap())]);
    let windlass = windlass::Windlass::in_memory().tool(tool(command)).await.unwrap();
    let call = |session: Option<&str>| {
        let call = windlass::ToolCall::<serde_json::Value>::new("run", json!({}));
        windlass.call(match session {
            Some(session) => call.session(session),
            None => call,
        })
    };
    let none = call(None).await.unwrap_err().to_string();
    assert!(none.contains("secret `token`: session:rail: the call belongs to no session"), "{none}");
    windlass.session("ada").open(None, None).await.unwrap();
    let missing = call(Some("ada")).await.unwrap_err().to_string();
    assert!(missing.contains("windlass sessions secrets set ada rail"), "{missing}");
    windlass.session("ada").set_secret("rail", "tr4in-hunter2").await.unwrap();
    windlass.session("bob").open(None, None).await.unwrap();
    assert!(call(Some("bob")).await.is_err(), "a secret belongs to one session");
    let printed: serde_json::Value = call(Some("ada")).await.unwrap();
    assert_eq!(printed, json!("it is [secret token]"));
}
