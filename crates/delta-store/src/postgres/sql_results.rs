//! Statements about results of tests.

use super::sql::Sql;

/// The latest lease of its attempt.
macro_rules! shown {
    () => {
        "JOIN attempts a ON a.run_id = t.run_id AND a.job = t.job AND a.n = t.n \
         AND a.lease_epoch = t.lease_epoch "
    };
}

macro_rules! lease {
    () => {
        "t.run_id, t.job, t.n, t.lease_epoch"
    };
}

macro_rules! counts {
    () => {
        ", t.status, count(*), sum(t.size)::int8 FROM results t "
    };
}

macro_rules! claims {
    () => {
        ", t.failed, t.errors, t.skipped, t.passed, t.dropped FROM result_claims t "
    };
}

macro_rules! of_lease {
    () => {
        "WHERE t.run_id = $1 AND t.job = $2 AND t.n = $3 AND t.lease_epoch = $4 "
    };
}

macro_rules! grouped {
    () => {
        "GROUP BY t.run_id, t.job, t.n, t.lease_epoch, t.status"
    };
}

const SIZES: &str = concat!(
    "SELECT t.result_key, t.size::int8 FROM results t ",
    of_lease!(),
    "AND t.result_key = ANY($5::bytea[])"
);

const WITHDRAW: &str = concat!(
    "DELETE FROM results t ",
    of_lease!(),
    "AND ($5::bytea[] IS NULL OR t.result_key = ANY($5::bytea[]))"
);

const PUT_CLAIM: &str = "INSERT INTO result_claims (project, run_id, job, n, lease_epoch, failed, \
         errors, skipped, passed, dropped) \
     VALUES ('default', $1, $2, $3, $4, $5, $6, $7, $8, $9) \
     ON CONFLICT (run_id, job, n, lease_epoch) DO UPDATE SET \
         failed = excluded.failed, errors = excluded.errors, \
         skipped = excluded.skipped, passed = excluded.passed, \
         dropped = excluded.dropped";

pub(super) fn text(sql: Sql) -> &'static str {
    match sql {
        Sql::PutResults => {
            "INSERT INTO results (project, run_id, job, n, lease_epoch, result_key, status, \
                 test_id, suite, name, duration_ms, message, trace, metadata, size, at) \
             SELECT 'default', $1::uuid, $2::int8, $3::int8, $4::int8, w.* \
             FROM unnest($5::bytea[], $6::int8[], $7::text[], $8::text[], $9::text[], \
                 $10::int8[], $11::text[], $12::text[], $13::text[], $14::int8[], $15::int8[]) w \
             ON CONFLICT (run_id, job, n, lease_epoch, result_key) DO UPDATE SET \
                 status = excluded.status, suite = excluded.suite, name = excluded.name, \
                 duration_ms = excluded.duration_ms, message = excluded.message, \
                 trace = excluded.trace, metadata = excluded.metadata, size = excluded.size, \
                 at = excluded.at"
        }
        Sql::WithdrawResults => WITHDRAW,
        Sql::SizesOfResults => SIZES,
        Sql::PutResultClaim => PUT_CLAIM,
        Sql::LeaseResults => concat!("SELECT ", lease!(), counts!(), of_lease!(), grouped!()),
        Sql::LeaseClaim => concat!("SELECT ", lease!(), claims!(), of_lease!()),
        Sql::RunResults => concat!(
            "SELECT ",
            lease!(),
            counts!(),
            shown!(),
            "WHERE t.run_id = $1 ",
            grouped!()
        ),
        Sql::RunClaims => concat!(
            "SELECT ",
            lease!(),
            claims!(),
            shown!(),
            "WHERE t.run_id = $1"
        ),
        Sql::ResultPage => concat!(
            "SELECT t.id, ",
            lease!(),
            ", t.result_key, t.status, t.test_id, t.suite, t.name, t.duration_ms, t.message, \
             t.trace, t.metadata, t.at FROM results t ",
            shown!(),
            "JOIN jobs j ON j.run_id = t.run_id AND j.n = t.job \
             WHERE t.run_id = $1 AND ($2::int8 IS NULL OR t.job = $2) \
             AND t.n = coalesce($3::int8, j.attempts) \
             AND ($4::int8 >> t.status::int4) & 1 = 1 \
             AND ($5::int8 IS NULL OR (t.job, t.status, t.id) > ($5, $6::int8, $7::int8)) \
             ORDER BY t.job, t.status, t.id LIMIT $8"
        ),
        Sql::TestHistory => concat!(
            "SELECT t.id, ",
            lease!(),
            ", j.name, coalesce(strpos(t.metadata, $7::text), 0)::int8, \
             coalesce(strpos(t.metadata, $8::text), 0)::int8, t.result_key, t.status, \
             t.suite, t.duration_ms, t.message, t.at, r.repository, r.git_ref, r.commit \
             FROM (SELECT * FROM results WHERE name = $1 AND ($2::int8 IS NULL OR id < $2) \
                   ORDER BY id DESC LIMIT $3) t ",
            shown!(),
            "JOIN runs r ON r.id = t.run_id \
             JOIN jobs j ON j.run_id = t.run_id AND j.n = t.job \
             WHERE ($4::text IS NULL OR t.suite = $4) AND ($5::text IS NULL OR r.repository = $5) \
             ORDER BY t.id DESC LIMIT $6"
        ),
        other => unreachable!("{other:?} is not about results"),
    }
}
