//! Files that tools create: written piece by piece, kept by the run that refers to them, and readable in its session
//! only.
//!
//! `cargo run -p windlass-examples --bin artifacts [file]`

use windlass::limits;
use windlass::prelude::*;
use windlass::store::Access;

/// Write a report.
#[tool(effect = idempotent)]
async fn report(call: &Call, rows: u64) -> ToolResult<Output> {
    // Pieces are stored as they fill up; the whole file is never in memory.
    let mut file = call.new_artifact("text/csv").named("report.csv");
    for row in 0..rows {
        file.write(format!("{row},{}\n", row * row).as_bytes()).await?;
    }
    // Stored from here on, and kept once the outcome below is recorded.
    let file = file.finish().await?;
    Ok(Output::value(json!({"rows": rows})).with(Content::File(file)))
}

/// Show how a file begins.
#[tool(effect = readonly)]
async fn peek(call: &Call, file: Artifact) -> ToolResult<String> {
    let file = call.open_artifact(&file).await?;
    let head = file.read_at(0, 11).await?;
    Ok(format!("{} bytes, beginning with {:?}", file.size(), String::from_utf8_lossy(&head)))
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let windlass = match std::env::args_os().nth(1) {
        Some(file) => Windlass::open(file),
        None => Windlass::in_memory(),
    };
    let windlass = windlass.tool(report).tool(peek).await?;

    let report = in_session(&windlass, "ada", report::call(100_000u64).untyped()).await?;
    let output = report.result.map_err(|error| windlass::Error::Conflict(error.to_string()))?;
    let file = output.content.iter().find_map(Content::artifact);
    let file = file.ok_or_else(|| windlass::Error::NotFound("the report has no file".to_owned()))?;
    println!("the outcome: {}", output.value);
    println!("refers to:   {:?}, {} bytes, {}", file.name.as_deref().unwrap_or("?"), file.size(), file.media_type);

    // Another run of the same session reads it by its id…
    let seen = in_session(&windlass, "ada", peek::call(file.clone()).untyped()).await?;
    println!("ada sees:    {}", seen.for_model());
    // …and another session cannot, although it has the id.
    match windlass.open_artifact(file, Access::Session("bob".into())).await {
        Ok(_) => println!("bob sees it too"),
        Err(_) => println!("bob sees:    nothing"),
    }

    // The program itself may read every file, piece by piece.
    let mut reader = windlass.open_artifact(file, Access::Owner).await?;
    let (mut pieces, mut lines) = (0, 0);
    while let Some(piece) = reader.next().await? {
        pieces += 1;
        lines += piece.iter().filter(|byte| **byte == b'\n').count();
    }
    println!("the program: {lines} lines, in {pieces} pieces of up to {} bytes", limits::ARTIFACT_PIECE);
    windlass.shutdown().await
}

async fn in_session(windlass: &Windlass, session: &str, call: ToolCall) -> windlass::Result<Outcome> {
    windlass.start(call.session(session)).await?.outcome().await
}
