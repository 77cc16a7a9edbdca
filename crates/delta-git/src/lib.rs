//! Git, as the agent, the server and the planner call it: the program itself, with arguments only,
//! a clean environment and an end.
//!
//! Owns what may be cloned at all (`address`), how a credential reaches git and nobody else
//! (`credential`), how git is called (`call`), how a commit is fetched (`fetch`), the repositories
//! that a server keeps for planning (`mirror`), and the files of a commit or of a checkout
//! (`commit_files`, `mirrored_commit`, `checkout`). Refuses to know jobs, leases and servers of
//! ours, and speaks to no network itself: git does.

#![forbid(unsafe_code)]

mod address;
mod call;
mod call_output;
mod checkout;
mod commit_files;
mod credential;
mod error;
pub mod fetch;
mod mirror;
mod mirrored_commit;
mod process_group;
mod question;

pub use address::{
    Address, Protocol, Protocols, Redirection, RefusedAddress, check_redirection, name_and_port,
};
pub use call::{Call, Git, GitError, MAX_OUTPUT, found};
pub use checkout::{NotCompared, branch_of, default_base, differing, is_commit, tracked};
pub use commit_files::{CommitFiles, UnreadFile};
pub use credential::{Credential, Loan, UnusableCredential};
pub use error::{FetchError, GitReason, HadCredential};
pub use fetch::FetchTarget;
pub use mirror::{Mirrored, NotMirrored, mirror, sweep};
pub use mirrored_commit::{CommitEntry, MirroredCommit, Since};
pub use process_group::ProcessGroup;
pub use question::NoAnswer;
