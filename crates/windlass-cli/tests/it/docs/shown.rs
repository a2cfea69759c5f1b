//! Compares output with what a chapter shows. `…` matches any text within a line, and alone on a line any number of lines.

/// Matches anything.
const ANY: &str = "…";

/// Whether the output is as shown. JSON may have other line breaks.
pub(super) fn fits(shown: &[String], printed: &str) -> bool {
    let shown: Vec<&str> = trimmed(shown.iter().map(String::as_str));
    let printed: Vec<&str> = trimmed(printed.lines());
    lines_fit(&shown, &printed) || (is_json(&shown) && is_json(&printed) && json_fits(&shown, &printed))
}

/// Whether the output begins as shown, for a command that is still running.
pub(super) fn begins(shown: &[String], printed: &str) -> bool {
    let shown: Vec<&str> = trimmed(shown.iter().map(String::as_str));
    let printed: Vec<&str> = trimmed(printed.lines());
    let with_more: Vec<&str> = shown.into_iter().chain([ANY]).collect();
    lines_fit(&with_more, &printed)
}

fn trimmed<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut lines: Vec<&str> = lines.map(str::trim_end).collect();
    while lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    lines
}

fn lines_fit(shown: &[&str], printed: &[&str]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((&ANY, rest)) => (0..=printed.len()).any(|skipped| lines_fit(rest, &printed[skipped..])),
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, others)| text_fits(line, first) && lines_fit(rest, others))
        }
    }
}

fn text_fits(shown: &str, printed: &str) -> bool {
    let mut pieces = shown.split(ANY);
    let Some(rest) = pieces.next().and_then(|first| printed.strip_prefix(first)) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    let mut rest = rest;
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

fn is_json(lines: &[&str]) -> bool {
    lines.first().is_some_and(|line| line.starts_with(['{', '[']))
}

fn json_fits(shown: &[&str], printed: &[&str]) -> bool {
    let bare = |lines: &[&str]| lines.concat().replace(' ', "");
    text_fits(&bare(shown), &bare(printed))
}

#[test]
fn an_ellipsis_matches_any_text() {
    let check = |shown: &str, printed: &str| {
        let shown: Vec<String> = shown.lines().map(str::to_owned).collect();
        fits(&shown, printed)
    };
    assert!(check("run … is ok\n", "run 0190 is ok\n\n"));
    assert!(!check("run … is ok\n", "run 0190 is ok.\n"));
    assert!(check("a…c…e", "abcde") && !check("a…e…c", "abcde") && !check("…ab", "xabx"));
    assert!(check("one\n…\nlast", "one\n2\n3\nlast") && check("one\n…\nlast", "one\nlast"));
    assert!(!check("one\n…\nlast", "one\n2") && !check("", "something") && check("", ""));
    assert!(check("{\n  \"run\": \"…\",\n  \"n\": 1 }", "{\"run\":\"0190\",\"n\":1}"));
    assert!(!check("{ \"run\": \"…\", \"n\": 1 }", "{\"run\":\"0190\",\"n\":2}"));
    assert!(begins(&["serves … at …".to_owned()], "serves x at y\nWARN later\n"));
    assert!(!begins(&["serves … at …".to_owned()], ""));
}
