//! The API for people and tools: what they send, what they are shown.
//!
//! Requests are read strictly, all problems at once, unknown fields refused with the nearest known
//! name (A71). Views are plain data with serde both ways, so that the command line reads what the
//! server wrote; a newer server's additions are ignored there.

pub mod agents;
pub mod caches;
pub mod create_run;
pub mod cursor;
pub mod failure;
pub mod functions;
pub mod graph;
pub mod list;
pub mod log;
pub mod repositories;
pub mod requests;
pub mod results;
pub mod secrets;
pub mod tokens;
pub mod views;

pub use agents::{
    AgentLease, AgentList, AgentResources, AgentStatus, AgentView, DrainView, ListAgents,
    RunnerPoolView,
};
pub use caches::{
    CacheChecked, CacheFound, CacheList, CacheSaved, CacheView, FindCache, MAX_CACHE_KEY, cache_key,
};
pub use create_run::{CreateJob, CreateRun, Group, Trust};
pub use cursor::Cursor;
pub use failure::{FailedNeed, FailedTest, FailureView};
pub use functions::{
    ChooseDeadLetters, CreateFunction, CreateFunctions, DeadLettersDone, FunctionDetail,
    FunctionList, FunctionTry, FunctionView, PausedView, QueueList, QueueView, RouteQueue,
};
pub use list::ListRuns;
pub use log::{LogBegin, LogEnd, LogPlace, LogState, LogView};
pub use repositories::{
    DeliveryView, ForgeName, ForkPolicy, PutRepository, RepositoryView, Trigger, TriggerEvent,
    TriggerRun,
};
pub use requests::{CancelRequest, RerunRequest};
pub use results::{
    FindTest, ListTests, PastTest, TestCounts, TestHistory, TestList, TestStanding, TestStatus,
    TestTotals, TestVerdict, TestView,
};
pub use secrets::{
    FetchSecrets, MIN_SECRET_BYTES, SecretKind, SecretValue, SecretValues, SecretView,
    SecretsRotated, SetSecret,
};
pub use tokens::{AgentEnrolled, CreateToken, EnrolAgent, Role, TokenCreated, TokenView};
pub use views::{
    ArtifactList, ArtifactView, AttemptView, CancelView, EventList, EventView, GroupView,
    InputArtifact, InputList, JobArtifact, JobSummary, JobView, LeaseView, NamedJobs, ProgressView,
    ReportedView, RunList, RunSummary, RunView, Why,
};
