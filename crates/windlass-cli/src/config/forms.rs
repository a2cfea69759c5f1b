//! The forms of the strings in a config file.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use windlass::policy::Expression;
use windlass::tool::nearest;
use windlass::tool::spec::KeyExpression;
use windlass_tools::net::Allow;

use super::keys::{Form, FormError};
use super::units;

pub(crate) static ANY: Form = Form { what: "a string", pattern: None, check: |_| Ok(()) };

pub(crate) static NOT_EMPTY: Form =
    Form { what: "a string that is not empty", pattern: Some(r"\S"), check: |text| not_empty(text) };

pub(crate) static DURATION: Form = Form {
    what: "a duration such as \"5s\" or \"2m\"",
    pattern: Some(r"^\s*(\d+\s*(ms|s|m|h|d|w)\s*)+$"),
    check: |text| match units::duration(text)? {
        time if time.is_zero() => Err("the duration must not be zero".to_owned().into()),
        _ => Ok(()),
    },
};

pub(crate) static RETENTION_TIME: Form = Form {
    what: "a duration such as \"30d\", or \"forever\"",
    pattern: Some(r"^(forever|\s*(\d+\s*(ms|s|m|h|d|w)\s*)+)$"),
    check: |text| if text == "forever" { Ok(()) } else { Ok(units::duration(text).map(drop)?) },
};

pub(crate) static SIZE: Form = Form {
    what: "a size such as \"16 MiB\"",
    pattern: Some(r"^\s*\d+\s*([KkMmGg][Ii]?)?[Bb]\s*$"),
    check: |text| match units::size(text)? {
        0 => Err("the size must not be zero".to_owned().into()),
        _ => Ok(()),
    },
};

pub(crate) static RATE: Form = Form {
    what: "a rate such as \"10/s\"",
    pattern: Some(r"^\s*[1-9]\d*\s*/\s*s\s*$"),
    check: |text| Ok(units::rate(text).map(drop)?),
};

pub(crate) static ADDRESS: Form = Form {
    what: "an address such as \"127.0.0.1:7117\"",
    pattern: Some(r":\d+$"),
    check: |text| Ok(address(text).map(drop)?),
};

pub(crate) static HOST: Form =
    Form { what: "a host such as \"tools.example.com\"", pattern: Some(r"^[^/\s]+$"), check: host };

pub(crate) static ORIGIN: Form =
    Form { what: "an origin such as \"https://app.example.com\"", pattern: Some(r"^https?://[^/\s]+$"), check: origin };

pub(crate) static TOOL_NAME: Form = Form {
    what: "a name of 1 to 64 of the characters a-z, A-Z, 0-9, `_`, `-`, `.`",
    pattern: Some(r"^[A-Za-z0-9_.-]{1,64}$"),
    check: tool_name,
};

pub(crate) static SECRET_NAME: Form =
    Form { what: "a name such as \"STRIPE_KEY\"", pattern: Some(r"^[A-Za-z0-9_.-]+$"), check: secret_name };

pub(crate) static SECRET: Form = Form {
    what: "a reference such as \"env:STRIPE_KEY\" or \"file:/run/secrets/stripe\"",
    pattern: Some(r"^(env|file|session|connection):.+$"),
    check: secret,
};

pub(crate) static APPROVAL: Form = Form {
    what: "\"never\", \"always\", or a condition such as \"args.cents > 10000\"",
    pattern: Some(r"\S"),
    check: approval,
};

pub(crate) static CONCURRENCY: Form = Form {
    what: "\"auto\", \"parallel\", \"exclusive\", or a key such as \"args.account\"",
    pattern: Some(r"\S"),
    check: concurrency,
};

pub(crate) static ALLOW: Form = Form {
    what: "a host name, an IP address or a network such as \"10.0.0.0/8\"",
    pattern: Some(r"^\S+$"),
    check: |text| Ok(text.parse::<Allow>().map(drop).map_err(|bad| bad.to_string())?),
};

pub(crate) static ENV_NAME: Form = Form {
    what: "the name of an environment variable that does not begin with WINDLASS_",
    pattern: Some(r"^[^=]+$"),
    check: |text| match text {
        own if own.starts_with("WINDLASS_") => Err(format!("`{own}` is set by Windlass; choose another name").into()),
        odd if odd.is_empty() || odd.contains(['=', '\0']) => {
            Err(format!("`{odd}` is not a valid name of an environment variable").into())
        }
        _ => Ok(()),
    },
};

pub(crate) static EXIT_CODE: Form = Form {
    what: "an exit code from 1 to 255",
    pattern: Some(r"^([1-9]|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])$"),
    check: |text| match text.parse::<u8>() {
        Ok(1..) => Ok(()),
        _ => Err(format!("`{text}` is not a valid exit code (expected 1 to 255)").into()),
    },
};

pub(crate) static HEADER: Form =
    Form { what: "the name of a header", pattern: Some(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"), check: header };

pub(crate) static MEDIA_TYPE: Form = Form {
    what: "a media type such as \"image/png\"",
    pattern: Some(r"^[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+$"),
    check: media_type,
};

pub(crate) static LOCALE: Form = Form {
    what: "a locale such as \"en\" or \"de-CH\"",
    pattern: Some(r"^[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*$"),
    check: locale,
};

fn media_type(text: &str) -> Result<(), FormError> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "!#$&^_.+-".contains(c);
    let is_part = |part: &str| !part.is_empty() && part.chars().all(legal);
    match text.split_once('/') {
        Some((kind, subtype)) if is_part(kind) && is_part(subtype) => Ok(()),
        _ => Err("it needs a type and a subtype in lower case, without parameters".to_owned().into()),
    }
}

fn not_empty(text: &str) -> Result<(), FormError> {
    if text.trim().is_empty() { Err("the string is empty".to_owned().into()) } else { Ok(()) }
}

/// Parses the address of a server. `localhost` is the IPv4 loopback address, which every machine has.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix("localhost:") {
        let port = port.parse().map_err(|_| format!("`{port}` is not a valid port (expected 0 to 65535)"))?;
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse::<SocketAddr>().map_err(|_| match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => format!("`{text}` has no port; did you mean `{text}:7117`?"),
        Ok(IpAddr::V6(_)) => format!("`{text}` has no port; did you mean `[{text}]:7117`?"),
        Err(_) => {
            format!("`{text}` is not a valid address (expected an IP address and a port, for example `127.0.0.1:7117`)")
        }
    })
}

fn host(text: &str) -> Result<(), FormError> {
    not_empty(text)?;
    if text.contains("://") {
        return Err(format!("`{text}` is an origin, not a host; leave out the scheme").into());
    }
    if text.contains(['/', ' ', '*']) {
        return Err(format!("`{text}` is not a valid host (expected a name, with a port if it has one)").into());
    }
    Ok(())
}

fn origin(text: &str) -> Result<(), FormError> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match rest {
        None => Err(format!("`{text}` has no scheme; did you mean `https://{text}`?").into()),
        Some(rest) if rest.is_empty() || rest.contains(['/', ' ', '*']) => {
            Err("an origin consists of a scheme, a host and a port only".to_owned().into())
        }
        Some(_) => Ok(()),
    }
}

fn tool_name(text: &str) -> Result<(), FormError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if !text.is_empty() && text.len() <= 64 && text.chars().all(legal) {
        return Ok(());
    }
    let legal_name: String = text.chars().map(|c| if legal(c) { c } else { '_' }).take(64).collect();
    let mut error = FormError::from(format!("`{text}` is not a valid tool name"));
    error.suggestion = (!legal_name.is_empty()).then(|| format!("did you mean `{legal_name}`?"));
    Err(error)
}

fn secret_name(text: &str) -> Result<(), FormError> {
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')) {
        return Ok(());
    }
    Err(format!("`{text}` is not a valid name of a secret (expected letters, digits, `_`, `-` and `.`)").into())
}

/// A value that is not a reference may be the secret itself, so it is not printed.
fn secret(text: &str) -> Result<(), FormError> {
    let problem = match text.split_once(':') {
        Some(("env" | "file" | "session" | "connection", "")) => "the reference has no name",
        Some(("env", name)) if name.contains(['=', '\0', ' ']) => {
            "the reference does not name a valid environment variable"
        }
        Some(("env" | "file" | "session" | "connection", _)) => return Ok(()),
        _ => {
            "a secret must not be written in this file; refer to it with \"env:NAME\" for an environment variable or \
             \"file:PATH\" for a file"
        }
    };
    Err(FormError { hidden: true, ..FormError::from(problem.to_owned()) })
}

fn approval(text: &str) -> Result<(), FormError> {
    if matches!(text, "never" | "always") {
        return Ok(());
    }
    not_empty(text)?;
    condition(text).map_err(|error| FormError { suggestion: did_you_mean(text, &["never", "always"]), ..error })
}

/// A condition in CEL.
pub(crate) fn condition(text: &str) -> Result<(), FormError> {
    Expression::parse(text).map(drop).map_err(|bad| FormError {
        message: format!("the condition does not compile: {}", bad.problem),
        suggestion: None,
        at: bad.position.and_then(|position| offset(text, position)),
        hidden: false,
    })
}

/// The byte at a line and a column, both counted from one.
fn offset(text: &str, (line, column): (usize, usize)) -> Option<usize> {
    let start: usize = text.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
    let line = text.get(start..)?;
    line.char_indices().nth(column.checked_sub(1)?).map(|(at, _)| start + at)
}

fn concurrency(text: &str) -> Result<(), FormError> {
    if matches!(text, "auto" | "parallel" | "exclusive") {
        return Ok(());
    }
    not_empty(text)?;
    let suggestion = did_you_mean(text, &["auto", "parallel", "exclusive"]);
    KeyExpression::parse(text).map(drop).map_err(|bad| FormError { suggestion, ..FormError::from(bad.to_string()) })
}

fn did_you_mean(text: &str, words: &[&'static str]) -> Option<String> {
    nearest(text, words.iter().copied()).map(|word| format!("did you mean \"{word}\"?"))
}

fn header(text: &str) -> Result<(), FormError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if !text.is_empty() && text.chars().all(legal) {
        return Ok(());
    }
    Err(format!("`{text}` is not a valid header name").into())
}

fn locale(text: &str) -> Result<(), FormError> {
    let mut parts = text.split(['-', '_']);
    let language = parts.next().is_some_and(|part| part.len() >= 2 && part.chars().all(|c| c.is_ascii_alphabetic()));
    if language && parts.all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric())) {
        return Ok(());
    }
    Err(format!("`{text}` is not a valid locale (expected a language, for example `en` or `de-CH`)").into())
}
