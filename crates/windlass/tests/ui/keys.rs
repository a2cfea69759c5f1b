use windlass::prelude::*;

/// Does something.

#[tool(key = "account")]
async fn bare(account: String) -> ToolResult<String> {
    Ok(account)
}

/// Does something.

#[tool(key = "'open")]
async fn open() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(key = "'a' args.account")]
async fn not_joined(account: String) -> ToolResult<String> {
    Ok(account)
}

/// Does something.

#[tool(key = "'a-' + args.acount")]
async fn misspelt(account: String) -> ToolResult<String> {
    Ok(account)
}

/// Does something.

#[tool(key = "args.account")]
async fn no_arguments() -> ToolResult<()> {
    Ok(())
}

fn main() {}
