use windlass::prelude::*;

struct Address {
    street: String,
}

#[derive(serde::Deserialize)]
struct Parcel {
    weight: u32,
}

/// Ship a parcel.
#[tool]
async fn ship(express: bool, to: Address) -> ToolResult<String> {
    Ok(format!("{} {express}", to.street))
}

/// Weigh a parcel.
#[tool]
async fn weigh(parcels: Vec<Parcel>) -> ToolResult<u32> {
    Ok(parcels.iter().map(|parcel| parcel.weight).sum())
}

fn main() {
    let _ = Tool::new("ship", "Ship a parcel.", |to: Address| async move { Ok(to.street) });
}
