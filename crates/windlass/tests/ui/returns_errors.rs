use windlass::prelude::*;

/// Does something.

#[tool]
async fn odd_error() -> Result<u8, String> {
    Err(String::new())
}

fn main() {}
