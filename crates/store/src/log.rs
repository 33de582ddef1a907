//! The inspection of the write-ahead log before SQLite reads it.
//!
//! SQLite reads its log up to the first frame that does not match its checksum, and ignores the
//! rest. After a power cut this is right: the rest is the transaction that was being written. But
//! if an older frame is damaged, everything after it was flushed and answered, and ignoring it
//! would refund budgets.
//!
//! The two cases can be told apart, because SQLite writes a transaction only after the previous one
//! was flushed. If an intact frame directly follows the end of a transaction that SQLite would
//! ignore, then that transaction had been flushed, and the log is damaged.
//!
//! Intact frames alone prove nothing. When a flush fails, SQLite rolls the transaction back. The
//! next transaction begins at the same place in the log, and frames of the failed one remain behind
//! it. Several such remnants may lie behind each other, but no frame was ever written to follow the
//! end of one of them.
//!
//! Some damage looks like a power cut and cannot be detected: damage in the last transaction or in
//! the last two frames of the one before, and a log that ends earlier. See `docs/store.md`.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::error::{Damage, Problem};
use crate::vfs::PAGE;

const HEADER: usize = 32;
const FRAME: usize = 24 + PAGE;
/// The first word of the log. Its last bit gives the byte order of the checksums.
const MAGIC: u32 = 0x377f_0682;

/// The path of the write-ahead log of a database file.
pub(crate) fn path_of(database: &Path) -> PathBuf {
    suffixed(database, "-wal")
}

/// The path of the index of the log, which processes share.
pub(crate) fn index_of(database: &Path) -> PathBuf {
    suffixed(database, "-shm")
}

/// The path of a file beside another, with a suffix added to the name.
pub(crate) fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The state of the log beside a database file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogState {
    /// There is no log, or it is empty. SQLite creates an empty log when it opens a store.
    Missing,
    /// The log has no frame, or no header that SQLite would accept.
    Unsound,
    /// The log is usable. No damage was found that would make SQLite skip a flushed transaction.
    Sound,
}

/// Inspects the log of a database file, without a lock.
pub(crate) fn inspect(database: &Path) -> Result<LogState, Problem> {
    let failed = |error| Problem::io("reading the write-ahead log")(error);
    let file = match File::open(path_of(database)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LogState::Missing),
        Err(error) => return Err(failed(error)),
    };
    let length = file.metadata().map_err(failed)?.len();
    if length == 0 {
        return Ok(LogState::Missing);
    }
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut header = [0; HEADER];
    let has_header = fill(&mut file, &mut header).map_err(failed)?;
    let word = |at: usize| be_word(&header, at);
    let big_endian = word(0) & 1 == 1;
    let sum = (word(24), word(28));
    let sound = has_header
        && length >= (HEADER + FRAME) as u64
        && word(0) & !1 == MAGIC
        && word(8) as usize == PAGE
        && sum == checksum((0, 0), &header[..24], big_endian);
    if !sound {
        return Ok(LogState::Unsound);
    }
    let salts = (word(16), word(20));
    match passes_over(&mut file, sum, salts, big_endian).map_err(failed)? {
        false => Ok(LogState::Sound),
        true => Err(Damage::Log("is damaged before its last transaction").into()),
    }
}

/// Reads the frames of a log, and returns true if SQLite would skip a transaction that was flushed.
///
/// Each frame carries the salts of the header. They change each time the log starts over.
fn passes_over(
    log: &mut impl Read,
    sum: (u32, u32),
    salts: (u32, u32),
    big_endian: bool,
) -> io::Result<bool> {
    let mut before = sum;
    let mut frame = [0; FRAME];
    // `stopped`: SQLite has stopped, because a frame did not follow the one before.
    // `ended`: since then, the frame before was intact and ended a transaction.
    let (mut stopped, mut ended) = (false, false);
    while fill(log, &mut frame)? {
        let word = |at: usize| be_word(&frame, at);
        let own = (word(16), word(20));
        let content = checksum(before, &frame[..8], big_endian);
        let content = checksum(content, &frame[24..], big_endian);
        let follows = (word(8), word(12)) == salts && content == own;
        if follows && ended {
            return Ok(true);
        }
        stopped |= !follows;
        ended = stopped && follows && word(4) != 0;
        before = own;
    }
    Ok(false)
}

fn be_word(bytes: &[u8], at: usize) -> u32 {
    match bytes[at..].first_chunk() {
        Some(word) => u32::from_be_bytes(*word),
        None => 0,
    }
}

/// SQLite's checksum of its log (section 4.2 of its file format).
fn checksum(seed: (u32, u32), bytes: &[u8], big_endian: bool) -> (u32, u32) {
    let (pairs, _) = bytes.as_chunks::<8>();
    let (mut first, mut second) = seed;
    for &[a, b, c, d, e, f, g, h] in pairs {
        let (one, two) = match big_endian {
            true => (
                u32::from_be_bytes([a, b, c, d]),
                u32::from_be_bytes([e, f, g, h]),
            ),
            false => (
                u32::from_le_bytes([a, b, c, d]),
                u32::from_le_bytes([e, f, g, h]),
            ),
        };
        first = first.wrapping_add(one).wrapping_add(second);
        second = second.wrapping_add(two).wrapping_add(first);
    }
    (first, second)
}

/// Fills a buffer completely. Returns false if fewer bytes are left.
fn fill(log: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALTS: (u32, u32) = (7, 9);
    const BEGIN: (u32, u32) = (3, 5);

    /// The frames of a log. Each transaction is given by its first frame and its number of frames.
    fn log_of(transactions: &[(usize, usize)]) -> Vec<u8> {
        let mut log: Vec<u8> = Vec::new();
        for (number, &(at, frames)) in transactions.iter().enumerate() {
            for frame in at..at + frames {
                let end = frame + 1 == at + frames;
                let before = match frame.checked_sub(1) {
                    None => BEGIN,
                    Some(last) => (
                        be_word(&log, last * FRAME + 16),
                        be_word(&log, last * FRAME + 20),
                    ),
                };
                let mut bytes = vec![u8::try_from(number).unwrap(); FRAME];
                bytes[..4].copy_from_slice(&u32::try_from(frame).unwrap().to_be_bytes());
                bytes[4..8].copy_from_slice(&u32::from(end).to_be_bytes());
                bytes[8..12].copy_from_slice(&SALTS.0.to_be_bytes());
                bytes[12..16].copy_from_slice(&SALTS.1.to_be_bytes());
                let sum = checksum(before, &bytes[..8], false);
                let sum = checksum(sum, &bytes[24..], false);
                bytes[16..20].copy_from_slice(&sum.0.to_be_bytes());
                bytes[20..24].copy_from_slice(&sum.1.to_be_bytes());
                if log.len() < (frame + 1) * FRAME {
                    log.resize((frame + 1) * FRAME, 0);
                }
                log[frame * FRAME..][..FRAME].copy_from_slice(&bytes);
            }
        }
        log
    }

    fn is_damaged(log: &[u8]) -> bool {
        passes_over(&mut &log[..], BEGIN, SALTS, false).unwrap()
    }

    /// Remnants of transactions that were rolled back follow each other. Each new transaction
    /// overwrote the beginning of the one before.
    #[test]
    fn remnants_of_transactions_that_were_taken_back_are_not_damage() {
        for transactions in [
            &[(0, 3), (3, 4)][..],
            &[(0, 3), (3, 9), (3, 2)],
            &[(0, 3), (3, 9), (3, 5), (3, 2)],
            &[(0, 3), (3, 20), (3, 12), (3, 7), (3, 2), (5, 1)],
            &[(0, 9), (0, 5), (0, 2)],
        ] {
            assert!(!is_damaged(&log_of(transactions)), "{transactions:?}");
        }
    }

    /// A frame that follows the end of a transaction was written after that transaction was
    /// flushed.
    #[test]
    fn a_damaged_frame_is_noticed_if_a_transaction_behind_it_was_continued() {
        let log = log_of(&[(0, 3), (3, 9), (3, 2), (5, 2), (7, 3), (10, 1)]);
        assert!(!is_damaged(&log));
        for frame in 0..8 {
            let mut damaged = log.clone();
            damaged[frame * FRAME + 1000] ^= 1;
            assert!(is_damaged(&damaged), "frame {frame}");
        }
    }
}
