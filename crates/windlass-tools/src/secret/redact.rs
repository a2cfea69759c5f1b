//! Removes secrets from text that leaves the process.

pub use windlass::tool::Redactor;

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::encode;

    fn redactor(values: &[(&str, &str)]) -> Redactor {
        let mut redactor = Redactor::default();
        values.iter().for_each(|(name, value)| redactor.add(name, value));
        redactor
    }

    #[test]
    fn e26_a_value_is_redacted_in_every_encoding() {
        let value = "p@ss \"wörd\"/+";
        let redactor = redactor(&[("db", value)]);
        let basic = STANDARD.encode(format!("user:{value}"));
        for (form, text) in [
            ("plain", value.to_owned()),
            ("JSON", json!({"k": value}).to_string()),
            ("percent", encode::strict(value)),
            ("percent with lower-case digits", encode::strict_small(value)),
            ("form", encode::form(value)),
            ("Base64", STANDARD.encode(value)),
            ("Base64 for URLs", URL_SAFE_NO_PAD.encode(value)),
            ("basic authentication", basic),
        ] {
            let clean = redactor.redact(&text).into_owned();
            assert!(clean.contains("[secret db]"), "{form}: {text} became {clean}");
            assert!(!clean.contains("wörd") && !clean.contains("ss%20"), "{form}: {clean}");
        }
        assert_eq!(redactor.redact("nothing here"), "nothing here");
    }

    #[test]
    fn e26_longer_values_are_replaced_first_and_very_short_ones_never() {
        let redactor = redactor(&[("short", "abc"), ("inner", "token"), ("outer", "token-token")]);
        assert_eq!(redactor.redact("abc token-token token"), "abc [secret outer] [secret inner]");
    }

    #[test]
    fn e26_values_are_redacted_inside_of_json() {
        let mut value = json!({"echo": {"Bearer hunter2": ["hunter2", 5]}});
        redactor(&[("k", "hunter2")]).redact_value(&mut value);
        assert_eq!(value, json!({"echo": {"Bearer [secret k]": ["[secret k]", 5]}}));
    }

    proptest! {
        #[test]
        fn e26_no_text_keeps_a_value(value in "[!-~]{6,24}", before in "[a-z ]{0,9}", after in "[a-z ]{0,9}") {
            // A value that occurs in its own replacement would be found there.
            prop_assume!(!"[secret XYZ]".contains(&value));
            let redactor = redactor(&[("XYZ", &value)]);
            let clean = redactor.redact(&format!("{before}{value}{after}")).into_owned();
            prop_assert!(clean.contains("[secret XYZ]"));
            prop_assert!(!clean.contains(&value));
        }
    }
}
