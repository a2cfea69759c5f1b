use windlass::prelude::*;

#[tool]
async fn odd_error() -> Result<u8, String> {
    Err(String::new())
}

fn main() {}
