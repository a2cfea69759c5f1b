use windlass::prelude::*;

struct Account;

impl Account {
    /// Does something.
    #[tool]
    async fn balance(&self, currency: String) -> ToolResult<u64> {
        Ok(0)
    }
}

fn main() {}
