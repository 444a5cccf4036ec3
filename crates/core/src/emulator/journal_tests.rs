use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;

use super::*;

/// A folder of its own, removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("solstice-journal-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        journal_path(&self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// All records as they came; written back as they are, or as one.
#[derive(Debug, Default)]
struct All {
    records: Vec<Vec<u8>>,
    joined: bool,
    full: bool,
}

impl Sum for All {
    fn add(&mut self, record: &[u8]) -> Result<()> {
        self.records.push(record.to_vec());
        if record == b"poison" { Err(Error::new(ErrorKind::Native, "no")) } else { Ok(()) }
    }

    fn write(&mut self, records: &mut Records) -> io::Result<()> {
        if self.joined {
            self.records = vec![self.records.concat()];
        }
        self.records.iter().try_for_each(|record| records.add(record))?;
        if self.full { Err(io::Error::other("the disk is full")) } else { Ok(()) }
    }
}

fn open(folder: &Folder) -> Result<(Journal, Vec<Vec<u8>>)> {
    let mut all = All::default();
    Ok((Journal::open(&folder.0, &mut all)?, all.records))
}

/// A folder whose journal has these records.
fn written(records: &[&[u8]]) -> Folder {
    let folder = Folder::new();
    let (journal, _) = open(&folder).unwrap();
    for record in records {
        journal.append(record).unwrap();
    }
    folder
}

#[test]
fn records_come_back_in_their_order() {
    let large = vec![7; 3_000_000];
    let records: [&[u8]; 4] = [b"one", b"", &large, b"last"];
    let folder = written(&records);
    let (journal, read) = open(&folder).unwrap();
    assert_eq!(read, records);
    journal.append(b"more").unwrap();
    assert_eq!(journal.length_bytes(), fs::metadata(folder.file()).unwrap().len());
    drop(journal);
    assert_eq!(open(&folder).unwrap().1.last().unwrap(), b"more");
}

#[test]
fn a_torn_end_is_cut_off_wherever_it_tore() {
    let records: [&[u8]; 3] = [b"first", b"second", b"the third record"];
    let folder = written(&records);
    let whole = fs::read(folder.file()).unwrap();
    let mut ends = vec![MAGIC.len()];
    for record in records {
        ends.push(ends.last().unwrap() + HEADER_BYTES + record.len());
    }
    for length in MAGIC.len()..=whole.len() {
        fs::write(folder.file(), &whole[..length]).unwrap();
        let survivors = ends[1..].iter().filter(|end| **end <= length).count();
        let (journal, read) = open(&folder).unwrap();
        assert_eq!(read, records[..survivors], "torn at {length}");
        journal.append(b"after").unwrap();
        drop(journal);
        let (_, read) = open(&folder).unwrap();
        assert_eq!(read.len(), survivors + 1, "torn at {length}");
        assert_eq!(read[survivors], b"after");
    }
}

#[test]
fn any_changed_byte_is_an_error_that_says_where() {
    let folder = written(&[b"first", b"second", b"third"]);
    let whole = fs::read(folder.file()).unwrap();
    let second = MAGIC.len() + HEADER_BYTES + 5;
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x41;
        fs::write(folder.file(), changed).unwrap();
        let error = open(&folder).map(|(_, read)| read).expect_err(&format!("byte {at}"));
        if at < MAGIC.len() {
            assert!(error.message.ends_with("is no journal of this version."), "{error}");
        } else if (second..second + HEADER_BYTES + 6).contains(&at) {
            assert!(error.message.contains(&format!("is damaged at byte {second}:")), "{error}");
            assert!(error.remedy.as_ref().unwrap().contains(&format!("truncate --size {second} ")), "{error}");
        }
    }
    // The remedy works.
    let file = OpenOptions::new().write(true).open(folder.file()).unwrap();
    file.set_len(second as u64).unwrap();
    assert_eq!(open(&folder).unwrap().1, [b"first"]);
}

#[test]
fn a_file_that_is_no_journal_is_refused_and_left_alone() {
    for content in ["", "{}", "solstice pubsub journal 2\nabc"] {
        let folder = Folder::new();
        fs::write(folder.file(), content).unwrap();
        let error = open(&folder).map(|(_, read)| read).expect_err(content);
        assert!(error.message.ends_with("is no journal of this version."), "{error}");
        assert_eq!(fs::read_to_string(folder.file()).unwrap(), content);
    }
}

#[test]
fn a_folder_has_one_journal_at_a_time() {
    let folder = Folder::new();
    let (journal, _) = open(&folder).unwrap();
    let error = open(&folder).map(|(_, read)| read).expect_err("it is locked");
    assert_eq!(error.message, format!("another emulator keeps its data in {}.", folder.0.display()));
    drop(journal);
    open(&folder).unwrap();
}

#[test]
fn a_record_that_cannot_be_added_fails_the_opening() {
    let error = open(&written(&[b"poison"])).map(|(_, read)| read).expect_err("it was refused");
    assert_eq!(error.message, "no");
}

#[test]
fn concurrent_appends_are_all_there_whole() {
    const THREADS: usize = 8;
    const EACH: usize = 200;
    let folder = Folder::new();
    let (journal, _) = open(&folder).unwrap();
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (journal, start) = (&journal, &start);
            scope.spawn(move || {
                start.wait();
                for number in 0..EACH {
                    journal.append(format!("{thread} {number}").as_bytes()).unwrap();
                }
            });
        }
    });
    drop(journal);
    let (_, read) = open(&folder).unwrap();
    for thread in 0..THREADS {
        let own: Vec<String> = read
            .iter()
            .map(|record| String::from_utf8(record.clone()).unwrap())
            .filter(|record| record.starts_with(&format!("{thread} ")))
            .collect();
        let expected: Vec<String> = (0..EACH).map(|number| format!("{thread} {number}")).collect();
        assert_eq!(own, expected, "in the order of the thread");
    }
}

#[test]
fn an_append_that_fails_leaves_no_trace() {
    let folder = written(&[b"kept"]);
    let (journal, _) = open(&folder).unwrap();
    // A file that cannot be written stands for a full disk.
    lock_mutex(&journal.file).file = File::open(folder.file()).unwrap();
    let why = journal.append(b"lost").expect_err("it is read-only");
    assert!(why.starts_with("the journal cannot be written: "), "{why}");
    // Cutting off failed too: nothing may follow.
    let why = journal.append(b"lost as well").expect_err("it is broken");
    assert!(why.contains("its torn end cannot be cut off"), "{why}");
    drop(journal);
    assert_eq!(open(&folder).unwrap().1, [b"kept"]);
}

#[test]
fn a_condensed_journal_has_the_sum_and_goes_on() {
    let folder = written(&[b"one", b"two"]);
    let (journal, _) = open(&folder).unwrap();
    journal.append(b"three").unwrap();
    journal.condense(&mut All { joined: true, ..All::default() }).unwrap();
    assert_eq!(journal.length_bytes(), (MAGIC.len() + HEADER_BYTES + 11) as u64);
    journal.append(b"four").unwrap();
    drop(journal);
    assert_eq!(open(&folder).unwrap().1, [&b"onetwothree"[..], b"four"]);
    assert!(!folder.0.join("journal.new").exists());
}

#[test]
fn opening_condenses_the_journal() {
    let folder = written(&[b"one", b"two"]);
    drop(Journal::open(&folder.0, &mut All { joined: true, ..All::default() }).unwrap());
    assert_eq!(open(&folder).unwrap().1, [b"onetwo"]);
}

#[test]
fn when_a_new_file_cannot_be_written_the_old_one_goes_on() {
    let folder = written(&[b"one"]);
    let journal = Journal::open(&folder.0, &mut All { joined: true, full: true, ..All::default() }).unwrap();
    journal.append(b"two").unwrap();
    let error = journal.condense(&mut All { full: true, ..All::default() }).expect_err("it failed");
    assert!(error.message.contains("the disk is full"), "{error}");
    journal.append(b"three").unwrap();
    drop(journal);
    assert_eq!(open(&folder).unwrap().1, [&b"one"[..], b"two", b"three"]);
}
