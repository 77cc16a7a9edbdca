//! From an HTTP status to what a person should know and do.

use delta_wire::ErrorBody;

use crate::exit::Exit;
use crate::failure::{Failure, chain};

/// The server answered, and the answer is no.
pub fn explain(status: u16, path: &str, body: &[u8], with_token: bool) -> Failure {
    let said: Option<ErrorBody> = serde_json::from_slice(body).ok();
    let message = match &said {
        Some(said) => said.message.clone(),
        None => format!("the server answered with status {status}"),
    };
    let ours = said.is_some();
    let field = said.and_then(|said| said.field);
    let failure = Failure::new(exit_of(status), message);
    let failure = match field {
        Some(field) if !failure.what.contains(&field) => failure.because(format!("field {field}")),
        _ => failure,
    };
    match status {
        401 if with_token => failure.next(
            "the token is unknown, revoked or expired; on the server's machine: \
             delta-ci token create --role user --data DIR",
        ),
        401 => failure.next(
            "give a token with --token-file or DELTA_TOKEN; on the server's machine: \
             delta-ci token create --role user --data DIR",
        ),
        // What is needed is said; where such a token comes from is not.
        403 => failure.next(
            "on the server's machine: delta-ci token create --role ROLE --data DIR, or leave out \
             --server there and name its folder",
        ),
        404 if ours && failure.what.contains(" is gone: ") => {
            failure.next("delta-ci doctor, where the server is, says what else is missing")
        }
        404 if ours => failure.next(where_to_look(path)),
        404 => failure.next("is that the address of a Delta CI server?"),
        409 if path.ends_with("/runs") && failure.what.contains(" cannot be run: ") => {
            failure.next("name a branch with --ref NAME, or a whole ref: --ref refs/tags/NAME")
        }
        409 if failure.what.contains("makes no plans") => {
            failure.next("delta-ci server --data DIR plans; type this while it runs")
        }
        429 | 503 => failure.next("try again in a moment"),
        500.. if failure.what.contains("damaged") => {
            failure.next("keep the data as it is, and go on with a copy from before")
        }
        500.. => failure.next("look into the server's log, then run delta-ci doctor"),
        _ => failure,
    }
}

/// Where ids of the kind that was not found are listed.
fn where_to_look(path: &str) -> &'static str {
    if path.contains("/api/v1/tokens") {
        "delta-ci token list shows what there is"
    } else if path.contains("/api/v1/repositories") {
        "delta-ci repo list shows what there is"
    } else if path.contains("/api/v1/secrets") {
        "delta-ci secret list shows what there is"
    } else if path.contains("/api/v1/agents") {
        "delta-ci agents list shows what there is"
    } else if path.contains("/api/v1/jobs") {
        "delta-ci show RUN lists the jobs of a run, and show JOB its attempts"
    } else if path.contains("/api/v1/functions") || path.contains("/api/v1/dead-letters") {
        "delta-ci dead-letters lists what failed; others are forgotten after their --result-ttl"
    } else if path.contains("/api/v1/runs") {
        "delta-ci runs lists what there is; old runs may have been deleted (--retention)"
    } else {
        "compare `delta-ci --version` here and on the server"
    }
}

fn exit_of(status: u16) -> Exit {
    match status {
        401 | 403 => Exit::NotAllowed,
        404 => Exit::NotFound,
        413 | 415 | 422 => Exit::Usage,
        429 | 503 => Exit::Unreachable,
        500.. => Exit::Internal,
        _ => Exit::Refused,
    }
}

/// Nobody answered, or nobody we can talk to.
pub fn unreachable(place: &str, error: &reqwest::Error) -> Failure {
    let what = if error.is_timeout() {
        format!("{place} took too long to answer")
    } else {
        format!("cannot reach {place}")
    };
    // Not the error itself, which repeats the whole address.
    let reasons = std::error::Error::source(error).map_or("no connection".into(), chain);
    let next = what_to_do(&reasons);
    Failure::new(Exit::Unreachable, what)
        .because(reasons)
        .next(next)
}

fn what_to_do(reasons: &str) -> &'static str {
    if reasons.contains("certificate") {
        "name the authority of its certificate with --ca-cert FILE"
    } else if reasons.contains("invalid HTTP version") {
        "does it speak TLS? then its address begins with https://"
    } else {
        "is it running? `delta-ci server --data DIR --listen ADDR:PORT` starts one"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_that_is_not_there_and_a_log_that_is_gone_say_what_to_type() {
        let said = |status, path: &str, message: &str| {
            let body = ErrorBody::new(delta_wire::ErrorCode::Conflict, message);
            let body = serde_json::to_vec(&body).unwrap();
            explain(status, path, &body, true).next
        };
        let path = "/api/v1/repositories/app/runs";
        let next = said(409, path, "refs/heads/nope cannot be run: it is not there");
        let wanted = "name a branch with --ref NAME, or a whole ref: --ref refs/tags/NAME";
        assert_eq!(next.as_deref(), Some(wanted));
        let next = said(404, "/api/v1/jobs/job_1/log", "the log is gone: 3 bytes");
        assert!(next.is_some_and(|it| it.contains("delta-ci doctor")));
        let next = said(404, "/api/v1/jobs/job_1/log", "there is no such log");
        assert!(next.is_some_and(|it| it.contains("show JOB")));
    }

    #[test]
    fn a_refusal_keeps_the_servers_words_and_names_the_field() {
        let body = br#"{"code":"INVALID","message":"must be a number","field":"limit",
            "retryable":false}"#;
        let failure = explain(422, "/api/v1/runs", body, true);
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(
            failure.text(),
            "error: must be a number\n  why: field limit"
        );
    }

    #[test]
    fn an_answer_that_is_not_ours_is_still_explained() {
        let failure = explain(502, "/api/v1/runs", b"<html>bad gateway</html>", true);
        assert_eq!(failure.exit, Exit::Internal);
        assert!(failure.what.contains("502"));
    }

    #[test]
    fn what_is_not_there_points_to_its_own_list() {
        let body = br#"{"code":"NOT_FOUND","message":"there is no such token","retryable":false}"#;
        let next = |path, body| explain(404, path, body, true).next.unwrap();
        assert!(next("/api/v1/tokens/tok_1", body).contains("token list"));
        assert!(next("/api/v1/repositories/app/runs", body).contains("repo list"));
        assert!(next("/api/v1/jobs/job_1", body).contains("show RUN"));
        let (call, again) = ("/api/v1/functions/run_1", "/api/v1/dead-letters/requeue");
        assert!(next(call, body).contains("dead-letters"));
        assert!(next(again, body).contains("dead-letters"));
        assert!(next("/api/v1/runs/run_1", body).contains("delta-ci runs"));
        assert!(next("/api/v1/runs/run_1", b"<html>").contains("is that the address"));
    }

    #[test]
    fn no_token_says_how_to_get_one() {
        let failure = explain(401, "/api/v1/runs", b"", false);
        assert_eq!(failure.exit, Exit::NotAllowed);
        assert!(failure.text().contains("token create"));
    }
}
