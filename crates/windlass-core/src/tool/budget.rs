//! Cuts long text for a model: keeps the head and the tail, counts what was left out, and tells how to read the rest.

use std::borrow::Cow;

use serde_json::Value;

/// How many characters a cut may move to keep a character together with its combining marks. Real text needs two or
/// three. The limit keeps a text that consists only of marks from moving the cut far.
const MAX_MARKS: usize = 16;

/// A text without its middle. `head` and `tail` are unchanged pieces of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut<'t> {
    /// The beginning of the text.
    pub head: &'t str,
    /// The end of the text.
    pub tail: &'t str,
    /// Bytes between `head` and `tail`.
    pub omitted_bytes: usize,
    /// Line breaks between `head` and `tail`.
    pub omitted_lines: usize,
    /// Bytes of the whole text.
    pub total_bytes: usize,
}

/// Cuts a text to at most `budget` bytes: two thirds from its head, one third from its tail. It never cuts inside a
/// character or between a character and its combining marks. Returns `None` if the text fits.
pub fn cut(text: &str, budget: usize) -> Option<Cut<'_>> {
    if text.len() <= budget {
        return None;
    }
    let share = budget / 3;
    let head_end = back(text, budget - share);
    let tail_start = forth(text, text.len() - share).max(head_end);
    let omitted = &text[head_end..tail_start];
    Some(Cut {
        head: &text[..head_end],
        tail: &text[tail_start..],
        omitted_bytes: omitted.len(),
        omitted_lines: omitted.bytes().filter(|byte| *byte == b'\n').count(),
        total_bytes: text.len(),
    })
}

/// Whether a value is so small that its text fits the budget in any encoding. An upper bound, cheaper than writing the
/// text.
pub(crate) fn surely_fits(value: &Value, budget: usize) -> bool {
    take_room(value, &mut { budget })
}

/// Subtracts the most bytes that the value may need as JSON or as plain text; false if fewer are left.
fn take_room(value: &Value, room: &mut usize) -> bool {
    // A character is escaped to at most six bytes, and a number takes less than thirty.
    let text = |text: &str| 6 * text.len() + 4;
    let own = match value {
        Value::Null | Value::Bool(_) => 8,
        Value::Number(_) => 32,
        Value::String(string) => text(string),
        Value::Array(list) => 2 + list.len(),
        Value::Object(map) => 2 + map.keys().map(|key| text(key)).sum::<usize>(),
    };
    let Some(left) = room.checked_sub(own) else { return false };
    *room = left;
    match value {
        Value::Array(list) => list.iter().all(|value| take_room(value, room)),
        Value::Object(map) => map.values().all(|value| take_room(value, room)),
        _ => true,
    }
}

/// Cuts a text so that head, notice and tail together take at most `budget` bytes. `how` returns the part of the notice
/// that tells how to read on from the end of the head. The notice itself is never cut, so the result is longer than a
/// budget that is smaller than the notice.
pub fn fit<'t>(text: &'t str, budget: usize, how: impl Fn(&Cut<'_>) -> String) -> Cow<'t, str> {
    match cut_with_notice(text, budget, how) {
        Some((cut, notice)) => Cow::Owned(format!("{}{notice}{}", cut.head, cut.tail)),
        None => Cow::Borrowed(text),
    }
}

/// Like [`fit`], in parts; `None` if the text fits.
pub(crate) fn cut_with_notice(
    text: &str,
    budget: usize,
    how: impl Fn(&Cut<'_>) -> String,
) -> Option<(Cut<'_>, String)> {
    if text.len() <= budget {
        return None;
    }
    // The notice with the largest numbers is the longest one.
    let total_bytes = text.len();
    let widest = Cut { head: text, tail: "", omitted_bytes: total_bytes, omitted_lines: total_bytes, total_bytes };
    let room = budget.saturating_sub(notice(&widest, &how).len());
    let cut = cut(text, room)?;
    let notice = notice(&cut, &how);
    Some((cut, notice))
}

fn notice(cut: &Cut<'_>, how: impl Fn(&Cut<'_>) -> String) -> String {
    let Cut { omitted_bytes, omitted_lines, total_bytes, .. } = cut;
    let how = how(cut);
    format!(
        "\n[… {omitted_bytes} of {total_bytes} bytes omitted here, {omitted_lines} line breaks among them{how} …]\n"
    )
}

/// The last position at or before `at` where the text may be cut.
fn back(text: &str, at: usize) -> usize {
    let mut at = text.floor_char_boundary(at);
    let start = at;
    for _ in 0..MAX_MARKS {
        if !inside(text, at) {
            return at;
        }
        at = text.floor_char_boundary(at - 1);
    }
    start
}

/// The first position at or after `at` where the text may be cut.
fn forth(text: &str, at: usize) -> usize {
    let mut at = text.ceil_char_boundary(at);
    let start = at;
    for _ in 0..MAX_MARKS {
        if !inside(text, at) {
            return at;
        }
        at = text.ceil_char_boundary(at + 1);
    }
    start
}

/// Whether the characters before and after `at` are displayed as one.
fn inside(text: &str, at: usize) -> bool {
    let (Some(before), Some(after)) = (text[..at].chars().next_back(), text[at..].chars().next()) else { return false };
    before == JOINER || is_mark(after) || (before == '\r' && after == '\n')
}

const JOINER: char = '\u{200d}';

/// Whether a character modifies the one before it: combining marks, variation selectors, skin tones and joiners of the
/// common blocks. A table of the marks of every script would be exact, but is not worth its size here.
fn is_mark(c: char) -> bool {
    matches!(c,
        '\u{0300}'..='\u{036f}' | '\u{0483}'..='\u{0489}' | '\u{0591}'..='\u{05bd}' | '\u{064b}'..='\u{065f}'
        | '\u{093a}'..='\u{094f}' | '\u{0e31}'..='\u{0e3a}' | '\u{0e47}'..='\u{0e4e}' | '\u{1ab0}'..='\u{1aff}'
        | '\u{1dc0}'..='\u{1dff}' | '\u{200d}' | '\u{20d0}'..='\u{20ff}' | '\u{3099}' | '\u{309a}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{fe20}'..='\u{fe2f}' | '\u{1f3fb}'..='\u{1f3ff}')
}

/// One page of a text that is read in several requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The text of this page.
    pub text: String,
    /// The offset of the next page; `None` at the end.
    pub next_offset: Option<usize>,
    /// Bytes of the whole text.
    pub total: usize,
}

/// The page of a text that starts at `offset`: at most `limit` bytes of whole characters, and at least one character
/// unless the end is reached. A reader that continues at `next_offset` reads the whole text exactly once.
pub fn page(text: &str, offset: usize, limit: usize) -> Page {
    let start = text.floor_char_boundary(offset);
    let mut end = text.floor_char_boundary(start.saturating_add(limit));
    if end == start && start < text.len() {
        end = text.ceil_char_boundary(start + 1);
    }
    let next_offset = (end < text.len()).then_some(end);
    Page { text: text[start..end].to_owned(), next_offset, total: text.len() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn e10_text_within_the_budget_is_unchanged() {
        assert_eq!(cut("short", 5), None);
        assert_eq!(fit("short", 5, |_| String::new()), "short");
    }

    #[test]
    fn e10_values_reported_as_fitting_do_fit_and_small_values_are_reported() {
        let odd = "\u{0}\u{1f}\"\\ä\u{1f600}".repeat(5);
        let numbers = json!([i64::MIN, u64::MAX, -1.797_693_134_862_315_7e308, 5e-324, 0.1, true, null, []]);
        for value in [numbers, json!(odd), json!({ odd.clone(): { "": odd } }), json!([[[[]]], {}]), json!({})] {
            let text = value.to_string();
            assert!(!surely_fits(&value, text.len() - 1), "{text}");
            assert!(surely_fits(&value, 6 * text.len() + 300), "{text}");
        }
    }

    #[test]
    fn e10_head_and_tail_are_kept_and_the_counts_are_bytes() {
        let text = "ü\n".repeat(1_000);
        let cut = cut(&text, 31).unwrap();
        assert_eq!(cut.head, "ü\n".repeat(7), "21 bytes, cut at a character");
        assert_eq!(cut.tail, format!("\n{}", "ü\n".repeat(3)), "10 bytes");
        assert_eq!((cut.omitted_bytes, cut.omitted_lines, cut.total_bytes), (3_000 - 21 - 10, 989, 3_000));
    }

    #[test]
    fn e10_marks_stay_with_their_character() {
        // A woman and a laptop, joined: four characters, eleven bytes, one picture. Then an `e` with a combining
        // accent.
        let text = format!("{}👩‍💻{}e\u{301}{}", "a".repeat(10), "b".repeat(100), "c".repeat(4));
        let picture = cut(&text, 24).unwrap();
        assert_eq!(picture.head, "a".repeat(10), "the picture is not cut into its parts");
        let accent = cut(&text, 18).unwrap();
        assert_eq!(accent.tail, "c".repeat(4), "no tail begins with a combining accent");
        let marks = "\u{301}".repeat(1_000);
        assert!(cut(&marks, 300).unwrap().head.len() > 150, "a text of marks alone keeps most of its head");
    }

    #[test]
    fn e10_the_notice_counts_what_is_omitted_and_tells_how_to_read_on() {
        let text = format!("{}\n{}", "head".repeat(200), "tail".repeat(200));
        let shown = fit(&text, 300, |cut| format!("; read on at {}", cut.head.len()));
        assert!(shown.len() <= 300, "{}", shown.len());
        assert!(shown.starts_with("headhead") && shown.ends_with("tailtail"), "{shown}");
        assert!(shown.contains("of 1601 bytes omitted here, 1 line breaks among them; read on at "), "{shown}");
        assert_eq!(fit(&shown, 300, |_| String::new()), shown, "a text that was cut is not cut again");
    }

    #[test]
    fn e10_pages_cover_a_text_exactly_once() {
        let text = "añ🦀\n".repeat(50);
        for limit in [0, 1, 3, 4, 7, 1_000] {
            let (mut read, mut offset) = (String::new(), Some(0));
            while let Some(at) = offset {
                let page = page(&text, at, limit);
                assert!(!page.text.is_empty() && page.total == text.len());
                read.push_str(&page.text);
                offset = page.next_offset;
            }
            assert_eq!(read, text, "limit {limit}");
        }
        assert_eq!(page("abc", 99, 10), Page { text: String::new(), next_offset: None, total: 3 });
    }
}
