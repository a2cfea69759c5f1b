//! What `windlass check` tells: the tools a file has, and what is wrong with it.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use windlass::tools::spec::Approval;
use windlass::{Effect, Toolbox};
use windlass_tools::sandbox::Launcher;

use super::problem::Problems;
use super::{MadeTool, Tools, load, of_database};
use crate::style::counted;

/// What is to be known about a file.
#[derive(Clone, Debug)]
pub struct Report {
    /// The tools it has; none if it has errors.
    pub tools: Vec<Found>,
    /// Everything that is wrong, errors and warnings.
    pub problems: Problems,
}

/// A tool a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What models call it.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// What repeating a call means.
    pub effect: Effect,
    /// `never`, `always`, or the condition.
    pub approval: String,
    /// The section of the file it comes from.
    pub from: String,
}

/// Reads a file and everything it refers to, starts nothing, and tells what was found. Documents named by address are fetched.
/// `file` is the database, where it is not the one the config names.
pub async fn check(path: &Path, file: Option<&Path>) -> Report {
    let config = match load(path) {
        Ok(config) => config,
        Err(problems) => return Report { tools: Vec::new(), problems },
    };
    // Nothing is started, so this launcher is never asked.
    let launcher = Launcher::this_program([crate::LAUNCH]).keep(file.map(of_database).unwrap_or_default());
    let mut tools = Vec::new();
    let mut warnings = Vec::new();
    let made = match config.tools(&launcher).await {
        Ok(made) => {
            tools = found(&made.tools);
            warnings = made.warnings;
            config.mount(&Toolbox::new(), made.tools, None)
        }
        Err(problems) => Err(problems),
    };
    // All that a server would refuse, at once.
    let refused: Vec<Problems> = [made.err(), config.hook().err()].into_iter().flatten().collect();
    match refused.into_iter().reduce(Problems::and) {
        None => Report { tools, problems: config.warnings_with(warnings) },
        Some(problems) => Report { tools: Vec::new(), problems },
    }
}

fn found(tools: &Tools) -> Vec<Found> {
    let one = |made: &MadeTool| {
        let spec = made.tool.spec();
        Found {
            name: spec.name.to_string(),
            description: spec.about.description.clone(),
            effect: spec.effect,
            approval: match &spec.guards.approval {
                Approval::Never => "never".to_owned(),
                Approval::Always => "always".to_owned(),
                Approval::When(condition) => condition.source().to_owned(),
            },
            from: made.from.clone(),
        }
    };
    let mut found: Vec<Found> = tools.iter().map(one).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

impl Report {
    /// Whether the file can be used.
    pub fn is_usable(&self) -> bool {
        self.problems.count().0 == 0
    }

    /// For people. Colours are for terminals.
    pub fn render(&self, colours: bool) -> String {
        let mut text = self.problems.render(colours);
        if !text.is_empty() {
            text.push('\n');
        }
        let path = self.problems.path().display();
        let (errors, warnings) = self.problems.count();
        // Writing to a text does not fail.
        let _ = if self.is_usable() {
            let width = self.tools.iter().map(|tool| tool.name.len()).max().unwrap_or(0);
            for tool in &self.tools {
                let approval = match &*tool.approval {
                    "never" => String::new(),
                    "always" => ", needs approval".to_owned(),
                    condition => format!(", needs approval if {condition}"),
                };
                let _ = writeln!(text, "{:width$}  {}{approval}", tool.name, effect(tool.effect));
            }
            writeln!(text, "{path}: {}, {}", counted(self.tools.len(), "tool"), counted(warnings, "warning"))
        } else {
            writeln!(text, "{path}: {}, {}", counted(errors, "error"), counted(warnings, "warning"))
        };
        text
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let tool = |tool: &Found| {
            json!({
                "name": tool.name,
                "description": tool.description,
                "effect": effect(tool.effect),
                "approval": tool.approval,
                "from": tool.from,
            })
        };
        json!({
            "file": self.problems.path().display().to_string(),
            "ok": self.is_usable(),
            "tools": self.tools.iter().map(tool).collect::<Vec<_>>(),
            "problems": self.problems.json(),
        })
    }
}

fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::Readonly => "readonly",
        Effect::Idempotent => "idempotent",
        Effect::Once => "once",
    }
}
