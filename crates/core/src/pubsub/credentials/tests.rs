//! Against a token server that answers as each test wants. Signing is tested from Python, where a library can check it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const SECRETS: [&str; 2] = ["s3cret-client", "s3cret-refresh"];
const SHORT: Patience =
    Patience { attempt: Duration::from_millis(200), total: Duration::from_millis(600), tries: u32::MAX };

/// An HTTP server; `answer` gets the number of the request and its text, and gives the whole response.
struct TokenServer {
    port: u16,
    asked: Arc<AtomicUsize>,
}

impl TokenServer {
    async fn start<F, A>(answer: F) -> Self
    where
        F: Fn(usize, String) -> A + Send + Sync + 'static,
        A: Future<Output = String> + Send,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(AtomicUsize::new(0));
        let (counter, answer) = (asked.clone(), Arc::new(answer));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (counter, answer) = (counter.clone(), answer.clone());
                tokio::spawn(async move {
                    let mut text = vec![0; 16_384];
                    let mut length = 0;
                    while !is_whole(&text[..length]) {
                        match stream.read(&mut text[length..]).await.unwrap() {
                            0 => return,
                            more => length += more,
                        }
                    }
                    let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
                    let response = answer(number, String::from_utf8_lossy(&text[..length]).into_owned()).await;
                    let _ = stream.write_all(response.as_bytes()).await;
                });
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn user(&self, name: &str) -> FromFile {
        let uri = format!("http://127.0.0.1:{}/token", self.port);
        file(name, &user_file(&uri))
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

fn response(status: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nmetadata-flavor: Google\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn token(number: usize, expires_in: u64) -> String {
    response("200 OK", &format!(r#"{{"access_token": "token-{number}", "expires_in": {expires_in}}}"#))
}

fn user_file(token_uri: &str) -> String {
    format!(
        r#"{{"type": "authorized_user", "client_id": "c&d", "client_secret": "{}", "refresh_token": "{}",
            "quota_project_id": "billed", "token_uri": "{token_uri}"}}"#,
        SECRETS[0], SECRETS[1]
    )
}

/// Credentials of a file that goes with them.
struct FromFile {
    credentials: Arc<Credentials>,
    path: PathBuf,
}

impl std::ops::Deref for FromFile {
    type Target = Arc<Credentials>;

    fn deref(&self) -> &Self::Target {
        &self.credentials
    }
}

impl Drop for FromFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Credentials of a file with this content; the name has to be the test's own.
fn file(name: &str, content: &str) -> FromFile {
    let path = std::env::temp_dir().join(format!("solstice-credentials-{}-{name}.json", std::process::id()));
    std::fs::write(&path, content).unwrap();
    let mut credentials = Credentials::find(Some(&path));
    credentials.patience = SHORT;
    FromFile { credentials: Arc::new(credentials), path }
}

fn bearer(token: &Token) -> &str {
    token.bearer.to_str().unwrap()
}

/// No secret may be in what users and logs get to see.
fn harmless(error: &Error) -> String {
    let text = format!("{error} {error:?}");
    assert!(SECRETS.iter().all(|secret| !text.contains(secret)), "{text}");
    text
}

async fn eventually(what: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !what() {
        assert!(Instant::now() < deadline, "it did not come true in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_given_file_comes_first_then_that_of_gcloud_then_the_machine() {
    let environment = |pairs: &[(&str, &str)]| {
        let pairs: HashMap<String, OsString> = pairs.iter().map(|(k, v)| ((*k).to_owned(), v.into())).collect();
        move |name: &str| pairs.get(name).cloned()
    };
    let in_file = |path: &str| match locate(None, environment(&[("HOME", "/h"), ("CLOUDSDK_CONFIG", path)]), |_| true) {
        Source::File { path, .. } => path,
        other => panic!("{other:?}"),
    };
    let given = locate(Some(Path::new("/k.json")), environment(&[("HOME", "/h")]), |_| true);
    assert_eq!(given, Source::File { path: "/k.json".into(), named_by: "credentialsFile" });
    assert_eq!(in_file("/g"), Path::new("/g/application_default_credentials.json"));
    let home = locate(None, environment(&[("HOME", "/h")]), |_| true);
    assert!(
        matches!(home, Source::File { path, .. } if path == Path::new("/h/.config/gcloud/application_default_credentials.json"))
    );
    let machine = locate(None, environment(&[("HOME", "/h")]), |_| false);
    assert_eq!(machine, Source::Metadata { host: METADATA_HOST.to_owned() });
    let named = locate(None, environment(&[("GCE_METADATA_HOST", "m:1")]), |_| true);
    assert_eq!(named, Source::Metadata { host: "m:1".to_owned() });
}

#[tokio::test]
async fn many_who_ask_at_once_share_one_token() {
    let server = TokenServer::start(|number, request| async move {
        assert!(request.starts_with("POST /token HTTP/1.1"), "{request}");
        assert!(request.ends_with(
            "grant_type=refresh_token&client_id=c%26d&client_secret=s3cret-client&refresh_token=s3cret-refresh"
        ));
        token(number, 3_600)
    })
    .await;
    let credentials = server.user("shared");
    let asking: Vec<_> = (0..50)
        .map(|_| {
            let credentials = Arc::clone(&credentials);
            tokio::spawn(async move { credentials.token().await.unwrap() })
        })
        .collect();
    for asked in asking {
        let token = asked.await.unwrap();
        assert_eq!(bearer(&token), "Bearer token-1");
        let mut metadata = MetadataMap::new();
        token.add_to(&mut metadata);
        assert_eq!(metadata.get("x-goog-user-project").unwrap(), "billed");
        assert!(!format!("{token:?} {metadata:?}").contains("token-1"));
    }
    assert_eq!(server.asked(), 1);
}

#[tokio::test]
async fn a_token_that_gets_old_is_renewed_once_while_it_serves_on() {
    let server = TokenServer::start(|number, _| async move {
        if number == 2 {
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        token(number, if number == 1 { 2 } else { 3_600 })
    })
    .await;
    let credentials = server.user("renewed");
    let first = credentials.token().await.unwrap();
    assert_eq!(credentials.token().await.unwrap().fetched, first.fetched, "it is still young");
    tokio::time::sleep_until((first.renew_at + Duration::from_millis(5)).into()).await;
    for _ in 0..20 {
        let started = Instant::now();
        assert_eq!(bearer(&credentials.token().await.unwrap()), "Bearer token-1");
        assert!(started.elapsed() < Duration::from_millis(100), "nobody waits for the renewal");
    }
    eventually(|| credentials.held().token.as_ref().is_some_and(|token| bearer(token) == "Bearer token-2")).await;
    assert_eq!(server.asked(), 2);
}

#[tokio::test]
async fn a_failed_renewal_leaves_the_token_and_is_tried_again_later() {
    let server = TokenServer::start(|number, _| async move {
        if number == 1 { token(1, 2) } else { response("400 Bad Request", "{}") }
    })
    .await;
    let credentials = server.user("pause");
    let first = credentials.token().await.unwrap();
    tokio::time::sleep_until((first.renew_at + Duration::from_millis(5)).into()).await;
    credentials.token().await.unwrap();
    eventually(|| credentials.held().pause_until.is_some()).await;
    for _ in 0..20 {
        assert_eq!(bearer(&credentials.token().await.unwrap()), "Bearer token-1");
    }
    assert_eq!(server.asked(), 2);
    tokio::time::sleep_until((first.expires_at + Duration::from_millis(5)).into()).await;
    assert_eq!(credentials.token().await.unwrap_err().kind, ErrorKind::Unauthenticated);
}

#[tokio::test]
async fn a_refused_token_is_replaced_once() {
    let server = TokenServer::start(|number, _| async move { token(number, 3_600) }).await;
    let credentials = server.user("refused");
    let first = credentials.token().await.unwrap();
    assert!(credentials.refused(&first));
    let second = credentials.token().await.unwrap();
    assert_eq!(bearer(&second), "Bearer token-2");
    assert!(credentials.refused(&first), "a late refusal of the old one");
    assert_eq!(bearer(&credentials.token().await.unwrap()), "Bearer token-2", "does not touch the new one");
    assert!(!credentials.refused(&second));
    assert!(!credentials.refused(&second), "also to the next who was refused with it");
    assert_eq!(server.asked(), 2);
    assert_eq!(bearer(&credentials.token().await.unwrap()), "Bearer token-3", "the next call may have better luck");
}

#[tokio::test]
async fn a_server_that_is_down_for_a_while_is_asked_again() {
    let server = TokenServer::start(|number, _| async move {
        if number < 3 { response("503 Service Unavailable", "later") } else { token(number, 3_600) }
    })
    .await;
    assert_eq!(bearer(&server.user("while").token().await.unwrap()), "Bearer token-3");
}

#[tokio::test]
async fn those_who_wait_for_a_token_share_the_failure_too() {
    let silent = TokenServer::start(|_, _| std::future::pending()).await;
    let credentials = silent.user("waiting");
    let started = Instant::now();
    let ask = || {
        let credentials = Arc::clone(&credentials);
        tokio::spawn(async move { credentials.token().await })
    };
    let asking: Vec<_> = (0..20).map(|_| ask()).collect();
    for asked in asking {
        assert_eq!(asked.await.unwrap().unwrap_err().kind, ErrorKind::Unavailable);
    }
    assert!(started.elapsed() < 2 * SHORT.total, "not one after the other: {:?}", started.elapsed());
    let before = silent.asked();
    assert!(ask().await.unwrap().is_err());
    assert!(silent.asked() > before, "who comes later asks anew");
}

#[tokio::test]
async fn a_server_that_is_down_for_good_is_an_error_in_time() {
    let silent = TokenServer::start(|_, _| std::future::pending()).await;
    for uri in [format!("http://127.0.0.1:{}/token", silent.port), "http://127.0.0.1:1/token".to_owned()] {
        let started = Instant::now();
        let error = file("down", &user_file(&uri)).token().await.unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(2));
        assert_eq!(error.kind, ErrorKind::Unavailable);
        let text = harmless(&error);
        assert!(text.contains(&uri) && text.contains("the user of") && text.contains("Check the network"), "{text}");
    }
}

#[tokio::test]
async fn a_refused_login_is_an_error_at_once_with_the_servers_reason() {
    let server = TokenServer::start(|_, _| async {
        response("400 Bad Request", r#"{"error": "invalid_grant", "error_description": "Token has been revoked."}"#)
    })
    .await;
    let error = server.user("revoked").token().await.unwrap_err();
    assert_eq!((error.kind, server.asked()), (ErrorKind::Unauthenticated, 1));
    assert!(harmless(&error).contains("400 Bad Request, invalid_grant, Token has been revoked."), "{error}");
}

#[tokio::test]
async fn an_answer_without_a_token_is_an_error() {
    for body in ["", "{}", "[]", r#"{"access_token": "a\nb", "expires_in": 1}"#, r#"{"id_token": "x"}"#] {
        let server = TokenServer::start(move |_, _| async move { response("200 OK", body) }).await;
        let error = server.user("without").token().await.unwrap_err();
        assert!(harmless(&error).contains("holds no access token"), "{error}");
    }
}

#[tokio::test]
async fn a_lifetime_without_bounds_is_bounded() {
    let server = TokenServer::start(|number, _| async move { token(number, u64::MAX) }).await;
    let token = server.user("lifetime").token().await.unwrap();
    assert!(token.expires_at <= token.fetched + Duration::from_secs(86_400));
}

#[tokio::test]
async fn files_that_cannot_be_used_say_why_and_show_nothing() {
    let secret = SECRETS[0];
    for (name, content, expected) in [
        ("text", format!("not json {secret}"), "is no JSON (line 1)"),
        ("cut", user_file("http://127.0.0.1:1")[..80].to_owned(), "is no JSON"),
        ("untyped", format!(r#"{{"client_secret": "{secret}"}}"#), "has no 'type'"),
        ("typed", format!(r#"{{"type": "authorized_user", "client_secret": "{secret}"}}"#), "has no 'client_id'"),
        ("list", format!(r#"{{"type": ["{secret}"]}}"#), "has a value of the wrong type in line 1"),
        ("federated", r#"{"type": "external_account"}"#.to_owned(), "'external_account', which Solstice cannot use"),
        (
            "key",
            format!(r#"{{"type": "service_account", "client_email": "a@b", "private_key": "{secret}"}}"#),
            "no RSA key",
        ),
        ("remote", user_file("http://example.com/token"), "'http://example.com/token', which is not https"),
        ("odd", user_file("file:///token"), "which is no address"),
    ] {
        let error = file(name, &content).token().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Config, "{error}");
        assert!(harmless(&error).contains(expected), "{error}");
        assert!(error.remedy.is_some(), "{error}");
    }
    let error = Arc::new(Credentials::find(Some(Path::new("/nowhere/key.json")))).token().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Config);
    assert!(error.to_string().contains("credentialsFile is '/nowhere/key.json', which cannot be read"), "{error}");
}

fn machine(host: String) -> Arc<Credentials> {
    Arc::new(Credentials { patience: SHORT, ..Credentials::new(Source::Metadata { host }) })
}

#[tokio::test]
async fn the_metadata_server_is_asked_as_it_wants_to_be() {
    let server = TokenServer::start(|number, request| async move {
        let head = request.to_lowercase();
        assert!(head.starts_with("get /computemetadata/v1/instance/service-accounts/default/token http/1.1"), "{head}");
        assert!(head.contains("metadata-flavor: google"), "{head}");
        token(number, 3_600)
    })
    .await;
    let token = machine(format!("127.0.0.1:{}", server.port)).token().await.unwrap();
    assert_eq!(bearer(&token), "Bearer token-1");
    assert!(token.who().contains("of this machine"));
}

#[tokio::test]
async fn without_a_metadata_server_the_error_lists_what_was_looked_for() {
    let error = machine("127.0.0.1:1".to_owned()).token().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unauthenticated);
    for part in
        ["no credentialsFile", "no login of gcloud", "no metadata server", "gcloud auth", "PUBSUB_EMULATOR_HOST"]
    {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test]
async fn something_else_in_the_metadata_servers_place_is_not_trusted() {
    let server = TokenServer::start(|number, _| async move { token(number, 9).replace("Google", "Portal") }).await;
    let error = machine(format!("127.0.0.1:{}", server.port)).token().await.unwrap_err();
    assert!(error.to_string().contains("is no metadata server"), "{error}");
}

#[tokio::test]
async fn a_metadata_server_that_was_there_and_is_silent_now_is_unavailable() {
    let server = TokenServer::start(|number, _| async move {
        if number == 1 { token(1, 3_600) } else { response("503 Service Unavailable", "") }
    })
    .await;
    let credentials = machine(format!("127.0.0.1:{}", server.port));
    assert!(credentials.refused(&credentials.token().await.unwrap()));
    assert_eq!(credentials.token().await.unwrap_err().kind, ErrorKind::Unavailable);
}
