//! `windlass connections`

use serde_json::json;
use windlass_server::wire::{ConnectionList, ConnectionView};

use super::text;
use crate::api::{Api, escaped, query};
use crate::args::ConnectionsCommand;
use crate::exit::Result;
use crate::out::Out;
use crate::style::{Tint, plain, table};

/// Executes a subcommand of `connections`.
pub(super) async fn run(command: ConnectionsCommand, api: &Api, out: &Out) -> Result<()> {
    match command {
        ConnectionsCommand::List { principal } => {
            let path = format!("/v1/connections{}", query(&[("principal", principal.as_deref())]));
            let list: ConnectionList = api.get(&path).await?;
            if out.json {
                return out.document(&list);
            }
            if list.connections.is_empty() {
                out.note("no connections");
                return Ok(());
            }
            out.lines(&table(&rows(&list.connections), &out.style))
        }
        ConnectionsCommand::Remove { provider, principal } => {
            let which = query(&[("principal", principal.as_deref())]);
            api.delete(&format!("/v1/connections/{}{which}", escaped(&provider))).await?;
            match out.json {
                true => out.document(&json!({"provider": provider, "ok": true})),
                false => out.line(&format!("{} removed", plain(&provider))),
            }
        }
    }
}

fn rows(connections: &[ConnectionView]) -> Vec<Vec<(Tint, String)>> {
    let now = text::now();
    let heads = ["PROVIDER", "PRINCIPAL", "STATE", "UPDATED", "PROBLEM"];
    let mut rows: Vec<Vec<(Tint, String)>> = vec![heads.map(|head| (Tint::Dim, head.to_owned())).into()];
    for connection in connections {
        let state = if connection.expired { (Tint::Bad, "expired") } else { (Tint::Good, "connected") };
        rows.push(vec![
            (Tint::Bold, plain(&connection.provider)),
            (Tint::Plain, connection.principal.as_deref().map(plain).unwrap_or_default()),
            (state.0, state.1.to_owned()),
            (Tint::Dim, text::ago(connection.updated, now)),
            (Tint::Plain, connection.problem.as_deref().map(plain).unwrap_or_default()),
        ]);
    }
    rows
}
