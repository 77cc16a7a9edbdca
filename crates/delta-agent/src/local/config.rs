//! The configuration of a copy: the few settings of the person's repository that say what its files
//! and branches mean. Whatever starts a program, names a credential or reads another file stays
//! behind, and addresses lose what is secret in them.

use std::path::Path;

/// Sections, and of each the names that are taken over.
const TAKEN: [(&str, &[&str]); 6] = [
    (
        "core",
        &[
            "filemode",
            "ignorecase",
            "symlinks",
            "precomposeunicode",
            "autocrlf",
            "eol",
            "safecrlf",
            "abbrev",
        ],
    ),
    (
        "remote",
        &["url", "fetch", "tagopt", "promisor", "partialclonefilter"],
    ),
    ("branch", &["remote", "merge"]),
    ("submodule", &["url", "active"]),
    ("user", &["name", "email"]),
    ("extensions", &["partialclone"]),
];

/// The text of it. `listed` is what `git config --list -z` prints; `top` is where addresses that
/// are relative begin.
pub(super) fn text(listed: &[u8], format: &str, top: &Path) -> String {
    let mut text = String::from("[core]\n\tbare = false\n\tlogallrefupdates = true\n");
    // An older git, in an image, must not be asked for more than it has to know.
    text.push_str(match format {
        "sha1" => "\trepositoryformatversion = 0\n",
        _ => "\trepositoryformatversion = 1\n",
    });
    if format != "sha1" {
        text.push_str(&format!("[extensions]\n\tobjectformat = {format}\n"));
    }
    for entry in listed.split(|byte| *byte == 0) {
        let Ok(entry) = std::str::from_utf8(entry) else {
            continue;
        };
        let (key, value) = match entry.split_once('\n') {
            Some((key, value)) => (key, Some(value)),
            None => (entry, None),
        };
        if let Some(line) = taken(key, value, top) {
            text.push_str(&line);
        }
    }
    text
}

/// The setting as it is written down, if it is one that is taken over.
fn taken(key: &str, value: Option<&str>, top: &Path) -> Option<String> {
    let (section, rest) = key.split_once('.')?;
    let (within, name) = match rest.rsplit_once('.') {
        Some((within, name)) => (Some(within), name),
        None => (None, rest),
    };
    let (_, names) = TAKEN.iter().find(|(known, _)| *known == section)?;
    names.contains(&name).then_some(())?;
    let head = match within {
        Some(within) => format!("[{section} {}]", quoted(within)),
        None => format!("[{section}]"),
    };
    let value = match value {
        None => return Some(format!("{head}\n\t{name}\n")),
        Some(value) if name == "url" => without_secrets(value, top),
        Some(value) => value.to_owned(),
    };
    Some(format!("{head}\n\t{name} = {}\n", quoted(&value)))
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// An address without passwords and tokens. The user of an ssh address is none.
fn without_secrets(address: &str, top: &Path) -> String {
    let Some((scheme, rest)) = address.split_once("://") else {
        let relative = address.starts_with("./") || address.starts_with("../");
        return if relative {
            top.join(address).to_string_lossy().into_owned()
        } else {
            address.to_owned()
        };
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let (who, host) = match host.rsplit_once('@') {
        Some((who, host)) => (who, host),
        None => ("", host),
    };
    let user = who.split(':').next().unwrap_or_default();
    let user = if scheme.ends_with("ssh") && !user.is_empty() {
        format!("{user}@")
    } else {
        String::new()
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{user}{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_starts_a_program_or_is_secret_is_taken_over() {
        let listed = [
            "core.filemode\nfalse",
            "core.hookspath\n/my/hooks",
            "core.fsmonitor\n/my/watch",
            "core.sshcommand\nssh -i key",
            "core.worktree\n/elsewhere",
            "core.bare\ntrue",
            "credential.helper\nstore",
            "http.https://x.example/.extraheader\nAuthorization: canary",
            "include.path\n/my/more",
            "includeif.gitdir:~/work/.path\n/my/work",
            "url.https://canary@x.example/.insteadof\nx:",
            "filter.lfs.clean\ngit-lfs clean",
            "remote.origin.url\nhttps://me:canary@x.example/a.git?private_token=canary",
            "remote.origin.pushurl\nhttps://canary@x.example/a.git",
            "remote.origin.fetch\n+refs/heads/*:refs/remotes/origin/*",
            "remote.other \"x\".url\nssh://git:canary@x.example/b.git",
            "branch.a.b.merge\nrefs/heads/a.b",
            "submodule.s.active",
            "alias.x\n!canary",
        ];
        let text = text(listed.join("\0").as_bytes(), "sha256", Path::new("/my/app"));
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for line in [
            "filemode = \"false\"",
            "bare = false",
            "objectformat = sha256",
            "[remote \"origin\"]",
            "url = \"https://x.example/a.git\"",
            "[remote \"other \\\"x\\\"\"]",
            "url = \"ssh://git@x.example/b.git\"",
            "[branch \"a.b\"]",
            "[submodule \"s\"]",
        ] {
            assert!(lines.contains(&line), "{line} in\n{text}");
        }
        for word in [
            "canary", "hooks", "watch", "include", "filter", "key", "alias", "worktree", "true\"",
        ] {
            assert!(!text.contains(word), "{word} in\n{text}");
        }
    }

    #[test]
    fn an_address_keeps_its_way() {
        let top = Path::new("/my/app");
        for (address, kept) in [
            ("git@x.example:a/b.git", "git@x.example:a/b.git"),
            ("https://x.example/a@b.git", "https://x.example/a@b.git"),
            ("/srv/a.git", "/srv/a.git"),
            ("../a.git", "/my/app/../a.git"),
            ("file:///srv/a.git", "file:///srv/a.git"),
            ("https://x.example", "https://x.example"),
        ] {
            assert_eq!(without_secrets(address, top), kept);
        }
    }
}
