//! How a worker reads one part of a batch: a request, the rows as an Arrow stream, and an end mark with their number.
//!
//! A stream that ends without its mark, or whose rows are not as many as the plan says, is an error: silence is never
//! emptiness.

use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{ArrowError, SchemaRef};
use serde::{Deserialize, Serialize};

use crate::agent::book::{Offset, Part};
use crate::agent::frame;
use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::columns::raw_schema;

const BUFFER_BYTES: usize = 1 << 20;
/// A worker asks at once; what is silent for so long is no worker.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// An agent sends without pause; one that is silent for so long is stuck.
const READ_DEADLINE: Duration = Duration::from_secs(120);

/// Which part, and the right to read it.
#[derive(Serialize, Deserialize)]
pub struct PartRequest {
    /// What the planner gave to the tasks.
    pub token: String,
    /// The batch.
    pub end: Offset,
    /// The part of the batch.
    pub index: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Rows,
    Failed(Error),
}

#[derive(Serialize, Deserialize)]
struct EndMark {
    rows: usize,
}

/// Write a part to a new file of this machine, for a planner that keeps a log.
pub fn write(part: &Part, path: &Path) -> io::Result<()> {
    let schema = part.batches.first().map_or_else(raw_schema, RecordBatch::schema);
    let target = BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?);
    let mut writer = FileWriter::try_new(target, &schema).map_err(io_error)?;
    for batch in &part.batches {
        writer.write(batch).map_err(io_error)?;
    }
    writer.finish().map_err(io_error)
}

/// The machine's own error, where there is one.
fn io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other),
    }
}

/// The agent's side: serve one connection. `find` looks a part up.
pub fn serve(stream: UnixStream, token: &str, find: impl FnOnce(&PartRequest) -> Result<Arc<Part>>) -> io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_DEADLINE))?;
    let request: PartRequest = frame::read(&mut &stream)?;
    let found = if same(&request.token, token) {
        find(&request)
    } else {
        Err(Error::new(ErrorKind::PartUnavailable, "the agent does not accept this token."))
    };
    let mut target = BufWriter::with_capacity(BUFFER_BYTES, &stream);
    match found {
        Err(error) => frame::write(&mut target, &Answer::Failed(error)),
        Ok(part) => {
            frame::write(&mut target, &Answer::Rows)?;
            let mut writer = StreamWriter::try_new(&mut target, &raw_schema()).map_err(io::Error::other)?;
            for batch in &part.batches {
                writer.write(batch).map_err(io::Error::other)?;
            }
            writer.finish().map_err(io::Error::other)?;
            drop(writer);
            frame::write(&mut target, &EndMark { rows: part.rows })
        }
    }
}

/// Compare secrets in a time that does not depend on where they differ.
fn same(given: &str, token: &str) -> bool {
    given.len() == token.len() && given.bytes().zip(token.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// The worker's side: the rows of one part, checked to be all of them.
pub struct PartReader {
    stream: StreamReader<BufReader<UnixStream>>,
    expected: usize,
    seen: usize,
    ended: bool,
}

impl PartReader {
    /// Ask the agent at `socket` for a part that has `rows` rows.
    pub fn open(socket: &Path, request: &PartRequest, rows: usize) -> Result<Self> {
        let mut stream = UnixStream::connect(socket).map_err(|e| {
            Error::new(ErrorKind::PartUnavailable, format!("the Pub/Sub agent of this query cannot be reached: {e}."))
                .with_remedy("If it died, restart the query: nothing is lost. Executors must run on the driver's host.")
        })?;
        let open = |stream: &mut UnixStream| -> io::Result<Answer> {
            stream.set_read_timeout(Some(READ_DEADLINE))?;
            frame::write(stream, request)?;
            frame::read(stream)
        };
        match open(&mut stream).map_err(|e| broken(&e.to_string()))? {
            Answer::Failed(error) => Err(error),
            Answer::Rows => {
                let source = BufReader::with_capacity(BUFFER_BYTES, stream);
                let stream = StreamReader::try_new(source, None).map_err(|e| broken(&e.to_string()))?;
                Ok(Self { stream, expected: rows, seen: 0, ended: false })
            }
        }
    }

    fn read(&mut self) -> Result<Option<RecordBatch>> {
        if self.ended {
            return Ok(None);
        }
        match self.stream.next() {
            Some(batch) => {
                let batch = batch.map_err(|e| broken(&e.to_string()))?;
                self.seen += batch.num_rows();
                Ok(Some(batch))
            }
            None => {
                let mark: EndMark = frame::read(self.stream.get_mut()).map_err(|e| broken(&e.to_string()))?;
                if mark.rows != self.seen || mark.rows != self.expected {
                    return Err(broken(&format!(
                        "{} rows were planned, {} announced, {} came",
                        self.expected, mark.rows, self.seen
                    )));
                }
                self.ended = true;
                Ok(None)
            }
        }
    }
}

fn broken(cause: &str) -> Error {
    Error::new(ErrorKind::PartUnavailable, format!("a part of the batch did not arrive whole: {cause}."))
        .with_remedy("The task fails and Spark tries it again; nothing is lost.")
}

impl Iterator for PartReader {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().map_err(|error| ArrowError::ExternalError(Box::new(error))).transpose()
    }
}

impl RecordBatchReader for PartReader {
    fn schema(&self) -> SchemaRef {
        self.stream.schema()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::new_null_array;
    use std::io::Write;
    use std::thread;

    const TOKEN: &str = "secret";

    fn batch(rows: usize) -> RecordBatch {
        let schema = raw_schema();
        let columns = schema.fields().iter().map(|field| new_null_array(field.data_type(), rows)).collect();
        RecordBatch::try_new(schema, columns).unwrap()
    }

    fn part(rows: usize) -> Arc<Part> {
        Arc::new(Part { batches: vec![batch(rows / 2), batch(rows - rows / 2)], rows })
    }

    fn request(token: &str) -> PartRequest {
        PartRequest { token: token.to_owned(), end: Offset { epoch: "life".into(), seq: 1 }, index: 0 }
    }

    /// Read `rows` rows through a socket at whose other end `agent` does what it likes.
    fn read_from(agent: impl FnOnce(UnixStream) + Send + 'static, token: &str, rows: usize) -> Result<usize> {
        let folder = std::env::temp_dir().join(format!("solstice-part-{}-{}", std::process::id(), fastrand::u64(..)));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || agent(listener.accept().unwrap().0));
        let mut reader = PartReader::open(&path, &request(token), rows);
        let read = reader.as_mut().map_err(|e| e.clone()).and_then(|reader| {
            let mut seen = 0;
            while let Some(batch) = reader.read()? {
                seen += batch.num_rows();
            }
            Ok(seen)
        });
        drop(reader);
        server.join().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        read
    }

    fn serving(rows: usize) -> impl FnOnce(UnixStream) + Send {
        move |stream| serve(stream, TOKEN, |_| Ok(part(rows))).unwrap()
    }

    fn assert_unavailable(outcome: Result<usize>) {
        assert_eq!(outcome.unwrap_err().kind, ErrorKind::PartUnavailable);
    }

    #[test]
    fn a_whole_part_is_read() {
        assert_eq!(read_from(serving(25), TOKEN, 25).unwrap(), 25);
        assert_eq!(read_from(serving(0), TOKEN, 0).unwrap(), 0);
    }

    #[test]
    fn a_part_is_written_whole_or_the_error_is_the_machines() {
        let path = std::env::temp_dir().join(format!("solstice-part-{}", fastrand::u64(..)));
        write(&part(25), &path).unwrap();
        let reader = arrow_ipc::reader::FileReader::try_new(File::open(&path).unwrap(), None).unwrap();
        assert_eq!(reader.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 25);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(write(&part(25), Path::new("/dev/full")).unwrap_err().raw_os_error(), Some(28));
        assert_eq!(write(&part(25), Path::new("/nowhere/part")).unwrap_err().raw_os_error(), Some(2));
    }

    #[test]
    fn a_wrong_token_reads_nothing() {
        assert_unavailable(read_from(serving(25), "secreT", 25));
        assert_unavailable(read_from(serving(25), "", 25));
    }

    #[test]
    fn more_or_fewer_rows_than_planned_are_an_error() {
        assert_unavailable(read_from(serving(25), TOKEN, 24));
        assert_unavailable(read_from(serving(25), TOKEN, 26));
    }

    #[test]
    fn an_error_of_the_agent_arrives_as_it_is() {
        let refuse =
            |stream| serve(stream, TOKEN, |_| Err(Error::new(ErrorKind::PartUnavailable, "not here"))).unwrap();
        assert_eq!(read_from(refuse, TOKEN, 1).unwrap_err().message, "not here");
    }

    #[test]
    fn a_stream_cut_anywhere_is_an_error_and_never_fewer_rows() {
        let mut whole = vec![];
        frame::write(&mut whole, &Answer::Rows).unwrap();
        let mut writer = StreamWriter::try_new(&mut whole, &raw_schema()).unwrap();
        writer.write(&batch(3)).unwrap();
        writer.finish().unwrap();
        drop(writer);
        frame::write(&mut whole, &EndMark { rows: 3 }).unwrap();
        for end in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
            let cut = whole[..end].to_vec();
            let agent = move |mut stream: UnixStream| {
                let _: PartRequest = frame::read(&mut stream).unwrap();
                stream.write_all(&cut).unwrap();
            };
            assert_unavailable(read_from(agent, TOKEN, 3));
        }
    }
}
