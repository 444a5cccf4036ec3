//! Topics and subscriptions: created, read, listed, deleted, and checked before they are used.

use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::client::Client;
use crate::pubsub::wire::{
    DeleteSubscriptionRequest, DeleteTopicRequest, Empty, GetSubscriptionRequest, GetTopicRequest, ListRequest,
    ListSubscriptionsResponse, ListTopicsResponse, Subscription, TestIamPermissionsRequest, TestIamPermissionsResponse,
    Topic, path,
};
use crate::retry::{Backoff, is_transient};

/// No further try after this.
const RETRY_FOR: Duration = Duration::from_secs(10);
const PAGE_SIZE: i32 = 1_000;

/// What somebody wants to do with a topic or subscription, and what that takes.
struct Use {
    verb: &'static str,
    permission: &'static str,
    role: &'static str,
}

const CONSUME: Use =
    Use { verb: "pull from", permission: "pubsub.subscriptions.consume", role: "roles/pubsub.subscriber" };
const PUBLISH: Use = Use { verb: "publish to", permission: "pubsub.topics.publish", role: "roles/pubsub.publisher" };

const VIEWER: &str = "roles/pubsub.viewer";
const EDITOR: &str = "roles/pubsub.editor";

impl Client {
    /// Create a topic.
    pub async fn create_topic(&self, topic: &Topic) -> Result<Topic> {
        self.admin("creating", &topic.name, EDITOR, path::CREATE_TOPIC, topic).await
    }

    /// Read a topic.
    pub async fn get_topic(&self, name: &str) -> Result<Topic> {
        let request = GetTopicRequest { topic: name.to_owned() };
        self.admin("reading", name, VIEWER, path::GET_TOPIC, &request).await
    }

    /// Delete a topic. Its subscriptions stay, with what they hold.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        let request = DeleteTopicRequest { topic: name.to_owned() };
        self.admin("deleting", name, EDITOR, path::DELETE_TOPIC, &request).await.map(|Empty {}| ())
    }

    /// All topics of `projects/P`.
    pub async fn list_topics(&self, project: &str) -> Result<Vec<Topic>> {
        let page = |page: ListTopicsResponse| (page.topics, page.next_page_token);
        self.pages("listing the topics of", project, path::LIST_TOPICS, page).await
    }

    /// Create a subscription.
    pub async fn create_subscription(&self, subscription: &Subscription) -> Result<Subscription> {
        self.admin("creating", &subscription.name, EDITOR, path::CREATE_SUBSCRIPTION, subscription).await
    }

    /// Read a subscription.
    pub async fn get_subscription(&self, name: &str) -> Result<Subscription> {
        let request = GetSubscriptionRequest { subscription: name.to_owned() };
        self.admin("reading", name, VIEWER, path::GET_SUBSCRIPTION, &request).await
    }

    /// Delete a subscription and what it holds.
    pub async fn delete_subscription(&self, name: &str) -> Result<()> {
        let request = DeleteSubscriptionRequest { subscription: name.to_owned() };
        self.admin("deleting", name, EDITOR, path::DELETE_SUBSCRIPTION, &request).await.map(|Empty {}| ())
    }

    /// All subscriptions of `projects/P`.
    pub async fn list_subscriptions(&self, project: &str) -> Result<Vec<Subscription>> {
        let page = |page: ListSubscriptionsResponse| (page.subscriptions, page.next_page_token);
        self.pages("listing the subscriptions of", project, path::LIST_SUBSCRIPTIONS, page).await
    }

    async fn pages<A: prost::Message + Default, T>(
        &self,
        doing: &str,
        project: &str,
        path: &'static str,
        content: impl Fn(A) -> (Vec<T>, String),
    ) -> Result<Vec<T>> {
        let mut request = ListRequest { parent: project.to_owned(), page_size: PAGE_SIZE, page_token: String::new() };
        let mut all = vec![];
        loop {
            let (things, next) = content(self.admin(doing, project, VIEWER, path, &request).await?);
            all.extend(things);
            if next.is_empty() {
                return Ok(all);
            }
            request.page_token = next;
        }
    }

    /// See that the subscription exists and may be pulled from. What it is, unless the caller may not read that:
    /// roles/pubsub.subscriber alone does not allow it.
    pub async fn check_subscription(&self, name: &str) -> Result<Option<Subscription>> {
        let (found, may) = tokio::join!(self.get_subscription(name), self.may(name, &CONSUME));
        self.check(name, &CONSUME, found, may?).await
    }

    /// See that the topic exists and may be published to. What it is, unless the caller may not read that:
    /// roles/pubsub.publisher alone does not allow it.
    pub async fn check_topic(&self, name: &str) -> Result<Option<Topic>> {
        let (found, may) = tokio::join!(self.get_topic(name), self.may(name, &PUBLISH));
        self.check(name, &PUBLISH, found, may?).await
    }

    async fn check<T>(&self, name: &str, wanted: &Use, found: Result<T>, may: Option<bool>) -> Result<Option<T>> {
        match (found, may) {
            (Ok(_), Some(false)) => Err(self.denied(name, wanted).await),
            (Ok(found), _) => Ok(Some(found)),
            (Err(error), Some(true)) if error.kind == ErrorKind::PermissionDenied => Ok(None),
            (Err(error), _) if error.kind == ErrorKind::PermissionDenied => Err(self.denied(name, wanted).await),
            (Err(error), _) => Err(error),
        }
    }

    async fn denied(&self, name: &str, wanted: &Use) -> Error {
        let Use { verb, permission, role } = wanted;
        let who = self.caller().await;
        let mut error = Error::new(
            ErrorKind::PermissionDenied,
            format!("{who} may not {verb} {}: the permission {permission} is missing.", described(name)),
        )
        .with_remedy(format!("Grant it {role} there; if the name may be wrong, {VIEWER} too, to be told so."));
        error.code = Some(Code::PermissionDenied);
        error
    }

    /// Whether the caller has the permission; None where the server cannot say, as some emulators. Everybody may ask.
    async fn may(&self, name: &str, wanted: &Use) -> Result<Option<bool>> {
        let permissions = vec![wanted.permission.to_owned()];
        let request = TestIamPermissionsRequest { resource: name.to_owned(), permissions };
        match self.persistently::<_, TestIamPermissionsResponse>(path::TEST_IAM_PERMISSIONS, &request).await {
            Ok(granted) => Ok(Some(granted.permissions.iter().any(|permission| permission == wanted.permission))),
            Err(status) if matches!(status.code(), Code::Unimplemented | Code::PermissionDenied | Code::NotFound) => {
                Ok(None)
            }
            Err(status) => Err(Error::from_status(&format!("asking what may be done with {name}"), &status)),
        }
    }

    async fn admin<Q, A>(&self, doing: &str, name: &str, role: &str, path: &'static str, request: &Q) -> Result<A>
    where
        Q: prost::Message,
        A: prost::Message + Default,
    {
        let status = match self.persistently(path, request).await {
            Ok(answer) => return Ok(answer),
            Err(status) => status,
        };
        let error = Error::from_status(&format!("{doing} {name}"), &status);
        Err(match error.kind {
            ErrorKind::NotFound => {
                let remedy = match create_command(missing(name, &status)) {
                    Some(command) => format!("Check the name, or create it: {command}"),
                    None => "Check the name of the project.".to_owned(),
                };
                error.with_remedy(remedy)
            }
            ErrorKind::PermissionDenied => {
                let who = self.caller().await;
                error.with_remedy(format!("Grant {role} on project {} to {who}.", project(name)))
            }
            _ => error,
        })
    }

    /// Call until an answer, an error that trying again cannot mend, or the end of patience.
    async fn persistently<Q, A>(&self, path: &'static str, request: &Q) -> std::result::Result<A, Status>
    where
        Q: prost::Message,
        A: prost::Message + Default,
    {
        let started = Instant::now();
        let mut backoff = Backoff::default();
        loop {
            let status = match self.unary(path, request).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            let delay = backoff.next_delay();
            if !is_transient(status.code()) || started.elapsed() + delay > RETRY_FOR {
                return Err(status);
            }
            log::info!("{path}: {} ({:?}); trying again", status.message(), status.code());
            tokio::time::sleep(delay).await;
        }
    }
}

/// Creating a subscription may miss its topic; the server's message has the name.
fn missing<'a>(name: &'a str, status: &'a Status) -> &'a str {
    let is_topic = |word: &&str| word.starts_with("projects/") && word.contains("/topics/");
    let words = status.message().split(|letter: char| letter.is_whitespace() || "()[]'\",=".contains(letter));
    words.map(|word| word.trim_end_matches(['.', ')'])).find(is_topic).unwrap_or(name)
}

fn project(name: &str) -> &str {
    name.split('/').nth(1).unwrap_or(name)
}

/// `subscription S of project P`.
fn described(name: &str) -> String {
    match name.split('/').collect::<Vec<_>>()[..] {
        ["projects", project, "subscriptions", id] => format!("subscription {id} of project {project}"),
        ["projects", project, "topics", id] => format!("topic {id} of project {project}"),
        _ => name.to_owned(),
    }
}

fn create_command(name: &str) -> Option<String> {
    Some(match name.split('/').collect::<Vec<_>>()[..] {
        ["projects", project, "subscriptions", id] => {
            format!("solstice pubsub subscriptions create {id} --topic TOPIC --project {project}")
        }
        ["projects", project, "topics", id] => format!("solstice pubsub topics create {id} --project {project}"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::Emulator;
    use crate::pubsub::connection::Connection;

    const TOPIC: &str = "projects/p/topics/events";

    async fn emulated() -> (Emulator, Client) {
        let emulator = Emulator::start("127.0.0.1", 0, None, None).unwrap();
        let endpoint = format!("127.0.0.1:{}", emulator.port());
        let client = Client::connect(&Connection { endpoint, plaintext: true, credentials_file: None }).await.unwrap();
        (emulator, client)
    }

    fn deny(emulator: &Emulator, permissions: &[&str]) {
        emulator.access().deny(permissions.iter().map(|&permission| permission.to_owned()));
    }

    #[tokio::test]
    async fn a_missing_topic_is_found_before_publishing() {
        let (_emulator, client) = emulated().await;
        let error = client.check_topic(TOPIC).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(error.to_string().contains("solstice pubsub topics create events --project p"), "{error}");
    }

    #[tokio::test]
    async fn a_topic_may_be_used_whenever_it_may_be_published_to() {
        let (emulator, client) = emulated().await;
        emulator.create_topic(Topic { name: TOPIC.to_owned(), ..Default::default() }).unwrap();
        assert_eq!(client.check_topic(TOPIC).await.unwrap().unwrap().name, TOPIC);
        deny(&emulator, &["pubsub.topics.get"]);
        assert_eq!(client.check_topic(TOPIC).await.unwrap(), None, "roles/pubsub.publisher alone cannot read it");
        for denied in [&["pubsub.topics.publish"][..], &["pubsub.topics.publish", "pubsub.topics.get"]] {
            deny(&emulator, denied);
            let error = client.check_topic(TOPIC).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::PermissionDenied);
            for part in ["topic events of project p", "pubsub.topics.publish", "roles/pubsub.publisher"] {
                assert!(error.to_string().contains(part), "{error}");
            }
        }
    }

    #[test]
    fn the_topic_that_a_new_subscription_misses_is_named() {
        let subscription = "projects/p/subscriptions/s";
        for message in [
            "Resource not found (Topic: projects/p/topics/missing).",
            "Resource not found (resource=projects/p/topics/missing).",
            "Topic 'projects/p/topics/missing' was not found",
        ] {
            assert_eq!(missing(subscription, &Status::not_found(message)), "projects/p/topics/missing");
        }
        let own = Status::not_found("Resource not found (resource=s).");
        assert_eq!(missing(subscription, &own), subscription);
    }
}
