//! Who is asking, and what has become of whoever asked before.

use std::sync::atomic::Ordering;

use delta_store::side_tables::SideTables;

use super::look_up::{LOOK_UPS, MAX_STRANGERS};
use super::*;
use crate::store_sides::StoreSides;

#[test]
fn roles_reach_as_far_as_they_should() {
    let who = |role| Principal {
        role,
        ..Principal::local_admin()
    };
    use Role::{Admin, Enrolment, Runner, User};
    let all = [Runner, User, Admin, Enrolment];
    let table: Vec<bool> = all
        .iter()
        .flat_map(|has| all.map(|needs| who(*has).may(needs)))
        .collect();
    let expected = [
        true, false, false, false, // a runner
        false, true, false, false, // a user
        false, true, true, false, // an admin
        false, false, false, true, // an enrolment
    ];
    assert_eq!(table, expected);
}

#[test]
fn a_bound_credential_is_one_agents() {
    // A26, T3
    let mut who = Principal::local_admin();
    assert!(who.may_be("anything"));
    who.agent = Some("box-1".into());
    assert!(who.may_be("box-1") && who.may_be("box-1/2"));
    for other in ["box-2", "box-10", "box-1x/1", "", "/box-1"] {
        assert!(!who.may_be(other), "{other}");
    }
}

#[test]
fn an_expired_or_revoked_credential_is_nobodys() {
    let mut credential = new_token(Role::User, "u".into(), Millis(0), Some(Millis(10))).credential;
    assert!(is_good(&credential, Millis(9)));
    assert!(!is_good(&credential, Millis(10)));
    credential.expires_at = None;
    credential.revoked_at = Some(Millis(5));
    assert!(!is_good(&credential, Millis(6)));
}

fn invented(n: u8) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    format!("delta_user_{}", URL_SAFE_NO_PAD.encode([n; 32]))
}

fn identity() -> (Identity, Arc<dyn SideTables>) {
    let StoreSides { reader, tables } = StoreSides::in_memory();
    let identity = Identity::new(reader, Arc::default(), Oidc::none());
    (identity, tables)
}

#[tokio::test]
async fn a_flood_of_invented_tokens_is_refused_and_regulars_are_served() {
    let (identity, tables) = identity();
    let token = new_token(Role::Runner, "r".into(), Millis(0), None);
    tables.put_credential(&token.credential).unwrap();
    let runner = identity.whose(&token.secret, Millis(1)).await.unwrap();
    assert!(runner.is_some());
    assert_eq!(identity.whose(&invented(1), Millis(1)).await.unwrap(), None);
    // All turns of strangers are taken, and the room where they wait is full.
    let look_up = &identity.look_up;
    let turns = look_up.strangers.acquire_many(LOOK_UPS as u32).await;
    look_up.waiting.store(MAX_STRANGERS, Ordering::Relaxed);
    let refused = identity.whose(&invented(2), Millis(1)).await;
    assert!(matches!(refused, Err(Unknown::Flood)), "{refused:?}");
    // Another token was revoked: the regular's is looked up again, but not as a stranger's.
    identity.forget();
    assert_eq!(
        identity.whose(&token.secret, Millis(1)).await.unwrap(),
        runner
    );
    look_up.waiting.store(MAX_STRANGERS - 1, Ordering::Relaxed);
    drop(turns);
    assert_eq!(identity.whose(&invented(2), Millis(1)).await.unwrap(), None);
    assert_eq!(look_up.waiting.load(Ordering::Relaxed), MAX_STRANGERS - 1);
}

#[tokio::test]
async fn a_stream_is_judged_again_by_what_became_of_its_credential() {
    // D14, EP-30: revoked, expired or changed.
    let (identity, tables) = identity();
    let token = new_token(Role::Runner, "r".into(), Millis(0), Some(Millis(100)));
    tables.put_credential(&token.credential).unwrap();
    let who = identity.whose(&token.secret, Millis(1)).await.unwrap();
    let who = who.unwrap();
    let again = async |now| {
        identity.forget();
        identity.recheck(&who, Millis(now)).await.unwrap()
    };
    assert_eq!(again(2).await, Standing::Good);
    assert_eq!(again(100).await, Standing::Expired);
    let mut narrower = token.credential.clone();
    narrower.scope = Scope::least();
    tables.put_credential(&narrower).unwrap();
    assert_eq!(again(3).await, Standing::Changed);
    tables.put_credential(&token.credential).unwrap();
    assert_eq!(again(4).await, Standing::Good);
    tables.revoke_credential(&who.id, Millis(5)).unwrap();
    assert_eq!(again(6).await, Standing::Revoked);
}

#[test]
fn nothing_of_a_credential_shows() {
    let token = new_token(Role::Runner, "r".into(), Millis(0), None);
    let who = Principal::of_token(&token.credential);
    let shown = format!("{who:?} {:?}", token.credential);
    assert!(!shown.contains(&format!("{:?}", token.credential.hash)));
    assert!(!shown.contains(&token.secret));
}

/// An authority, and the chain of an agent that it signed.
fn signed(name: &str) -> (ClientTrust, Arc<Peer>) {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair};
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let root = authority.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(authority, key);
    let mut agent = CertificateParams::new(vec![name.to_owned()]).unwrap();
    agent.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    agent.not_after = rcgen::date_time_ymd(2040, 1, 1);
    let agent = agent.signed_by(&KeyPair::generate().unwrap(), &issuer);
    let trust = ClientTrust::default();
    trust.set(Some(trusting(root.der().clone())));
    let peer = Peer::of(&[agent.unwrap().der().clone()]).unwrap();
    (trust, Arc::new(peer))
}

fn trusting(root: rustls::pki_types::CertificateDer<'static>) -> peer::Trusted {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root).unwrap();
    peer::Trusted::new(roots).unwrap()
}

#[tokio::test]
async fn a_certificate_is_judged_again_by_its_authority_its_time_and_its_row() {
    // EP-31, D14
    const NOW: Millis = Millis(1_900_000_000_000);
    let StoreSides { reader, tables } = StoreSides::in_memory();
    let (trust, peer) = signed("a.ci");
    let trust = Arc::new(trust);
    let identity = Identity::new(reader, trust.clone(), Oidc::none());
    let mut extensions = Extensions::new();
    extensions.insert(peer.clone());
    let caller = async |now| {
        identity.forget();
        identity
            .caller(&HeaderMap::new(), &extensions, now)
            .await
            .unwrap()
    };
    let who = caller(NOW).await.unwrap();
    assert_eq!((&*who.id, &*who.scope), ("cert:a.ci", &Scope::least()));
    let again = async |now| {
        identity.forget();
        identity.recheck(&who, now).await.unwrap()
    };
    assert_eq!(again(NOW).await, Standing::Good);
    assert_eq!(again(peer.expires_at()).await, Standing::Expired);
    assert_eq!(
        caller(peer.expires_at() + delta_core::Span::secs(1)).await,
        None
    );
    let row = vouched_row(who.id.clone(), "a".into(), Scope::any_label(), NOW);
    tables.put_credential(&row).unwrap();
    assert_eq!(again(NOW).await, Standing::Changed);
    assert_eq!(*caller(NOW).await.unwrap().scope, Scope::any_label());
    trust.set(None);
    assert_eq!(again(NOW).await, Standing::Revoked);
    assert_eq!(caller(NOW).await, None);
    let (other, _) = signed("a.ci");
    assert!(other.still(&peer, NOW).is_err(), "another authority");
    tables.revoke_credential(&who.id, NOW).unwrap();
    assert_eq!(again(NOW).await, Standing::Revoked);
}

#[tokio::test]
async fn who_an_issuer_vouches_for_is_judged_again_by_time_and_row() {
    // EP-32, D14
    let (identity, tables) = identity();
    let who = Principal {
        id: "oidc:forge:s".into(),
        role: Role::Runner,
        expires_at: Some(Millis(100)),
        proof: Proof::Issuer,
        ..Principal::local_admin()
    };
    let again = async |now| {
        identity.forget();
        identity.recheck(&who, Millis(now)).await.unwrap()
    };
    assert_eq!(again(99).await, Standing::Good);
    assert_eq!(again(100).await, Standing::Expired);
    let row = vouched_row(who.id.clone(), "s".into(), Scope::least(), Millis(1));
    tables.put_credential(&row).unwrap();
    tables.revoke_credential(&who.id, Millis(2)).unwrap();
    assert_eq!(again(3).await, Standing::Revoked);
}
