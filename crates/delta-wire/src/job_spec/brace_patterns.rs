//! What the braces of a pattern stand for: `{a,b}` is either of the two. Bounded, because each of
//! them is matched on its own by whoever looks for files.

/// Texts that the braces of one pattern may stand for.
pub const MAX_ALTERNATIVES: usize = 64;

/// The pattern with its braces resolved; nothing when they stand for more than may be.
pub fn alternatives(pattern: &str) -> Option<Vec<Vec<u8>>> {
    let mut texts = Vec::new();
    expand(pattern.as_bytes(), &mut texts)?;
    Some(texts)
}

/// Resolves the first braces, and those in what they stand for.
fn expand(text: &[u8], into: &mut Vec<Vec<u8>>) -> Option<()> {
    let Some((from, to, commas)) = braces(text) else {
        if into.len() >= MAX_ALTERNATIVES {
            return None;
        }
        into.push(text.to_vec());
        return Some(());
    };
    let mut start = from + 1;
    for end in commas.into_iter().chain([to]) {
        let words = [&text[..from], &text[start..end], &text[to + 1..]];
        expand(&words.concat(), into)?;
        start = end + 1;
    }
    Some(())
}

/// The first pair of braces with a comma in it.
fn braces(text: &[u8]) -> Option<(usize, usize, Vec<usize>)> {
    for from in (0..text.len()).filter(|at| text[*at] == b'{') {
        let (mut depth, mut commas) = (0_usize, Vec::new());
        for (at, byte) in text.iter().enumerate().skip(from) {
            match byte {
                b'{' => depth += 1,
                b',' if depth == 1 => commas.push(at),
                b'}' if depth == 1 && !commas.is_empty() => return Some((from, at, commas)),
                b'}' if depth == 1 => break,
                b'}' => depth -= 1,
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_stand_for_so_many_texts_and_no_more() {
        let resolved = |pattern: &str| {
            let texts = alternatives(pattern)?.into_iter();
            Some(
                texts
                    .map(|it| String::from_utf8(it).unwrap())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(resolved("a{b,c{d,e}}").unwrap(), ["ab", "acd", "ace"]);
        assert_eq!(resolved("{a}{b").unwrap(), ["{a}{b"]);
        assert_eq!(
            resolved(&"{a,b}".repeat(6)).unwrap().len(),
            MAX_ALTERNATIVES
        );
        assert_eq!(resolved(&"{a,b}".repeat(7)), None);
        assert_eq!(resolved(&"{a,b,c,d}".repeat(500)), None);
    }
}
