//! The known name nearest to an unknown one, for "did you mean".

/// Names longer than this are not compared: nobody mistypes their way to 64 letters, and the
/// comparison costs the product of both lengths.
const MAX_COMPARED: usize = 64;

/// The known name that most likely was meant, or nothing when none is near. Of two equally near
/// ones, the first.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_COMPARED {
        return None;
    }
    let name = name.to_lowercase().replace('-', "_");
    // A third of the letters may be wrong, and at least one.
    let allowed = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (distance(&name, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `left` into `right`.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let width = right.len() + 1;
    let mut rows = vec![0; (left.len() + 1) * width];
    for i in 0..=left.len() {
        for j in 0..=right.len() {
            rows[i * width + j] = if i == 0 || j == 0 {
                i + j
            } else {
                let same = usize::from(left[i - 1] != right[j - 1]);
                let mut best = (rows[(i - 1) * width + j] + 1)
                    .min(rows[i * width + j - 1] + 1)
                    .min(rows[(i - 1) * width + j - 1] + same);
                let swapped = i > 1 && j > 1 && left[i - 1] == right[j - 2];
                if swapped && left[i - 2] == right[j - 1] {
                    best = best.min(rows[(i - 2) * width + j - 2] + 1);
                }
                best
            };
        }
    }
    rows[left.len() * width + right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 5] = ["name", "needs", "required", "requires", "max_attempts"];

    #[test]
    fn a_slip_of_the_finger_finds_its_name() {
        assert_eq!(nearest("neds", KNOWN), Some("needs"));
        assert_eq!(nearest("nmae", KNOWN), Some("name"));
        assert_eq!(nearest("Required", KNOWN), Some("required"));
        assert_eq!(nearest("max-attempts", KNOWN), Some("max_attempts"));
        assert_eq!(nearest("max_attempt", KNOWN), Some("max_attempts"));
    }

    #[test]
    fn something_else_finds_nothing() {
        assert_eq!(nearest("colour", KNOWN), None);
        assert_eq!(nearest("", KNOWN), None);
        assert_eq!(nearest(&"n".repeat(10_000), KNOWN), None);
    }
}
