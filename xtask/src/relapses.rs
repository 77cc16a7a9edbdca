//! The faults that `cargo xtask relapse` puts back.
//!
//! Owns one table. To add a row: the line as it is, the line with the fault, and the tests that an
//! attacker or a user would recognise themselves in. What no test notices does not belong here but
//! wants a test.

/// A fault that was mended once.
pub struct Relapse {
    pub name: &'static str,
    /// What happens with the fault.
    pub what: &'static str,
    pub file: &'static str,
    /// Each line as it is, and as it was. Those of one fault lie in one file.
    pub lines: &'static [(&'static str, &'static str)],
    pub package: &'static str,
    /// Part of the names of the tests of which one has to fail.
    pub filter: &'static str,
}

const RIGHTS: &str = "crates/delta-core/src/rights.rs";
const CONTROL: &str = "crates/delta-shim/src/control.rs";
const NAMESPACES: &str = "crates/delta-shim/src/sandbox/namespaces.rs";

pub const RELAPSES: [Relapse; 38] = [
    Relapse {
        name: "revoked-agent",
        what: "a revoked agent renews its lease, reads secrets and completes",
        file: RIGHTS,
        lines: &[("        if self.revoked {", "        if false {")],
        package: "delta-e2e",
        filter: "a_revoked_agent_renews_nothing",
    },
    Relapse {
        name: "superseded-session",
        what: "an older session of an agent goes on with the leases of the newer",
        file: RIGHTS,
        lines: &[(
            "(*epoch < self.session).then_some(Barred::Superseded)",
            "(*epoch < 0).then_some(Barred::Superseded)",
        )],
        package: "delta-server",
        filter: "what_is_still_said_over",
    },
    Relapse {
        name: "shared-token",
        what: "whoever shares the token of an agent and has its lease is taken for it",
        file: RIGHTS,
        lines: &[("            _ if !proven => Some(Barred::Unproven),\n", "")],
        package: "delta-e2e",
        filter: "rights::",
    },
    Relapse {
        name: "silent-stranger",
        what: "a connection to a shim that says nothing is kept",
        file: CONTROL,
        lines: &[(
            "let until = peer.came + INTRODUCTION;",
            "let until = peer.came + INTRODUCTION * 86_400;",
        )],
        package: "delta-agent",
        filter: "whoever_says_nothing_is_dropped",
    },
    Relapse {
        name: "full-house",
        what: "strangers on a shim's socket keep the newest, its agent, out",
        file: CONTROL,
        lines: &[(
            "self.make_room(MAX_STRANGERS - 1, |peer| !peer.knows_key);",
            "if self.peers.len() >= MAX_AGENTS { continue; }",
        )],
        package: "delta-e2e",
        filter: "a_job_cannot_spoil_the_adoption",
    },
    Relapse {
        name: "lost-shim",
        what: "what is left of a lost shim is known by its environment alone",
        file: "crates/delta-shim/src/processes/strays.rs",
        lines: &[(
            "self.is_shim(seen.pid) || self.is_marked(seen.pid) || self.is_named(seen.pid)",
            "self.is_named(seen.pid)",
        )],
        package: "delta-e2e",
        filter: "nothing_of_a_job_outlives_its_lost_shim",
    },
    Relapse {
        name: "inherited-files",
        what: "a job is born with what whoever started the agent had open",
        file: "crates/delta-shim/src/inherited_files.rs",
        lines: &[("    close_fds::set_fds_cloexec(FIRST_FURTHER, &[]);\n", "")],
        package: "delta-e2e",
        filter: "a_job_is_born_with_three_descriptors",
    },
    Relapse {
        name: "shared-memory",
        what: "a confined job leaves files in /dev/shm for the next",
        file: NAMESPACES,
        lines: &[(
            "        mount(\"delta-ci\", SHARED_MEMORY, \"tmpfs\", PLAIN, SHARED)?;\n",
            "",
        )],
        package: "delta-e2e",
        filter: "what_a_job_leaves_in_shared_memory",
    },
    Relapse {
        name: "sockets-outside",
        what: "a confined job connects to the sockets of services",
        file: NAMESPACES,
        lines: &[(
            "    leave_only(&outermost(parts))\n}",
            "    let _ = (leave_only, outermost(parts));\n    Ok(())\n}",
        )],
        package: "delta-e2e",
        filter: "a_confined_job_reaches_no_socket_outside",
    },
    Relapse {
        name: "relative-folder",
        what: "nothing is planned where the data folder was given as a relative path",
        file: "crates/delta-cli/src/args.rs",
        lines: &[(
            "arg.value_parser(PathBufValueParser::new().map(secret_input::whole_path))",
            "arg",
        )],
        package: "delta-e2e",
        filter: "relative::",
    },
    Relapse {
        name: "early-answer",
        what: "somebody hears of a decision before it is committed",
        file: "crates/delta-server/src/writer/thread.rs",
        lines: &[(
            "Ok((answers, news, matches)) => Ok(Done {\n                writes: batch.commit()?,",
            "Ok((answers, news, matches)) => Ok(Done {
                writes: {
                    let mut bells = Bells::default();
                    for given in &matches.given {
                        self.parking.answer(given.slot, Ok(None), &mut bells);
                    }
                    drop(bells);
                    batch.commit()?
                },",
        )],
        package: "delta-server",
        filter: "nobody_hears_anything_before_the_commit",
    },
    Relapse {
        name: "damaged-file",
        what: "the doctor does not ask the engine whether its file is whole",
        file: "crates/delta-store/src/sqlite/reader.rs",
        lines: &[(
            "faults.for_each(|line| found.fault(line));",
            "drop(faults);",
        )],
        package: "delta-e2e",
        filter: "the_doctor_names_what_is_gone",
    },
    Relapse {
        name: "lost-database",
        what: "a database that is gone is taken for a first start",
        file: "crates/delta-server/src/database_note.rs",
        lines: &[
            (
                "if empty && (witness.known().is_some() || witness.unexplained) {",
                "if empty && false {",
            ),
            (
                "Some(_) if !self.accept && store.is_unused()? => {",
                "Some(_) if false && store.is_unused()? => {",
            ),
        ],
        package: "delta-e2e",
        filter: "a_database_that_is_gone_cut_or_replaced",
    },
    Relapse {
        name: "full-disk",
        what: "a full disk is called something else",
        file: "crates/delta-server/src/full_disk.rs",
        lines: &[(
            "matches!(error.kind(), StorageFull | QuotaExceeded)",
            "matches!(error.kind(), StorageFull | QuotaExceeded) && error.raw_os_error().is_none()",
        )],
        package: "delta-e2e",
        filter: "a_start_on_a_full_disk",
    },
    Relapse {
        name: "markup",
        what: "a secret is shown where it stands in a report in XML",
        file: "crates/delta-shim/src/mask/forms.rs",
        lines: &[("'&' => out.push_str(\"&amp;\"),", "'&' => out.push('&'),")],
        package: "delta-e2e",
        filter: "a_secret_in_the_report_of_a_job",
    },
    Relapse {
        name: "quicker-witness",
        what: "a container that ran out of memory is taken for one that was ended from outside",
        file: "crates/delta-shim/src/container/verdict.rs",
        lines: &[(
            "(over && self.unnamed() == Some(0)).then_some(self.engine)",
            "over.then_some(self.engine)",
        )],
        package: "delta-shim",
        filter: "the_witnesses_of_an_end_are_heard_in_any_order",
    },
    Relapse {
        name: "no-tests",
        what: "a job whose tool says that no test ran is green",
        file: "crates/delta-agent/src/job_io/test_count.rs",
        lines: &[(
            "Some(it) if it.told => Counted::None(\"no test ran, as its tool says\".to_owned()),",
            "Some(it) if it.told => Counted::Unknown(None),",
        )],
        package: "delta-agent",
        filter: "test_count",
    },
    Relapse {
        name: "superseded-process",
        what: "a process of an agent asks on with the leases of the one after it",
        file: RIGHTS,
        lines: &[(
            "            Some(shown) if shown.process != *process => Some(Barred::Superseded),\n",
            "",
        )],
        package: "delta-server",
        filter: "a_process_whose_session_is_superseded",
    },
    Relapse {
        name: "decided-blindly",
        what: "a message about a lease is decided on without a look at its agent",
        file: "crates/delta-core/src/decide/mod.rs",
        lines: &[(
            "let agent = self.agent(proof.speaker.agent(&lease.runner))?;",
            "let agent: Option<&AgentStanding> = None;",
        )],
        package: "delta-server",
        filter: "a_revoked_agent_has_no_right",
    },
    Relapse {
        name: "read-blindly",
        what: "bytes under a lease are given and taken without a look at its agent",
        file: "crates/delta-server/src/lease_rights.rs",
        lines: &[(
            "Some(id) => reader.agent(&id)?.map(|row| row.standing()),",
            "Some(_) => None,",
        )],
        package: "delta-server",
        filter: "a_revoked_agent_has_no_right",
    },
    Relapse {
        name: "endless-upload",
        what: "an upload goes on after the right to it is gone",
        file: "crates/delta-server/src/http/recheck.rs",
        lines: &[(
            "            Some(_) if self.is_over().await => Ok(BodyPiece::RightGone),\n",
            "",
        )],
        package: "delta-server",
        filter: "an_upload_under_way_ends_with",
    },
    Relapse {
        name: "endless-download",
        what: "a download goes on after its agent was revoked",
        file: "crates/delta-server/src/http/recheck.rs",
        lines: &[(
            "Ok(_) if self.is_over().await => Err(io::ErrorKind::PermissionDenied.into()),",
            "",
        )],
        package: "delta-server",
        filter: "bytes_on_their_way_to_a_revoked",
    },
    Relapse {
        name: "older-program",
        what: "an agent whose program shows nothing in its requests is refused all of them",
        file: "crates/delta-server/src/sessions/register.rs",
        lines: &[(
            "request.shows_itself && !request.instance.is_empty()",
            "!request.instance.is_empty()",
        )],
        package: "delta-server",
        filter: "an_agent_that_shows_nothing",
    },
    Relapse {
        name: "lost-group",
        what: "the control group of a lost shim is neither ended nor removed",
        file: "crates/delta-agent/src/attempt/lost_shim.rs",
        lines: &[(
            "group.is_some_and(|group| group.clear())",
            "group.is_some_and(|_| true)",
        )],
        package: "delta-agent",
        filter: "the_groups_of_a_lost_shim",
    },
    Relapse {
        name: "limits-of-others",
        what: "a confined job sets the limits of its agent",
        file: "crates/delta-shim/src/sandbox/mod.rs",
        lines: &[(
            "call_filter::put(own).map_err(|why| failed(\"seccomp\", &why))",
            "Ok(())",
        )],
        package: "delta-e2e",
        filter: "a_confined_job_changes_no_limit",
    },
    Relapse {
        name: "silent-worker",
        what: "what a planning worker said before it died is lost",
        file: "crates/delta-server/src/forges/worker.rs",
        lines: &[("plain(&String::from_utf8_lossy(&kept))", "String::new()")],
        package: "delta-e2e",
        filter: "a_worker_that_dies_says_why",
    },
    Relapse {
        name: "open-shared-memory",
        what: "a confined job that is not apart writes the /dev/shm of all",
        file: "crates/delta-shim/src/sandbox/file_rules.rs",
        lines: &[(
            ".chain(shared_memory.then_some(SHARED_MEMORY))",
            ".chain(Some(SHARED_MEMORY))",
        )],
        package: "delta-agent",
        filter: "what_a_confined_job_shares",
    },
    Relapse {
        name: "whole-after-a-cut",
        what: "a log of which the agent left a part out is called complete",
        file: "crates/delta-server/src/http/log_view.rs",
        lines: &[("            _ if left_out.is_some() => false,\n", "")],
        package: "delta-cli",
        filter: "a_log_that_was_cut_says_so",
    },
    Relapse {
        name: "lost-end",
        what: "a log that is cut loses its end",
        file: "crates/delta-shim/src/spool/mod.rs",
        lines: &[("let mut at = tail.begins();", "let mut at = tail.came();")],
        package: "delta-cli",
        filter: "a_log_that_was_cut_says_so",
    },
    Relapse {
        name: "lost-log",
        what: "the doctor does not miss a log that is gone",
        file: "crates/delta-server/src/doctor.rs",
        lines: &[(
            "if declared && objects.log_is_lost(",
            "if false && declared && objects.log_is_lost(",
        )],
        package: "delta-e2e",
        filter: "the_doctor_names_what_is_gone",
    },
    Relapse {
        name: "moved-database",
        what: "a move to PostgreSQL is taken for a loss",
        file: "crates/delta-server/src/database_note.rs",
        lines: &[("    moved && (before()", "    moved && false && (before()")],
        package: "delta-e2e",
        filter: "a_move_to_postgres_beside",
    },
    Relapse {
        name: "full-database",
        what: "a disk too full for the database is called a second writer",
        file: "crates/delta-store/src/sqlite/connection.rs",
        lines: &[(
            "DiskFull) => StoreError::Full(error.to_string()),",
            "DiskFull) => StoreError::Conflict,",
        )],
        package: "delta-e2e",
        filter: "a_full_disk_is_called_that_and",
    },
    Relapse {
        name: "ready-to-fail",
        what: "a server that cannot write calls itself ready",
        file: "crates/delta-server/src/readiness.rs",
        lines: &[("    app.writer.can_write().await?;\n", "")],
        package: "delta-e2e",
        filter: "a_disk_that_cannot_be_written",
    },
    Relapse {
        name: "ready-without-room",
        what: "a server without room for logs calls itself ready",
        file: "crates/delta-server/src/readiness.rs",
        lines: &[("Ok(files_can_be_written(app).await?)", "Ok(())")],
        package: "delta-e2e",
        filter: "a_full_disk_of_logs",
    },
    Relapse {
        name: "readable-token",
        what: "an agent does not say that everybody can read its token",
        file: "crates/delta-agent/src/agent.rs",
        lines: &[("const BY_ALL: u32 = 0o004;", "const BY_ALL: u32 = 0o000;")],
        package: "delta-e2e",
        filter: "everybody_can_read_its_token",
    },
    Relapse {
        name: "abstract-socket",
        what: "a confined job connects to the services that have a name and no path",
        file: "crates/delta-shim/src/sandbox/file_rules.rs",
        lines: &[(
            "        .scope(Scope::from_all(RULES))?\n",
            "        .scope(Scope::Signal)?\n",
        )],
        package: "delta-e2e",
        filter: "a_confined_job_reaches_no_socket_outside",
    },
    Relapse {
        name: "left-in-the-kernel",
        what: "a confined job that is not apart leaves segments and queues to the next",
        file: "crates/delta-shim/src/sandbox/mod.rs",
        lines: &[(
            "        Own::AllThatIsShared\n",
            "        Own::LimitsAndPriorities\n",
        )],
        package: "delta-agent",
        filter: "what_a_confined_job_cannot_have_for_itself",
    },
    Relapse {
        name: "unflushed",
        what: "what was never flushed to the disk is told as done",
        file: "crates/delta-store/src/sqlite/connection.rs",
        lines: &[(
            "set(\"synchronous\", \"FULL\")",
            "set(\"synchronous\", \"OFF\")",
        )],
        package: "delta-e2e",
        filter: "what_a_disk_fails_to_flush",
    },
];
