//! Times in JSON.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::{PartialSchema, ToSchema};
use windlass::Timestamp;

/// A point in time in RFC 3339: `2026-09-21T14:13:20.25Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(jiff::Timestamp);

impl Time {
    /// The current time.
    pub fn now() -> Self {
        Self(jiff::Timestamp::now())
    }

    /// Microseconds since the Unix epoch.
    pub fn as_micros(self) -> i64 {
        self.0.as_microsecond()
    }

    /// The time as a value of the kernel.
    pub fn timestamp(self) -> Timestamp {
        Timestamp::from_micros(self.0.as_microsecond())
    }
}

/// A time after the year 9999 becomes the end of that year: the kernel uses it for "never".
impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Self {
        let end = if at.as_micros() < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        Self(jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or(end))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Time {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl PartialSchema for Time {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
        ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
    }
}

impl ToSchema for Time {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_and_never_is_the_end_of_year_9999() {
        let at = Timestamp::from_micros(1_790_000_000_250_000);
        assert_eq!(serde_json::to_value(Time::from(at)).unwrap(), "2026-09-21T14:13:20.25Z");
        let back: Time = serde_json::from_str("\"2026-09-21T16:13:20.25+02:00\"").unwrap();
        assert_eq!(back.timestamp(), at);
        assert!(Time::from(Timestamp::from_micros(i64::MAX)).to_string().starts_with("9999-12-30T22:00"));
        assert!("yesterday".parse::<Time>().is_err());
    }
}
