//! Reply keys: signed, stable addresses by which the outside answers a park. A key contains the run, its generation and
//! the path, so it is the same whenever the body is entered again. Making one requires the store's secret.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::id::RunId;
use crate::path::Path;

/// Identifies a reply key and its encoding.
const PREFIX: &str = "wlk1_";
/// Bytes of the signature that are kept: too many to guess, and few enough for a link.
const SIGNATURE: usize = 16;
/// Separates these signatures from any other use of the secret.
const CONTEXT: &str = "windlass 2026 reply keys v1";

/// Signs and verifies reply keys.
pub(crate) struct Signer([u8; 32]);

/// What a reply key addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The run.
    pub run: RunId,
    /// Its generation.
    pub generation: u32,
    /// The path of the operation.
    pub path: Path,
}

impl Signer {
    pub(crate) fn new(secret: [u8; 32]) -> Self {
        Self(blake3::derive_key(CONTEXT, &secret))
    }

    pub(crate) fn sign(&self, run: RunId, generation: u32, path: &Path) -> String {
        let mut bytes = Vec::with_capacity(20 + 4 * path.depth() + SIGNATURE);
        bytes.extend(run.as_bytes());
        bytes.extend(generation.to_be_bytes());
        path.positions().iter().for_each(|position| bytes.extend(position.to_be_bytes()));
        let signature = blake3::keyed_hash(&self.0, &bytes);
        bytes.extend(&signature.as_bytes()[..SIGNATURE]);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// The address in the key; `None` if the key was not signed here.
    pub(crate) fn open(&self, key: &str) -> Option<Address> {
        let bytes = URL_SAFE_NO_PAD.decode(key.strip_prefix(PREFIX)?).ok()?;
        let (payload, signature) = bytes.split_at_checked(bytes.len().checked_sub(SIGNATURE)?)?;
        let expected = blake3::keyed_hash(&self.0, payload);
        // Every byte is compared, so that the time taken reveals nothing about the position of the first wrong one.
        let differs = signature.iter().zip(expected.as_bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
        let (run, rest) = payload.split_first_chunk::<16>().filter(|_| differs == 0)?;
        let (generation, positions) = rest.split_first_chunk::<4>()?;
        let path = positions.chunks_exact(4).fold(Path::root(), |path, position| {
            path.child(u32::from_be_bytes([position[0], position[1], position[2], position[3]]))
        });
        Some(Address { run: RunId::from_bytes(*run), generation: u32::from_be_bytes(*generation), path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l07_a_key_is_stable_and_opens_to_its_address() {
        let signer = Signer::new([7; 32]);
        let (run, path) = (RunId::from_bytes([1; 16]), "2/0/70000".parse::<Path>().unwrap());
        let key = signer.sign(run, 3, &path);
        assert_eq!(key, Signer::new([7; 32]).sign(run, 3, &path));
        assert_eq!(signer.open(&key), Some(Address { run, generation: 3, path: path.clone() }));
        // Others keep the keys they were given, so the encoding must never change.
        assert_eq!(key, "wlk1_AQEBAQEBAQEBAQEBAQEBAQAAAAMAAAACAAAAAAABEXAYOl3-ZmX_3uIpJZGBSq26");
        assert_ne!(signer.sign(run, 3, &path), signer.sign(run, 4, &path));
        assert_ne!(signer.sign(run, 3, &path), Signer::new([8; 32]).sign(run, 3, &path));
    }

    #[test]
    fn l07_a_forged_key_does_not_open() {
        let signer = Signer::new([7; 32]);
        let key = signer.sign(RunId::from_bytes([1; 16]), 0, &Path::root().child(5));
        for index in PREFIX.len()..key.len() {
            let mut forged = key.clone().into_bytes();
            forged[index] = if forged[index] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(signer.open(&forged), None, "{forged}");
        }
        for nonsense in ["", "wlk1_", "wlk1_AAAA", "x", &key[1..], &key[..key.len() - 2], &format!("{key}AAAA")] {
            assert_eq!(signer.open(nonsense), None, "{nonsense}");
        }
        assert_eq!(Signer::new([8; 32]).open(&key), None, "another store's key");
    }
}
