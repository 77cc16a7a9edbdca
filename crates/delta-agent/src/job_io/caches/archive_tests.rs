//! Archives as they are meant, and a corpus of those that are not (T10, T11).

use std::fs::{self, Permissions};
use std::io::Cursor;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::super::unpack::unpack;
use super::*;

fn me() -> Owner {
    Owner(rustix::process::geteuid().as_raw())
}

fn pack(root: &Path, paths: &[&str]) -> (Vec<u8>, Content) {
    let stopped = CancellationToken::new();
    let opened = Root::open(root).expect("a root");
    let mut packer = Packer::new(Vec::new(), me(), &stopped).expect("a packer");
    for path in paths {
        packer.add(WORKSPACE, &opened, path).expect("packed");
    }
    packer.finish().expect("an archive")
}

fn open(bytes: &[u8], packed: u64, into: &Path) -> Result<Content, ArchiveError> {
    let root = Root::open(into).expect("a root");
    unpack(Cursor::new(bytes), packed, &root, &CancellationToken::new())
}

#[test]
fn what_is_packed_is_what_is_unpacked_and_the_same_packs_the_same() {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("from");
    fs::create_dir_all(root.join("deps/.bin")).expect("folders");
    fs::create_dir_all(root.join("deps/empty")).expect("folders");
    let long = format!("deps/{}", "n".repeat(180));
    fs::write(root.join(&long), "long").expect("a file");
    fs::write(root.join("deps/tool"), "#!/bin/sh").expect("a file");
    fs::set_permissions(root.join("deps/tool"), Permissions::from_mode(0o4755)).expect("a mode");
    symlink("../tool", root.join("deps/.bin/tool")).expect("a link");
    symlink("n".repeat(180), root.join("deps/far")).expect("a link");
    symlink("/etc/passwd", root.join("deps/away")).expect("a link");
    symlink("../../up", root.join("deps/up")).expect("a link");
    fs::write(root.join("beside"), "not asked for").expect("a file");
    let (bytes, content) = pack(&root, &["deps", "missing"]);
    assert_eq!(content.left_out, 2, "links that lead away");
    assert_eq!(pack(&root, &["deps", "missing"]).0, bytes);
    let into = place.path().join("into");
    fs::create_dir(&into).expect("a folder");
    open(&bytes, bytes.len() as u64, &into).expect("unpacked");
    let deps = into.join("workspace/deps");
    assert_eq!(
        fs::read_to_string(deps.join("n".repeat(180))).expect("a file"),
        "long"
    );
    assert_eq!(
        fs::read_to_string(deps.join(".bin/tool")).expect("a link"),
        "#!/bin/sh"
    );
    assert_eq!(fs::read(deps.join("far")).expect("a link"), b"long");
    let mode = fs::metadata(deps.join("tool"))
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o755, "no special rights");
    assert!(deps.join("empty").is_dir() && !deps.join("away").exists());
    assert!(!into.join("workspace/beside").exists());
}

/// One crafted entry.
fn crafted(kind: EntryType, path: &[u8], link: &[u8], data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_mode(0o6777);
    // Past every check of the writer's.
    let name = &mut header.as_old_mut().name;
    name[..path.len()].copy_from_slice(path);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn sealed(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut tar = entries.concat();
    tar.extend_from_slice(&[0; 1024]);
    zstd::encode_all(Cursor::new(tar), 3).expect("packed")
}

type Corpus = Vec<(&'static str, Vec<Vec<u8>>)>;

fn extended(text: &[u8]) -> Vec<u8> {
    crafted(EntryType::XHeader, b"pax", b"", text)
}

/// An entry that is the long name of the next.
fn named(kind: EntryType, name: &[u8]) -> Vec<u8> {
    crafted(kind, b"././@LongLink", b"", name)
}

fn plain() -> Vec<u8> {
    crafted(EntryType::Regular, b"workspace/a", b"", b"x")
}

/// Paths that nobody packs who means well.
fn strange_paths() -> Corpus {
    use EntryType::Regular;
    vec![
        (
            "up",
            vec![crafted(Regular, b"workspace/../../x", b"", b"x")],
        ),
        (
            "absolute",
            vec![crafted(Regular, b"/tmp/delta-ci-escaped", b"", b"x")],
        ),
        ("no part", vec![crafted(Regular, b"x", b"", b"x")]),
        ("another part", vec![crafted(Regular, b"etc/x", b"", b"x")]),
        (
            "the part itself",
            vec![crafted(Regular, b"workspace", b"", b"x")],
        ),
        ("dots", vec![crafted(Regular, b"workspace/./a", b"", b"x")]),
        (
            "no text",
            vec![crafted(Regular, b"workspace/\xff", b"", b"x")],
        ),
    ]
}

/// Things that nobody packs who means well.
fn strange_things() -> Corpus {
    use EntryType::{Block, Char, Fifo, GNUSparse, Link, Regular, Symlink};
    vec![
        (
            "hard link",
            vec![crafted(Link, b"workspace/l", b"/etc/passwd", b"")],
        ),
        (
            "hard link inside",
            vec![plain(), crafted(Link, b"workspace/l", b"workspace/a", b"")],
        ),
        ("pipe", vec![crafted(Fifo, b"workspace/p", b"", b"")]),
        ("device", vec![crafted(Char, b"workspace/d", b"", b"")]),
        ("disk", vec![crafted(Block, b"workspace/d", b"", b"")]),
        (
            "sparse",
            vec![crafted(GNUSparse, b"workspace/s", b"", b"x")],
        ),
        (
            "absolute link",
            vec![crafted(Symlink, b"workspace/l", b"/etc", b"")],
        ),
        (
            "link up",
            vec![crafted(Symlink, b"workspace/l", b"../x", b"")],
        ),
        (
            "link in and up",
            vec![crafted(Symlink, b"workspace/d/l", b"a/../../../x", b"")],
        ),
        (
            "through a link",
            vec![
                crafted(Symlink, b"workspace/d/l", b"..", b""),
                crafted(Regular, b"workspace/d/l/x", b"", b"x"),
            ],
        ),
        (
            "pax path",
            vec![extended(b"29 path=workspace/../../../x\n"), plain()],
        ),
        ("broken pax", vec![extended(b"99 path=x\n"), plain()]),
        ("pax size", vec![extended(b"11 size=99\n"), plain()]),
        (
            "pax link",
            vec![
                extended(b"23 linkpath=../../../x\n"),
                crafted(Symlink, b"workspace/l", b"a", b""),
            ],
        ),
        (
            "torn",
            vec![crafted(Regular, b"workspace/a", b"", &[1; 600])[..700].to_vec()],
        ),
    ]
}

/// Names in entries of their own, as nobody packs them who means well.
fn strange_names() -> Corpus {
    use EntryType::{GNULongLink, GNULongName, Symlink, XGlobalHeader};
    let link = || crafted(Symlink, b"workspace/l", b"a", b"");
    let name = |name: &[u8]| named(GNULongName, name);
    vec![
        ("long name up", vec![name(b"workspace/../../x"), plain()]),
        (
            "long name with a NUL",
            vec![name(b"workspace/a\0b\0"), plain()],
        ),
        (
            "two long names",
            vec![name(b"workspace/b"), name(b"workspace/c"), plain()],
        ),
        ("a name of nothing", vec![plain(), name(b"workspace/b\0")]),
        ("no name", vec![name(b""), plain()]),
        ("a name too long", vec![name(&[b'n'; 9000]), plain()]),
        (
            "a path too long",
            vec![
                name(&[b"workspace/".as_slice(), &[b'n'; 5000]].concat()),
                plain(),
            ],
        ),
        (
            "long link up",
            vec![named(GNULongLink, b"../../x\0"), link()],
        ),
        (
            "a link too long",
            vec![named(GNULongLink, &[b'n'; 9000]), link()],
        ),
        (
            "global pax",
            vec![
                crafted(XGlobalHeader, b"pax", b"", b"11 path=/x\n"),
                plain(),
            ],
        ),
        ("large pax", vec![extended(&[b'1'; 70_000]), plain()]),
    ]
}

// T10
#[test]
fn no_crafted_archive_leaves_its_folder_or_makes_anything_strange() {
    let all = strange_paths().into_iter().chain(strange_things());
    let all = all.chain(strange_names());
    for (what, entries) in all {
        let place = tempfile::tempdir().expect("a folder");
        let into = place.path().join("into");
        fs::create_dir(&into).expect("a folder");
        let bytes = match what {
            "torn" => zstd::encode_all(Cursor::new(entries.concat()), 3).expect("packed"),
            _ => sealed(&entries),
        };
        let refused = open(&bytes, bytes.len() as u64, &into);
        assert!(refused.is_err(), "{what}: {refused:?}");
        let beside: Vec<_> = fs::read_dir(place.path()).expect("a folder").collect();
        assert_eq!(beside.len(), 1, "{what}: nothing beside its folder");
        assert!(!Path::new("/tmp/delta-ci-escaped").exists(), "{what}");
    }
    let place = tempfile::tempdir().expect("a folder");
    let garbage = open(b"not zstd at all", 15, place.path());
    assert!(garbage.is_err(), "{garbage:?}");
}

// T11
#[test]
fn a_bomb_is_given_up_and_costs_no_more_than_its_bound() {
    let place = tempfile::tempdir().expect("a folder");
    let zeros = vec![0; 80 * 1024 * 1024];
    let bytes = sealed(&[crafted(EntryType::Regular, b"workspace/zeros", b"", &zeros)]);
    assert!(bytes.len() < 100_000);
    let bomb = open(&bytes, bytes.len() as u64, place.path());
    assert!(matches!(bomb, Err(ArchiveError::TooLarge)), "{bomb:?}");
    // A header that promises more than comes.
    let mut lie = crafted(EntryType::Regular, b"workspace/lie", b"", b"x");
    let mut header = Header::from_byte_slice(&lie[..512]).clone();
    header.set_size(u64::MAX / 2);
    header.set_cksum();
    lie[..512].copy_from_slice(header.as_bytes());
    let bytes = sealed(&[lie]);
    let lie = open(&bytes, bytes.len() as u64, place.path());
    assert!(lie.is_err(), "{lie:?}");
}

/// The most memory this process has had at once, in kilobytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let count = line.and_then(|line| line.split_whitespace().nth(1));
    count.and_then(|it| it.parse().ok()).expect("a number")
}

// T11
#[test]
fn a_name_is_measured_before_it_is_read() {
    const NAME_BYTES: u64 = 768 * 1024 * 1024;
    for kind in [
        EntryType::GNULongName,
        EntryType::GNULongLink,
        EntryType::XHeader,
    ] {
        let mut header = Header::from_byte_slice(&named(kind, b"")[..512]).clone();
        header.set_size(NAME_BYTES);
        header.set_cksum();
        let name = header.as_bytes().chain(io::repeat(b'n').take(NAME_BYTES));
        let bytes = zstd::encode_all(name, 1).expect("packed");
        let (place, before) = (tempfile::tempdir().expect("a folder"), peak());
        let refused = open(&bytes, bytes.len() as u64, place.path());
        assert!(
            matches!(refused, Err(ArchiveError::Strange(_))),
            "{kind:?}: {refused:?}"
        );
        let grown = peak() - before;
        assert!(grown < 256 * 1024, "{kind:?}: {grown} kB more memory");
    }
}

// T11
#[test]
fn links_are_held_in_no_more_memory_than_their_bound() {
    let place = tempfile::tempdir().expect("a folder");
    let target = vec![b'n'; 4000];
    let mut tar = Vec::new();
    for n in 0..18_000 {
        tar.extend(named(EntryType::GNULongLink, &target));
        let path = format!("workspace/{n}");
        tar.extend(crafted(EntryType::Symlink, path.as_bytes(), b"", b""));
    }
    let bytes = sealed(&[tar]);
    let many = open(&bytes, bytes.len() as u64, place.path());
    assert!(matches!(many, Err(ArchiveError::TooLarge)), "{many:?}");
}

#[test]
fn links_that_stay_are_told_from_those_that_leave() {
    for (path, target, inside) in [
        ("a/l", "b", true),
        ("a/l", "./b/c", true),
        ("a/b/l", "../c", true),
        ("l", "..", false),
        ("a/l", "..", true),
        ("a/l", "../..", false),
        ("a/l", "b/../c", false),
        ("a/l", "/a", false),
        ("a/l", "", false),
    ] {
        assert_eq!(stays(path, target), inside, "{path} -> {target}");
    }
}

fn packing(root: &Path, path: &str) -> Result<(Vec<u8>, Content), ArchiveError> {
    let stopped = CancellationToken::new();
    let mut packer = Packer::new(Vec::new(), me(), &stopped).expect("a packer");
    packer.add(WORKSPACE, &Root::open(root).expect("a root"), path)?;
    packer.finish()
}

// T11
#[test]
fn what_could_not_be_unpacked_again_is_not_packed() {
    let place = tempfile::tempdir().expect("a folder");
    fs::create_dir(place.path().join("zeros")).expect("a folder");
    let zeros = fs::File::create(place.path().join("zeros/file")).expect("a file");
    zeros.set_len(80 * 1024 * 1024).expect("zeros");
    let bomb = packing(place.path(), "zeros");
    let said = bomb.expect_err("a bomb").to_string();
    assert!(said.contains("83.9 MB would come out of"), "{said}");
    // As deep as can be below its own path, and too deep below the workspace.
    let above = ["d"; 8].join("/");
    let deep = format!("{above}/{}", ["d"; MAX_DEPTH].join("/"));
    fs::create_dir_all(place.path().join(deep)).expect("folders");
    let deep = packing(place.path(), &above);
    assert!(matches!(deep, Err(ArchiveError::NoWayBack(_))), "{deep:?}");
    // What is within both bounds comes back.
    zeros.set_len(60 * 1024 * 1024).expect("zeros");
    let (bytes, _) = packing(place.path(), "zeros").expect("packed");
    let into = tempfile::tempdir().expect("a folder");
    open(&bytes, bytes.len() as u64, into.path()).expect("unpacked");
}

#[test]
fn a_name_that_is_no_text_is_left_out_and_counted() {
    use std::os::unix::ffi::OsStrExt;
    let place = tempfile::tempdir().expect("a folder");
    let deps = place.path().join("deps");
    fs::create_dir_all(deps.join(std::ffi::OsStr::from_bytes(b"f\xff"))).expect("a folder");
    fs::write(deps.join(std::ffi::OsStr::from_bytes(b"\xff")), "x").expect("a file");
    fs::write(deps.join("plain"), "x").expect("a file");
    let (_, content) = pack(place.path(), &["deps"]);
    assert_eq!((content.entries, content.left_out), (2, 2));
}

// T11, D15
#[test]
fn a_folder_of_many_names_is_given_up_before_they_are_held() {
    let place = tempfile::tempdir().expect("a folder");
    fs::create_dir(place.path().join("deps")).expect("a folder");
    for n in 0..100 {
        fs::write(place.path().join(format!("deps/{n}")), "").expect("a file");
    }
    let (stopped, root) = (
        CancellationToken::new(),
        Root::open(place.path()).expect("a root"),
    );
    let mut packer = Packer::new(Vec::new(), me(), &stopped).expect("a packer");
    packer.most = 100;
    let many = packer.add(WORKSPACE, &root, "deps");
    assert!(matches!(many, Err(ArchiveError::TooLarge)), "{many:?}");
    assert_eq!(packer.content.entries, 1, "it was the folder that told");
    let mut packer = Packer::new(Vec::new(), me(), &stopped).expect("a packer");
    packer.most = 101;
    packer.add(WORKSPACE, &root, "deps").expect("packed");
}

// T11, D15
#[test]
fn names_below_a_long_path_are_held_without_it() {
    const FILES: u64 = 20_000;
    let place = tempfile::tempdir().expect("a folder");
    let mut root = Root::open(place.path()).expect("a root");
    let above = vec!["a".repeat(250); 15].join("/");
    root = root.make_folder(&above).expect("folders");
    for n in 0..FILES {
        root.create(&n.to_string(), 0o600).expect("a file");
    }
    let before = peak();
    let (_, content) = packing(place.path(), &above).expect("packed");
    assert_eq!(content.entries as u64, FILES + 1);
    // The path alone is nearly 4 kB.
    let grown = peak() - before;
    assert!(grown < FILES * 2, "{grown} kB more memory");
}
