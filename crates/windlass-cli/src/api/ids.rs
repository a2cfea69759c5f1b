//! Ids on the command line. A unique prefix of an id names it.

use windlass::RunId;
use windlass_server::wire::RunPage;

use super::{Api, query};
use crate::exit::{Exit, Failure, Result};
use crate::style::plain;

/// A shorter prefix is more likely a typing mistake.
const MIN_PREFIX: usize = 4;
/// How many candidates of an ambiguous prefix are shown.
const SHOWN: usize = 5;

impl Api {
    /// The run with this id, or the only run whose id has this prefix.
    pub async fn run(&self, typed: &str) -> Result<RunId> {
        if let (36, Ok(run)) = (typed.len(), typed.parse()) {
            return Ok(run);
        }
        let prefix = digits(typed)?;
        // One more than is shown, to know whether there are more.
        let limit = (SHOWN + 1).to_string();
        let pairs = [("prefix", Some(prefix.as_str())), ("limit", Some(limit.as_str()))];
        let page: RunPage = self.get(&format!("/v1/runs{}", query(&pairs))).await?;
        let found: Vec<RunId> = page.runs.iter().map(|run| run.id).collect();
        match found.as_slice() {
            [run] => Ok(*run),
            [] => {
                let typed = plain(typed);
                let message =
                    format!("no run has an id that begins with `{typed}`; `windlass runs list` lists the runs");
                Err(Failure::new(Exit::NotFound, message))
            }
            many => Err(ambiguous(typed, &many.iter().map(ToString::to_string).collect::<Vec<_>>(), "run")),
        }
    }

    /// The run that was started under this idempotency key.
    pub async fn run_by_key(&self, key: &str) -> Result<RunId> {
        let page: RunPage = self.get(&format!("/v1/runs{}", query(&[("key", Some(key))]))).await?;
        page.runs.first().map(|run| run.id).ok_or_else(|| {
            let message = format!(
                "no run was started under the key `{}`, or it has been purged; `windlass runs list` lists the runs",
                plain(key)
            );
            Failure::new(Exit::NotFound, message)
        })
    }
}

/// The hexadecimal digits of an id or a prefix of one.
fn digits(typed: &str) -> Result<String> {
    let digits: String = typed.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
    let all_hex = digits.chars().all(|c| c.is_ascii_hexdigit());
    if !all_hex || digits.len() < MIN_PREFIX || digits.len() > 32 {
        let typed = plain(typed);
        let expected = format!("expected a UUID, or at least its first {MIN_PREFIX} digits");
        return Err(Failure::usage(format!(
            "`{typed}` is not a valid run id ({expected}); `windlass runs list` lists the runs"
        )));
    }
    Ok(digits)
}

/// The failure for a prefix of several ids.
pub fn ambiguous(typed: &str, many: &[String], what: &str) -> Failure {
    let mut lines: Vec<String> = many.iter().take(SHOWN).map(|id| format!("    {id}")).collect();
    if many.len() > SHOWN {
        lines.push("    … and more".to_owned());
    }
    let head = format!("`{}` matches several {what}s; type more characters:", plain(typed));
    Failure::usage(format!("{head}\n{}", lines.join("\n")))
}

/// How many leading characters distinguish these ids; at least prefix_len to distinguish runs of different milliseconds.
pub fn prefix_len(ids: &[String]) -> usize {
    /// The first twelve digits are the time in milliseconds, with a hyphen among them.
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
    fn a_prefix_is_parsed_with_and_without_hyphens() {
        assert_eq!(digits("0198C2f0-1a").unwrap(), "0198c2f01a");
        for typed in ["", "019", "xyzt", "0198c2f0-1a2b-7c3d-8e4f-5a6b7c8d9e0f0"] {
            let failure = digits(typed).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains("windlass runs list"), "{}", failure.message);
        }
    }

    #[test]
    fn the_candidates_of_an_ambiguous_prefix_are_shown() {
        let many: Vec<String> = (0..7).map(|i| format!("0198-{i}")).collect();
        let failure = ambiguous("0198", &many, "run");
        assert!(failure.message.starts_with("`0198` matches several runs; type more characters:\n    0198-0\n"));
        assert!(failure.message.ends_with("0198-4\n    … and more"));
    }

    #[test]
    fn lists_show_as_much_of_an_id_as_distinguishes_it() {
        let ids = ["0198c2f0-1a2b-7c3d-8e4f-000000000000", "0198c2f0-1a2b-7c3d-9e4f-000000000000"].map(str::to_owned);
        assert_eq!(prefix_len(&ids), 20);
        assert_eq!(prefix_len(&ids[..1]), 13);
        assert_eq!(prefix_len(&[ids[0].clone(), ids[0].clone()]), 13);
    }
}
