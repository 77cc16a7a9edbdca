//! OIDC machine credentials (EP-32): a token of a trusted issuer, verified with the issuer's keys,
//! says who comes, and the issuer's rules say what that grants.
//!
//! A token chooses nothing: neither the algorithm nor where keys come from. Times are judged by the
//! server's clock.

pub mod config;
mod keys;

use std::path::Path;
use std::sync::Arc;

use delta_core::{Millis, Span, Text};
use delta_store::read::{Labels, Role, Scope};
use delta_wire::api::tokens::{is_agent_id, is_label, is_word};
use jsonwebtoken::{Algorithm, Validation};
use serde_json::{Map, Value};

pub use keys::Times;

use self::config::Issuer;
use self::keys::KeyCache;
use super::{OIDC, Principal, Proof, Unknown};

/// Bytes of a token: those in use have two or three kilobytes.
const MAX_TOKEN: usize = 16 * 1024;
/// Characters of a subject.
const MAX_SUBJECT: usize = 255;
/// Values of one claim that are looked at.
const MAX_VALUES: usize = 64;
/// How far the clocks of an issuer and of this server may be apart.
const LEEWAY: Span = Span::secs(30);

/// The issuers that are believed.
pub struct Oidc(Vec<Arc<KeyCache>>);

impl Oidc {
    /// Nobody is believed.
    pub fn none() -> Oidc {
        Oidc(Vec::new())
    }

    pub fn read(path: &Path, times: Times) -> Result<Oidc, String> {
        let caches = config::read(path)?
            .into_iter()
            .map(|issuer| KeyCache::new(issuer, times).map(Arc::new));
        caches.collect::<Result<_, _>>().map(Oidc)
    }

    /// Whether it is worth a look: three parts, and somebody to ask.
    pub fn could_be(&self, token: &str) -> bool {
        !self.0.is_empty()
            && token.len() <= MAX_TOKEN
            && token.bytes().filter(|byte| *byte == b'.').count() == 2
    }

    /// Who comes with this token; nobody when it is not good.
    pub async fn verify(&self, token: &str, now: Millis) -> Result<Option<Principal>, Unknown> {
        if !self.could_be(token) {
            return Ok(None);
        }
        let Some((keys, header)) = self.issuer_of(token) else {
            return Ok(None);
        };
        let key = keys.find(header.kid.as_deref(), header.alg).await?;
        let Some(key) = key else {
            return Ok(None);
        };
        // Everything but the signature is judged below, by our clock.
        let mut signature = Validation::new(header.alg);
        signature.validate_exp = false;
        signature.validate_nbf = false;
        signature.validate_aud = false;
        signature.required_spec_claims.clear();
        let issuer = keys.issuer();
        let Ok(data) = jsonwebtoken::decode::<Map<String, Value>>(token, &key, &signature) else {
            tracing::debug!(issuer = %issuer.name, "a token's signature is wrong");
            return Ok(None);
        };
        match judge(issuer, &data.claims, now) {
            Ok(who) => Ok(Some(who)),
            Err(why) => {
                // Signed by somebody we believe: worth a line in the trail.
                let issuer = &issuer.name;
                tracing::warn!(target: "audit", action = "oidc.refused", %issuer, why);
                Ok(None)
            }
        }
    }

    /// Whose token it says it is, if that one may sign in this way.
    fn issuer_of(&self, token: &str) -> Option<(&Arc<KeyCache>, jsonwebtoken::Header)> {
        let header = jsonwebtoken::decode_header(token).ok()?;
        // Extensions that must be understood are not.
        if header.crit.is_some() {
            return None;
        }
        let claims: Map<String, Value> =
            jsonwebtoken::dangerous::insecure_decode_claims(token).ok()?;
        let said = claims.get("iss")?.as_str()?;
        let keys = self.0.iter().find(|keys| keys.issuer().issuer == said)?;
        let allowed: &[Algorithm] = &keys.issuer().algorithms;
        allowed.contains(&header.alg).then_some((keys, header))
    }
}

/// What a verified token amounts to, or why to nothing.
fn judge(
    issuer: &Issuer,
    claims: &Map<String, Value>,
    now: Millis,
) -> Result<Principal, &'static str> {
    if text(claims, "iss") != Some(&issuer.issuer) {
        return Err("iss");
    }
    let audiences = values(claims.get("aud"));
    if !audiences
        .iter()
        .any(|aud| issuer.audiences.iter().any(|it| it == aud))
    {
        return Err("aud");
    }
    let ends = moment(claims, "exp").ok_or("exp")?.ok_or("exp")? + LEEWAY;
    if now >= ends {
        return Err("expired");
    }
    for (name, why) in [("nbf", "not yet valid"), ("iat", "issued in the future")] {
        if moment(claims, name)
            .ok_or(why)?
            .is_some_and(|at| now + LEEWAY < at)
        {
            return Err(why);
        }
    }
    let subject = text(claims, "sub").ok_or("sub")?;
    let printable = !subject.is_empty() && !subject.chars().any(char::is_control);
    if !printable || subject.chars().count() > MAX_SUBJECT {
        return Err("sub");
    }
    if !issuer.subjects.iter().any(|pattern| fits(pattern, subject)) {
        return Err("subject not allowed");
    }
    for (name, wanted) in &issuer.claims {
        let found = values(claims.get(name));
        if !found.iter().any(|value| wanted.contains(value)) {
            return Err("a required claim");
        }
    }
    Ok(Principal {
        id: format!("{OIDC}{}:{subject}", issuer.name).into(),
        role: Role::Runner,
        scope: Arc::new(scope(issuer, claims)?),
        agent: agent(issuer, claims)?,
        expires_at: Some(ends),
        proof: Proof::Issuer,
    })
}

fn agent(issuer: &Issuer, claims: &Map<String, Value>) -> Result<Option<Text>, &'static str> {
    let Some(name) = &issuer.agent_claim else {
        return Ok(None);
    };
    let agent = text(claims, name).filter(|agent| is_agent_id(agent));
    agent
        .map(|agent| Some(agent.into()))
        .ok_or("agent_id_claim")
}

/// What the rules grant. Where a rule names values and a claim both, the values are the bound.
fn scope(issuer: &Issuer, claims: &Map<String, Value>) -> Result<Scope, &'static str> {
    let pool = match &issuer.pool_claim {
        None => issuer.pool.clone(),
        Some(name) => text(claims, name)
            .filter(|pool| is_word(pool))
            .map(Text::from)
            .ok_or("pool_claim")?,
    };
    let zones = match &issuer.zones_claim {
        None => issuer.zones.iter().cloned().collect(),
        Some(name) => values(claims.get(name))
            .into_iter()
            .filter(|zone| is_word(zone))
            .map(Text::from)
            .filter(|zone| issuer.zones.is_empty() || issuer.zones.contains(zone))
            .collect(),
    };
    let labels = match &issuer.labels_claim {
        None => issuer.labels.clone(),
        Some(name) => {
            let allowed = |label: &Text| match &issuer.labels {
                Labels::Any => true,
                Labels::Only(labels) => labels.is_empty() || labels.contains(label),
            };
            let said = values(claims.get(name)).into_iter();
            let said = said.filter(|label| is_label(label)).map(Text::from);
            Labels::Only(said.filter(allowed).collect())
        }
    };
    Ok(Scope {
        pool,
        zones,
        labels,
    })
}

fn text<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    claims.get(name)?.as_str()
}

/// One text, or a list of them.
fn values(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) => {
            let texts = list.iter().take(MAX_VALUES).filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        }
        // A required claim may be a number or true.
        Some(other @ (Value::Bool(_) | Value::Number(_))) => vec![other.to_string()],
        _ => Vec::new(),
    }
}

/// A time in seconds; the outer `None` is one that cannot be read.
fn moment(claims: &Map<String, Value>, name: &str) -> Option<Option<Millis>> {
    let Some(value) = claims.get(name) else {
        return Some(None);
    };
    let seconds = value
        .as_f64()
        .filter(|it| it.is_finite() && it.abs() < 1e12)?;
    Some(Some(Millis((seconds * 1000.0) as i64)))
}

/// Whether a text fits a pattern, `*` being anything.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut left) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_fits_what_it_should() {
        for (pattern, text, fit) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("repo:acme/*", "repo:acme/x:ref:main", true),
            ("repo:acme/*", "repo:acme-evil/x", false),
            ("repo:*:ref:main", "repo:x:ref:main", true),
            ("repo:*:ref:main", "repo:x:ref:main2", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "abc", true),
            ("a*bc*c", "abc", false),
            ("*é*", "aéb", true),
        ] {
            assert_eq!(fits(pattern, text), fit, "{pattern} {text}");
        }
    }

    fn issuer(extra: &str) -> Issuer {
        let file = format!(
            r#"{{ "issuers": [{{ "name": "i", "issuer": "https://i", "audience": ["a", "b"],
            "algorithms": ["ES256"], "subjects": ["s"] {extra} }}] }}"#
        );
        config::parse(file.as_bytes()).unwrap().remove(0)
    }

    fn claims(change: Value) -> Map<String, Value> {
        let mut claims = serde_json::json!({ "iss": "https://i", "aud": "b", "sub": "s",
            "exp": 1000, "zone": ["eu", "prod"], "pool": "gold", "n": 7, "label": "gpu" });
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let mut claims = claims.as_object().unwrap().clone();
        claims.retain(|_, value| !value.is_null());
        claims
    }

    fn judged(extra: &str, change: Value, seconds: i64) -> Result<Principal, &'static str> {
        judge(&issuer(extra), &claims(change), Millis(seconds * 1000))
    }

    #[test]
    fn every_claim_is_judged() {
        // EP-32
        use serde_json::json;
        for (change, seconds, why) in [
            (json!({}), 900, None),
            (json!({}), 1029, None),
            (json!({}), 1030, Some("expired")),
            (json!({ "exp": null }), 900, Some("exp")),
            (json!({ "exp": "1000" }), 900, Some("exp")),
            (json!({ "iss": "https://j" }), 900, Some("iss")),
            (json!({ "aud": "c" }), 900, Some("aud")),
            (json!({ "aud": ["c", "a"] }), 900, None),
            (json!({ "aud": null }), 900, Some("aud")),
            (json!({ "nbf": 930 }), 900, None),
            (json!({ "nbf": 931 }), 900, Some("not yet valid")),
            (json!({ "iat": 931 }), 900, Some("issued in the future")),
            (json!({ "sub": "t" }), 900, Some("subject not allowed")),
            (json!({ "sub": null }), 900, Some("sub")),
            (json!({ "sub": "s\n" }), 900, Some("sub")),
        ] {
            let outcome = judged("", change.clone(), seconds);
            assert_eq!(outcome.err(), why, "{change}");
        }
    }

    #[test]
    fn claims_are_required_and_mapped() {
        use serde_json::json;
        let rules = r#", "claims": { "n": "7" }, "pool_claim": "pool", "zones": ["eu"],
            "zones_claim": "zone", "labels_claim": "label", "agent_id_claim": "sub""#;
        let who = judged(rules, json!({}), 1).unwrap();
        assert_eq!(&*who.id, "oidc:i:s");
        assert_eq!(who.agent.as_deref(), Some("s"));
        assert_eq!(&*who.scope.pool, "gold");
        // T27: the file bounds what the claim may say.
        assert_eq!(who.scope.zones, [Text::from("eu")].into());
        assert_eq!(who.scope.labels, Labels::Only([Text::from("gpu")].into()));
        let refused = judged(rules, json!({ "n": 8 }), 1);
        assert_eq!(refused.err(), Some("a required claim"));
        let refused = judged(rules, json!({ "pool": "a b" }), 1);
        assert_eq!(refused.err(), Some("pool_claim"));
        let plain = judged("", json!({}), 1).unwrap();
        assert_eq!(*plain.scope, Scope::least());
    }
}
