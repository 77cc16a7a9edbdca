//! Webhooks: real shapes, honest and hostile.

use delta_forge::{BadDelivery, Commit, Delivery, Event, Kind, Secret, read};
use reqwest::header::{HeaderMap, HeaderValue};

const SECRET: &str = "a secret of the webhook";
const HEAD: &str = "6dcb09b5b57875f334f61aebed695e2e4193db5e";
const BASE: &str = "aa218f56b14c9653891f9e74264a383fa43fefbd";

fn signed(kind: Kind, event: &str, body: &[u8]) -> HeaderMap {
    let hex = Secret::new(SECRET).sign(&[body]);
    let (prefix, value) = match kind {
        Kind::GitHub => ("x-hub-signature-256", format!("sha256={hex}")),
        Kind::Gitea => ("x-gitea-signature", hex),
        Kind::Forgejo => ("x-forgejo-signature", hex),
    };
    let name = kind.name();
    let mut headers = HeaderMap::new();
    let mut put = |name: String, value: String| {
        let name = reqwest::header::HeaderName::try_from(name).unwrap();
        headers.insert(name, HeaderValue::from_str(&value).unwrap());
    };
    put(prefix.to_owned(), value);
    put(format!("x-{name}-event"), event.to_owned());
    put(
        format!("x-{name}-delivery"),
        "72d3162e-cc78-11e3-81ab-4c9367dc0958".to_owned(),
    );
    headers
}

fn heard(kind: Kind, event: &str, body: &str) -> Result<Delivery, BadDelivery> {
    let headers = signed(kind, event, body.as_bytes());
    read(
        kind,
        &headers,
        body.as_bytes(),
        &Secret::new(SECRET),
        "team/app",
    )
}

fn push(git_ref: &str, before: &str, after: &str) -> String {
    serde_json::json!({
        "ref": git_ref, "before": before, "after": after, "created": false, "forced": false,
        "repository": {"id": 35129377, "full_name": "team/app", "private": false},
        "pusher": {"name": "octocat"}, "sender": {"login": "octocat", "id": 1},
        "commits": [],
    })
    .to_string()
}

fn pull(action: &str, head_repo: serde_json::Value) -> String {
    serde_json::json!({
        "action": action, "number": 7,
        "pull_request": {
            "title": "\";id;#",
            "head": {"ref": "$(touch /tmp/pwned)", "sha": HEAD, "repo": head_repo},
            "base": {"ref": "main", "sha": BASE, "repo": {"id": 1, "full_name": "team/app"}},
        },
        "repository": {"id": 1, "full_name": "team/app"},
        "sender": {"login": "stranger"},
    })
    .to_string()
}

#[test]
fn a_push_is_heard_from_each_forge() {
    for kind in Kind::ALL {
        let body = push("refs/heads/main", BASE, HEAD);
        let delivery = heard(kind, "push", &body).unwrap();
        assert_eq!(delivery.id, "72d3162e-cc78-11e3-81ab-4c9367dc0958");
        let Event::Push(push) = delivery.event else {
            panic!("{kind:?}");
        };
        assert_eq!(push.git_ref.as_str(), "refs/heads/main");
        assert_eq!(push.before, Some(Commit::parse(BASE).unwrap()));
        assert_eq!(
            (push.commit.as_str(), push.actor.as_str()),
            (HEAD, "octocat")
        );
    }
}

/// Somebody as Gitea and Forgejo write it: the name is there twice.
fn person(name: &str) -> serde_json::Value {
    serde_json::json!({
        "id": 1, "login": name, "login_name": "", "source_id": 0, "full_name": "",
        "email": format!("{name}@noreply.forge.example"),
        "avatar_url": "https://forge.example/avatars/1", "html_url": "https://forge.example/x",
        "language": "", "is_admin": false, "last_login": "0001-01-01T00:00:00Z",
        "created": "2026-01-01T00:00:00Z", "restricted": false, "active": false,
        "prohibit_login": false, "location": "", "website": "", "description": "",
        "visibility": "public", "followers_count": 0, "following_count": 0,
        "starred_repos_count": 0, "username": name,
    })
}

fn repository() -> serde_json::Value {
    serde_json::json!({
        "id": 1, "owner": person("team"), "name": "app", "full_name": "team/app",
        "description": "", "empty": false, "private": false, "fork": false, "template": false,
        "parent": null, "mirror": false, "size": 24, "default_branch": "main",
        "clone_url": "https://forge.example/team/app.git",
    })
}

#[test]
fn the_bodies_of_gitea_and_forgejo_are_understood() {
    let by = serde_json::json!({
        "name": "octocat", "email": "octocat@noreply.forge.example", "username": "octocat",
    });
    let commit = serde_json::json!({
        "id": HEAD, "message": "b\n", "url": format!("https://forge.example/team/app/commit/{HEAD}"),
        "author": by, "committer": by, "verification": null,
        "timestamp": "2026-01-01T00:00:00Z", "added": [], "removed": [], "modified": ["README.md"],
    });
    let push = serde_json::json!({
        "ref": "refs/heads/main", "before": BASE, "after": HEAD,
        "compare_url": "https://forge.example/team/app/compare/x...y",
        "commits": [commit], "total_commits": 1, "head_commit": commit,
        "repository": repository(), "pusher": person("octocat"), "sender": person("octocat"),
    });
    // A head without a fork, as `git push origin HEAD:refs/for/main` makes one, is a stranger's.
    let pull = |head_ref: &str| {
        serde_json::json!({
            "action": "synchronized", "number": 7,
            "pull_request": {
                "id": 3, "number": 7, "user": person("stranger"), "title": "t", "state": "open",
                "labels": [], "milestone": null, "mergeable": true, "merged": false,
                "base": {"label": "main", "ref": "main", "sha": BASE, "repo_id": 1,
                    "repo": repository()},
                "head": {"label": "", "ref": head_ref, "sha": HEAD, "repo_id": 1,
                    "repo": repository()},
                "merge_base": BASE,
            },
            "requested_reviewer": null, "repository": repository(), "sender": person("stranger"),
            "commit_id": "", "review": null,
        })
    };
    for kind in [Kind::Gitea, Kind::Forgejo] {
        let delivery = heard(kind, "push", &push.to_string()).unwrap();
        assert!(matches!(delivery.event, Event::Push(it) if it.actor == "octocat"));
        // T5
        for (head_ref, fork) in [("topic", false), ("refs/pull/7/head", true)] {
            let delivery = heard(kind, "pull_request", &pull(head_ref).to_string()).unwrap();
            let Event::PullRequest(it) = delivery.event else {
                panic!("{kind:?}");
            };
            assert_eq!(
                (it.fork, it.actor.as_str()),
                (fork, "stranger"),
                "{head_ref}"
            );
        }
    }
}

#[test]
fn new_and_deleted_branches_and_tags_are_told_apart() {
    let zero = "0".repeat(40);
    let new = heard(Kind::GitHub, "push", &push("refs/heads/x", &zero, HEAD)).unwrap();
    assert!(matches!(new.event, Event::Push(it) if it.before.is_none()));
    let gone = heard(Kind::GitHub, "push", &push("refs/heads/x", HEAD, &zero)).unwrap();
    assert!(matches!(gone.event, Event::Deleted { .. }));
    // The object of an annotated tag is not the commit.
    let tag = push("refs/tags/v1", &zero, BASE);
    let mut tag: serde_json::Value = serde_json::from_str(&tag).unwrap();
    tag["head_commit"] = serde_json::json!({"id": HEAD});
    let tag = heard(Kind::GitHub, "push", &tag.to_string()).unwrap();
    assert!(matches!(tag.event, Event::Push(it)
        if it.git_ref.is_tag() && it.commit.as_str() == HEAD && it.after.as_str() == BASE));
    let notes = heard(Kind::GitHub, "push", &push("refs/notes/x", BASE, HEAD)).unwrap();
    assert!(matches!(notes.event, Event::Other { .. }));
}

#[test]
fn only_what_is_certainly_the_same_repository_is_no_fork() {
    // T5: in doubt it is one.
    use serde_json::json;
    let table = [
        (json!({"id": 1, "full_name": "team/app"}), false),
        (json!({"id": 1, "full_name": "Team/App"}), false),
        (json!({"id": 2, "full_name": "stranger/app"}), true),
        (json!({"id": 2, "full_name": "team/app"}), true),
        (json!({"id": 1, "full_name": "stranger/app"}), true),
        (json!(null), true),
    ];
    for (repo, fork) in table {
        for (kind, action) in [(Kind::GitHub, "synchronize"), (Kind::Gitea, "synchronized")] {
            let delivery = heard(kind, "pull_request", &pull(action, repo.clone())).unwrap();
            let Event::PullRequest(it) = delivery.event else {
                panic!();
            };
            assert_eq!(it.fork, fork, "{repo}");
            assert_eq!((it.number, it.head.as_str()), (7, HEAD));
            assert_eq!(it.base.as_str(), "refs/heads/main");
            assert_eq!(it.head_branch, "$(touch /tmp/pwned)", "data stays data");
        }
    }
}

#[test]
fn every_action_of_a_request_is_known_or_starts_nothing() {
    let repo = serde_json::json!({"id": 1, "full_name": "team/app"});
    for action in ["opened", "reopened", "synchronize", "synchronized"] {
        let heard = heard(Kind::Forgejo, "pull_request", &pull(action, repo.clone()));
        assert!(
            matches!(heard.unwrap().event, Event::PullRequest(_)),
            "{action}"
        );
    }
    let closed = heard(Kind::GitHub, "pull_request", &pull("closed", repo.clone()));
    assert_eq!(closed.unwrap().event, Event::Closed { number: 7 });
    for action in ["labeled", "edited", "review_requested", ""] {
        let heard = heard(Kind::GitHub, "pull_request", &pull(action, repo.clone()));
        assert!(
            matches!(heard.unwrap().event, Event::Other { .. }),
            "{action}"
        );
    }
    // Where it is to go is another question: GitHub's word for it, and Gitea's.
    for (kind, changes) in [
        (
            Kind::GitHub,
            serde_json::json!({"base": {"ref": {"from": "release"}}}),
        ),
        (Kind::Gitea, serde_json::json!({"ref": {"from": "release"}})),
    ] {
        let body = pull("edited", repo.clone());
        let mut body: serde_json::Value = serde_json::from_str(&body).unwrap();
        body["changes"] = changes;
        let moved = heard(kind, "pull_request", &body.to_string()).unwrap();
        assert!(matches!(moved.event, Event::PullRequest(_)), "{kind:?}");
        body["changes"] = serde_json::json!({"title": {"from": "x"}});
        let renamed = heard(kind, "pull_request", &body.to_string()).unwrap();
        assert!(matches!(renamed.event, Event::Other { .. }), "{kind:?}");
    }
    let ping = heard(Kind::GitHub, "ping", r#"{"zen":"Design for failure."}"#);
    assert_eq!(ping.unwrap().event, Event::Ping);
}

#[test]
fn a_form_is_signed_as_it_is_sent_and_read_by_its_payload() {
    let json = push("refs/heads/a+b&c=%41", BASE, HEAD);
    let escaped = json.bytes().map(|byte| match byte {
        b' ' => "+".to_owned(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    let form = format!("payload={}", escaped.collect::<String>());
    let judge = |body: &str, kind: &'static str| {
        let mut headers = signed(Kind::GitHub, "push", body.as_bytes());
        headers.insert("content-type", kind.parse().unwrap());
        let secret = Secret::new(SECRET);
        read(Kind::GitHub, &headers, body.as_bytes(), &secret, "team/app")
    };
    let plain = judge(&json, "application/json").unwrap();
    for kind in [
        "application/x-www-form-urlencoded",
        "Application/X-WWW-Form-Urlencoded; charset=utf-8",
    ] {
        assert_eq!(judge(&form, kind).as_ref(), Ok(&plain));
    }
    let empty = judge("other=1", "application/x-www-form-urlencoded").unwrap_err();
    assert!(empty.to_string().contains("application/json"), "{empty}");
}

#[test]
fn what_is_not_signed_by_this_repositorys_secret_is_nothing() {
    // T18: missing, short, of SHA-1, of another secret, of other bytes, under another forge's name.
    let body = push("refs/heads/main", BASE, HEAD);
    let secret = Secret::new(SECRET);
    let judge = |headers: &HeaderMap, body: &str, secret: &Secret| {
        read(Kind::GitHub, headers, body.as_bytes(), secret, "team/app")
    };
    let good = signed(Kind::GitHub, "push", body.as_bytes());
    assert!(judge(&good, &body, &secret).is_ok());
    let other = Secret::new("the secret of another repository");
    assert_eq!(judge(&good, &body, &other), Err(BadDelivery::Signature));
    let swapped = body.replace("main", "prod");
    assert_eq!(judge(&good, &swapped, &secret), Err(BadDelivery::Signature));
    let mut bad = good.clone();
    bad.remove("x-hub-signature-256");
    bad.insert("x-hub-signature", HeaderValue::from_static("sha1=00"));
    assert_eq!(judge(&bad, &body, &secret), Err(BadDelivery::Signature));
    for value in ["", "sha256=", "sha256=00", "sha1=00"] {
        bad.insert("x-hub-signature-256", HeaderValue::from_static(value));
        assert_eq!(
            judge(&bad, &body, &secret),
            Err(BadDelivery::Signature),
            "{value}"
        );
    }
    let gitea = signed(Kind::Gitea, "push", body.as_bytes());
    assert_eq!(judge(&gitea, &body, &secret), Err(BadDelivery::Signature));
    let mut nameless = good.clone();
    nameless.remove("x-github-delivery");
    let refused = judge(&nameless, &body, &secret);
    assert_eq!(refused, Err(BadDelivery::Header("x-github-delivery")));
}

#[test]
fn a_delivery_about_another_repository_is_refused() {
    let body = push("refs/heads/main", BASE, HEAD).replace("team/app", "team/other");
    let refused = heard(Kind::GitHub, "push", &body);
    assert!(
        matches!(refused, Err(BadDelivery::OtherRepository { .. })),
        "{refused:?}"
    );
}

#[test]
fn hostile_bodies_are_refused_and_never_more() {
    let deep = "[".repeat(100_000);
    let cases = [
        "",
        "null",
        "{}",
        "{\"repository\":{\"full_name\":7}}",
        deep.as_str(),
        &push("refs/heads/a b", BASE, HEAD),
        &push("refs/heads/main", "x", HEAD),
        &push("refs/heads/main", BASE, "--upload-pack=id"),
    ];
    for body in cases {
        let refused = heard(Kind::GitHub, "push", body);
        assert!(matches!(refused, Err(BadDelivery::Body(_))), "{refused:?}");
    }
}
