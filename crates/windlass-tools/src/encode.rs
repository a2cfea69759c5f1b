//! Percent-encoding in the strict form: every character that has a meaning anywhere in a URL is encoded.

use std::fmt::Write;

/// Encodes everything but letters, digits, `-`, `.`, `_` and `~`: the result is one segment or value of a URL.
pub(crate) fn strict(text: &str) -> String {
    encoded(text, |to, byte| write!(to, "%{byte:02X}"))
}

/// The same with lower-case hexadecimal digits, as some programs write it.
#[cfg(test)]
pub(crate) fn strict_small(text: &str) -> String {
    encoded(text, |to, byte| write!(to, "%{byte:02x}"))
}

fn encoded(text: &str, write: fn(&mut String, u8) -> std::fmt::Result) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            // Writing to a `String` cannot fail.
            _ => _ = write(&mut encoded, byte),
        }
    }
    encoded
}

/// The encoding of forms: a space is a `+`.
pub(crate) fn form(text: &str) -> String {
    strict(text).replace("%20", "+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_with_a_meaning_in_a_url_is_encoded() {
        assert_eq!(strict("a/b?c=d&e#f%2F ä+\r\n"), "a%2Fb%3Fc%3Dd%26e%23f%252F%20%C3%A4%2B%0D%0A");
        assert_eq!(strict_small("A/B"), "A%2fB");
        assert_eq!(form("a b+c"), "a+b%2Bc");
    }
}
