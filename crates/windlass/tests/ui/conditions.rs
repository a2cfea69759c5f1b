use windlass::prelude::*;

/// Charge a card.
#[tool(approval = "args.cents = 5")]
async fn assigned(cents: u64) -> ToolResult<()> {
    Ok(())
}

/// Charge a card.
#[tool(approval = "args.cents > 5 and args.sure")]
async fn in_words(cents: u64, sure: bool) -> ToolResult<()> {
    Ok(())
}

/// Charge a card.
#[tool(approval = "(args.cents > 5")]
async fn open(cents: u64) -> ToolResult<()> {
    Ok(())
}

/// Charge a card.
#[tool(approval = "args.currency == 'EUR")]
async fn unquoted(currency: String) -> ToolResult<()> {
    Ok(())
}

/// Charge a card.
#[tool(approval = "args.cnets > 5")]
async fn misspelt(cents: u64) -> ToolResult<()> {
    Ok(())
}

fn main() {}
