//! Where the database is and how to reach it: the URL, TLS, and one session with its bounds.
//!
//! Every wait has an end: connecting, a statement, a lock, a transaction that nobody continues.
//! The URL may carry a password, so no error shows it.

use std::fs;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, NoTls, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::Trouble;
use super::join::in_order;
use super::sql::Sql;
use crate::StoreError;

/// The longest a call waits for an answer: a command that waited longer is not judged any more
/// (A38), so a later answer would help nobody.
pub(super) const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// A server that is up answers in milliseconds; one across the world within a second.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

/// The server gives up before we do, so that it rarely works for nobody.
const STATEMENT_TIMEOUT: &str = "4s";

/// A lock is held for one batch, some ten milliseconds. Whoever waits a hundred times that meets a
/// writer that is stuck, and gives its own locks back.
const LOCK_TIMEOUT: &str = "1500ms";

/// A writer that stops inside a batch loses it: its locks would stop every other writer.
const IDLE_IN_TRANSACTION_TIMEOUT: &str = "5s";

/// Where the tables are, so that the database can be shared with other programs.
pub(super) const SCHEMA: &str = "delta_ci";

/// How statements of a session are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planning {
    /// Once per statement: rows by key, in a loop. Statistics lag behind tables that grow from
    /// nothing, and a plan made for an empty table must not read a full one from end to end.
    ByKey,
    /// For each query anew: filters differ too much for one plan.
    Each,
    /// No bound on statements: migrations take as long as they take.
    Unbounded,
}

/// Where the database is.
#[derive(Clone)]
pub(super) struct Target {
    config: Config,
    tls: Option<MakeRustlsConnect>,
}

/// One connection with its prepared statements.
pub(super) struct Session {
    pub(super) client: Client,
    statements: Vec<Statement>,
    _driver: Driver,
}

/// The task that moves a connection's bytes. It ends with its owner, at once: a server that hangs
/// must not collect the remains of sessions that were given up.
pub(super) struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A statement and its parameters, for [`Session::ask`].
pub(super) type Call<'a> = (Sql, Vec<&'a (dyn ToSql + Sync)>);

impl Session {
    pub(super) fn statement(&self, sql: Sql) -> &Statement {
        &self.statements[sql as usize]
    }

    /// One query.
    pub(super) async fn rows(
        &self,
        sql: Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.client.query(self.statement(sql), params).await
    }

    /// Several queries in one round trip. Of several errors the first is returned: in a
    /// transaction it is the cause of the others.
    pub(super) async fn ask(&self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>, Error> {
        let all = calls.iter().map(|(sql, params)| self.rows(*sql, params));
        in_order(all.collect()).await.into_iter().collect()
    }
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Target, StoreError> {
        let (url, root) = without_root(url);
        let mut config: Config = url.parse().map_err(|error: Error| {
            let why = std::error::Error::source(&error)
                .map(ToString::to_string)
                .unwrap_or_else(|| error.to_string());
            StoreError::Unavailable(format!("the address of the database cannot be read: {why}"))
        })?;
        config.connect_timeout(CONNECT_DEADLINE);
        config.keepalives_idle(Duration::from_secs(30));
        if config.get_application_name().is_none() {
            config.application_name("delta-ci");
        }
        let wants_tls = config.get_ssl_mode() == SslMode::Require || root.is_some();
        let tls = if wants_tls {
            config.ssl_mode(SslMode::Require);
            Some(tls(root.as_deref()).map_err(StoreError::Unavailable)?)
        } else {
            config.ssl_mode(SslMode::Disable);
            None
        };
        Ok(Target { config, tls })
    }

    /// A session whose every wait is bounded, with the statements prepared.
    pub(super) async fn open(&self, planning: Planning) -> Result<Session, Trouble> {
        let (client, driver) = self.connect(planning, None).await?;
        let statements: Vec<String> = match planning {
            Planning::ByKey | Planning::Each => Sql::ALL.iter().map(|sql| sql.text()).collect(),
            Planning::Unbounded => Vec::new(),
        };
        let prepare = async {
            let all = statements.iter().map(|text| client.prepare(text)).collect();
            in_order(all)
                .await
                .into_iter()
                .collect::<Result<Vec<_>, _>>()
        };
        let statements = bounded(prepare).await?;
        Ok(Session {
            client,
            statements,
            _driver: driver,
        })
    }

    /// A plain connection; what the server says unasked goes to `messages`.
    pub(super) async fn connect(
        &self,
        planning: Planning,
        messages: Option<mpsc::Sender<AsyncMessage>>,
    ) -> Result<(Client, Driver), Trouble> {
        let connecting = async {
            match &self.tls {
                Some(tls) => {
                    let (client, connection) = self.config.connect(tls.clone()).await?;
                    let task = tokio::spawn(drive(connection, messages));
                    Ok((client, Driver(task.abort_handle())))
                }
                None => {
                    let (client, connection) = self.config.connect(NoTls).await?;
                    let task = tokio::spawn(drive(connection, messages));
                    Ok((client, Driver(task.abort_handle())))
                }
            }
        };
        let (client, driver) = bounded(connecting).await?;
        bounded(client.batch_execute(&settings(planning))).await?;
        Ok((client, driver))
    }
}

/// Runs until an answer or the deadline.
pub(super) async fn bounded<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Trouble> {
    match tokio::time::timeout(ANSWER_DEADLINE, work).await {
        Ok(answer) => answer.map_err(|error| Trouble::of(&error)),
        Err(_) => Err(Trouble::Silent),
    }
}

/// `synchronous_commit = off` would break the promise that what was acknowledged is on disk; any
/// other value keeps it.
fn settings(planning: Planning) -> String {
    let statement_timeout = match planning {
        Planning::Unbounded => "0",
        Planning::ByKey | Planning::Each => STATEMENT_TIMEOUT,
    };
    let plans = match planning {
        Planning::ByKey => {
            "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; \
             SET enable_hashjoin = off; SET enable_mergejoin = off;"
        }
        Planning::Each | Planning::Unbounded => "",
    };
    format!(
        "SET search_path = {SCHEMA}; SET jit = off; SET statement_timeout = '{statement_timeout}'; \
         SET lock_timeout = '{LOCK_TIMEOUT}'; \
         SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_TIMEOUT}'; \
         SELECT set_config('synchronous_commit', 'on', false) \
         WHERE current_setting('synchronous_commit') = 'off'; {plans}"
    )
}

async fn drive<S, T>(mut connection: Connection<S, T>, messages: Option<mpsc::Sender<AsyncMessage>>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            // A full channel drops the message: whoever listens is about to look anyway.
            Some(Ok(message)) => {
                if let Some(messages) = &messages {
                    let _ = messages.try_send(message);
                }
            }
            // The client's own calls report what happened.
            Some(Err(_)) | None => return,
        }
    }
}

/// Takes `sslrootcert` out of the URL, which the driver does not know, and reads `verify-ca` and
/// `verify-full` as `require`: a certificate is always verified here, and its name with it.
fn without_root(url: &str) -> (String, Option<String>) {
    let Some((start, query)) = url.split_once('?') else {
        return (url.to_owned(), None);
    };
    let mut root = None;
    let mut kept = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslrootcert", path)) => root = Some(decoded(path)),
            Some(("sslmode", "verify-ca" | "verify-full")) => kept.push("sslmode=require"),
            _ => kept.push(pair),
        }
    }
    let mark = if kept.is_empty() { "" } else { "?" };
    (format!("{start}{mark}{}", kept.join("&")), root)
}

/// `%2F` and the like in a path.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail
            .get(..2)
            .and_then(|pair| std::str::from_utf8(pair).ok());
        match hex.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The roots of the named file, or those of this machine.
fn tls(root: Option<&str>) -> Result<MakeRustlsConnect, String> {
    let mut roots = rustls::RootCertStore::empty();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    if let Some(path) = root {
        let pem = fs::read(path).map_err(|error| format!("sslrootcert {path}: {error}"))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate =
                certificate.map_err(|error| format!("sslrootcert {path}: {error}"))?;
            let added = roots.add(certificate);
            added.map_err(|error| format!("sslrootcert {path}: {error}"))?;
        }
        if roots.is_empty() {
            return Err(format!("sslrootcert {path} has no certificate"));
        }
    } else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(
                "this machine has no trusted certificates: name a CA file by \
                        sslrootcert=… in the address of the database"
                    .into(),
            );
        }
    }
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ca_file_is_taken_out_of_the_address() {
        let url = "postgres://u:p@h/db?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem&a=b";
        let (plain, root) = without_root(url);
        assert_eq!(plain, "postgres://u:p@h/db?sslmode=require&a=b");
        assert_eq!(root.as_deref(), Some("/etc/ca.pem"));
        let (plain, root) = without_root("postgres://h/db?sslrootcert=ca.pem");
        assert_eq!(
            (plain.as_str(), root.as_deref()),
            ("postgres://h/db", Some("ca.pem"))
        );
        assert_eq!(
            without_root("postgres://h/db"),
            ("postgres://h/db".into(), None)
        );
    }

    #[test]
    fn a_bad_address_is_refused_without_showing_it() {
        let Err(error) = Target::parse("postgres://u:secret@h:notaport/db") else {
            panic!("accepted");
        };
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
