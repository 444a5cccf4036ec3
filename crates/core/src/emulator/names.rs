//! The names of topics, subscriptions and snapshots, and the service's rules for them.

use tonic::Status;

/// What a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `projects/P/topics/T`
    Topic,
    /// `projects/P/subscriptions/S`
    Subscription,
    /// `projects/P/snapshots/S`
    Snapshot,
}

impl Kind {
    /// What the names of a project's things of this kind begin with.
    pub fn prefix(self, project: &str) -> Result<String, Status> {
        match project.strip_prefix("projects/") {
            Some(id) if !id.is_empty() && !id.contains('/') => Ok(format!("{project}/{}/", self.collection())),
            _ => {
                Err(Status::invalid_argument(format!("Invalid project name {project:?}: it must be projects/PROJECT.")))
            }
        }
    }

    /// The collection in the name.
    fn collection(self) -> &'static str {
        match self {
            Self::Topic => "topics",
            Self::Subscription => "subscriptions",
            Self::Snapshot => "snapshots",
        }
    }

    /// The answer when there is no such thing.
    pub fn not_found(self, name: &str) -> Status {
        Status::not_found(format!("Resource not found ({self:?}: {name})."))
    }

    /// The answer when there is one already.
    pub fn already_exists(self, name: &str) -> Status {
        Status::already_exists(format!("Resource already exists ({self:?}: {name})."))
    }

    /// Refuse what is no valid name.
    pub fn check(self, name: &str) -> Result<(), Status> {
        if self.is_valid(name) {
            return Ok(());
        }
        let collection = self.collection();
        Err(Status::invalid_argument(format!(
            "Invalid {self:?} name {name:?}: it must be projects/PROJECT/{collection}/ID, where ID has 3 to 255 letters, \
             digits, - . _ ~ % or +, begins with a letter and not with \"goog\"."
        )))
    }

    fn is_valid(self, name: &str) -> bool {
        let mut parts = name.split('/');
        let (Some("projects"), Some(project), Some(collection), Some(id), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        !project.is_empty()
            && collection == self.collection()
            && (3..=255).contains(&id.len())
            && id.starts_with(|c: char| c.is_ascii_alphabetic())
            && !id.starts_with("goog")
            && id.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._~%+".contains(&c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_the_service() {
        let long = "a".repeat(255);
        for id in ["abc", "a-b.c_d~e%f+9", long.as_str()] {
            assert!(Kind::Topic.check(&format!("projects/p/topics/{id}")).is_ok(), "{id}");
        }
        let too_long = "a".repeat(256);
        for id in ["", "ab", "1abc", "-abc", "a b c", "goog-topic", "ab/c", "äbc", too_long.as_str()] {
            assert!(Kind::Topic.check(&format!("projects/p/topics/{id}")).is_err(), "{id}");
        }
        for name in
            ["", "abc", "topics/abc", "projects//topics/abc", "projects/p/subscriptions/abc", "/projects/p/topics/abc"]
        {
            assert!(Kind::Topic.check(name).is_err(), "{name}");
        }
        assert!(Kind::Subscription.check("projects/p/subscriptions/abc").is_ok());
        assert!(Kind::Snapshot.check("projects/p/snapshots/abc").is_ok());
    }
}
