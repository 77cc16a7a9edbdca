//! The nearest known name to a mistyped one. Owns the distance and the threshold; knows no format.

/// Names longer than this are not compared: no key or job name is this long, and the comparison
/// costs the product of both lengths.
const MAX_COMPARED_CHARS: usize = 128;

/// The known name nearest to `name`, when it is near enough to be a plausible slip: one edit in
/// three characters, and at least one edit allowed.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    let allowed = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .filter_map(|candidate| {
            let distance = distance(&name, &candidate.to_lowercase())?;
            (distance <= allowed).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, delete, replace, swap of neighbours) between two words.
fn distance(left: &str, right: &str) -> Option<usize> {
    let left: Vec<char> = left.chars().take(MAX_COMPARED_CHARS + 1).collect();
    let right: Vec<char> = right.chars().take(MAX_COMPARED_CHARS + 1).collect();
    if left.len() > MAX_COMPARED_CHARS || right.len() > MAX_COMPARED_CHARS {
        return None;
    }
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for i in 1..=left.len() {
        let mut row = vec![i; right.len() + 1];
        for j in 1..=right.len() {
            let replace = last[j - 1] + usize::from(left[i - 1] != right[j - 1]);
            row[j] = replace.min(last[j] + 1).min(row[j - 1] + 1);
            let swapped =
                i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
            if swapped {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name() {
        let known = ["steps", "env", "needs", "timeout"];
        assert_eq!(nearest("step", known), Some("steps"));
        assert_eq!(nearest("setps", known), Some("steps"));
        assert_eq!(nearest("Timeout", known), Some("timeout"));
        assert_eq!(nearest("nedes", known), Some("needs"));
    }

    #[test]
    fn an_unrelated_word_finds_nothing() {
        assert_eq!(nearest("image", ["steps", "env", "needs"]), None);
        assert_eq!(nearest(&"x".repeat(10_000), ["steps"]), None);
    }
}
