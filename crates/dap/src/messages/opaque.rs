//! Strings of bytes with their length before them.

use std::io::Cursor;

use prio::codec::{CodecError, Decode, Encode as _};

pub(super) fn encode_opaque_u16(bytes: &mut Vec<u8>, data: &[u8]) -> Result<(), CodecError> {
    let length = u16::try_from(data.len()).map_err(|_| CodecError::LengthPrefixOverflow)?;
    length.encode(bytes)?;
    bytes.extend_from_slice(data);
    Ok(())
}

pub(super) fn encode_opaque_u32(bytes: &mut Vec<u8>, data: &[u8]) -> Result<(), CodecError> {
    let length = u32::try_from(data.len()).map_err(|_| CodecError::LengthPrefixOverflow)?;
    length.encode(bytes)?;
    bytes.extend_from_slice(data);
    Ok(())
}

pub(super) fn decode_opaque_u8(bytes: &mut Cursor<&[u8]>) -> Result<Vec<u8>, CodecError> {
    let length = u8::decode(bytes)?;
    take(bytes, length.into())
}

pub(super) fn decode_opaque_u16(bytes: &mut Cursor<&[u8]>) -> Result<Vec<u8>, CodecError> {
    let length = u16::decode(bytes)?;
    take(bytes, length.into())
}

pub(super) fn decode_opaque_u32(bytes: &mut Cursor<&[u8]>) -> Result<Vec<u8>, CodecError> {
    let length = u32::decode(bytes)?;
    let length = usize::try_from(length).map_err(|_| CodecError::LengthPrefixOverflow)?;
    take(bytes, length)
}

/// Takes as many bytes as an array has.
pub(super) fn decode_array<const N: usize>(
    bytes: &mut Cursor<&[u8]>,
) -> Result<[u8; N], CodecError> {
    let taken = take(bytes, N)?;
    taken.try_into().map_err(|_| CodecError::UnexpectedValue)
}

/// Takes bytes in one piece. Nothing is allocated for bytes that are not there.
fn take(bytes: &mut Cursor<&[u8]>, length: usize) -> Result<Vec<u8>, CodecError> {
    let rest = bytes.get_ref();
    let start = usize::try_from(bytes.position()).map_err(|_| CodecError::UnexpectedValue)?;
    let end = start.checked_add(length);
    let taken = end
        .and_then(|end| rest.get(start..end))
        .ok_or(CodecError::LengthPrefixTooBig(length))?
        .to_vec();
    bytes.set_position((start + length) as u64);
    Ok(taken)
}

/// The values that fill all of some bytes.
pub(super) fn nested<T: Decode>(bytes: &[u8]) -> Result<Vec<T>, CodecError> {
    let mut cursor = Cursor::new(bytes);
    let mut values = Vec::new();
    while cursor.position() < bytes.len() as u64 {
        values.push(T::decode(&mut cursor)?);
    }
    Ok(values)
}
