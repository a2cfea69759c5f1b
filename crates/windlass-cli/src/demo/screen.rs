//! The screen of the demo: permanent lines, and below them a timeline that is redrawn.

use std::io::Write;
use std::time::{Duration, Instant};

use windlass_server::wire::{Activity, Time};

use crate::exit::Result;
use crate::out::Out;
use crate::style::{Style, Tint, duration};
use crate::timeline::{Tree, draw};

/// A narrower terminal would wrap the lines of the timeline.
const MIN_COLUMNS: usize = 72;

/// Aligns the timeline with the text of the permanent lines.
const INDENT: &str = "          ";

pub(super) struct Screen {
    out: Out,
    /// Whether the timeline is redrawn, which needs a terminal.
    live: bool,
    /// The number of lines of the timeline on the screen.
    drawn: usize,
    began: Instant,
    /// The activities of the run so far.
    pub(super) activities: Vec<Activity>,
}

impl Screen {
    pub(super) fn new(out: &Out) -> Self {
        let live = out.terminal && !out.json && !out.quiet && out.style.width >= MIN_COLUMNS;
        Self { out: *out, live, drawn: 0, began: Instant::now(), activities: Vec::new() }
    }

    /// Prints a permanent line with its time and a sign.
    pub(super) fn log(&mut self, (tint, sign): (Tint, char), text: &str) -> Result<()> {
        if self.out.json {
            let at = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
            return self.out.event(&serde_json::json!({ "at_ms": at, "message": text }));
        }
        self.clear();
        let at = self.out.dim(&format!("{:>8}", duration(round(self.began.elapsed()))));
        let sign = self.out.style.paint(tint, &sign.to_string());
        self.out.line(&format!("{at}  {sign} {text}"))?;
        self.draw();
        Ok(())
    }

    /// Prints a line, unless the output is JSON.
    pub(super) fn line(&mut self, text: &str) -> Result<()> {
        if self.out.json {
            return Ok(());
        }
        self.clear();
        self.out.line(text)
    }

    /// Prints a question without a line break.
    pub(super) fn ask(&mut self, question: &str) {
        self.clear();
        print!("{INDENT}{question} ");
        // If the question cannot be printed, no answer follows, which counts as no.
        let _ = std::io::stdout().flush();
    }

    pub(super) fn add(&mut self, activity: Activity) {
        self.activities.push(activity);
    }

    /// Draws the timeline as of now.
    pub(super) fn draw(&mut self) {
        if !self.live || self.activities.is_empty() {
            return;
        }
        self.clear();
        let mut tree = Tree::of(&self.activities, now());
        // The other notes are already printed as lines.
        tree.notes.retain(|note| note.line);
        let style = Style { width: self.out.style.width - INDENT.len(), ..self.out.style };
        let lines: Vec<String> = draw(&tree, &style).into_iter().take(tree.rows.len() + 2).collect();
        for line in &lines {
            println!("{INDENT}{line}");
        }
        self.drawn = lines.len();
    }

    /// Removes the timeline from the screen.
    pub(super) fn clear(&mut self) {
        if self.drawn > 0 {
            print!("\u{1b}[{}A\u{1b}[J", self.drawn);
            // If this fails, the next line flushes.
            let _ = std::io::stdout().flush();
            self.drawn = 0;
        }
    }
}

fn round(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

pub(super) fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    windlass::Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)).into()
}
