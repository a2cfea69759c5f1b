use windlass::prelude::*;

#[tool(key = "account")]
async fn bare(account: String) -> ToolResult<String> {
    Ok(account)
}

#[tool(key = "'open")]
async fn open() -> ToolResult<()> {
    Ok(())
}

#[tool(key = "'a' args.account")]
async fn not_joined(account: String) -> ToolResult<String> {
    Ok(account)
}

#[tool(key = "'a-' + args.acount")]
async fn misspelt(account: String) -> ToolResult<String> {
    Ok(account)
}

#[tool(key = "args.account")]
async fn no_arguments() -> ToolResult<()> {
    Ok(())
}

fn main() {}
