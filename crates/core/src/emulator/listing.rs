//! Lists in pages: in the order of names, and the token of a page is the last name of the one before.

use tonic::Status;

use crate::pubsub::wire::ListRequest;

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;

/// A page, and the token of the next one; empty when this is the last.
#[derive(Debug, PartialEq)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// For the next one.
    pub next_token: String,
}

/// One page of the named things, which come in the order of their names.
pub fn page<'a, T>(request: &ListRequest, things: impl Iterator<Item = (&'a str, T)>) -> Result<Page<T>, Status> {
    let size = match usize::try_from(request.page_size) {
        Ok(0) => DEFAULT_PAGE,
        Ok(size) => size.min(MAX_PAGE),
        Err(_) => return Err(Status::invalid_argument(format!("The page size {} is negative.", request.page_size))),
    };
    if !request.page_token.is_empty() && !request.page_token.starts_with("projects/") {
        return Err(Status::invalid_argument(format!("The page token {:?} is invalid.", request.page_token)));
    }
    let mut rest = things.filter(|(name, _)| *name > request.page_token.as_str());
    let mut items = Vec::new();
    let mut last = "";
    for (name, item) in rest.by_ref().take(size) {
        items.push(item);
        last = name;
    }
    let next_token = if rest.next().is_some() { last.to_owned() } else { String::new() };
    Ok(Page { items, next_token })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(count: usize, page_size: i32) -> Vec<Vec<String>> {
        let names: Vec<String> = (0..count).map(|n| format!("projects/p/topics/t{n:04}")).collect();
        let mut request = ListRequest { page_size, ..Default::default() };
        let mut pages = Vec::new();
        loop {
            let got = page(&request, names.iter().map(|name| (name.as_str(), name.clone()))).unwrap();
            pages.push(got.items);
            if got.next_token.is_empty() {
                assert_eq!(pages.concat(), names);
                return pages;
            }
            request.page_token = got.next_token;
        }
    }

    #[test]
    fn pages_are_full_and_together_everything() {
        assert_eq!(pages(5, 2).iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(pages(4, 2).iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(pages(0, 2).iter().map(Vec::len).collect::<Vec<_>>(), [0]);
        assert_eq!(pages(101, 0)[0].len(), DEFAULT_PAGE);
        assert_eq!(pages(1_500, 5_000)[0].len(), MAX_PAGE);
    }

    #[test]
    fn a_negative_size_and_a_made_up_token_are_invalid() {
        for request in [
            ListRequest { page_size: -1, ..Default::default() },
            ListRequest { page_token: "7".to_owned(), ..Default::default() },
        ] {
            let status = page(&request, std::iter::empty::<(&str, ())>()).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
        }
    }
}
