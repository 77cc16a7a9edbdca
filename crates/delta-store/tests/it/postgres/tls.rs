//! TLS to the database: verified always, by the CA file that the address names.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use delta_store::postgres;
use delta_store::read::Reader;
use delta_testkit::postgres::{Postgres, Restart};

fn speaking_tls() -> (Postgres, String) {
    let cluster = Postgres::start().unwrap();
    let names = vec!["127.0.0.1".to_string(), "localhost".to_string()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let data = cluster.folder().join("data");
    let owner = fs::metadata(&data).unwrap();
    for (name, text) in [
        ("server.crt", made.cert.pem()),
        ("server.key", made.signing_key.serialize_pem()),
    ] {
        let path = data.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    let mut config = File::options()
        .append(true)
        .open(data.join("postgresql.conf"))
        .unwrap();
    config.write_all(b"\nssl = on\n").unwrap();
    fs::write(data.join("pg_hba.conf"), "hostssl all all all trust\n").unwrap();
    cluster.restart(Restart::Fast).unwrap();
    (cluster, made.cert.pem())
}

#[test]
fn a_server_that_asks_for_tls_gets_it_and_is_verified() {
    let (cluster, certificate) = speaking_tls();
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    fs::write(&ca, certificate).unwrap();
    let url = cluster.url("postgres");
    let refused = |url: &str, why: &str| {
        let error = postgres::open(url).err().unwrap_or_else(|| panic!("{why}"));
        error.to_string()
    };
    refused(&url, "plain text was accepted");
    let unknown = refused(
        &format!("{url}?sslmode=require"),
        "an unknown certificate was accepted",
    );
    assert!(unknown.contains("certificate"), "{unknown}");
    let verified = format!("{url}?sslmode=verify-full&sslrootcert={}", ca.display());
    let (_store, reader, _) = postgres::open(&verified).unwrap();
    reader.ping().unwrap();
    refused(
        &format!("{url}?sslmode=require&sslrootcert=/nowhere.pem"),
        "a missing CA file was accepted",
    );
}
