//! The file that makes the emulator's state outlive its process: records, one after the other, appended before the
//! answers that promise them are given.
//!
//! - A record is `length, CRC-32 of the content, CRC-32 of these eight bytes` (u32, little-endian) and the content. A
//!   length is thus trusted before it is followed: what ends too early is a write that was cut short, which nobody was
//!   told of, and goes; all else that does not add up is damage, and an error.
//! - Appending returns when write(2) has: the kernel has the record, and the death of this process cannot take it back.
//!   A loss of power can; nothing waits for the disk.
//! - Appends that meet share one write. One that fails leaves the file as it was before.
//! - What the records add up to can be written as fewer records: a new file takes the place of the old one, at every
//!   start and when asked.
//! - One process at a time: a lock on a file beside it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::{Error, ErrorKind, Result};

const MAGIC: &[u8] = b"solstice pubsub journal 1\n";
const HEADER_BYTES: usize = 12;

/// Why an append failed, for all that shared its write.
type Outcome = std::result::Result<(), String>;

/// An open journal. It is this process's alone until it is dropped.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    waiting: Mutex<Vec<Waiting>>,
    file: Mutex<Tail>,
    length_bytes: AtomicU64,
    lock: File,
    process: u32,
}

/// A record that waits for its write.
#[derive(Debug)]
struct Waiting {
    frame: Vec<u8>,
    outcome: Arc<OnceLock<Outcome>>,
}

#[derive(Debug)]
struct Tail {
    file: File,
    /// Where the next record goes. What lies behind it is of a write that failed.
    end: u64,
    /// Set when a failed write could not be undone: nothing may follow it.
    broken: Option<String>,
}

/// What records add up to.
pub trait Sum {
    /// Add a record.
    fn add(&mut self, record: &[u8]) -> Result<()>;
    /// Give records that add up to the same.
    fn write(&mut self, records: &mut Records) -> io::Result<()>;
}

impl Journal {
    /// Open the journal of a folder, making both where need be, and add its records up.
    pub fn open(folder: &Path, sum: &mut impl Sum) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|e| cannot("make the folder", folder, &e))?;
        let lock = lock(folder)?;
        let path = journal_path(folder);
        if !path.exists() {
            write_new(folder, |_| Ok(()))?;
        }
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|e| cannot("open", &path, &e))?;
        let end = read_records(&path, &file, sum)?;
        file.set_len(end).map_err(|e| cannot("cut the torn end off", &path, &e))?;
        let mut tail = Tail { file, end, broken: None };
        // A disk without room for the new file still has the old one.
        if let Err(error) = tail.condense(folder, sum) {
            log::warn!("{error} It goes on with the old file.");
        }
        let length_bytes = AtomicU64::new(tail.end);
        Ok(Self {
            folder: folder.to_owned(),
            waiting: Mutex::default(),
            file: Mutex::new(tail),
            length_bytes,
            lock,
            process: std::process::id(),
        })
    }

    /// Append a record; when this returns, it is written. An error says why it is not.
    pub fn append(&self, content: &[u8]) -> Outcome {
        let frame = frame(content).map_err(|e| e.to_string())?;
        let outcome = Arc::new(OnceLock::new());
        lock_mutex(&self.waiting).push(Waiting { frame, outcome: outcome.clone() });
        // Whoever gets the file writes for all that wait by then; the others find their outcome when they get it.
        let mut tail = lock_mutex(&self.file);
        if outcome.get().is_none() {
            let group = std::mem::take(&mut *lock_mutex(&self.waiting));
            let written = tail.write(&group);
            self.length_bytes.store(tail.end, Ordering::Relaxed);
            for one in group {
                // Nobody else sets it.
                let _ = one.outcome.set(written.clone());
            }
        }
        drop(tail);
        outcome.get().cloned().unwrap_or_else(|| Err("the record was lost on its way to the journal".to_owned()))
    }

    /// How long the file is.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes.load(Ordering::Relaxed)
    }

    /// Add all records up and keep the sum. Appends wait meanwhile; when it fails, the old records stand.
    pub fn condense(&self, sum: &mut impl Sum) -> Result<()> {
        let mut tail = lock_mutex(&self.file);
        read_records(&journal_path(&self.folder), &tail.file, sum)?;
        tail.condense(&self.folder, sum)?;
        self.length_bytes.store(tail.end, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Closing the file is not enough: whatever this process has forked shares the lock. In a fork it is not ours.
        if std::process::id() == self.process {
            // It can only fail for a file that is not locked.
            let _ = self.lock.unlock();
        }
    }
}

impl Tail {
    fn write(&mut self, group: &[Waiting]) -> Outcome {
        if let Some(why) = &self.broken {
            return Err(why.clone());
        }
        let bytes = match group {
            [one] => &one.frame,
            _ => &group.iter().flat_map(|one| &one.frame).copied().collect(),
        };
        let Err(error) = self.file.write_all_at(bytes, self.end) else {
            self.end += bytes.len() as u64;
            return Ok(());
        };
        let why = format!("the journal cannot be written: {error}");
        if let Err(undo) = self.file.set_len(self.end) {
            self.broken = Some(format!("{why}; and its torn end cannot be cut off: {undo}"));
        }
        Err(why)
    }

    fn condense(&mut self, folder: &Path, sum: &mut impl Sum) -> Result<()> {
        let file = write_new(folder, |records| sum.write(records))?;
        let end = file.metadata().map_err(|e| cannot("measure the journal in", folder, &e))?.len();
        *self = Self { file, end, broken: None };
        Ok(())
    }
}

/// Takes the records of a new journal.
#[derive(Debug)]
pub struct Records(BufWriter<File>);

impl Records {
    /// Add a record.
    pub fn add(&mut self, content: &[u8]) -> io::Result<()> {
        self.0.write_all(&frame(content)?)
    }
}

fn journal_path(folder: &Path) -> PathBuf {
    folder.join("journal")
}

fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| cannot("open the lock file", &path, &e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Error::new(ErrorKind::Config, format!("another emulator keeps its data in {}.", folder.display()))
                .with_remedy("Stop it, or give this one a folder of its own."))
        }
        Err(TryLockError::Error(error)) => Err(cannot("lock", &path, &error)),
    }
}

/// A record as it stands in the file.
fn frame(content: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(content.len())
        .map_err(|_| io::Error::other(format!("a record of {} bytes is too long", content.len())))?;
    let mut frame = Vec::with_capacity(HEADER_BYTES + content.len());
    frame.extend(length.to_le_bytes());
    frame.extend(crc32fast::hash(content).to_le_bytes());
    frame.extend(crc32fast::hash(&frame).to_le_bytes());
    frame.extend(content);
    Ok(frame)
}

/// Read all records; gives where the whole ones end.
fn read_records(path: &Path, file: &File, sum: &mut impl Sum) -> Result<u64> {
    let length = file.metadata().map_err(|e| cannot("measure", path, &e))?.len();
    let mut reader = BufReader::with_capacity(1 << 20, file);
    reader.rewind().map_err(|e| cannot("read", path, &e))?;
    let mut magic = [0; MAGIC.len()];
    if length < MAGIC.len() as u64 || reader.read_exact(&mut magic).is_err() || magic != MAGIC {
        return Err(Error::new(ErrorKind::Config, format!("{} is no journal of this version.", path.display()))
            .with_remedy("Give an empty folder, or the one of an emulator of this version."));
    }
    let mut at = MAGIC.len() as u64;
    let mut content = Vec::new();
    while length - at >= HEADER_BYTES as u64 {
        let mut header = [[0_u8; 4]; 3];
        reader.read_exact(header.as_flattened_mut()).map_err(|e| cannot("read", path, &e))?;
        let [size, content_crc, header_crc] = header.map(u32::from_le_bytes);
        if crc32fast::hash(header[..2].as_flattened()) != header_crc {
            return Err(damaged(path, at));
        }
        let next = at + HEADER_BYTES as u64 + u64::from(size);
        if next > length {
            break;
        }
        content.resize(size as usize, 0);
        reader.read_exact(&mut content).map_err(|e| cannot("read", path, &e))?;
        if crc32fast::hash(&content) != content_crc {
            return Err(damaged(path, at));
        }
        sum.add(&content)?;
        at = next;
    }
    Ok(at)
}

/// Write a new journal beside the old one and put it in its place.
fn write_new(folder: &Path, write: impl FnOnce(&mut Records) -> io::Result<()>) -> Result<File> {
    let path = folder.join("journal.new");
    let written = || -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        let mut records = Records(BufWriter::with_capacity(1 << 20, file));
        records.0.write_all(MAGIC)?;
        write(&mut records)?;
        let file = records.0.into_inner()?;
        // The rename must not come to the disk before the content: even a loss of power then leaves one of the two.
        file.sync_all()?;
        fs::rename(&path, journal_path(folder))?;
        Ok(file)
    };
    written().map_err(|error| {
        // What it left behind is of no use, and overwritten the next time.
        let _ = fs::remove_file(&path);
        cannot("write a new journal in", folder, &error)
    })
}

fn damaged(path: &Path, at: u64) -> Error {
    Error::new(
        ErrorKind::Config,
        format!("{} is damaged at byte {at}: the record there does not match its checksum.", path.display()),
    )
    .with_remedy(format!("Restore it from a copy, or give up what follows: truncate --size {at} {}.", path.display()))
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Config, format!("the emulator cannot {what} {}: {error}.", path.display()))
        .with_remedy("Give a folder on a local disk that this user can write to, with room in it.")
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
