//! Where the demo is told: lines that stay, and below them a picture that moves.

use std::io::Write;
use std::time::{Duration, Instant};

use windlass_server::wire::{Activity, Time};

use crate::exit::Result;
use crate::out::Out;
use crate::style::{Style, Tint, took};
use crate::timeline::{Tree, draw};

/// A narrower terminal would break the lines of the picture.
const LEAST_COLUMNS: usize = 72;

/// The picture stands below the text of the lines that stay.
const INDENT: &str = "          ";

pub(super) struct Stage {
    out: Out,
    /// The picture moves: somebody looks.
    live: bool,
    /// Lines of the picture that are on the screen.
    drawn: usize,
    began: Instant,
    /// What is known of the run.
    pub(super) activities: Vec<Activity>,
}

impl Stage {
    pub(super) fn new(out: &Out) -> Self {
        let live = out.terminal && !out.json && !out.quiet && out.style.width >= LEAST_COLUMNS;
        Self { out: *out, live, drawn: 0, began: Instant::now(), activities: Vec::new() }
    }

    /// Something that stays.
    pub(super) fn say(&mut self, (tint, sign): (Tint, char), text: &str) -> Result<()> {
        if self.out.json {
            let at = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
            return self.out.event(&serde_json::json!({ "at_ms": at, "said": text }));
        }
        self.clear();
        let at = self.out.dim(&format!("{:>8}", took(round(self.began.elapsed()))));
        let sign = self.out.style.paint(tint, &sign.to_string());
        self.out.line(&format!("{at}  {sign} {text}"))?;
        self.draw();
        Ok(())
    }

    /// A line as it is, where people look.
    pub(super) fn line(&mut self, text: &str) -> Result<()> {
        if self.out.json {
            return Ok(());
        }
        self.clear();
        self.out.line(text)
    }

    /// Asks a question; the answer is typed behind it.
    pub(super) fn ask(&mut self, question: &str) {
        self.clear();
        print!("{INDENT}{question} ");
        // A question that cannot be shown is answered with nothing, which means no.
        let _ = std::io::stdout().flush();
    }

    pub(super) fn take(&mut self, activity: Activity) {
        self.activities.push(activity);
    }

    /// Draws the picture as of now.
    pub(super) fn draw(&mut self) {
        if !self.live || self.activities.is_empty() {
            return;
        }
        self.clear();
        let mut tree = Tree::of(&self.activities, now());
        // Those were said already.
        tree.notes.retain(|note| note.line);
        let style = Style { width: self.out.style.width - INDENT.len(), ..self.out.style };
        let lines: Vec<String> = draw(&tree, &style).into_iter().take(tree.rows.len() + 2).collect();
        for line in &lines {
            println!("{INDENT}{line}");
        }
        self.drawn = lines.len();
    }

    /// Takes the picture off the screen.
    pub(super) fn clear(&mut self) {
        if self.drawn > 0 {
            print!("\u{1b}[{}A\u{1b}[J", self.drawn);
            // What was not shown is shown with the next line.
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
