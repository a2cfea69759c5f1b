//! The report of `windlass check`: the tools of a file and its problems.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use windlass::tool::spec::Approval;
use windlass::{Effect, Toolbox};
use windlass_tools::sandbox::Launcher;

use super::problem::Problems;
use super::{ConfigTool, Tools, database_files, load};
use crate::style::counted;

/// A report about a file.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its tools; none if it has errors.
    pub tools: Vec<ToolSummary>,
    /// Its errors and warnings.
    pub problems: Problems,
}

/// A tool of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSummary {
    /// Its name.
    pub name: String,
    /// Its description for models.
    pub description: String,
    /// Whether a call may be repeated.
    pub effect: Effect,
    /// `never`, `always`, or the condition.
    pub approval: String,
    /// The section of the file it comes from.
    pub from: String,
}

/// Checks a file and everything it refers to, without starting anything. Documents with a URL are fetched. `file` is the
/// database, if it is not the one in the config.
pub async fn check(path: &Path, file: Option<&Path>) -> Report {
    let config = match load(path) {
        Ok(config) => config,
        Err(problems) => return Report { tools: Vec::new(), problems },
    };
    // Never used, because nothing is started.
    let launcher = Launcher::this_program([crate::LAUNCH]).keep(file.map(database_files).unwrap_or_default());
    let mut tools = Vec::new();
    let mut warnings = Vec::new();
    let mounted = match config.tools(&launcher).await {
        Ok(built) => {
            tools = summaries(&built.tools);
            warnings = built.warnings;
            config.mount(&Toolbox::new(), built.tools, None)
        }
        Err(problems) => Err(problems),
    };
    // Report everything that a server would refuse at once.
    let refused: Vec<Problems> = [mounted.err(), config.hook().err()].into_iter().flatten().collect();
    match refused.into_iter().reduce(Problems::and) {
        None => Report { tools, problems: config.warnings_with(warnings) },
        Some(problems) => Report { tools: Vec::new(), problems },
    }
}

fn summaries(tools: &Tools) -> Vec<ToolSummary> {
    let summary = |tool: &ConfigTool| {
        let spec = tool.tool.spec();
        ToolSummary {
            name: spec.name.to_string(),
            description: spec.about.description.clone(),
            effect: spec.effect,
            approval: match &spec.guards.approval {
                Approval::Never => "never".to_owned(),
                Approval::Always => "always".to_owned(),
                Approval::When(condition) => condition.source().to_owned(),
            },
            from: tool.from.clone(),
        }
    };
    let mut summaries: Vec<ToolSummary> = tools.iter().map(summary).collect();
    summaries.sort_by(|a, b| a.name.cmp(&b.name));
    summaries
}

impl Report {
    /// Whether the file is valid.
    pub fn is_usable(&self) -> bool {
        self.problems.count().0 == 0
    }

    /// The report as text for people.
    pub fn render(&self, colours: bool) -> String {
        let mut text = self.problems.render(colours);
        if !text.is_empty() {
            text.push('\n');
        }
        let path = self.problems.path().display();
        let (errors, warnings) = self.problems.count();
        // Writing to a string cannot fail.
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

    /// The report as JSON for programs.
    pub fn json(&self) -> Value {
        let tool = |tool: &ToolSummary| {
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
