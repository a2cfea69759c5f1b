//! Reloading a file.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use windlass::run::RunState;
use windlass::{ToolCall, Toolbox, Windlass};
use windlass_tools::sandbox::Launcher;

use super::super::{Reload, load, wake};

struct File {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl File {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("windlass.toml");
        std::fs::write(&path, text).unwrap();
        Self { _folder: folder, path }
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.path, text).unwrap();
    }

    async fn reload(&self, toolbox: &Toolbox) -> Reload {
        let config = load(&self.path).unwrap_or_else(|problems| panic!("{problems}"));
        let reload = Reload::new(config, toolbox.clone(), Launcher::new(["none"])).await;
        reload.unwrap_or_else(|problems| panic!("{problems}"))
    }
}

fn tool(name: &str, description: &str) -> String {
    format!("[tool.{name}]\ndescription = \"{description}\"\ncommand = [\"true\"]\n")
}

fn names(toolbox: &Toolbox) -> Vec<String> {
    toolbox.tools().iter().map(|tool| tool.spec().name.to_string()).collect()
}

#[tokio::test]
async fn tools_are_replaced_at_once_and_other_changes_need_a_restart() {
    let file = File::new(&(tool("a", "A.") + &tool("b", "B.")));
    let toolbox = Toolbox::new();
    let mut reload = file.reload(&toolbox).await;
    assert_eq!(names(&toolbox), ["a", "b"]);
    let listen = "[server]\nlisten = \"127.0.0.1:1\"\n[retention]\nfull = \"1d\"\n";
    file.write(&(listen.to_owned() + &tool("b", "Better.") + &tool("c", "C.")));
    assert!(reload.is_stale());
    let change = reload.now().await.unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!((change.added, change.removed, change.changed), (vec!["c".into()], vec!["a".into()], vec!["b".into()]));
    assert_eq!(change.after_restart, ["server.listen", "retention.full"]);
    assert_eq!(names(&toolbox), ["b", "c"]);
    assert_eq!(toolbox.get("b").unwrap().spec().about.description, "Better.");
    assert!(!reload.is_stale());
    let again = reload.now().await.unwrap_or_else(|problems| panic!("{problems}"));
    assert!(again.added.is_empty() && again.changed.is_empty() && again.after_restart.is_empty(), "{again:?}");
}

#[tokio::test]
async fn an_invalid_file_changes_nothing() {
    let file = File::new(&tool("a", "A."));
    let toolbox = Toolbox::new();
    let mut reload = file.reload(&toolbox).await;
    file.write("[tool.a]\ndescripton = \"A.\"\n");
    let problems = reload.now().await.expect_err("it is invalid");
    assert!(problems.to_string().contains("did you mean `description`?"), "{problems}");
    assert_eq!(names(&toolbox), ["a"]);
    assert!(!reload.is_stale(), "a refused file is not read again until it changes");
    std::fs::remove_file(&file.path).unwrap();
    assert!(reload.is_stale());
    let problems = reload.now().await.expect_err("it is gone");
    assert!(problems.to_string().contains("could not read"), "{problems}");
    assert_eq!(names(&toolbox), ["a"]);
    file.write(&tool("b", "B."));
    reload.now().await.unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(names(&toolbox), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_watched_file_is_reloaded_automatically() {
    let file = File::new(&tool("a", "A."));
    let toolbox = Toolbox::new();
    let mut reload = file.reload(&toolbox).await;
    let (sender, mut changes) = tokio::sync::mpsc::unbounded_channel();
    let watching = tokio::spawn(async move { reload.watch(|change| sender.send(change).unwrap()).await });
    file.write(&tool("b", "B."));
    let change = changes.recv().await.unwrap().unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!((change.added, change.removed), (vec!["b".to_owned()], vec!["a".to_owned()]));
    file.write("nonsense");
    assert!(changes.recv().await.unwrap().is_err());
    // The same size, and perhaps the same modification time.
    file.write("nonsenze");
    assert!(changes.recv().await.unwrap().is_err());
    assert_eq!(names(&toolbox), ["b"]);
    watching.abort();
}

/// Responds to every request with its path.
async fn echo(listener: TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        let request = String::from_utf8_lossy(&request[..length]).into_owned();
        let path = request.split(' ').nth(1).unwrap_or_default();
        let body = json!({"path": path}).to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length:";
        stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    }
}

/// The result of a run whose tool was replaced while it waited for approval, in memory or suspended.
async fn replaced_while_waiting(suspended: bool) -> Value {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(echo(listener));
    let text = |version: &str| {
        format!(
            "[net]\nallow = [\"{address}\"]\n[tool.get]\ndescription = \"Get.\"\napproval = \"always\"\n\
             input = {{ id = \"integer\" }}\nhttp = {{ url = \"http://{address}/{version}/{{args.id}}\" }}\n"
        )
    };
    let file = File::new(&text("old"));
    let toolbox = Toolbox::new();
    let mut reload = file.reload(&toolbox).await;
    let suspend_after = if suspended { Duration::ZERO } else { Duration::from_secs(3_600) };
    let windlass = Windlass::in_memory().toolbox(toolbox).suspend_after(suspend_after).await.unwrap();
    let run = windlass.start(ToolCall::new("get", json!({"id": 7}))).await.unwrap().id();
    let waiting = loop {
        let rests = windlass
            .runtime()
            .info(run)
            .await
            .unwrap()
            .is_some_and(|info| matches!(info.state, RunState::Suspended { .. }));
        match windlass.inbox().waiting().await.unwrap().pop() {
            Some(waiting) if rests || !suspended => break waiting,
            _ => tokio::task::yield_now().await,
        }
    };
    file.write(&text("new"));
    reload.now().await.unwrap_or_else(|problems| panic!("{problems}"));
    windlass.inbox().approve(&waiting, "ann", "fine").await.unwrap();
    let outcomes = windlass.runtime().attach(run).await.unwrap();
    server.abort();
    outcomes[0].value().expect("it worked").clone()
}

#[tokio::test]
async fn a_waiting_run_continues_after_its_tool_was_replaced() {
    assert_eq!(replaced_while_waiting(true).await, json!({"path": "/new/7"}));
    assert_eq!(replaced_while_waiting(false).await, json!({"path": "/old/7"}), "a call in progress keeps its tool");
}

#[tokio::test]
async fn a_run_whose_tool_was_removed_is_held_until_it_is_back() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(echo(listener));
    let text = format!(
        "[net]\nallow = [\"{address}\"]\n[tool.get]\ndescription = \"Get.\"\napproval = \"always\"\n\
         http = {{ url = \"http://{address}/x\" }}\n"
    );
    let file = File::new(&text);
    let toolbox = Toolbox::new();
    let mut reload = file.reload(&toolbox).await;
    let windlass = Windlass::in_memory().toolbox(toolbox).suspend_after(Duration::ZERO).await.unwrap();
    let run = windlass.start(ToolCall::new("get", json!({}))).await.unwrap().id();
    let state = async || windlass.runtime().info(run).await.unwrap().map(|info| info.state);
    while !matches!(state().await, Some(RunState::Suspended { .. })) {
        tokio::task::yield_now().await;
    }
    file.write("");
    reload.now().await.unwrap_or_else(|problems| panic!("{problems}"));
    let waiting = windlass.inbox().waiting().await.unwrap().pop().expect("it waits for approval");
    windlass.inbox().approve(&waiting, "ann", "fine").await.unwrap();
    while !matches!(state().await, Some(RunState::Held { .. })) {
        tokio::task::yield_now().await;
    }
    assert_eq!(wake(&windlass).await.unwrap(), 0, "the tool is still missing");
    file.write(&text);
    reload.now().await.unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(wake(&windlass).await.unwrap(), 1);
    let outcomes = windlass.runtime().attach(run).await.unwrap();
    assert_eq!(outcomes[0].value(), Some(&json!({"path": "/x"})));
    server.abort();
}

#[tokio::test]
async fn tools_of_documents_have_the_settings_of_their_section() {
    let file = File::new(
        "[openapi.pets]\nfile = \"pets.json\"\neffect = { pets_addPet = \"idempotent\" }\ntimeout = \"7s\"\n\
         approval = \"tool.effect != 'readonly'\"\ntags = [\"zoo\"]\n",
    );
    let document = file.path.with_file_name("pets.json");
    let operation = |id: &str| json!({"operationId": id, "responses": {"200": {"description": "ok"}}});
    let pets = |read: &str| {
        let paths = json!({"/pets": {"get": operation(read), "post": operation("addPet")}});
        let info = json!({"title": "Pets", "version": "1"});
        json!({"openapi": "3.1.0", "info": info, "servers": [{"url": "https://pets.example.com"}], "paths": paths})
            .to_string()
    };
    std::fs::write(&document, pets("findPets")).unwrap();
    let toolbox = Toolbox::new();
    let mut reload = file.reload(&toolbox).await;
    assert_eq!(names(&toolbox), ["pets_addPet", "pets_findPets"]);
    let spec = toolbox.get("pets_addPet").unwrap().spec().clone();
    assert_eq!(spec.effect, windlass::Effect::Idempotent);
    assert_eq!(spec.limits.timeout, Some(Duration::from_secs(7)));
    assert!(spec.about.tags.contains(&"zoo".to_owned()));
    // The document is watched too.
    std::fs::write(&document, pets("listPets")).unwrap();
    assert!(reload.is_stale());
    let change = reload.now().await.unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!((change.added, change.removed), (vec!["pets_listPets".to_owned()], vec!["pets_findPets".to_owned()]));
    // A change of one operation changes only its tool.
    std::fs::write(&document, pets("listPets").replacen("\"200\"", "\"201\"", 1)).unwrap();
    let change = reload.now().await.unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!((change.added.len(), change.removed.len(), change.changed), (0, 0, vec!["pets_listPets".to_owned()]));
    std::fs::write(&document, pets("listPets")).unwrap();
    // Problems of the document are reported where the file names it.
    std::fs::write(&document, "{").unwrap();
    let problems = reload.now().await.expect_err("it is not a document");
    let problem = problems.iter().next().unwrap();
    assert_eq!((problem.code, problems.position(problem)), ("bad_document", Some((2, 8))), "{problems}");
    file.write("[openapi.pets]\nfile = \"pets.json\"\neffect = { pets_addPett = \"once\" }\n");
    std::fs::write(&document, pets("findPets")).unwrap();
    let problems = reload.now().await.expect_err("there is no such tool");
    assert!(problems.to_string().contains("did you mean `pets_addPet`?"), "{problems}");
    file.write(&(tool("pets_addPet", "Mine.") + "[openapi.pets]\nfile = \"pets.json\"\n"));
    let problems = reload.now().await.expect_err("two tools of one name");
    assert!(problems.to_string().contains("but [tool.pets_addPet] already defines that name"), "{problems}");
    assert_eq!(names(&toolbox), ["pets_addPet", "pets_listPets"], "the old tools are still there");
}

#[tokio::test]
async fn a_document_is_fetched_under_the_network_rules() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let section = format!("[openapi.pets]\nurl = \"http://{address}/openapi.json\"\n");
    let problems = load(&File::new(&section).path).err().expect("the address is not public");
    assert!(problems.to_string().contains("not the public internet"), "{problems}");
    let server = tokio::spawn(echo(listener));
    let file = File::new(&format!("{section}[net]\nallow = [\"{address}\"]\n"));
    let config = load(&file.path).unwrap_or_else(|problems| panic!("{problems}"));
    let problems = config.toolbox(&Launcher::new(["none"])).await.err().expect("an echo is not a document");
    let problem = problems.iter().next().unwrap();
    assert_eq!((problem.code, problems.position(problem)), ("bad_document", Some((2, 7))), "{problems}");
    server.abort();
}

#[tokio::test]
async fn b02_layers_follow_the_file_and_a_run_is_held_while_its_layer_is_missing() {
    let tools = "[tool.read]\ndescription = \"Read.\"\ncommand = [\"cat\"]\napproval = \"always\"\n\
                 [tool.wipe]\ndescription = \"Wipe.\"\ncommand = [\"cat\"]\n";
    let file = File::new(&format!("{tools}[layer.guest]\nhide = [\"wipe\"]\n"));
    let toolbox = Toolbox::new();
    let mut reload = file.reload(&toolbox).await;
    let guest = toolbox.with_layers(&["guest".into()].into_iter().collect()).expect("the file has it");
    assert_eq!(names(&guest), ["read"]);
    let windlass = Windlass::in_memory().toolbox(toolbox.clone()).suspend_after(Duration::ZERO).await.unwrap();
    let run = windlass.layer("guest").unwrap().start(ToolCall::new("read", json!({}))).await.unwrap().id();
    let state = async || windlass.runtime().info(run).await.unwrap().map(|info| info.state);
    while !matches!(state().await, Some(RunState::Suspended { .. })) {
        tokio::task::yield_now().await;
    }

    file.write(&format!("{tools}[layer.other]\nonly = [\"wipe\"]\n"));
    reload.now().await.unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(toolbox.layer_names(), ["other".into()]);
    assert_eq!(names(&toolbox.layer("other").unwrap()), ["wipe"]);
    let waiting = windlass.inbox().waiting().await.unwrap().pop().expect("it waits for approval");
    windlass.inbox().approve(&waiting, "ann", "fine").await.unwrap();
    while !matches!(state().await, Some(RunState::Held { .. })) {
        tokio::task::yield_now().await;
    }
    assert_eq!(wake(&windlass).await.unwrap(), 0, "the layer is still missing");

    file.write(&format!("{tools}[layer.guest]\nonly = [\"read\"]\n"));
    reload.now().await.unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(wake(&windlass).await.unwrap(), 1);
    // The launcher of this test starts nothing; the failed attempt is enough.
    let outcomes = windlass.runtime().attach(run).await.unwrap();
    assert!(outcomes[0].for_model().to_string().contains("launcher"), "{:?}", outcomes[0].for_model());
}
