//! Decompresses responses, within a limit.

use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};

/// The encodings that requests accept.
pub(crate) const ACCEPTED: &str = "gzip";

/// The decompressed body, if it has at most `limit` bytes; none if it is not compressed.
pub(crate) fn decompress(body: &[u8], encoding: Option<&str>, limit: usize) -> Result<Option<Vec<u8>>, String> {
    let encoding = encoding.unwrap_or_default().trim().to_ascii_lowercase();
    match encoding.as_str() {
        "" | "identity" => Ok(None),
        // A response without a body may still name an encoding.
        _ if body.is_empty() => Ok(None),
        "gzip" | "x-gzip" => read(MultiGzDecoder::new(body), limit).map(Some),
        "deflate" => read(ZlibDecoder::new(body), limit).map(Some),
        other => Err(format!("the response has the encoding `{other}`, which was not requested")),
    }
}

fn read(decoder: impl Read, limit: usize) -> Result<Vec<u8>, String> {
    let mut whole = Vec::new();
    let read = decoder.take(limit as u64 + 1).read_to_end(&mut whole);
    if whole.len() > limit {
        return Err(format!("the response is larger than {limit} bytes after decompression"));
    }
    match read {
        Ok(_) => Ok(whole),
        Err(error) => Err(format!("the response cannot be decompressed: {error}")),
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
    fn e26_a_compressed_response_is_decompressed_within_its_limit() {
        let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
        deflate.write_all(b"hello").unwrap();
        assert_eq!(decompress(&gzip(b"hello"), Some("GZIP"), 5), Ok(Some(b"hello".to_vec())));
        assert_eq!(decompress(&deflate.finish().unwrap(), Some("deflate"), 5), Ok(Some(b"hello".to_vec())));
        assert_eq!(decompress(b"hello", None, 5), Ok(None));
        assert_eq!(decompress(b"", Some("br"), 5), Ok(None));
        let bomb = gzip(&vec![0; 10_000_000]);
        assert!(bomb.len() < 20_000);
        let error = decompress(&bomb, Some("gzip"), 1_000_000).unwrap_err();
        assert_eq!(error, "the response is larger than 1000000 bytes after decompression");
        assert!(decompress(&gzip(b"hello")[..12], Some("gzip"), 5).unwrap_err().contains("cannot be decompressed"));
        assert!(decompress(b"x", Some("gzip, br"), 5).unwrap_err().contains("`gzip, br`"));
    }
}
