//! The toolchain that a repository asks for, as a requirement on agents: the lowest version that
//! its own files allow. What cannot be understood asks for the tool in any version.

use std::collections::BTreeMap;

/// `node>=20` for `^20.1 || >=22`; `node` for what is no range.
pub fn requirement(tool: &str, range: &str) -> String {
    match lowest(range) {
        Some(version) => format!("{tool}>={version}"),
        None => tool.to_owned(),
    }
}

/// The lowest version that a range allows, in numbers and dots. An upper bound (`<4`) and what is
/// excluded (`!=3.9`) say nothing about it.
pub fn lowest(range: &str) -> Option<String> {
    let alternatives = range.split("||").map(lower_bound);
    let bounds: Option<Vec<Vec<u32>>> = alternatives.collect();
    let least = bounds?.into_iter().min()?;
    let text: Vec<String> = least.iter().map(u32::to_string).collect();
    Some(text.join("."))
}

/// The highest of the lower bounds of one alternative: all of them hold.
fn lower_bound(range: &str) -> Option<Vec<u32>> {
    // `>= 18` is one bound.
    let joined = range.replace(',', " ");
    let mut words: Vec<String> = Vec::new();
    for word in joined.split_whitespace() {
        match words.last_mut() {
            Some(last) if !last.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '*') => {
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    let hyphen = words.iter().position(|word| word.starts_with('-'));
    let words = &words[..hyphen.unwrap_or(words.len())];
    words.iter().filter_map(|word| bound(word)).max()
}

fn bound(word: &str) -> Option<Vec<u32>> {
    let digits = word.trim_start_matches(['>', '=', '^', '~', 'v']);
    if word.starts_with(['<', '!']) {
        return None;
    }
    let mut numbers = Vec::new();
    for part in digits.split('.').take(3) {
        match part.parse() {
            Ok(number) => numbers.push(number),
            Err(_) => break,
        }
    }
    (!numbers.is_empty()).then_some(numbers)
}

/// What a requirement is about, whatever its version.
pub fn tool_of(requirement: &str) -> &str {
    requirement.split(">=").next().unwrap_or(requirement)
}

/// Of several requirements on one tool the one that includes the others.
pub fn strictest(requirements: &[String]) -> Vec<String> {
    let mut tools: BTreeMap<&str, (Vec<u32>, &String)> = BTreeMap::new();
    for text in requirements {
        let (tool, version) = text.split_once(">=").unwrap_or((text, ""));
        let version = bound(version).unwrap_or_default();
        match tools.get(tool) {
            Some((known, _)) if *known >= version => {}
            _ => drop(tools.insert(tool, (version, text))),
        }
    }
    tools.into_values().map(|(_, text)| text.clone()).collect()
}

/// The first line of a version file such as `.nvmrc` that is not a remark.
pub fn of_file(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    line.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_requirements_the_strictest_stays() {
        let texts = ["node>=18", "go", "node>=20.1", "node", "node>=20"].map(str::to_owned);
        assert_eq!(strictest(&texts), ["go", "node>=20.1"]);
    }

    #[test]
    fn a_range_becomes_its_lowest_version() {
        for (range, wanted) in [
            (">=18", "node>=18"),
            (">= 18.2 <23", "node>=18.2"),
            ("^20.9 || >=22", "node>=20.9"),
            ("v20.11.1", "node>=20.11.1"),
            ("20.x", "node>=20"),
            ("~=3.11", "node>=3.11"),
            (">=3.9,<4", "node>=3.9"),
            (">=3.9,!=3.9.7", "node>=3.9"),
            ("==3.12.*", "node>=3.12"),
            ("18 - 20", "node>=18"),
            ("lts/iron", "node"),
            ("*", "node"),
            ("<20", "node"),
            ("", "node"),
            ("system", "node"),
            ("99999999999999", "node"),
        ] {
            assert_eq!(requirement("node", range), wanted, "{range}");
        }
    }
}
