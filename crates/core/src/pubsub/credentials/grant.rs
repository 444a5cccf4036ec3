//! What credentials say, and the request for a token that follows from it.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use hyper::Uri;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tonic::metadata::{Ascii, MetadataValue};

use super::{Source, unauthenticated};
use crate::error::{Error, ErrorKind, Result};

const SCOPE: &str = "https://www.googleapis.com/auth/pubsub";
const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";
const METADATA_PATH: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
/// The longest a server lets an assertion be good for.
const ASSERTION_S: u64 = 3_600;
const SUPPORTED: &str = "Supported are the key of a service account (service_account) and what `gcloud auth application-default login` \
     writes (authorized_user).";

/// A request for a token that can be made now. It holds secrets, hence no `Debug`.
pub struct Grant {
    /// Where to ask.
    pub uri: Uri,
    /// What to post there; None asks a metadata server.
    pub form: Option<String>,
    /// Whose token it will be, for messages.
    pub who: String,
    /// Whose quota the calls count against.
    pub quota_project: Option<MetadataValue<Ascii>>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    name: String,
    quota_project_id: Option<String>,
}

#[derive(Deserialize)]
struct ServiceAccount {
    client_email: String,
    private_key: String,
    private_key_id: Option<String>,
    token_uri: Option<String>,
}

#[derive(Deserialize)]
struct AuthorizedUser {
    client_id: String,
    client_secret: String,
    refresh_token: String,
    token_uri: Option<String>,
}

impl Grant {
    /// What the source says at this moment.
    pub(super) fn of(source: &Source) -> Result<Self> {
        match source {
            Source::Metadata { host } => {
                let uri = format!("http://{host}{METADATA_PATH}").parse().map_err(|e| {
                    Error::new(ErrorKind::Config, format!("GCE_METADATA_HOST is '{host}', which is no address: {e}."))
                        .with_remedy("Give host or host:port.")
                })?;
                let who = format!("the service account of this machine (metadata server {host})");
                Ok(Self { uri, form: None, who, quota_project: None })
            }
            Source::File { path, named_by } => {
                let text = std::fs::read(path).map_err(|e| {
                    Error::new(
                        ErrorKind::Config,
                        format!("{named_by} is '{}', which cannot be read: {e}.", path.display()),
                    )
                    .with_remedy(
                        "Correct credentialsFile (or GOOGLE_APPLICATION_CREDENTIALS), or run: gcloud auth \
                             application-default login",
                    )
                })?;
                Self::of_file(path, &text)
            }
        }
    }

    fn of_file(path: &Path, text: &[u8]) -> Result<Self> {
        let kind: Kind = parse(path, text)?;
        let quota_project = kind.quota_project_id.and_then(|project| project.parse().ok());
        let (uri, form, who) = match kind.name.as_str() {
            "service_account" => {
                let account: ServiceAccount = parse(path, text)?;
                let uri = account.token_uri.as_deref().unwrap_or(TOKEN_URI);
                let assertion = assertion(path, &account, uri)?;
                let form =
                    form(&[("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"), ("assertion", &assertion)]);
                (token_uri(path, uri)?, form, format!("service account {} ({})", account.client_email, path.display()))
            }
            "authorized_user" => {
                let user: AuthorizedUser = parse(path, text)?;
                let form = form(&[
                    ("grant_type", "refresh_token"),
                    ("client_id", &user.client_id),
                    ("client_secret", &user.client_secret),
                    ("refresh_token", &user.refresh_token),
                ]);
                let uri = user.token_uri.as_deref().unwrap_or(TOKEN_URI);
                (token_uri(path, uri)?, form, format!("the user of {}", path.display()))
            }
            other => {
                let problem = format!("holds credentials of the type '{other}', which Solstice cannot use");
                return Err(unusable(path, &problem).with_remedy(SUPPORTED));
            }
        };
        Ok(Self { uri, form: Some(form), who, quota_project })
    }
}

fn unusable(path: &Path, problem: &str) -> Error {
    Error::new(ErrorKind::Config, format!("the file of credentials '{}' {problem}.", path.display()))
        .with_remedy("Create a new key, or run: gcloud auth application-default login")
}

/// A field that is missing is named; what is there is never shown.
fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|e| match e.classify() {
        serde_json::error::Category::Data => {
            let named = e.to_string();
            let missing = named.split('`').nth(1).filter(|_| named.starts_with("missing field"));
            match missing {
                Some(field) => unusable(path, &format!("has no '{field}'")).with_remedy(SUPPORTED),
                None => unusable(path, &format!("has a value of the wrong type in line {}", e.line())),
            }
        }
        _ => unusable(path, &format!("is no JSON (line {})", e.line())),
    })
}

/// Secrets go over TLS, or to this machine.
fn token_uri(path: &Path, text: &str) -> Result<Uri> {
    let wrong = |problem: &str| {
        unusable(path, &format!("has the token_uri '{text}', {problem}")).with_remedy("Give an https:// address.")
    };
    let uri: Uri = text.parse().map_err(|_| wrong("which is no address"))?;
    let host = uri.host().ok_or_else(|| wrong("which is no address"))?.trim_matches(['[', ']']);
    let loopback = host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    match uri.scheme_str() {
        Some("https") => Ok(uri),
        Some("http") if loopback => Ok(uri),
        _ => Err(wrong("which is not https")),
    }
}

/// The key's signature under "I am this account, and want a token for Pub/Sub".
fn assertion(path: &Path, account: &ServiceAccount, audience: &str) -> Result<String> {
    let key = rsa_key(&account.private_key)
        .ok_or_else(|| unusable(path, "has a 'private_key' that is no RSA key in PKCS #8"))?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(|_| unauthenticated("the clock of this machine stands before 1970.".to_owned()))?
        .as_secs();
    let header = json!({"alg": "RS256", "typ": "JWT", "kid": account.private_key_id});
    let claims = json!({
        "iss": account.client_email, "scope": SCOPE, "aud": audience, "iat": now, "exp": now + ASSERTION_S,
    });
    let encode = |part: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(part);
    let signed = format!("{}.{}", encode(header.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
        .map_err(|_| unusable(path, "has a 'private_key' that cannot sign"))?;
    Ok(format!("{signed}.{}", encode(&signature)))
}

fn rsa_key(pem: &str) -> Option<RsaKeyPair> {
    let body = pem.split_once("-----BEGIN PRIVATE KEY-----")?.1.split_once("-----END PRIVATE KEY-----")?.0;
    let body: String = body.split_whitespace().collect();
    RsaKeyPair::from_pkcs8(&BASE64_STANDARD.decode(body).ok()?).ok()
}

fn form(fields: &[(&str, &str)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    fields.join("&")
}

fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
