//! Encryption of the secrets of records.
//!
//! A record marks its secret values. They are sealed when it is encoded and unsealed when it is decoded, so the rest of
//! the program sees them in clear. A sealed value replaces the plain one as a text with version, key id and ciphertext.
//! It cannot be confused with a plain value, because every value at a marked location is sealed.
//!
//! Each sealed value is bound to its run, its operation and its location, and cannot be used elsewhere. The nonce is
//! not random but derived from the key, the location and the value, because a commit that is submitted again must have
//! the same bytes. Equal ciphertexts reveal only that the same value was sealed at the same location.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use serde_json::Value;
use windlass_core::run::record::Record;
use windlass_core::run::secrets::Order;
use windlass_core::store::{ConnectionKey, Message, StoreError};
use windlass_core::{Path, RunId};

use super::read::decode;
use super::sealing_keys::{SealingKey, SealingKeys};

const VERSION: &str = "1";
const NONCE_BYTES: usize = 24;
/// The context for deriving the key for nonces.
const FOR_NONCES: &str = "windlass sealed values: nonces, version 1";

/// Why a value cannot be unsealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnsealError {
    /// The key with this id is missing.
    Missing(String),
    /// The value does not decrypt with the key of this id.
    Damaged(String),
    /// The key file cannot be read.
    Unreadable(String),
}

impl UnsealError {
    /// The message for an operator.
    pub(super) fn sentence(&self, keys: &SealingKeys) -> String {
        let file = keys.path().display();
        match self {
            Self::Missing(id) => format!("the key {id} that they were sealed with is not in {file}"),
            Self::Damaged(id) => format!("they are damaged, or {file} has another key under the name {id}"),
            Self::Unreadable(why) => format!("the key file {file} cannot be used: {why}"),
        }
    }
}

/// The record with its secrets sealed.
pub(super) fn seal(keys: &SealingKeys, run: RunId, record: &Record) -> Result<Record, StoreError> {
    let key = current(keys)?;
    let mut sealed = record.clone();
    sealed.change_secrets(Order::Forth, |location, value| {
        *value = Value::String(seal_value(&key, &associated_data(run, &record.path, location), value)?);
        Ok(())
    })?;
    Ok(sealed)
}

fn current(keys: &SealingKeys) -> Result<SealingKey, StoreError> {
    let unusable = |error: io::Error| {
        let file = keys.path().display();
        StoreError::Unavailable(format!("the key for secrets in {file} cannot be read or created: {error}"))
    };
    keys.current().map_err(unusable)
}

/// Unseals the secrets of a record that was read. If it fails, some of them stay sealed.
pub(super) fn open(keys: &SealingKeys, run: RunId, record: &mut Record) -> Result<(), UnsealError> {
    if !record.has_secrets() {
        return Ok(());
    }
    let path = record.path.clone();
    record.change_secrets(Order::Back, |location, value| {
        *value = unseal(keys, &associated_data(run, &path, location), value)?;
        Ok(())
    })
}

/// Seals a secret of a session. It is bound to the session and its name.
pub(super) fn seal_secret(keys: &SealingKeys, session: &str, name: &str, value: &Value) -> Result<String, StoreError> {
    seal_value(&current(keys)?, &of_session(session, name), value)
}

/// Unseals a secret of a session.
pub(super) fn open_secret(keys: &SealingKeys, session: &str, name: &str, sealed: String) -> Result<Value, UnsealError> {
    unseal(keys, &of_session(session, name), &Value::String(sealed))
}

/// What a secret of a session is bound to.
fn of_session(session: &str, name: &str) -> Vec<u8> {
    // The length keeps the two names apart, and the first byte keeps them apart from the ids of runs.
    let length = (session.len() as u64).to_le_bytes();
    [b"session".as_slice(), &length, session.as_bytes(), name.as_bytes()].concat()
}

/// Seals the credential of a connection.
pub(super) fn seal_credential(keys: &SealingKeys, key: &ConnectionKey, text: &str) -> Result<String, StoreError> {
    seal_value(&current(keys)?, &of_connection(key), &Value::from(text))
}

/// Unseals the credential of a connection.
pub(super) fn open_credential(keys: &SealingKeys, key: &ConnectionKey, sealed: String) -> Result<String, UnsealError> {
    match unseal(keys, &of_connection(key), &Value::String(sealed))? {
        Value::String(text) => Ok(text),
        _ => Err(UnsealError::Damaged("?".to_owned())),
    }
}

/// What the credential of a connection is bound to.
fn of_connection(key: &ConnectionKey) -> Vec<u8> {
    // The length keeps the two names apart, and a byte keeps a connection of no principal apart from one of the empty name.
    let (provider, principal) = (key.provider.as_bytes(), key.principal.as_deref());
    let head = [b"connection".as_slice(), &(provider.len() as u64).to_le_bytes(), provider].concat();
    [head.as_slice(), &[u8::from(principal.is_some())], principal.unwrap_or_default().as_bytes()].concat()
}

/// The message with its secrets sealed.
pub(super) fn seal_message(keys: &SealingKeys, run: RunId, message: &Message) -> Result<Message, StoreError> {
    let key = current(keys)?;
    let mut sealed = message.clone();
    sealed.change_secrets(Order::Forth, |location, value| {
        *value = Value::String(seal_value(&key, &associated_data(run, &Path::root(), &mailed(location)), value)?);
        Ok(())
    })?;
    Ok(sealed)
}

/// Unseals the secrets of a message that was read.
pub(super) fn open_message(keys: &SealingKeys, run: RunId, message: &mut Message) -> Result<(), UnsealError> {
    if !message.has_secrets() {
        return Ok(());
    }
    message.change_secrets(Order::Back, |location, value| {
        *value = unseal(keys, &associated_data(run, &Path::root(), &mailed(location)), value)?;
        Ok(())
    })
}

/// The location of a value of a message. No record has a location like it.
fn mailed(location: &str) -> String {
    format!("mail/{location}")
}

/// The ids of the keys that unseal a record.
pub(super) fn key_ids(record: &mut Record) -> Vec<String> {
    let mut found = Vec::new();
    let visited: Result<(), std::convert::Infallible> = record.change_secrets(Order::Forth, |_, value| {
        found.extend(key_of(value).map(str::to_owned));
        Ok(())
    });
    match visited {
        Ok(()) => found,
    }
}

/// The ids of the keys that unseal a message.
pub(super) fn key_ids_of(message: &mut Message) -> Vec<String> {
    let mut found = Vec::new();
    let visited: Result<(), std::convert::Infallible> = message.change_secrets(Order::Forth, |_, value| {
        found.extend(key_of(value).map(str::to_owned));
        Ok(())
    });
    match visited {
        Ok(()) => found,
    }
}

pub(super) fn key_of(value: &Value) -> Option<&str> {
    let rest = value.as_str()?.strip_prefix(VERSION)?.strip_prefix('.')?;
    rest.split_once('.').map(|(id, _)| id)
}

/// What a sealed value is bound to.
fn associated_data(run: RunId, path: &Path, location: &str) -> Vec<u8> {
    [run.as_bytes().as_slice(), path.to_string().as_bytes(), b"\n", location.as_bytes()].concat()
}

fn nonce(key: &SealingKey, associated_data: &[u8], plain: &[u8]) -> [u8; NONCE_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(FOR_NONCES, &key.bytes));
    hasher.update(&(associated_data.len() as u64).to_le_bytes()).update(associated_data).update(plain);
    let mut nonce = [0; NONCE_BYTES];
    hasher.finalize_xof().fill(&mut nonce);
    nonce
}

fn seal_value(key: &SealingKey, associated_data: &[u8], value: &Value) -> Result<String, StoreError> {
    let invalid = |why: String| StoreError::Invalid(format!("a secret cannot be sealed: {why}"));
    let plain = serde_json::to_vec(value).map_err(|error| invalid(error.to_string()))?;
    let nonce = nonce(key, associated_data, &plain);
    let payload = Payload { msg: &plain, aad: associated_data };
    let sealed = XChaCha20Poly1305::new(&key.bytes.into()).encrypt(&XNonce::from(nonce), payload);
    let sealed = sealed.map_err(|error| invalid(error.to_string()))?;
    Ok(format!("{VERSION}.{}.{}", key.id, BASE64.encode([nonce.as_slice(), &sealed].concat())))
}

fn unseal(keys: &SealingKeys, associated_data: &[u8], value: &Value) -> Result<Value, UnsealError> {
    let (Some(id), Some(text)) = (key_of(value), value.as_str()) else {
        return Err(UnsealError::Damaged("?".to_owned()));
    };
    let key = keys.find(id).map_err(|error| UnsealError::Unreadable(error.to_string()))?;
    let key = key.ok_or_else(|| UnsealError::Missing(id.to_owned()))?;
    let opened = || {
        let bytes = BASE64.decode(text.rsplit('.').next()?).ok()?;
        let (nonce, msg) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload { msg, aad: associated_data };
        let plain = XChaCha20Poly1305::new(&key.bytes.into()).decrypt(&XNonce::from(*nonce), payload).ok()?;
        decode(std::str::from_utf8(&plain).ok()?).ok()
    };
    opened().ok_or_else(|| UnsealError::Damaged(id.to_owned()))
}
