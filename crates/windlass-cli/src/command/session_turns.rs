//! `windlass sessions configure`, `wait` and `context`

use std::time::{Duration, Instant};

use windlass_server::wire::{
    ContextView, IdleResponse, SessionRequest, SessionView, SettingsRequest, TurnMode, WakeMode,
};

use super::sessions::{described, path};
use crate::api::{Api, query};
use crate::args::{SettingName, SettingsArgs, TurnName, WakeName};
use crate::exit::{Exit, Failure, Result};
use crate::out::Out;
use crate::style::{Tint, plain, table};

/// How long one request waits, well below the limit of the server and of proxies.
const WAIT: Duration = Duration::from_secs(25);

/// The settings that flags change; `None` if there are none.
pub(super) fn settings(args: SettingsArgs, unset: &[SettingName]) -> Option<SettingsRequest> {
    fn removed<T>(unset: &[SettingName], name: SettingName) -> Option<Option<T>> {
        unset.contains(&name).then_some(None)
    }
    let request = SettingsRequest {
        agent: args.agent.map(Some).or(removed(unset, SettingName::Agent)),
        model: args.model.map(Some).or(removed(unset, SettingName::Model)),
        window: args.window.map(Some).or(removed(unset, SettingName::Window)),
        wake: args.wake.map(|wake| match wake {
            WakeName::Asked => WakeMode::Asked,
            WakeName::User => WakeMode::User,
        }),
        turns: args.turns.map(turn_mode),
        unfinished_runs: args.max_runs.map(Some).or(removed(unset, SettingName::MaxRuns)),
    };
    (request != SettingsRequest::default()).then_some(request)
}

pub(super) fn turn_mode(name: TurnName) -> TurnMode {
    match name {
        TurnName::Queue => TurnMode::Queue,
        TurnName::Refuse => TurnMode::Refuse,
    }
}

pub(super) async fn configure(
    session: &str,
    args: SettingsArgs,
    unset: &[SettingName],
    api: &Api,
    out: &Out,
) -> Result<()> {
    let Some(settings) = settings(args, unset) else {
        return Err(Failure::usage("nothing to change; `windlass sessions configure --help` lists the settings"));
    };
    // The request would open a session that does not exist.
    api.get::<SessionView>(&path(session)).await?;
    let request = SessionRequest { settings: Some(settings), ..SessionRequest::default() };
    let changed: SessionView = api.put(&path(session), &request).await?;
    if out.json { out.document(&changed) } else { out.lines(&described(&changed)) }
}

/// Waits until the session is idle.
pub(super) async fn wait(session: &str, timeout: Option<Duration>, api: &Api, out: &Out) -> Result<()> {
    let began = Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        // Without a server nothing drives the runs, so waiting would not help.
        let wait = if api.is_remote() { left.map_or(WAIT, |left| left.min(WAIT)) } else { Duration::ZERO };
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).to_string();
        let pairs = [("wait_ms", Some(wait_ms.as_str()))];
        let answer: IdleResponse = api.get(&format!("{}/idle{}", path(session), query(&pairs))).await?;
        if answer.idle {
            return if out.json { out.document(&answer) } else { out.line(&format!("{} is idle", plain(session))) };
        }
        if api.is_remote() && timeout.is_none_or(|timeout| began.elapsed() < timeout) {
            continue;
        }
        if out.json {
            out.document(&answer)?;
            return Err(Failure::silent(Exit::TimedOut));
        }
        let mut lines = vec![format!("session {:?} is not idle:", session)];
        lines.extend(
            answer
                .unfinished
                .iter()
                .map(|unfinished| format!("run {}: {}", unfinished.run, plain(&unfinished.sentence))),
        );
        if answer.more {
            lines.push("and more".to_owned());
        }
        if !api.is_remote() {
            lines.push(super::text::NO_SERVER.to_owned());
        }
        return Err(Failure::new(Exit::TimedOut, lines.join("\n")));
    }
}

pub(super) async fn context(session: &str, api: &Api, out: &Out) -> Result<()> {
    let report: ContextView = api.get(&format!("{}/context", path(session))).await?;
    if out.json {
        return out.document(&report);
    }
    let model = report.model.as_deref().map_or_else(|| "not set".to_owned(), plain);
    let window = report.window.map_or_else(|| "not set".to_owned(), |window| format!("{window} tokens"));
    out.line(&format!("model: {model}"))?;
    out.line(&format!("window: {window}"))?;
    let used = report.used_percent.map_or(String::new(), |used| format!(", {used} % of the window"));
    out.line(&format!("input: about {} tokens{used}", report.input_tokens))?;
    let mut rows = vec![["SECTION", "ITEMS", "BYTES", "TOKENS"].map(|head| (Tint::Dim, head.to_owned())).into()];
    for section in &report.sections {
        let numbers = [section.items, section.bytes, section.tokens].map(|number| (Tint::Plain, number.to_string()));
        rows.push([(Tint::Bold, plain(&section.name))].into_iter().chain(numbers).collect());
    }
    out.lines(&table(&rows, &out.style))
}
