use windlass::prelude::*;

/// Does something.

#[tool(efect = readonly, timeout = "5")]
fn everything<T>(a: &str, (b, c): (u8, u8), call: &Call) -> String {
    String::new()
}

fn main() {}
