use windlass::prelude::*;

#[derive(serde::Deserialize, windlass::schemars::JsonSchema)]
#[schemars(crate = "windlass::schemars")]
struct Address {
    street: String,
}

/// Ship a parcel.
#[tool]
async fn ship(to: Address) -> ToolResult<String> {
    Ok(to.street)
}

fn main() {
    let _ = ship::call(Address { street: String::new() });
    let _ = ship::call("Main Street");
}
