//! What a report may cost.

/// Bounds on one report.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes read. 100,000 cases of an ordinary tool take about 20 MB.
    pub bytes: u64,
    pub cases: u64,
    /// Elements or objects inside each other. Real reports stay below ten.
    pub depth: usize,
    /// Bytes of a suite's or a test's name.
    pub name: usize,
    pub message: usize,
    pub trace: usize,
    /// Entries of metadata; each is as long as a name at most.
    pub metadata: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bytes: 32 << 20,
            cases: 200_000,
            depth: 64,
            name: 1 << 10,
            message: 4 << 10,
            trace: 64 << 10,
            metadata: 32,
        }
    }
}

/// Cuts a text at a character, where it is too long or its end is missing already, and says so.
pub fn clip(text: &mut String, limit: usize, missing: bool) {
    const MARK: &str = " [cut]";
    if text.len() <= limit && !missing {
        return;
    }
    shorten(text, limit.saturating_sub(MARK.len()));
    text.push_str(MARK);
    // A report may have made us reserve far more than is kept.
    text.shrink_to_fit();
}

/// Cuts a text at a character, silently.
pub fn shorten(text: &mut String, limit: usize) {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_a_character() {
        let mut text = "ä".repeat(10);
        clip(&mut text, 13, false);
        assert_eq!(text, "äää [cut]");
        let mut short = "as it is".to_string();
        clip(&mut short, 8, false);
        assert_eq!(short, "as it is");
        clip(&mut short, 20, true);
        assert_eq!(short, "as it is [cut]");
    }
}
