//! What workers ask an agent: one part of a batch, as a request, the rows as an Arrow stream, and an end mark with their
//! number; or, for whoever watches it, its counts.
//!
//! A stream that ends without its mark, or whose rows are not as many as the plan says, is an error: silence is never
//! emptiness.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use serde::{Deserialize, Serialize};

use crate::agent::book::{Offset, Part};
use crate::agent::frame;
use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::puller::Stats;

const READ_BUFFER_BYTES: usize = 1 << 20;
/// What is larger, as most columns are, goes past it and is not copied once more.
const WRITE_BUFFER_BYTES: usize = 32 << 10;
/// A host that is there answers sooner.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// An agent sends without pause; one that is silent for so long is stuck.
const READ_DEADLINE: Duration = Duration::from_secs(120);
/// Counts are there at once.
const STATUS_DEADLINE: Duration = Duration::from_secs(5);

/// What is asked, and the right to ask.
#[derive(Serialize, Deserialize)]
pub struct Call {
    /// What the planner gave to the tasks.
    pub token: String,
    /// What is asked.
    pub ask: Ask,
}

/// A question to an agent.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// The rows of a part.
    Part(PartRequest),
    /// Its counts.
    Status,
}

/// Which part.
#[derive(Serialize, Deserialize)]
pub struct PartRequest {
    /// The batch.
    pub end: Offset,
    /// The part of the batch.
    pub index: usize,
    /// Who asks; None in local mode, where there are no executors.
    pub executor: Option<Executor>,
}

/// A process of Spark that runs tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executor {
    /// Its id within the application.
    pub id: String,
    /// How many tasks it runs at once, as far as it knows.
    pub cores: usize,
}

/// What an agent can tell of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Status {
    /// What it pulls.
    #[serde(flatten)]
    pub stats: Stats,
    /// How long it has lived.
    pub uptime_s: f64,
    /// The memory it has.
    pub memory_bytes: u64,
    /// The cores of the executors that have read lately.
    pub executor_cores: usize,
}

/// The beginning of an answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Rows follow.
    Rows,
    /// The counts.
    Status(Status),
    /// An error.
    Failed(Error),
}

#[derive(Serialize, Deserialize)]
struct EndMark {
    rows: usize,
}

/// Write a part to a new file of this machine, for a planner that keeps a log.
pub fn write(part: &Part, path: &Path) -> io::Result<()> {
    let target = BufWriter::with_capacity(WRITE_BUFFER_BYTES, File::create(path)?);
    let mut writer = FileWriter::try_new(target, &schema_of(part)).map_err(io_error)?;
    for batch in &part.batches {
        writer.write(batch).map_err(io_error)?;
    }
    writer.finish().map_err(io_error)
}

fn schema_of(part: &Part) -> SchemaRef {
    part.batches.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema)
}

/// The machine's own error, where there is one.
fn io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other),
    }
}

/// The agent's side: send a part.
pub fn send(target: impl Write, part: &Part) -> io::Result<()> {
    let mut target = BufWriter::with_capacity(WRITE_BUFFER_BYTES, target);
    frame::write(&mut target, &Answer::Rows)?;
    let mut writer = StreamWriter::try_new(&mut target, &schema_of(part)).map_err(io::Error::other)?;
    for batch in &part.batches {
        writer.write(batch).map_err(io::Error::other)?;
    }
    writer.finish().map_err(io::Error::other)?;
    drop(writer);
    frame::write(&mut target, &EndMark { rows: part.rows })
}

/// Compare secrets in a time that does not depend on where they differ.
pub fn same(given: &str, token: &str) -> bool {
    given.len() == token.len() && given.bytes().zip(token.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Where an agent is.
#[derive(Clone, Debug)]
pub struct Place {
    /// For workers on its host.
    pub socket: PathBuf,
    /// For workers on other hosts, as (host, port).
    pub tcp: Option<(String, u16)>,
}

trait Connected: Read + Write + Send {}
impl<T: Read + Write + Send> Connected for T {}

impl Place {
    /// The Unix socket where it can be seen, which is on the agent's host; else TCP.
    fn connect(&self, deadline: Duration) -> Result<Box<dyn Connected>> {
        let error = match UnixStream::connect(&self.socket) {
            Ok(stream) => {
                stream.set_read_timeout(Some(deadline)).map_err(broken)?;
                return Ok(Box::new(stream));
            }
            Err(error) => error,
        };
        let Some((host, port)) = &self.tcp else {
            let socket = self.socket.display();
            return Err(unreachable(&format!("at {socket}: {error}"))
                .with_remedy("If it died, restart the query: nothing is lost. If this executor is not on the driver's host, set agentHost to the driver's address."));
        };
        match connect_tcp(host, *port, deadline) {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(unreachable(&format!("at {host}:{port}: {error}"))
                .with_remedy("If it died, restart the query: nothing is lost. Otherwise set agentHost to an address of the driver that this executor reaches, and agentPort to a port that is open there.")),
        }
    }
}

fn connect_tcp(host: &str, port: u16, deadline: Duration) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_DEADLINE) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(deadline))?;
                stream.set_write_timeout(Some(deadline))?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn unreachable(what: &str) -> Error {
    Error::new(ErrorKind::PartUnavailable, format!("the Pub/Sub agent of this query cannot be reached {what}."))
}

/// Ask an agent on this host for its counts.
pub fn status(socket: PathBuf, token: String) -> Result<Status> {
    let mut stream = Place { socket, tcp: None }.connect(STATUS_DEADLINE)?;
    match ask(&mut stream, &Call { token, ask: Ask::Status })? {
        Answer::Status(status) => Ok(status),
        Answer::Failed(error) => Err(error),
        Answer::Rows => Err(broken("rows, where counts were asked for")),
    }
}

fn ask(stream: &mut (impl Read + Write), call: &Call) -> Result<Answer> {
    frame::write(stream, call).and_then(|()| frame::read(stream)).map_err(broken)
}

/// The worker's side: the rows of one part, checked to be all of them.
pub struct PartReader {
    stream: StreamReader<BufReader<Box<dyn Connected>>>,
    expected: usize,
    seen: usize,
    ended: bool,
}

impl PartReader {
    /// Ask the agent there for a part that has `rows` rows.
    pub fn open(place: &Place, token: String, request: PartRequest, rows: usize) -> Result<Self> {
        let mut stream = place.connect(READ_DEADLINE)?;
        match ask(&mut stream, &Call { token, ask: Ask::Part(request) })? {
            Answer::Failed(error) => Err(error),
            Answer::Status(_) => Err(broken("counts, where rows were asked for")),
            Answer::Rows => {
                let source = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
                let stream = StreamReader::try_new(source, None).map_err(broken)?;
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
                let batch = batch.map_err(broken)?;
                self.seen += batch.num_rows();
                Ok(Some(batch))
            }
            None => {
                let mark: EndMark = frame::read(self.stream.get_mut()).map_err(broken)?;
                if mark.rows != self.seen || mark.rows != self.expected {
                    return Err(broken(format!(
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

fn broken(cause: impl std::fmt::Display) -> Error {
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
    use crate::pubsub::columns::raw_schema;
    use arrow_array::new_null_array;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::thread;

    fn batch(rows: usize) -> RecordBatch {
        let schema = raw_schema();
        let columns = schema.fields().iter().map(|field| new_null_array(field.data_type(), rows)).collect();
        RecordBatch::try_new(schema, columns).unwrap()
    }

    fn part(rows: usize) -> Arc<Part> {
        Arc::new(Part { batches: vec![batch(rows / 2), batch(rows - rows / 2)], rows })
    }

    fn request() -> PartRequest {
        PartRequest { end: Offset { epoch: "life".into(), seq: 1 }, index: 0, executor: None }
    }

    fn read(place: &Place, rows: usize) -> Result<usize> {
        let mut reader = PartReader::open(place, "secret".into(), request(), rows)?;
        let mut seen = 0;
        while let Some(batch) = reader.read()? {
            seen += batch.num_rows();
        }
        Ok(seen)
    }

    /// Read `rows` rows through a socket at whose other end `agent` does what it likes after the request.
    fn read_from(agent: impl FnOnce(UnixStream) + Send + 'static, rows: usize) -> Result<usize> {
        let folder = std::env::temp_dir().join(format!("solstice-part-{}-{}", std::process::id(), fastrand::u64(..)));
        std::fs::create_dir(&folder).unwrap();
        let place = Place { socket: folder.join("s"), tcp: None };
        let listener = UnixListener::bind(&place.socket).unwrap();
        let server = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let _: Call = frame::read(&mut stream).unwrap();
            agent(stream);
        });
        let read = read(&place, rows);
        server.join().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        read
    }

    fn serving(rows: usize) -> impl FnOnce(UnixStream) + Send {
        move |stream| send(stream, &part(rows)).unwrap()
    }

    fn assert_unavailable(outcome: Result<usize>) {
        assert_eq!(outcome.unwrap_err().kind, ErrorKind::PartUnavailable);
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
    fn a_whole_part_is_read() {
        assert_eq!(read_from(serving(25), 25).unwrap(), 25);
        assert_eq!(read_from(serving(0), 0).unwrap(), 0);
    }

    #[test]
    fn more_or_fewer_rows_than_planned_are_an_error() {
        assert_unavailable(read_from(serving(25), 24));
        assert_unavailable(read_from(serving(25), 26));
    }

    #[test]
    fn an_error_of_the_agent_arrives_as_it_is() {
        let error = Error::new(ErrorKind::PartUnavailable, "not here");
        let refuse = move |mut stream| frame::write(&mut stream, &Answer::Failed(error)).unwrap();
        assert_eq!(read_from(refuse, 1).unwrap_err().message, "not here");
    }

    #[test]
    fn a_stream_cut_anywhere_is_an_error_and_never_fewer_rows() {
        let mut whole = vec![];
        send(&mut whole, &part(3)).unwrap();
        for end in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
            let cut = whole[..end].to_vec();
            assert_unavailable(read_from(move |mut stream| stream.write_all(&cut).unwrap(), 3));
        }
    }

    #[test]
    fn where_the_socket_is_not_seen_the_part_comes_over_tcp() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let _: Call = frame::read(&mut stream).unwrap();
            send(stream, &part(9)).unwrap();
        });
        let place = Place { socket: "/nowhere/agent.sock".into(), tcp: Some(("localhost".into(), port)) };
        assert_eq!(read(&place, 9).unwrap(), 9);
        server.join().unwrap();
        let error = read(&place, 9).unwrap_err();
        assert_eq!(error.kind, ErrorKind::PartUnavailable);
        let said = error.to_string();
        assert!(said.contains(&format!("localhost:{port}")) && said.contains("agentPort"), "{said}");
        let error = read(&Place { tcp: None, ..place }, 9).unwrap_err().to_string();
        assert!(error.contains("/nowhere/agent.sock") && error.contains("agentHost"), "{error}");
    }

    #[test]
    fn secrets_are_the_same_or_not() {
        assert!(same("secret", "secret"));
        assert!(!same("secreT", "secret") && !same("", "secret") && !same("secret1", "secret"));
    }
}
