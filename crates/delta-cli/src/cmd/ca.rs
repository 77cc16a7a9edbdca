//! `delta-ci ca`: a private certificate authority for those who have none: the authority itself,
//! certificates for servers, certificates for agents. Keys are for their owner's eyes only, and
//! nothing is overwritten unless `--renew` says so.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};

use crate::exit::Exit;
use crate::failure::{Done, Failure, internal};
use crate::terminal::Terminal;
use crate::{gitignored_folders, secret_input};

const INIT_EXAMPLES: &str = "\
Examples:
  delta-ci ca init ./ca

Keep ca.key away from the network: whoever has it can be any server and any agent.";

const SERVER_EXAMPLES: &str = "\
Examples:
  delta-ci ca server ./ca --name ci.example --name 10.0.0.5
  delta-ci ca server ./ca --name ci.example --renew      a running server takes it over by itself";

const AGENT_EXAMPLES: &str = "\
Examples:
  delta-ci ca agent ./ca --name build-1
  delta-ci ca agent ./ca --name spiffe://ci.example/agent/1 --days 30";

/// Subject of the authority: fixed, so that its key alone is enough to sign with.
const AUTHORITY: &str = "Delta CI private authority";

/// How long the authority is good for: replacing it means visiting every machine.
const AUTHORITY_DAYS: u32 = 3650;

/// Clocks may be a little apart; a certificate made now is good everywhere.
const BACKDATED: Duration = Duration::from_secs(5 * 60);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make an authority: its key and its certificate
    #[command(after_help = INIT_EXAMPLES)]
    Init(Init),
    /// Make a certificate for a server
    #[command(after_help = SERVER_EXAMPLES)]
    Server(Leaf),
    /// Make a certificate for an agent
    #[command(after_help = AGENT_EXAMPLES)]
    Agent(Leaf),
}

#[derive(Debug, clap::Args)]
struct Init {
    /// The folder to keep it in; made when it does not exist
    dir: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Leaf {
    /// The folder of the authority
    dir: PathBuf,
    /// A host name or address of the server, repeatable; or the name of the agent
    #[arg(long, required = true)]
    name: Vec<String>,
    /// How long it is good for
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Replace what was made under this name before
    #[arg(long)]
    renew: bool,
}

/// What a certificate is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Server,
    Agent,
}

pub fn run(args: Args, terminal: &Terminal) -> Done {
    match args.action {
        Action::Init(args) => init(&args.dir, terminal),
        Action::Server(args) => leaf(&args, Kind::Server, terminal),
        Action::Agent(args) => leaf(&args, Kind::Agent, terminal),
    }
}

fn init(dir: &Path, terminal: &Terminal) -> Done {
    std::fs::create_dir_all(dir).map_err(internal("the folder cannot be made"))?;
    gitignored_folders::keys(dir);
    let (cert, key) = (dir.join("ca.pem"), dir.join("ca.key"));
    refuse_to_overwrite(&[&cert, &key], None)?;
    let pair = new_key()?;
    let signed = authority().self_signed(&pair);
    let signed = signed.map_err(unmade("the certificate cannot be made"))?;
    write(&key, &pair.serialize_pem(), 0o600)?;
    write(&cert, &signed.pem(), 0o644)?;
    let place = secret_input::shown(dir);
    made(
        terminal,
        &cert,
        &key,
        &[
            format!("delta-ci ca server {place} --name HOST   a certificate for the server"),
            format!("delta-ci ca agent {place} --name NAME    one for each agent"),
        ],
    );
    Ok(Exit::Ok)
}

fn leaf(args: &Leaf, kind: Kind, terminal: &Terminal) -> Done {
    let dir = &args.dir;
    if kind == Kind::Agent && args.name.len() > 1 {
        return Err(Failure::new(Exit::Usage, "an agent has one name")
            .next("delta-ci ca agent DIR --name NAME, once for each agent"));
    }
    let issuer = issuer(dir)?;
    let file = file_name(&args.name[0]);
    let (cert, key) = (
        dir.join(format!("{file}.pem")),
        dir.join(format!("{file}.key")),
    );
    refuse_to_overwrite(&[&cert, &key], Some(args.renew))?;
    let params = params(args, kind)?;
    let pair = new_key()?;
    let signed = params.signed_by(&pair, &issuer);
    let signed = signed.map_err(unmade("the certificate cannot be made"))?;
    write(&key, &pair.serialize_pem(), 0o600)?;
    write(&cert, &signed.pem(), 0o644)?;
    let (place, cert_name, key_name) = (
        secret_input::shown(dir),
        secret_input::shown(&cert),
        secret_input::shown(&key),
    );
    let next = match kind {
        Kind::Server => vec![
            format!(
                "delta-ci server --data DIR --listen 0.0.0.0:7878 --tls-cert {cert_name} \
                 --tls-key {key_name} --client-ca {place}/ca.pem"
            ),
            format!("copy {place}/ca.pem to the agents, for their --ca-cert"),
        ],
        Kind::Agent => vec![
            format!(
                "delta-ci token create --role runner --certificate {} --data DIR   what it is \
                 granted",
                args.name[0]
            ),
            format!("copy {cert_name}, {key_name} and {place}/ca.pem to the agent's machine"),
        ],
    };
    made(terminal, &cert, &key, &next);
    Ok(Exit::Ok)
}

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    lasts(&mut params, AUTHORITY_DAYS);
    params
}

/// The authority of a folder, ready to sign.
fn issuer(dir: &Path) -> Result<Issuer<'static, KeyPair>, Failure> {
    let key = dir.join("ca.key");
    let unusable = || {
        let what = format!("{} is no authority", secret_input::shown(dir));
        Failure::new(Exit::NotFound, what)
            .next(format!("delta-ci ca init {}", secret_input::shown(dir)))
    };
    let pem = std::fs::read_to_string(&key).map_err(|error| unusable().caused_by(&error))?;
    let pair = KeyPair::from_pem(&pem).map_err(|error| unusable().caused_by(&error))?;
    Ok(Issuer::new(authority(), pair))
}

fn params(args: &Leaf, kind: Kind) -> Result<CertificateParams, Failure> {
    let bad = |name: &str| {
        let what = format!("`{name}` cannot be the name of a certificate");
        Failure::new(Exit::Usage, what).next("a host name, an address, or a URI for an agent")
    };
    let mut names = Vec::new();
    for name in &args.name {
        let plain = name.is_ascii() && !name.contains(|c: char| c.is_control() || c == ' ');
        if name.is_empty() || name.len() > 255 || !plain {
            return Err(bad(name));
        }
        let text = || name.as_str().try_into().map_err(|_| bad(name));
        names.push(match name.parse() {
            Ok(address) if kind == Kind::Server => SanType::IpAddress(address),
            _ if kind == Kind::Agent && name.contains("://") => SanType::URI(text()?),
            _ => SanType::DnsName(text()?),
        });
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(&args.name[0]);
    params.subject_alt_names = names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match kind {
        Kind::Server => ExtendedKeyUsagePurpose::ServerAuth,
        Kind::Agent => ExtendedKeyUsagePurpose::ClientAuth,
    }];
    params.use_authority_key_identifier_extension = true;
    lasts(&mut params, args.days);
    Ok(params)
}

fn subject(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    // A common name has 64 characters at most; the alternative name has all of it.
    let short: String = name.chars().take(64).collect();
    subject.push(DnType::CommonName, short);
    subject
}

fn lasts(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + DAY * days).into();
}

fn unmade(what: &'static str) -> impl FnOnce(rcgen::Error) -> Failure {
    move |error| Failure::new(Exit::Internal, what).caused_by(&error)
}

fn new_key() -> Result<KeyPair, Failure> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(unmade("no key could be made"))
}

/// A name as a file: what could leave the folder does not.
fn file_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let name: String = name
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect();
    match name.trim_start_matches('.') {
        "ca" => "ca_".into(),
        other => other.to_owned(),
    }
}

/// `renew` is `None` where there is nothing that could be renewed.
fn refuse_to_overwrite(files: &[&Path], renew: Option<bool>) -> Result<(), Failure> {
    let there = files.iter().find(|file| file.exists());
    let (Some(file), false) = (there, renew == Some(true)) else {
        return Ok(());
    };
    let failure = Failure::new(
        Exit::Refused,
        format!("{} is there", secret_input::shown(file)),
    );
    Err(match renew {
        Some(_) => failure.next("add --renew to replace it"),
        None => failure
            .because("certificates that it signed would be worthless")
            .next("name another folder"),
    })
}

/// Whole or not at all, so that whoever reads it meanwhile sees one or the other.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let unwritten = |error: std::io::Error| {
        let what = format!("{} cannot be written", secret_input::shown(path));
        Failure::new(Exit::Internal, what).caused_by(&error)
    };
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let fresh = PathBuf::from(name);
    let _ = std::fs::remove_file(&fresh);
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(&fresh);
    let mut file = file.map_err(unwritten)?;
    let written = file.write_all(text.as_bytes()).and(file.sync_all());
    written
        .and_then(|()| std::fs::rename(&fresh, path))
        .map_err(unwritten)
}

fn made(terminal: &Terminal, cert: &Path, key: &Path, next: &[String]) {
    if terminal.json {
        let files = serde_json::json!({ "certificate": cert, "key": key });
        return terminal.value(&files);
    }
    terminal.data(&secret_input::shown(cert));
    terminal.data(&secret_input::shown(key));
    terminal.say("next:");
    for line in next {
        terminal.say(&format!("  {line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_never_leaves_its_folder() {
        for (name, file) in [
            ("build-1", "build-1"),
            ("spiffe://ci/agent", "spiffe___ci_agent"),
            ("../../etc/x", "_.._etc_x"),
            ("ca", "ca_"),
            ("10.0.0.5", "10.0.0.5"),
        ] {
            assert_eq!(file_name(name), file);
        }
    }
}
