//! Topics and subscriptions, for the command line.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use solstice_core::error::Result;
use solstice_core::pubsub::client::Client;
use solstice_core::pubsub::wire::{DeadLetterPolicy, Subscription, Topic};
use solstice_core::runtime;

use crate::connection::Connection;
use crate::errors::call;

fn with_client<T: Send>(
    py: Python<'_>,
    connection: &Connection,
    work: impl AsyncFnOnce(Client) -> Result<T> + Send,
) -> PyResult<T> {
    call(py, || runtime::handle()?.block_on(async { work(Client::connect(&connection.inner).await?).await }))
}

/// Create `projects/P/topics/T`.
#[pyfunction]
pub fn create_topic<'py>(py: Python<'py>, connection: &Connection, name: String) -> PyResult<Bound<'py, PyDict>> {
    let topic = Topic { name, ..Default::default() };
    topic_fields(py, &with_client(py, connection, async |client| client.create_topic(&topic).await)?)
}

/// Read `projects/P/topics/T`.
#[pyfunction]
pub fn get_topic<'py>(py: Python<'py>, connection: &Connection, name: &str) -> PyResult<Bound<'py, PyDict>> {
    topic_fields(py, &with_client(py, connection, async |client| client.get_topic(name).await)?)
}

/// The topics of `projects/P`.
#[pyfunction]
pub fn list_topics<'py>(py: Python<'py>, connection: &Connection, project: &str) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let topics = with_client(py, connection, async |client| client.list_topics(project).await)?;
    topics.iter().map(|topic| topic_fields(py, topic)).collect()
}

/// Delete `projects/P/topics/T`.
#[pyfunction]
pub fn delete_topic(py: Python<'_>, connection: &Connection, name: &str) -> PyResult<()> {
    with_client(py, connection, async |client| client.delete_topic(name).await)
}

/// Create `projects/P/subscriptions/S`.
#[pyfunction]
#[pyo3(signature = (
    connection, name, topic, *, ack_deadline_s, enable_message_ordering, enable_exactly_once_delivery, filter,
    dead_letter_topic, max_delivery_attempts
))]
#[allow(clippy::too_many_arguments)] // they are named on the Python side
pub fn create_subscription<'py>(
    py: Python<'py>,
    connection: &Connection,
    name: String,
    topic: String,
    ack_deadline_s: i32,
    enable_message_ordering: bool,
    enable_exactly_once_delivery: bool,
    filter: String,
    dead_letter_topic: Option<String>,
    max_delivery_attempts: i32,
) -> PyResult<Bound<'py, PyDict>> {
    let dead_letter_policy =
        dead_letter_topic.map(|dead_letter_topic| DeadLetterPolicy { dead_letter_topic, max_delivery_attempts });
    let subscription = Subscription {
        name,
        topic,
        ack_deadline_seconds: ack_deadline_s,
        enable_message_ordering,
        enable_exactly_once_delivery,
        filter,
        dead_letter_policy,
        ..Default::default()
    };
    let created = with_client(py, connection, async |client| client.create_subscription(&subscription).await)?;
    subscription_fields(py, &created)
}

/// Read `projects/P/subscriptions/S`.
#[pyfunction]
pub fn get_subscription<'py>(py: Python<'py>, connection: &Connection, name: &str) -> PyResult<Bound<'py, PyDict>> {
    subscription_fields(py, &with_client(py, connection, async |client| client.get_subscription(name).await)?)
}

/// The subscriptions of `projects/P`.
#[pyfunction]
pub fn list_subscriptions<'py>(
    py: Python<'py>,
    connection: &Connection,
    project: &str,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let subscriptions = with_client(py, connection, async |client| client.list_subscriptions(project).await)?;
    subscriptions.iter().map(|subscription| subscription_fields(py, subscription)).collect()
}

/// Delete `projects/P/subscriptions/S`.
#[pyfunction]
pub fn delete_subscription(py: Python<'_>, connection: &Connection, name: &str) -> PyResult<()> {
    with_client(py, connection, async |client| client.delete_subscription(name).await)
}

fn topic_fields<'py>(py: Python<'py>, topic: &Topic) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("name", &topic.name)?;
    fields.set_item("labels", &topic.labels)?;
    Ok(fields)
}

fn subscription_fields<'py>(py: Python<'py>, subscription: &Subscription) -> PyResult<Bound<'py, PyDict>> {
    let dead_letter = subscription.dead_letter_policy.as_ref();
    let fields = PyDict::new(py);
    fields.set_item("name", &subscription.name)?;
    fields.set_item("topic", &subscription.topic)?;
    fields.set_item("ack_deadline_s", subscription.ack_deadline_seconds)?;
    fields.set_item("enable_message_ordering", subscription.enable_message_ordering)?;
    fields.set_item("enable_exactly_once_delivery", subscription.enable_exactly_once_delivery)?;
    fields.set_item("filter", &subscription.filter)?;
    fields.set_item("dead_letter_topic", dead_letter.map(|policy| &policy.dead_letter_topic))?;
    fields.set_item("max_delivery_attempts", dead_letter.map(|policy| policy.max_delivery_attempts))?;
    fields.set_item("labels", &subscription.labels)?;
    Ok(fields)
}
