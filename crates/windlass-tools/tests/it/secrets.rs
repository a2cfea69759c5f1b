//! Secrets in the environment of a command.

use std::fs;

use serde_json::json;
use windlass_tools::sandbox::{Level, support};
use windlass_tools::secret::{Reference, Secrets};

use crate::world::{World, call};

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
