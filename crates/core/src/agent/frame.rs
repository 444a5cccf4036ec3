//! Control messages: four bytes of length, big endian, then JSON.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Control messages are small; a longer one is no control message.
pub const MAX_BYTES: u32 = 16 << 20;

/// Encode a message with its length.
pub fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4).ok().filter(|length| *length <= MAX_BYTES).ok_or_else(too_long)?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

/// Write a message.
pub fn write(target: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    target.write_all(&encode(message)?)?;
    target.flush()
}

/// Read a message; an end of the stream is an error, as the caller expects one.
pub fn read<T: DeserializeOwned>(source: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    source.read_exact(&mut length)?;
    let mut body = vec![0; checked(length, MAX_BYTES)?];
    source.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

/// Read a message of at most `max_bytes` without blocking the runtime.
pub async fn read_async<T: DeserializeOwned>(source: &mut (impl AsyncRead + Unpin), max_bytes: u32) -> io::Result<T> {
    let mut length = [0; 4];
    source.read_exact(&mut length).await?;
    let mut body = vec![0; checked(length, max_bytes)?];
    source.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

fn checked(length: [u8; 4], max_bytes: u32) -> io::Result<usize> {
    let length = u32::from_be_bytes(length);
    if length > max_bytes { Err(too_long()) } else { Ok(length as usize) }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a control message that is too long")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = vec![];
        write(&mut bytes, &vec!["a", "b"]).unwrap();
        let read: Vec<String> = read(&mut bytes.as_slice()).unwrap();
        assert_eq!(read, ["a", "b"]);
    }

    #[test]
    fn a_cut_frame_and_a_huge_length_are_errors() {
        let mut bytes = vec![];
        write(&mut bytes, &"text").unwrap();
        assert!(read::<String>(&mut &bytes[..bytes.len() - 1]).is_err());
        assert!(read::<String>(&mut [0xff; 64].as_slice()).is_err());
    }
}
