//! Answers that were packed: unpacked within a bound.

use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};

/// What a server may pack an answer with.
pub(crate) const ACCEPTED: &str = "gzip";

/// The body as it was before it was packed, if that has at most `limit` bytes.
pub(crate) fn unpack(body: &[u8], encoding: Option<&str>, limit: usize) -> Result<Option<Vec<u8>>, String> {
    let encoding = encoding.unwrap_or_default().trim().to_ascii_lowercase();
    match encoding.as_str() {
        "" | "identity" => Ok(None),
        // An answer without a body may still name how it would be packed.
        _ if body.is_empty() => Ok(None),
        "gzip" | "x-gzip" => read(MultiGzDecoder::new(body), limit).map(Some),
        "deflate" => read(ZlibDecoder::new(body), limit).map(Some),
        other => Err(format!("the answer is packed with `{other}`, which was not asked for")),
    }
}

fn read(decoder: impl Read, limit: usize) -> Result<Vec<u8>, String> {
    let mut whole = Vec::new();
    let read = decoder.take(limit as u64 + 1).read_to_end(&mut whole);
    if whole.len() > limit {
        return Err(format!("the answer is larger than {limit} bytes once unpacked"));
    }
    match read {
        Ok(_) => Ok(whole),
        Err(error) => Err(format!("the answer cannot be unpacked: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn e26_a_packed_answer_is_unpacked_within_its_bound() {
        let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
        deflate.write_all(b"hello").unwrap();
        assert_eq!(unpack(&gzip(b"hello"), Some("GZIP"), 5), Ok(Some(b"hello".to_vec())));
        assert_eq!(unpack(&deflate.finish().unwrap(), Some("deflate"), 5), Ok(Some(b"hello".to_vec())));
        assert_eq!(unpack(b"hello", None, 5), Ok(None));
        assert_eq!(unpack(b"", Some("br"), 5), Ok(None));
        let bomb = gzip(&vec![0; 10_000_000]);
        assert!(bomb.len() < 20_000);
        let error = unpack(&bomb, Some("gzip"), 1_000_000).unwrap_err();
        assert_eq!(error, "the answer is larger than 1000000 bytes once unpacked");
        assert!(unpack(&gzip(b"hello")[..12], Some("gzip"), 5).unwrap_err().contains("cannot be unpacked"));
        assert!(unpack(b"x", Some("gzip, br"), 5).unwrap_err().contains("`gzip, br`"));
    }
}
