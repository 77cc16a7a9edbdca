//! Secrets of jobs that run here without a history: from the variables of the shell, of the same
//! names. They are handed to the server of this run alone, so that they are masked in logs and
//! reach a job under the name that it asks for, as they do elsewhere.

use std::collections::BTreeSet;

use delta_planner::{Pipeline, PlannedJob};
use delta_wire::api::{MIN_SECRET_BYTES, SecretKind, SetSecret};
use serde_json::Value;

use crate::exit::Exit;
use crate::failure::Failure;

/// The secrets that jobs ask for, or the first that is nowhere or is none.
pub fn from_shell(
    pipeline: &Pipeline,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<SetSecret>, Failure> {
    let mut seen = BTreeSet::new();
    let mut secrets = Vec::new();
    for job in &pipeline.jobs {
        for name in asked(job).filter(|name| seen.insert(*name)) {
            // Shells have no other way to say that there is none.
            let value = variable(name).filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| missing(&job.name, name))?;
            let trimmed = value.trim();
            if trimmed.len() < MIN_SECRET_BYTES {
                return Err(too_short(&job.name, name, trimmed.len() < value.len()));
            }
            secrets.push(SetSecret {
                name: name.to_owned(),
                value,
                repository: None,
                branch: None,
                environment: None,
                kind: SecretKind::Plain,
                username: None,
                known_hosts: None,
            });
        }
    }
    Ok(secrets)
}

fn asked(job: &PlannedJob) -> impl Iterator<Item = &str> {
    let secrets = job.around.get("secrets").and_then(Value::as_array);
    let secrets = secrets.into_iter().flatten();
    secrets.filter_map(|it| it["name"].as_str())
}

fn missing(job: &str, name: &str) -> Failure {
    let what = format!("job `{job}` asks for the secret `{name}`, and there is none");
    Failure::new(Exit::Refused, what)
        .because("without --data, secrets are variables of this shell")
        .next(format!(
            "export {name}, or delta-ci secret set {name} --data DIR and run with --data DIR, \
             or --job NAME for other jobs"
        ))
}

fn too_short(job: &str, name: &str, has_white_space: bool) -> Failure {
    let counted = if has_white_space {
        " without the white space around it"
    } else {
        ""
    };
    let what = format!(
        "the variable {name}, which job `{job}` asks for as a secret, has fewer than \
         {MIN_SECRET_BYTES} bytes{counted}"
    );
    Failure::new(Exit::Refused, what)
        .because("what is so short could not be masked in a log")
        .next(format!(
            "export {name} with its real value, or --job NAME for other jobs"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_too_short_is_named_and_an_empty_one_is_none() {
        let text = b"jobs:\n  a: {steps: [x], secrets: [ONE, TWO]}\n";
        let pipeline = delta_planner::parse("f", text).unwrap();
        for (two, words) in [
            (
                "abc",
                "the variable TWO, which job `a` asks for as a secret, has fewer than 6 bytes\n",
            ),
            (
                "ab      ",
                "has fewer than 6 bytes without the white space around it\n",
            ),
            ("", "job `a` asks for the secret `TWO`, and there is none"),
        ] {
            let shell = |name: &str| Some(if name == "ONE" { "abcdefgh" } else { two }.to_owned());
            let failure = from_shell(&pipeline, shell).unwrap_err();
            assert!(failure.text().contains(words), "{}", failure.text());
            assert!(
                failure.text().contains("next: export TWO"),
                "{}",
                failure.text()
            );
        }
    }

    #[test]
    fn each_secret_is_taken_once_and_one_that_is_missing_is_named() {
        let text = b"jobs:\n  a: {steps: [x], secrets: [ONE]}\n  \
                     b: {steps: [x], secrets: [ONE, {name: TWO, env: OTHER}]}\n";
        let pipeline = delta_planner::parse("f", text).unwrap();
        let all = from_shell(&pipeline, |name| Some(format!("value of {name}"))).unwrap();
        let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["ONE", "TWO"]);
        assert_eq!(all[1].value, "value of TWO");
        let one = |name: &str| (name == "ONE").then(|| "a value".to_owned());
        let failure = from_shell(&pipeline, one).unwrap_err();
        assert!(failure.text().contains("job `b` asks for the secret `TWO`"));
        assert!(failure.text().contains("export TWO"));
    }
}
