//! Secrets of records at rest.
//!
//! A record says itself which of its values are secret. They are sealed when it is encoded and opened when it is decoded,
//! so everybody else sees them as they are. A sealed value stands where its plain one stood, as a text of version, key and
//! ciphertext; it cannot be taken for a value of somebody's, because every value at such a place is sealed.
//!
//! Each is bound to its run, its operation and its place, and is of no use elsewhere. The nonce is not random but follows
//! from the key, the place and the value: a commit that is submitted again must be the same bytes, and it gives away no
//! more than that.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use serde_json::Value;
use windlass_core::run::record::Record;
use windlass_core::run::secrets::Order;
use windlass_core::store::StoreError;
use windlass_core::{Path, RunId};

use super::keys::{Key, Keys};
use super::read::decode;

const VERSION: &str = "1";
const NONCE_BYTES: usize = 24;
/// What the key for nonces is derived under.
const FOR_NONCES: &str = "windlass sealed values: nonces, version 1";

/// Why a value cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// Nobody has this key.
    Missing(String),
    /// With this key, what is there makes no sense.
    Damaged(String),
    /// The keys cannot be read.
    Unreadable(String),
}

impl Closed {
    /// What is wrong, for people.
    pub(super) fn sentence(&self, keys: &Keys) -> String {
        let file = keys.path().display();
        match self {
            Self::Missing(id) => format!("the key {id} that they were sealed with is not in {file}"),
            Self::Damaged(id) => format!("they are damaged, or {file} has another key under the name {id}"),
            Self::Unreadable(why) => format!("{file} cannot be used: {why}"),
        }
    }
}

/// The record as it is written.
pub(super) fn seal(keys: &Keys, run: RunId, record: &Record) -> Result<Record, StoreError> {
    let unusable = |error: io::Error| {
        let file = keys.path().display();
        StoreError::Unavailable(format!("the key for secrets in {file} cannot be read or made: {error}"))
    };
    let key = keys.current().map_err(unusable)?;
    let mut sealed = record.clone();
    sealed.change_secrets(Order::Forth, |place, value| {
        *value = Value::String(close(&key, &bound(run, &record.path, place), value)?);
        Ok(())
    })?;
    Ok(sealed)
}

/// Gives a record that was read its secrets back. It is half opened where that fails.
pub(super) fn open(keys: &Keys, run: RunId, record: &mut Record) -> Result<(), Closed> {
    if !record.has_secrets() {
        return Ok(());
    }
    let path = record.path.clone();
    record.change_secrets(Order::Back, |place, value| {
        *value = unseal(keys, &bound(run, &path, place), value)?;
        Ok(())
    })
}

/// The names of the keys that a record as it was read needs.
pub(super) fn needs(record: &mut Record) -> Vec<String> {
    let mut found = Vec::new();
    let noted: Result<(), std::convert::Infallible> = record.change_secrets(Order::Forth, |_, value| {
        found.extend(key_of(value).map(str::to_owned));
        Ok(())
    });
    match noted {
        Ok(()) => found,
    }
}

fn key_of(value: &Value) -> Option<&str> {
    let rest = value.as_str()?.strip_prefix(VERSION)?.strip_prefix('.')?;
    rest.split_once('.').map(|(id, _)| id)
}

/// What a sealed value is bound to.
fn bound(run: RunId, path: &Path, place: &str) -> Vec<u8> {
    [run.as_bytes().as_slice(), path.to_string().as_bytes(), b"\n", place.as_bytes()].concat()
}

fn nonce(key: &Key, bound: &[u8], plain: &[u8]) -> [u8; NONCE_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(FOR_NONCES, &key.bytes));
    hasher.update(&(bound.len() as u64).to_le_bytes()).update(bound).update(plain);
    let mut nonce = [0; NONCE_BYTES];
    hasher.finalize_xof().fill(&mut nonce);
    nonce
}

fn close(key: &Key, bound: &[u8], value: &Value) -> Result<String, StoreError> {
    let invalid = |why: String| StoreError::Invalid(format!("a secret cannot be sealed: {why}"));
    let plain = serde_json::to_vec(value).map_err(|error| invalid(error.to_string()))?;
    let nonce = nonce(key, bound, &plain);
    let payload = Payload { msg: &plain, aad: bound };
    let sealed = XChaCha20Poly1305::new(&key.bytes.into()).encrypt(&XNonce::from(nonce), payload);
    let sealed = sealed.map_err(|error| invalid(error.to_string()))?;
    Ok(format!("{VERSION}.{}.{}", key.id, BASE64.encode([nonce.as_slice(), &sealed].concat())))
}

fn unseal(keys: &Keys, bound: &[u8], value: &Value) -> Result<Value, Closed> {
    let (Some(id), Some(text)) = (key_of(value), value.as_str()) else {
        return Err(Closed::Damaged("?".to_owned()));
    };
    let key = keys.find(id).map_err(|error| Closed::Unreadable(error.to_string()))?;
    let key = key.ok_or_else(|| Closed::Missing(id.to_owned()))?;
    let opened = || {
        let bytes = BASE64.decode(text.rsplit('.').next()?).ok()?;
        let (nonce, msg) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload { msg, aad: bound };
        let plain = XChaCha20Poly1305::new(&key.bytes.into()).decrypt(&XNonce::from(*nonce), payload).ok()?;
        decode(std::str::from_utf8(&plain).ok()?).ok()
    };
    opened().ok_or_else(|| Closed::Damaged(id.to_owned()))
}
