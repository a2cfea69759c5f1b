//! Ids as people type them: a beginning will do, as long as it fits one.

use windlass::RunId;
use windlass_server::wire::RunPage;

use super::{Api, query};
use crate::exit::{Exit, Failure, Result};
use crate::style::plain;

/// Fewer characters than this are a slip of the finger.
const LEAST: usize = 4;
/// So many of the candidates are shown.
const SHOWN: usize = 5;

impl Api {
    /// The run somebody means: its id, or a beginning of it that fits no other.
    pub async fn run(&self, typed: &str) -> Result<RunId> {
        if let (36, Ok(run)) = (typed.len(), typed.parse()) {
            return Ok(run);
        }
        let wanted = digits(typed)?;
        // One more than is shown tells enough.
        let limit = (SHOWN + 1).to_string();
        let pairs = [("prefix", Some(wanted.as_str())), ("limit", Some(limit.as_str()))];
        let page: RunPage = self.get(&format!("/v1/runs{}", query(&pairs))).await?;
        let found: Vec<RunId> = page.runs.iter().map(|run| run.id).collect();
        match found.as_slice() {
            [run] => Ok(*run),
            [] => {
                let typed = plain(typed);
                let sentence = format!("no run begins with `{typed}`; `windlass runs list` shows which there are");
                Err(Failure::new(Exit::NotFound, sentence))
            }
            many => Err(ambiguous(typed, &many.iter().map(ToString::to_string).collect::<Vec<_>>(), "run")),
        }
    }
}

/// The hexadecimal digits of what was typed.
fn digits(typed: &str) -> Result<String> {
    let digits: String = typed.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
    let all_hex = digits.chars().all(|c| c.is_ascii_hexdigit());
    if !all_hex || digits.len() < LEAST || digits.len() > 32 {
        let typed = plain(typed);
        let how = format!("it is a UUID, and at least {LEAST} of its first digits will do");
        return Err(Failure::usage(format!("`{typed}` is no id of a run: {how}; `windlass runs list` shows them")));
    }
    Ok(digits)
}

/// What to say where a beginning fits several.
pub fn ambiguous(typed: &str, many: &[String], what: &str) -> Failure {
    let mut lines: Vec<String> = many.iter().take(SHOWN).map(|id| format!("    {id}")).collect();
    if many.len() > SHOWN {
        lines.push("    … and more".to_owned());
    }
    let head = format!("`{}` is the beginning of several {what}s; type more of it:", plain(typed));
    Failure::usage(format!("{head}\n{}", lines.join("\n")))
}

/// How many characters of these ids tell them apart; at least enough to tell runs of different milliseconds apart.
pub fn enough(ids: &[String]) -> usize {
    /// The time is in the first twelve digits, with a hyphen among them.
    const TIME: usize = 13;
    let mut sorted: Vec<&String> = ids.iter().collect();
    sorted.sort();
    let shared = |pair: &[&String]| pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count();
    let most = sorted.windows(2).filter(|pair| pair[0] != pair[1]).map(shared).max().unwrap_or(0);
    (most + 1).max(TIME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_read_with_and_without_hyphens() {
        assert_eq!(digits("0198C2f0-1a").unwrap(), "0198c2f01a");
        for typed in ["", "019", "xyzt", "0198c2f0-1a2b-7c3d-8e4f-5a6b7c8d9e0f0"] {
            let failure = digits(typed).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.sentence.contains("windlass runs list"), "{}", failure.sentence);
        }
    }

    #[test]
    fn what_fits_several_is_shown() {
        let many: Vec<String> = (0..7).map(|i| format!("0198-{i}")).collect();
        let failure = ambiguous("0198", &many, "run");
        assert!(
            failure.sentence.starts_with("`0198` is the beginning of several runs; type more of it:\n    0198-0\n")
        );
        assert!(failure.sentence.ends_with("0198-4\n    … and more"));
    }

    #[test]
    fn lists_show_as_much_of_an_id_as_tells_it_apart() {
        let ids = ["0198c2f0-1a2b-7c3d-8e4f-000000000000", "0198c2f0-1a2b-7c3d-9e4f-000000000000"].map(str::to_owned);
        assert_eq!(enough(&ids), 20);
        assert_eq!(enough(&ids[..1]), 13);
        assert_eq!(enough(&[ids[0].clone(), ids[0].clone()]), 13);
    }
}
