//! Who may change a state: facts, and nobody else.

use std::path::Path;

#[test]
fn states_are_assigned_by_facts_alone() {
    // SM-70, SM-54, RP-17, A62: the one file that moves a state is the one that applies facts.
    let src = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
    let mut assigning = Vec::new();
    let mut folders = vec![src.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let moves = ["state = ", "outcome = ", "resolution = "];
            if code
                .lines()
                .any(|line| moves.iter().any(|m| line.contains(&format!(".{m}"))))
            {
                assigning.push(path.strip_prefix(src).unwrap().display().to_string());
            }
        }
    }
    assert_eq!(assigning, ["fact.rs"]);
}
