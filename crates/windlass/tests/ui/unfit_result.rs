use windlass::prelude::*;

struct Weather {
    celsius: f64,
}

#[derive(serde::Serialize)]
struct Forecast {
    days: u32,
}

/// Current weather.
#[tool]
async fn weather() -> ToolResult<Weather> {
    Ok(Weather { celsius: 20.0 })
}

/// Weather of the next days.
#[tool]
async fn forecast() -> ToolResult<Forecast> {
    Ok(Forecast { days: 3 })
}

fn main() {}
