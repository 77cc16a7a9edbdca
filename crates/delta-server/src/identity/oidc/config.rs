//! The file `--oidc` names: which issuers are believed, about whom, and what their claims grant.
//!
//! Read strictly: a slip in a name must not become a rule that is not there. Algorithms are
//! asymmetric ones only, and are chosen here, never by a token.

use std::path::{Path, PathBuf};

use delta_core::Text;
use delta_store::read::{DEFAULT_POOL, Labels};
use delta_wire::api::tokens::{ANY_LABEL, is_label, is_word};
use delta_wire::fields::{Fields, Node, read_text};
use delta_wire::{Invalid, Problems};
use jsonwebtoken::Algorithm;
use reqwest::Url;

/// Bounds of the file: a company has a handful of issuers, and each a handful of rules.
const MAX_ISSUERS: usize = 32;
const MAX_RULES: usize = 64;
const MAX_TEXT: usize = 512;

/// Signatures that only the holder of a private key can make.
const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// What is believed of one issuer.
#[derive(Clone, Debug)]
pub struct Issuer {
    /// Short, for ids and logs.
    pub name: Text,
    /// As its tokens spell it.
    pub issuer: String,
    pub audiences: Vec<String>,
    pub algorithms: Vec<Algorithm>,
    /// Patterns, `*` for anything; at least one must fit.
    pub subjects: Vec<String>,
    /// Claims that must have one of these values.
    pub claims: Vec<(String, Vec<String>)>,
    pub agent_claim: Option<String>,
    pub pool: Text,
    pub pool_claim: Option<String>,
    pub zones: Vec<Text>,
    pub zones_claim: Option<String>,
    pub labels: Labels,
    pub labels_claim: Option<String>,
    /// Authorities of its server; the system's when absent.
    pub ca_cert: Option<PathBuf>,
}

/// Reads the file. Paths in it are seen from its folder.
pub fn read(path: &Path) -> Result<Vec<Issuer>, String> {
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let issuers = parse(&text).map_err(|problems| problems.to_string())?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let beside = |mut issuer: Issuer| {
        issuer.ca_cert = issuer.ca_cert.map(|file| folder.join(file));
        issuer
    };
    Ok(issuers.into_iter().map(beside).collect())
}

pub fn parse(text: &[u8]) -> Result<Vec<Issuer>, Problems> {
    let mut problems = Problems::new();
    let whole = read_text(text, |node| {
        let mut fields = node.object()?;
        let issuers = fields.must("issuers", |it| it.list(MAX_ISSUERS));
        fields.refuse_unknown(&mut problems);
        let mut list = Vec::new();
        for (index, node) in issuers?.into_iter().enumerate() {
            let mut inner = Problems::new();
            let read = node.object().map(|fields| issuer(fields, &mut inner));
            let read = inner.note(read).flatten();
            problems.extend_within(&format!("issuers[{index}]"), inner);
            list.extend(read);
        }
        Ok(list)
    });
    let issuers = problems.note(whole).map(|(list, _)| list);
    let issuers = issuers.unwrap_or_default();
    for (index, issuer) in issuers.iter().enumerate() {
        let before = &issuers[..index];
        let place = format!("issuers[{index}]");
        if before.iter().any(|it| it.name == issuer.name) {
            problems.push(Invalid::field(format!("{place}.name"), "is there twice"));
        }
        if before.iter().any(|it| it.issuer == issuer.issuer) {
            problems.push(Invalid::field(format!("{place}.issuer"), "is there twice"));
        }
    }
    if issuers.is_empty() && problems.is_empty() {
        problems.push(Invalid::field("issuers", "is empty"));
    }
    if problems.is_empty() {
        Ok(issuers)
    } else {
        Err(problems)
    }
}

fn issuer(mut f: Fields<'_>, p: &mut Problems) -> Option<Issuer> {
    let name = p.note(f.must("name", word));
    let issuer = p.note(f.must("issuer", address));
    let audiences = p.note(f.must("audience", one_or_more));
    let algorithms = p.note(f.must("algorithms", |it| it.each(MAX_RULES, algorithm)));
    let subjects = p.note(f.must("subjects", one_or_more));
    let claims = p.note(f.may("claims", required));
    let agent_claim = p.note(f.may("agent_id_claim", text));
    let pool = p.note(f.may("pool", word));
    let pool_claim = p.note(f.may("pool_claim", text));
    let zones = p.note(f.may("zones", |it| it.each(MAX_RULES, word)));
    let zones_claim = p.note(f.may("zones_claim", text));
    let labels = p.note(f.may("labels", |it| it.each(MAX_RULES, label)));
    let labels_claim = p.note(f.may("labels_claim", text));
    let ca_cert = p.note(f.may("ca_cert", text));
    f.refuse_unknown(p);
    let algorithms = algorithms?;
    if algorithms.is_empty() {
        p.push(Invalid::field("algorithms", "is empty"));
    }
    let labels = labels?.unwrap_or_default();
    let any = labels.iter().any(|label| &**label == ANY_LABEL);
    Some(Issuer {
        name: name?.into(),
        issuer: issuer?,
        audiences: audiences?,
        algorithms,
        subjects: subjects?,
        claims: claims?.unwrap_or_default(),
        agent_claim: agent_claim?,
        pool: pool?.map_or_else(|| DEFAULT_POOL.into(), Text::from),
        pool_claim: pool_claim?,
        zones: zones?
            .unwrap_or_default()
            .into_iter()
            .map(Text::from)
            .collect(),
        zones_claim: zones_claim?,
        labels: if any {
            Labels::Any
        } else {
            Labels::Only(labels.into_iter().map(Text::from).collect())
        },
        labels_claim: labels_claim?,
        ca_cert: ca_cert?.map(PathBuf::from),
    })
}

fn text(node: Node<'_>) -> Result<String, Invalid> {
    node.text(MAX_TEXT)
}

fn word(node: Node<'_>) -> Result<String, Invalid> {
    let text = text(node)?;
    if is_word(&text) && !text.contains(':') {
        Ok(text)
    } else {
        Err(Invalid::here("must be letters, digits and . _ - /"))
    }
}

fn label(node: Node<'_>) -> Result<String, Invalid> {
    let text = text(node)?;
    if text == ANY_LABEL || is_label(&text) {
        Ok(text)
    } else {
        Err(Invalid::here("must be a word such as gpu or team=blue"))
    }
}

fn one_or_more(node: Node<'_>) -> Result<Vec<String>, Invalid> {
    if node.raw().get().starts_with('"') {
        return Ok(vec![text(node)?]);
    }
    let list = node.each(MAX_RULES, text)?;
    if list.is_empty() {
        Err(Invalid::here("is empty"))
    } else {
        Ok(list)
    }
}

fn required(node: Node<'_>) -> Result<Vec<(String, Vec<String>)>, Invalid> {
    let fields = node.object()?;
    let rules = fields.entries().take(MAX_RULES + 1);
    let read = |(name, node): (&str, _)| {
        let values = one_or_more(node).map_err(|problem| problem.within(name))?;
        Ok((name.to_owned(), values))
    };
    let rules: Vec<_> = rules.map(read).collect::<Result<_, _>>()?;
    if rules.len() > MAX_RULES {
        Err(Invalid::here(format!("has more than {MAX_RULES} claims")))
    } else {
        Ok(rules)
    }
}

fn algorithm(node: Node<'_>) -> Result<Algorithm, Invalid> {
    let text = text(node)?;
    let found = ALGORITHMS.iter().find(|(name, _)| *name == text);
    found.map(|(_, algorithm)| *algorithm).ok_or_else(|| {
        let names: Vec<&str> = ALGORITHMS.iter().map(|(name, _)| *name).collect();
        Invalid::here(format!("must be one of {}", names.join(", ")))
    })
}

fn address(node: Node<'_>) -> Result<String, Invalid> {
    let text = text(node)?;
    if Url::parse(&text).is_ok_and(|url| is_safe(&url)) {
        Ok(text)
    } else {
        Err(Invalid::here("must be an https:// address without a query"))
    }
}

/// Whether what this address answers can be believed: nobody on the way can change it.
pub fn is_safe(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let here = host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback());
    let plain = url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    plain && (url.scheme() == "https" || (url.scheme() == "http" && here))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{ "issuers": [{
        "name": "forge", "issuer": "https://id.example", "audience": "delta-ci",
        "algorithms": ["RS256", "ES256"], "subjects": ["repo:acme/*"],
        "claims": { "owner": ["acme", "beta"] }, "agent_id_claim": "sub", "pool": "ci",
        "zones": ["eu"], "labels": ["gpu"], "labels_claim": "labels" }] }"#;

    #[test]
    fn a_whole_file_is_read() {
        let issuers = parse(GOOD.as_bytes()).unwrap();
        let issuer = &issuers[0];
        assert_eq!((&*issuer.name, &*issuer.pool), ("forge", "ci"));
        assert_eq!(issuer.audiences, ["delta-ci"]);
        assert_eq!(issuer.claims[0].1, ["acme", "beta"]);
        assert_eq!(issuer.algorithms, [Algorithm::RS256, Algorithm::ES256]);
    }

    fn refused(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_slip_is_answered_with_the_name_that_was_meant() {
        let slip = refused(&GOOD.replace("\"audience\"", "\"audiense\""));
        assert!(slip.contains("did you mean `audience`"), "{slip}");
        assert!(slip.contains("issuers[0].audience: is missing"), "{slip}");
    }

    #[test]
    fn symmetric_and_absent_signatures_cannot_be_allowed() {
        // EP-32
        for bad in ["HS256", "none", "rs256", ""] {
            let text = refused(&GOOD.replace("RS256", bad));
            assert!(text.contains("issuers[0].algorithms[0]"), "{text}");
        }
        let none = refused(&GOOD.replace(r#"["RS256", "ES256"]"#, "[]"));
        assert!(none.contains("algorithms: is empty"), "{none}");
    }

    #[test]
    fn an_issuer_is_asked_over_tls_or_on_this_machine() {
        for (address, good) in [
            ("https://id.example/x", true),
            ("http://127.0.0.1:9", true),
            ("http://[::1]:9", true),
            ("http://localhost:9", true),
            ("http://id.example", false),
            ("http://localhost.id.example", false),
            ("https://u:p@id.example", false),
            ("https://id.example/?x=1", false),
            ("file:///etc/passwd", false),
        ] {
            let text = GOOD.replace("https://id.example", address);
            assert_eq!(parse(text.as_bytes()).is_ok(), good, "{address}");
        }
    }

    #[test]
    fn an_issuer_is_there_once() {
        let twice = GOOD.replace("}] }", "}, ") + &GOOD["{ \"issuers\": [".len()..];
        let text = refused(&twice);
        assert!(text.contains("issuers[1].name"), "{text}");
        assert!(text.contains("issuers[1].issuer"), "{text}");
    }
}
