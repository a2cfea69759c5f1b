//! What the log notes of runs that have no row: text, because it is kept in one, and short, because every new run has it.
//!
//! A birth is a list: the ids of the run and its worker in Base64, the epoch, when it was created, the tool, and, if there are
//! any, the key and how it ended with the same commit. `["AQEBAQEBAQEBAQEBAQEBAQAAAAAAAAAA",1,0,"t"]`. The end of a run that
//! was born earlier is a word.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;
use windlass_core::RunId;
use windlass_core::run::state::Ending;
use windlass_core::store::StoreError;
use windlass_core::time::Timestamp;

use super::birth::Birth;

/// What a note says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Noted {
    /// Without its end, and without its session, whose number the log has.
    pub(super) birth: Option<Birth>,
    pub(super) ending: Option<Ending>,
}

pub(super) fn birth(birth: &Birth) -> Result<String, StoreError> {
    let mut ids = [0; 24];
    ids[..16].copy_from_slice(&birth.run.as_bytes()[..]);
    ids[16..].copy_from_slice(&birth.worker.to_be_bytes());
    let mut text = String::with_capacity(96);
    text.push_str("[\"");
    URL_SAFE_NO_PAD.encode_string(ids, &mut text);
    text.push_str("\",");
    text.push_str(itoa::Buffer::new().format(birth.epoch));
    text.push(',');
    text.push_str(itoa::Buffer::new().format(birth.at.as_micros()));
    text.push(',');
    push(&mut text, &birth.tool)?;
    if let Some(key) = &birth.key {
        text.push(',');
        push(&mut text, key)?;
    } else if birth.end.is_some() {
        text.push_str(",null");
    }
    if let Some(end) = &birth.end {
        text.push_str(",\"");
        text.push_str(word(end.ending));
        text.push('"');
    }
    text.push(']');
    Ok(text)
}

/// Adds a text as JSON. Hardly any has to be looked at twice.
fn push(text: &mut String, what: &str) -> Result<(), StoreError> {
    if what.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        text.push('"');
        text.push_str(what);
        text.push('"');
        return Ok(());
    }
    let unfit = |error| StoreError::Invalid(format!("it cannot be encoded: {error}"));
    text.push_str(&serde_json::to_string(what).map_err(unfit)?);
    Ok(())
}

/// How a run ended, as the state of a run says it too.
pub(super) fn word(ending: Ending) -> &'static str {
    match ending {
        Ending::Ok => "ok",
        Ending::Failed => "failed",
        Ending::Cancelled => "cancelled",
        Ending::Lost => "lost",
    }
}

/// Nothing if nobody can read it.
pub(super) fn read(note: &str) -> Option<Noted> {
    match note.as_bytes().first()? {
        b'[' => list(&serde_json::from_str::<Vec<Value>>(note).ok()?),
        b'{' => Some(Noted { birth: Some(serde_json::from_str::<Version5>(note).ok()?.birth()), ending: None }),
        _ => Some(Noted { birth: None, ending: Some(ending(note)?) }),
    }
}

fn ending(word: &str) -> Option<Ending> {
    serde_json::from_value(Value::from(word)).ok()
}

fn list(list: &[Value]) -> Option<Noted> {
    let [ids, epoch, at, tool, rest @ ..] = list else { return None };
    let ids = URL_SAFE_NO_PAD.decode(ids.as_str()?).ok()?;
    let (run, worker) = ids.split_first_chunk::<16>()?;
    let birth = Birth {
        run: RunId::from_bytes(*run),
        tool: tool.as_str()?.into(),
        at: Timestamp::from_micros(at.as_i64()?),
        epoch: epoch.as_u64()?,
        worker: u64::from_be_bytes(worker.try_into().ok()?),
        key: rest.first().and_then(Value::as_str).map(Into::into),
        session: None,
        end: None,
    };
    let ending = match rest.get(1) {
        Some(word) => Some(ending(word.as_str()?)?),
        None => None,
    };
    Some(Noted { birth: Some(birth), ending })
}

/// A birth as files of schema version 5 have it.
#[derive(Deserialize)]
struct Version5 {
    run: RunId,
    tool: String,
    at: Timestamp,
    epoch: u64,
    worker: u64,
}

impl Version5 {
    fn birth(self) -> Birth {
        let Self { run, tool, at, epoch, worker } = self;
        Birth { run, tool: tool.into(), at, epoch, worker, key: None, session: None, end: None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::birth::End;
    use super::*;

    fn born(tool: &str, key: Option<&str>, end: Option<End>) -> Birth {
        let (run, at) = (RunId::from_bytes([1; 16]), Timestamp::from_micros(7));
        let (tool, key) = (tool.into(), key.map(Into::into));
        Birth { run, tool, at, epoch: 1, worker: u64::MAX, key, session: None, end }
    }

    #[test]
    fn notes_are_what_they_always_were() {
        let end = Some(End { at: Timestamp::from_micros(9), ending: Ending::Failed });
        let ids = "AQEBAQEBAQEBAQEBAQEBAf__________";
        let expected = [
            (born("t", None, None), format!(r#"["{ids}",1,7,"t"]"#)),
            (born("t", Some("k"), None), format!(r#"["{ids}",1,7,"t","k"]"#)),
            (born("t", None, end), format!(r#"["{ids}",1,7,"t",null,"failed"]"#)),
            (born("a \"b\"\n", Some("ü\\"), end), format!(r#"["{ids}",1,7,"a \"b\"\n","ü\\","failed"]"#)),
        ];
        for (born, text) in expected {
            assert_eq!(birth(&born).unwrap(), text);
            let ending = born.end.map(|end| end.ending);
            assert_eq!(read(&text), Some(Noted { birth: Some(Birth { end: None, ..born }), ending }), "{text}");
        }
    }

    #[test]
    fn ends_are_words_and_nonsense_is_nothing() {
        for ending in [Ending::Ok, Ending::Failed, Ending::Cancelled, Ending::Lost] {
            assert_eq!(read(word(ending)), Some(Noted { birth: None, ending: Some(ending) }));
        }
        for nonsense in ["", "well", "[]", "{}", "[1,2,3,4]", r#"["AQ",1,7,"t"]"#, r#"["x",1,7,"t",null,"well"]"#] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }
}
