//! Layered toolboxes: what one conversation, user or sub-agent sees, without changing what the others see.

use windlass::prelude::*;

/// Greet a person.
#[tool(effect = readonly)]
async fn greet(name: String) -> ToolResult<String> {
    Ok(format!("Hello, {name}."))
}

/// Delete everything.
#[tool(destructive)]
async fn delete_all() -> ToolResult<()> {
    Ok(())
}

/// A tool that another program offers.
fn offered(name: &'static str) -> Tool {
    Tool::new(name, "A tool of the calendar.", move |_: Value| async move { Ok(format!("{name} is done")) })
        .effect(Effect::Readonly)
}

fn show(title: &str, toolbox: &Toolbox) {
    let names: Vec<String> = toolbox.tools().iter().map(|tool| tool.spec().name.to_string()).collect();
    println!("{title:<24} {}", names.join(", "));
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let windlass = Windlass::in_memory().tool(greet).tool(delete_all).await?;
    show("all sessions see:", windlass.toolbox());

    // A layer overlays the toolbox below it. Calls made through it record its name, so after a crash they continue
    // through it.
    let guest = windlass.layer("guest")?;
    let layer = guest.toolbox();
    // The same name, but another id: journals and calls by id never confuse them.
    let formal = Tool::new("greet", "Greet a person, formally.", |a: Value| async move {
        Ok(format!("Good day, {}.", a["name"].as_str().unwrap_or("stranger")))
    });
    layer.insert(formal.id("greet.formal").effect(Effect::Readonly))?;
    layer.hide("delete_all");
    // The tools of a source are added and removed together.
    layer.mount("calendar", [offered("list_events"), offered("add_event")])?;
    show("the guest sees:", layer);

    // The same runtime, the same journal, another view.
    for (view, windlass) in [("all sessions", &windlass), ("the guest", &guest)] {
        println!("{view}:");
        for (name, args) in [("greet", json!({"name": "Ada"})), ("delete_all", json!({})), ("add_event", json!({}))] {
            println!("  {name}: {}", windlass.call_json(name, args).await?.for_model());
        }
    }

    // A layer sees later changes below it.
    windlass.toolbox().insert(offered("news"))?;
    layer.unmount("calendar");
    // Removing the layer's own tool uncovers the one below.
    layer.remove("greet");
    show("now the guest sees:", layer);
    println!("  greet: {}", guest.call_json("greet", json!({"name": "Ada"})).await?.for_model());
    show("all sessions still see:", windlass.toolbox());
    windlass.shutdown().await
}
