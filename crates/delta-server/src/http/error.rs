//! Every answer that is not a success, in one shape: `{code, message, field?, retryable}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use delta_core::Refusal;
use delta_core::rights::Barred;
use delta_store::StoreError;
use delta_wire::{ErrorBody, ErrorCode, Invalid, Problems};

use crate::identity::admission::NotAdmitted;
use crate::not_done::NotDone;

/// What `Retry-After` says: soon enough to be useful, late enough to let a queue drain.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

#[derive(Debug)]
pub struct ApiError {
    pub code: ErrorCode,
    pub body: ErrorBody,
}

impl ApiError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> ApiError {
        ApiError {
            code,
            body: ErrorBody::new(code, message),
        }
    }

    pub fn at(mut self, field: &str) -> ApiError {
        self.body = self.body.at(field);
        self
    }

    pub fn not_found(what: &str) -> ApiError {
        ApiError::new(ErrorCode::NotFound, format!("there is no such {what}"))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.body)).into_response();
        let headers = response.headers_mut();
        match self.code {
            ErrorCode::Overloaded | ErrorCode::Unavailable => {
                headers.insert(header::RETRY_AFTER, RETRY_AFTER);
            }
            ErrorCode::Unauthenticated => {
                let scheme = HeaderValue::from_static("Bearer realm=\"delta-ci\"");
                headers.insert(header::WWW_AUTHENTICATE, scheme);
            }
            _ => {}
        }
        response
    }
}

impl From<Invalid> for ApiError {
    fn from(invalid: Invalid) -> ApiError {
        ApiError {
            code: ErrorCode::Invalid,
            body: invalid.into(),
        }
    }
}

impl From<Problems> for ApiError {
    fn from(problems: Problems) -> ApiError {
        ApiError {
            code: ErrorCode::Invalid,
            body: problems.into(),
        }
    }
}

impl From<NotDone> for ApiError {
    fn from(why: NotDone) -> ApiError {
        let message = why.to_string();
        let code = match why {
            NotDone::Refused(refusal) => return refusal.into(),
            NotDone::Overloaded => ErrorCode::Overloaded,
            NotDone::Unavailable(_) => ErrorCode::Unavailable,
            NotDone::StorageFull => ErrorCode::StorageFull,
            NotDone::Corrupt(_) | NotDone::Files | NotDone::Internal => ErrorCode::Internal,
        };
        ApiError::new(code, message)
    }
}

impl From<NotAdmitted> for ApiError {
    fn from(why: NotAdmitted) -> ApiError {
        let code = match &why {
            NotAdmitted::Unauthenticated => ErrorCode::Unauthenticated,
            NotAdmitted::Forbidden { .. } => ErrorCode::Forbidden,
            NotAdmitted::NotNow(_) => ErrorCode::Unavailable,
        };
        ApiError::new(code, why.to_string())
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        let message = refusal.to_string();
        match refusal {
            Refusal::NoSuchRun(_) | Refusal::NoSuchJob(_) | Refusal::NoSuchAttempt(_) => {
                ApiError::new(ErrorCode::NotFound, message)
            }
            Refusal::KeyReused(_) => ApiError::new(ErrorCode::IdempotencyConflict, message),
            Refusal::RunnerBusy(_) => ApiError::new(ErrorCode::RunnerBusy, message),
            Refusal::RunnerMismatch => ApiError::new(ErrorCode::Invalid, message).at("runner_id"),
            Refusal::Barred(why) => ApiError::new(barred(why), message),
            Refusal::JobMismatch => ApiError::new(ErrorCode::Invalid, message).at("job_id"),
            Refusal::BadPlan(_) => ApiError::new(ErrorCode::Invalid, message).at("jobs"),
            Refusal::RunExists(_) | Refusal::NotQueued(_) | Refusal::WrongState(_) => {
                ApiError::new(ErrorCode::Conflict, message)
            }
        }
    }
}

fn barred(why: Barred) -> ErrorCode {
    match why {
        Barred::Revoked => ErrorCode::AgentRevoked,
        Barred::Superseded => ErrorCode::AgentSuperseded,
        Barred::Unproven => ErrorCode::AgentUnproven,
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> ApiError {
        NotDone::from(error).into()
    }
}
