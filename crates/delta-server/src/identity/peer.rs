//! Client certificates: whom they name, and whether the authorities trusted today still vouch for
//! them (EP-31).
//!
//! The name is a URI of the certificate's alternative names, otherwise a host name of them, and the
//! subject's common name only where it has neither. A certificate that is not for clients is
//! refused in the handshake.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use delta_core::{Millis, Text};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

/// Characters of a name: as much as a host name can have.
const MAX_NAME: usize = 255;

/// Who is at the other end of a TLS connection, by the certificate it showed.
pub struct Peer {
    name: Text,
    chain: Vec<CertificateDer<'static>>,
    expires_at: Millis,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({:?})", self.name)
    }
}

/// What is wrong with a certificate that an authority has signed.
#[derive(Debug, thiserror::Error)]
pub enum BadPeer {
    #[error("the certificate cannot be read")]
    Unreadable,
    #[error("the certificate is not for clients (extended key usage clientAuth)")]
    NotForClients,
    #[error("the certificate names nobody")]
    Nameless,
}

impl Peer {
    /// Reads whom a chain names; its signatures were checked in the handshake.
    pub fn of(chain: &[CertificateDer<'_>]) -> Result<Peer, BadPeer> {
        let first = chain.first().ok_or(BadPeer::Unreadable)?;
        let (_, certificate) =
            x509_parser::parse_x509_certificate(first).map_err(|_| BadPeer::Unreadable)?;
        let usage = certificate
            .extended_key_usage()
            .map_err(|_| BadPeer::Unreadable)?;
        if !usage.is_some_and(|usage| usage.value.client_auth) {
            return Err(BadPeer::NotForClients);
        }
        let seconds = certificate.validity().not_after.timestamp();
        Ok(Peer {
            name: name(&certificate)?,
            chain: chain.iter().map(|it| it.clone().into_owned()).collect(),
            expires_at: Millis(seconds.saturating_mul(1000)),
        })
    }

    pub fn name(&self) -> &Text {
        &self.name
    }

    pub fn expires_at(&self) -> Millis {
        self.expires_at
    }
}

fn name(certificate: &X509Certificate<'_>) -> Result<Text, BadPeer> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| BadPeer::Unreadable)?;
    let names = names.map_or(&[][..], |names| &names.value.general_names);
    let uri = names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let host = names.iter().find_map(|name| match name {
        GeneralName::DNSName(host) => Some(*host),
        _ => None,
    });
    let mut common = certificate.subject().iter_common_name();
    let name = match uri.or(host) {
        Some(name) => name,
        None => common
            .next()
            .and_then(|name| name.as_str().ok())
            .ok_or(BadPeer::Nameless)?,
    };
    let good =
        !name.is_empty() && name.chars().count() <= MAX_NAME && !name.chars().any(char::is_control);
    if !good {
        return Err(BadPeer::Nameless);
    }
    Ok(name.into())
}

/// The authorities whose clients are known by their certificates, as the files say right now.
#[derive(Default)]
pub struct ClientTrust(ArcSwapOption<Trusted>);

/// A verifier, sized for its place.
pub struct Trusted(Arc<dyn ClientCertVerifier>);

impl ClientTrust {
    pub fn set(&self, trusted: Option<Trusted>) {
        self.0.store(trusted.map(Arc::new));
    }

    /// Whether these authorities would let the peer in if it came now.
    pub fn still(&self, peer: &Peer, now: Millis) -> Result<(), Error> {
        let trusted = self.0.load();
        let Some(trusted) = trusted.as_ref() else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        let seconds = u64::try_from(now.0 / 1000).unwrap_or(0);
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let [first, rest @ ..] = &peer.chain[..] else {
            return Err(CertificateError::BadEncoding.into());
        };
        trusted.0.verify_client_cert(first, rest, now).map(drop)
    }
}

impl Trusted {
    /// Clients of these authorities, and those without a certificate: they have tokens.
    pub fn new(authorities: RootCertStore) -> Result<Trusted, String> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = WebPkiClientVerifier::builder_with_provider(authorities.into(), provider);
        let verifier = builder.allow_unauthenticated().build();
        let verifier = verifier.map_err(|error| error.to_string())?;
        Ok(Trusted(Arc::new(Named(verifier))))
    }

    pub fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        self.0.clone()
    }
}

/// Checks signatures and dates, and also that the certificate is for clients and names somebody.
#[derive(Debug)]
struct Named(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Named {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now)?;
        match Peer::of(std::slice::from_ref(end_entity)) {
            Ok(_) => Ok(verified),
            Err(BadPeer::NotForClients) => Err(CertificateError::InvalidPurpose.into()),
            Err(BadPeer::Unreadable) => Err(CertificateError::BadEncoding.into()),
            Err(BadPeer::Nameless) => Err(CertificateError::NotValidForName.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, SanType};

    use super::*;

    fn peer(common: Option<&str>, names: Vec<SanType>, clients: bool) -> Result<Peer, BadPeer> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        params.subject_alt_names = names;
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        params.extended_key_usages = if clients { vec![usage] } else { Vec::new() };
        let key = KeyPair::generate().unwrap();
        Peer::of(&[params.self_signed(&key).unwrap().der().clone()])
    }

    fn text(text: &str) -> Ia5String {
        text.try_into().unwrap()
    }

    #[test]
    fn a_certificate_names_a_uri_then_a_host_then_its_subject() {
        // EP-31
        let uri = || SanType::URI(text("spiffe://ci/agent"));
        let host = || SanType::DnsName(text("agent.ci"));
        for (names, expected) in [
            (vec![host(), uri()], "spiffe://ci/agent"),
            (vec![host()], "agent.ci"),
            (vec![], "common"),
        ] {
            let peer = peer(Some("common"), names, true).unwrap();
            assert_eq!(&**peer.name(), expected);
        }
    }

    #[test]
    fn a_certificate_must_be_for_clients_and_name_somebody() {
        // EP-31
        let refused = peer(Some("x"), Vec::new(), false);
        assert!(matches!(refused, Err(BadPeer::NotForClients)));
        for nameless in [None, Some(""), Some("a\nb")] {
            let refused = peer(nameless, Vec::new(), true);
            assert!(matches!(refused, Err(BadPeer::Nameless)), "{nameless:?}");
        }
    }
}
