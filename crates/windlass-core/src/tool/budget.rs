//! How much a model is shown at once: the head and the tail of a text, honest counts of what lies between, and how to
//! read on.

use std::borrow::Cow;

use serde_json::Value;

/// Characters at most by which a cut moves to keep a character and its marks together. Real text needs two or three; a
/// text made of marks alone must not move it far.
const MOST_MARKS: usize = 16;

/// A text without its middle. `head` and `tail` are pieces of the text as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut<'t> {
    /// How it begins.
    pub head: &'t str,
    /// How it ends.
    pub tail: &'t str,
    /// Bytes between the two.
    pub omitted_bytes: usize,
    /// Line breaks between the two.
    pub omitted_lines: usize,
    /// Bytes of the whole.
    pub total_bytes: usize,
}

/// Cuts a text to at most `budget` bytes: two thirds from its head, one third from its tail, neither ending inside a
/// character nor between a character and its combining marks. `None` if it fits as it is.
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

/// Whether a value is so small that its text is within a budget, however it is written. Quicker than writing it.
pub(crate) fn surely_fits(value: &Value, budget: usize) -> bool {
    take_room(value, &mut { budget })
}

/// Takes as much as the value may need at most, as JSON or as plain text; false if there is not so much.
fn take_room(value: &Value, room: &mut usize) -> bool {
    // A character is written as six at most, a number as less than thirty.
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

/// Cuts a text so that head, notice and tail together are at most `budget` bytes. `how` says how to read on from the end of
/// the head; the notice is never cut, so a budget smaller than it is exceeded by it and nothing else.
pub fn fit<'t>(text: &'t str, budget: usize, how: impl Fn(&Cut<'_>) -> String) -> Cow<'t, str> {
    if text.len() <= budget {
        return Cow::Borrowed(text);
    }
    // No cut has a longer notice than one with the largest numbers.
    let total_bytes = text.len();
    let widest = Cut { head: text, tail: "", omitted_bytes: total_bytes, omitted_lines: total_bytes, total_bytes };
    let room = budget.saturating_sub(notice(&widest, &how).len());
    let Some(cut) = cut(text, room) else { return Cow::Borrowed(text) };
    Cow::Owned(format!("{}{}{}", cut.head, notice(&cut, &how), cut.tail))
}

fn notice(cut: &Cut<'_>, how: impl Fn(&Cut<'_>) -> String) -> String {
    let Cut { omitted_bytes, omitted_lines, total_bytes, .. } = cut;
    let how = how(cut);
    format!(
        "\n[… {omitted_bytes} of {total_bytes} bytes omitted here, {omitted_lines} line breaks among them{how} …]\n"
    )
}

/// The last place at or before `at` where the text may be cut.
fn back(text: &str, at: usize) -> usize {
    let mut at = text.floor_char_boundary(at);
    let start = at;
    for _ in 0..MOST_MARKS {
        if !inside(text, at) {
            return at;
        }
        at = text.floor_char_boundary(at - 1);
    }
    start
}

/// The first place at or after `at` where the text may be cut.
fn forth(text: &str, at: usize) -> usize {
    let mut at = text.ceil_char_boundary(at);
    let start = at;
    for _ in 0..MOST_MARKS {
        if !inside(text, at) {
            return at;
        }
        at = text.ceil_char_boundary(at + 1);
    }
    start
}

/// Whether what stands before `at` and what stands after it are shown as one.
fn inside(text: &str, at: usize) -> bool {
    let (Some(before), Some(after)) = (text[..at].chars().next_back(), text[at..].chars().next()) else { return false };
    before == JOINER || is_mark(after) || (before == '\r' && after == '\n')
}

const JOINER: char = '\u{200d}';

/// Whether a character changes the one before it: the blocks of combining marks, variation selectors, skin tones, joiners.
/// A table of every script's marks would be exact and is not worth its size here.
fn is_mark(c: char) -> bool {
    matches!(c,
        '\u{0300}'..='\u{036f}' | '\u{0483}'..='\u{0489}' | '\u{0591}'..='\u{05bd}' | '\u{064b}'..='\u{065f}'
        | '\u{093a}'..='\u{094f}' | '\u{0e31}'..='\u{0e3a}' | '\u{0e47}'..='\u{0e4e}' | '\u{1ab0}'..='\u{1aff}'
        | '\u{1dc0}'..='\u{1dff}' | '\u{200d}' | '\u{20d0}'..='\u{20ff}' | '\u{3099}' | '\u{309a}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{fe20}'..='\u{fe2f}' | '\u{1f3fb}'..='\u{1f3ff}')
}

/// A piece of a text that is read bit by bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The piece.
    pub text: String,
    /// Where to go on; `None` at the end.
    pub next_offset: Option<usize>,
    /// Bytes of the whole text.
    pub total: usize,
}

/// At most `limit` bytes of a text from `offset` on, whole characters only, and at least one while there is any: whoever
/// goes on at `next_offset` reads all of it, once.
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
    fn e10_what_fits_is_left_alone() {
        assert_eq!(cut("short", 5), None);
        assert_eq!(fit("short", 5, |_| String::new()), "short");
    }

    #[test]
    fn e10_what_surely_fits_does_and_small_values_surely_do() {
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
        // A woman and a laptop, joined: four characters, eleven bytes, one picture; then an accent of its own.
        let text = format!("{}👩‍💻{}e\u{301}{}", "a".repeat(10), "b".repeat(100), "c".repeat(4));
        let picture = cut(&text, 24).unwrap();
        assert_eq!(picture.head, "a".repeat(10), "the picture is not cut into its parts");
        let accent = cut(&text, 18).unwrap();
        assert_eq!(accent.tail, "c".repeat(4), "no tail begins with an accent");
        let marks = "\u{301}".repeat(1_000);
        assert!(cut(&marks, 300).unwrap().head.len() > 150, "nor do marks alone eat up the head");
    }

    #[test]
    fn e10_the_notice_counts_and_says_how_to_read_on() {
        let text = format!("{}\n{}", "head".repeat(200), "tail".repeat(200));
        let shown = fit(&text, 300, |cut| format!("; read on at {}", cut.head.len()));
        assert!(shown.len() <= 300, "{}", shown.len());
        assert!(shown.starts_with("headhead") && shown.ends_with("tailtail"), "{shown}");
        assert!(shown.contains("of 1601 bytes omitted here, 1 line breaks among them; read on at "), "{shown}");
        assert_eq!(fit(&shown, 300, |_| String::new()), shown, "what was cut is not cut again");
    }

    #[test]
    fn e10_pages_go_through_a_text_once() {
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
