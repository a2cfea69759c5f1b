//! Reads JSON documents that contain deeply nested values.

use serde::de::DeserializeOwned;

use crate::limits;

/// Reads JSON that contains values nested up to [`limits::VALUE_DEPTH`] levels, inside documents, requests and
/// responses that add a few levels of their own ([`limits::DOCUMENT_DEPTH`]). The parser's own limit would refuse
/// those. Text that is nested more deeply is refused with the parser's error.
pub fn read_json<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    if depth(text) <= limits::DOCUMENT_DEPTH {
        parser.disable_recursion_limit();
    }
    let value = T::deserialize(&mut parser)?;
    parser.end()?;
    Ok(value)
}

/// The maximum nesting depth of lists and objects.
fn depth(text: &[u8]) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    let (mut quoted, mut escaped) = (false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                open += 1;
                deepest = deepest.max(open);
            }
            b']' | b'}' if !quoted => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn brackets_in_strings_do_not_count_as_depth() {
        for (text, expected) in
            [("1", 0), ("[]", 1), (r#"{"a": [1, {"b": []}], "c": []}"#, 4), (r#"["[[\"[[", "\\", []]"#, 2), ("[[", 2)]
        {
            assert_eq!(depth(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn w10_the_levels_around_a_value_do_not_count_against_it() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read_json::<Value>(nested(limits::DOCUMENT_DEPTH).as_bytes()).is_ok());
        for levels in [limits::DOCUMENT_DEPTH + 1, 1_000_000] {
            let error = read_json::<Value>(nested(levels).as_bytes()).unwrap_err();
            assert!(error.to_string().contains("recursion limit exceeded at line 1"), "{error}");
        }
        assert!(read_json::<Value>(b"[1] 2").is_err(), "text after the value is refused");
    }
}
