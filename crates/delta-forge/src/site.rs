//! Where a repository's forge is spoken to: its API address and the repository's name there.

use reqwest::Url;

use crate::dialect::Kind;
use crate::names::Commit;

/// Longer than any address people use.
const MAX_URL: usize = 2048;

/// A repository at a forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    pub kind: Kind,
    api: Url,
    project: String,
}

/// Why a repository cannot be found at its forge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSite {
    #[error("the API address is no plain http or https URL without user, query or fragment")]
    Api,
    #[error("the API would be spoken to in the clear; use https, or http on this machine only")]
    InTheClear,
    #[error("the repository's name at the forge cannot be told; say it as OWNER/NAME")]
    Project,
}

impl Site {
    /// `api` and `project` are told from the clone address where they are not given.
    pub fn new(
        kind: Kind,
        clone_url: &str,
        api: Option<&str>,
        project: Option<&str>,
    ) -> Result<Site, BadSite> {
        let found = parts(clone_url);
        let usual = || {
            let (scheme, host, _) = found.as_ref()?;
            Some(kind.dialect().usual_api(scheme, host))
        };
        let api = api.map(str::to_owned).or_else(usual).ok_or(BadSite::Api)?;
        let api = plain_url(&api).ok_or(BadSite::Api)?;
        if api.scheme() == "http" && !is_here(&api) {
            return Err(BadSite::InTheClear);
        }
        let dialect = kind.dialect();
        let told = || found.and_then(|(_, _, path)| dialect.project_of(&path));
        let project = project
            .map(str::to_owned)
            .or_else(told)
            .ok_or(BadSite::Project)?;
        let parts: Vec<&str> = project.split('/').collect();
        if !dialect.takes_parts(parts.len()) || !parts.into_iter().all(is_name) {
            return Err(BadSite::Project);
        }
        Ok(Site { kind, api, project })
    }

    /// `owner/name`, as the forge's deliveries spell it.
    pub fn project(&self) -> String {
        self.project.clone()
    }

    pub fn api(&self) -> &str {
        self.api.as_str().trim_end_matches('/')
    }

    /// The machine that is spoken to, with its port.
    pub fn api_host(&self) -> String {
        let host = self.api.host_str().unwrap_or_default();
        match self.api.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    /// Where a status of a commit is posted to.
    pub(crate) fn statuses(&self, commit: &Commit) -> Url {
        let dialect = self.kind.dialect();
        self.below(&dialect.posted_to(&self.project, commit.as_str()))
    }

    /// Where the statuses of a commit are listed, newest first.
    pub(crate) fn listed(&self, commit: &Commit, page: usize) -> Url {
        let dialect = self.kind.dialect();
        let mut url = self.below(&dialect.listed_at(&self.project, commit.as_str()));
        let (parameter, size) = dialect.page_size();
        url.query_pairs_mut()
            .append_pair(parameter, &size.to_string())
            .append_pair("page", &page.to_string());
        url
    }

    fn below(&self, names: &[&str]) -> Url {
        let mut url = self.api.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(names);
        }
        url
    }
}

fn plain_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok().filter(|_| text.len() <= MAX_URL)?;
    let plain = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    plain.then_some(url)
}

fn is_here(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let address: Option<std::net::IpAddr> = host.parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= 100 && name.chars().all(good) && !name.starts_with('.')
}

/// The host of an address, with its port; the whole address where it names none.
pub fn host_of(url: &str) -> String {
    let host = match url.split_once("://") {
        Some((_, rest)) => rest.split(['/', '?', '#']).next(),
        None => url.split(':').next(),
    };
    let host = host.unwrap_or(url);
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    host.to_owned()
}

/// Scheme, host with its port, and path of a clone address.
fn parts(clone_url: &str) -> Option<(String, String, String)> {
    let (scheme, host, path) = match clone_url.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_once('/')?;
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            let web = matches!(scheme, "http" | "https");
            // The port of an ssh server is not that of the API.
            let host = if web { host } else { host.split(':').next()? };
            (if web { scheme } else { "https" }, host, path)
        }
        None => {
            let (place, path) = clone_url.split_once(':')?;
            let host = place.rsplit_once('@').map_or(place, |(_, host)| host);
            ("https", host, path)
        }
    };
    let path = path.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    Some((scheme.to_owned(), host.to_owned(), path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(kind: Kind, clone: &str) -> (String, String) {
        let site = Site::new(kind, clone, None, None).unwrap();
        (site.api().to_owned(), site.project())
    }

    #[test]
    fn api_and_project_follow_from_the_clone_address() {
        for (kind, clone, api) in [
            (
                Kind::GitHub,
                "https://github.com/team/app.git",
                "https://api.github.com",
            ),
            (
                Kind::GitHub,
                "git@github.com:team/app.git",
                "https://api.github.com",
            ),
            (
                Kind::GitHub,
                "https://ghe.example/team/app",
                "https://ghe.example/api/v3",
            ),
            (
                Kind::Gitea,
                "https://forge.example/team/app.git",
                "https://forge.example/api/v1",
            ),
            (
                Kind::Forgejo,
                "ssh://git@forge.example:2222/team/app.git",
                "https://forge.example/api/v1",
            ),
            (
                Kind::Gitea,
                "http://127.0.0.1:3000/team/app.git",
                "http://127.0.0.1:3000/api/v1",
            ),
        ] {
            assert_eq!(
                site(kind, clone),
                (api.to_owned(), "team/app".to_owned()),
                "{clone}"
            );
        }
    }

    #[test]
    fn what_is_given_wins_and_what_is_odd_is_refused() {
        let clone = "https://forge.example/team/app.git";
        let make = |api, project| Site::new(Kind::Gitea, clone, api, project);
        let given = make(Some("https://forge.example/sub/api/v1/"), Some("a/b")).unwrap();
        let commit = Commit::parse(&"a".repeat(40)).unwrap();
        assert_eq!(
            given.statuses(&commit).as_str(),
            format!(
                "https://forge.example/sub/api/v1/repos/a/b/statuses/{}",
                commit.as_str()
            )
        );
        for api in [
            "file:///etc",
            "https://u:p@x.example/",
            "https://x.example/?a=b",
            "x",
        ] {
            assert_eq!(make(Some(api), None), Err(BadSite::Api), "{api}");
        }
        assert_eq!(
            make(Some("http://x.example/"), None),
            Err(BadSite::InTheClear)
        );
        for project in ["app", "a/b/c", "../x", "a/..", "a/b?c", "a/b#c", "/b"] {
            assert_eq!(
                make(None, Some(project)),
                Err(BadSite::Project),
                "{project}"
            );
        }
    }
}
