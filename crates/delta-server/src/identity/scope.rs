//! What an agent says about itself, held against what it was granted (T27).
//!
//! Pool, zones and labels come from the credential: what an agent says can only narrow them, and
//! saying nothing takes all that was granted. Facts about the machine are the agent's to tell.

use std::collections::BTreeSet;

use delta_core::Text;
use delta_core::requirement::{Requirement, is_fact};
use delta_store::read::{Labels, Scope};

/// The zones an agent is in, of those it says.
pub fn zones<'a>(scope: &Scope, said: impl IntoIterator<Item = &'a str>) -> BTreeSet<Text> {
    let said: BTreeSet<&str> = said.into_iter().collect();
    let granted = scope.zones.iter();
    granted
        .filter(|zone| said.is_empty() || said.contains(&***zone))
        .cloned()
        .collect()
}

/// The labels an agent has, of those it says; spelled as a requirement spells them.
pub fn labels<'a>(scope: &Scope, said: impl IntoIterator<Item = &'a str>) -> BTreeSet<Text> {
    let said: BTreeSet<Text> = said.into_iter().filter_map(spelled).collect();
    match &scope.labels {
        Labels::Any => said,
        Labels::Only(granted) => granted
            .iter()
            .filter_map(|label| spelled(label))
            .filter(|label| said.is_empty() || said.contains(label))
            .collect(),
    }
}

/// The flat list of the Runner Protocol: facts as they are said; zones, labels and the pool as
/// they were granted.
pub fn tags(scope: &Scope, said: &[String]) -> Vec<String> {
    let mut kept = vec![format!("pool={}", scope.pool)];
    let (mut in_zones, mut has_labels) = (Vec::new(), Vec::new());
    for tag in said {
        // As the matcher will read it, so that no spelling slips through.
        match Requirement::parse(tag) {
            Ok(Requirement::Is(name, zone)) if name == "zone" => in_zones.push(zone),
            Ok(Requirement::Has(name) | Requirement::Is(name, _))
                if name == "zone" || name == "pool" => {}
            Ok(Requirement::Has(name) | Requirement::Is(name, _)) if is_fact(&name) => {
                kept.push(tag.clone());
            }
            Ok(Requirement::Has(_) | Requirement::Is(..)) => has_labels.push(tag.as_str()),
            Ok(Requirement::AtLeast(..)) | Err(_) => {}
        }
    }
    let zones = zones(scope, in_zones.iter().map(String::as_str));
    kept.extend(zones.iter().map(|zone| format!("zone={zone}")));
    kept.extend(labels(scope, has_labels).iter().map(|it| it.to_string()));
    kept
}

/// A tag an agent may say of its machine without having been granted it.
pub fn is_fact_tag(tag: &str) -> bool {
    match Requirement::parse(tag) {
        Ok(Requirement::Has(name) | Requirement::Is(name, _)) => is_fact(&name),
        _ => false,
    }
}

/// A label this credential grants.
pub fn is_granted(scope: &Scope, tag: &str) -> bool {
    let Some(label) = spelled(tag) else {
        return false;
    };
    match &scope.labels {
        Labels::Any => true,
        Labels::Only(granted) => granted
            .iter()
            .any(|it| spelled(it).as_ref() == Some(&label)),
    }
}

/// A label the way the matcher spells it; `zone` and `pool` are none.
fn spelled(label: &str) -> Option<Text> {
    match Requirement::parse(label) {
        Ok(Requirement::Has(name) | Requirement::Is(name, _))
            if name == "zone" || name == "pool" =>
        {
            None
        }
        Ok(label @ (Requirement::Has(_) | Requirement::Is(..))) => Some(label.to_string().into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(words: &[&str]) -> BTreeSet<Text> {
        words.iter().map(|word| Text::from(*word)).collect()
    }

    fn granted() -> Scope {
        Scope {
            pool: "builds".into(),
            zones: set(&["eu", "us"]),
            labels: Labels::Only(set(&["gpu", "team=blue"])),
        }
    }

    fn narrowed(scope: &Scope, said: &[&str]) -> BTreeSet<String> {
        let said: Vec<String> = said.iter().map(|tag| (*tag).to_owned()).collect();
        tags(scope, &said).into_iter().collect()
    }

    fn expected(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn an_agent_claims_no_zone_label_or_pool_that_it_was_not_given() {
        // T27
        let said = [
            "linux",
            "zone=prod",
            "Zone=prod",
            "ZONE=eu",
            "zone",
            "pool=gold",
            "pool",
            "gpu",
            "tpu",
            "team=red",
            "python=3.11",
            "work:steps",
            "cpu>=4",
            "not a tag",
        ];
        let kept = [
            "pool=builds",
            "linux",
            "zone=eu",
            "gpu",
            "python=3.11",
            "work:steps",
        ];
        assert_eq!(narrowed(&granted(), &said), expected(&kept));
    }

    #[test]
    fn saying_nothing_takes_what_was_granted() {
        let all = ["pool=builds", "zone=eu", "zone=us", "gpu", "team=blue"];
        assert_eq!(narrowed(&granted(), &[]), expected(&all));
        assert_eq!(narrowed(&Scope::least(), &[]), expected(&["pool=default"]));
    }

    #[test]
    fn a_plain_runner_token_leaves_labels_to_the_agent_and_grants_no_zone() {
        let said = ["gpu", "zone=prod", "linux"];
        let kept = ["pool=default", "gpu", "linux"];
        assert_eq!(narrowed(&Scope::any_label(), &said), expected(&kept));
    }

    #[test]
    fn a_claim_that_was_not_granted_does_not_fall_back_to_everything() {
        assert_eq!(zones(&granted(), ["prod"]), set(&[]));
        assert_eq!(zones(&granted(), ["prod", "eu"]), set(&["eu"]));
        assert_eq!(labels(&granted(), ["tpu"]), set(&[]));
        assert_eq!(labels(&granted(), ["GPU"]), set(&["gpu"]));
        assert_eq!(labels(&Scope::any_label(), ["zone=prod"]), set(&[]));
    }
}
