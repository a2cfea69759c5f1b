//! The meaning of an HTTP status for a call.

use std::time::{Duration, SystemTime};

use windlass::tool::Retryable;
use windlass::{Effect, ToolError};

use crate::net::{HeaderMap, StatusCode};

/// Longest delay that a server may request before a retry; with a longer one the call is not retried.
const LONGEST_DELAY: Duration = Duration::from_secs(3_600);

/// The error for a status; none for a success.
pub(crate) fn error_of(
    status: StatusCode,
    effect: Effect,
    delay: Option<Duration>,
    message: String,
) -> Option<ToolError> {
    let code = Some(format!("http_{}", status.as_u16()));
    let failed = |retry| Some(ToolError::Failed { message: message.clone(), retry, code: code.clone(), data: None });
    match status.as_u16() {
        200..=299 => None,
        401 | 403 => Some(ToolError::denied(message)),
        // A proxy got no response from the server, which may have acted.
        502 | 504 | 520..=524 if effect == Effect::Once => Some(ToolError::in_doubt(message)),
        408 | 425 | 429 | 500 | 502..=504 | 520..=524 if effect != Effect::Once => match delay {
            Some(delay) if delay > LONGEST_DELAY => failed(Retryable::No),
            Some(delay) => failed(Retryable::After(delay)),
            None => failed(Retryable::Yes),
        },
        _ => failed(Retryable::No),
    }
}

/// The delay that `Retry-After` requests: seconds, or a date.
pub(crate) fn delay_of(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get("retry-after")?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    Some(until.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: u16, effect: Effect, delay: Option<u64>) -> String {
        let status = StatusCode::from_u16(status).unwrap();
        match error_of(status, effect, delay.map(Duration::from_secs), "m".to_owned()) {
            None => "ok".to_owned(),
            Some(ToolError::Failed { retry, code, .. }) => format!("{} {retry:?}", code.unwrap()),
            Some(error) => error.kind().to_owned(),
        }
    }

    #[test]
    fn l17_a_status_decides_whether_a_retry_is_safe() {
        use Effect::{Idempotent, Once, Readonly};
        for (status, effect, delay, expected) in [
            (200, Once, None, "ok"),
            (204, Readonly, None, "ok"),
            (304, Readonly, None, "http_304 No"),
            (400, Once, None, "http_400 No"),
            (401, Readonly, None, "denied"),
            (403, Once, None, "denied"),
            (404, Readonly, None, "http_404 No"),
            (409, Once, None, "http_409 No"),
            (422, Idempotent, None, "http_422 No"),
            (408, Readonly, None, "http_408 Yes"),
            (425, Idempotent, None, "http_425 Yes"),
            (429, Readonly, Some(7), "http_429 After(7s)"),
            (429, Readonly, Some(86_400), "http_429 No"),
            (500, Readonly, None, "http_500 Yes"),
            (502, Idempotent, None, "http_502 Yes"),
            (503, Idempotent, Some(1), "http_503 After(1s)"),
            (504, Readonly, None, "http_504 Yes"),
            (501, Readonly, None, "http_501 No"),
            (408, Once, None, "http_408 No"),
            (429, Once, Some(1), "http_429 No"),
            (500, Once, None, "http_500 No"),
            (503, Once, Some(1), "http_503 No"),
            (502, Once, None, "in_doubt"),
            (504, Once, None, "in_doubt"),
            (524, Once, None, "in_doubt"),
        ] {
            assert_eq!(outcome(status, effect, delay), expected, "{status} {effect:?}");
        }
    }

    #[test]
    fn a_delay_is_in_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (text, expected) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", text.parse().unwrap());
            assert_eq!(delay_of(&headers, now), expected.map(Duration::from_secs), "{text}");
        }
    }
}
