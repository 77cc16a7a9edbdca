//! Frames: four bytes of length, the highest first, and that many bytes of JSON (RQ-10).
//!
//! The length is judged before anything is kept for it: whoever announces more than a frame may
//! have has ended the connection.

/// Bytes of a frame's JSON, as every implementation has it.
pub const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of the length in front.
const PREFIX: usize = 4;

/// What no reader recovers from: where the next frame begins is not known any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame has no bytes")]
    Empty,
    #[error("a frame of {0} bytes is larger than {MAX_FRAME_BYTES}")]
    TooLarge(u32),
}

/// Cuts a stream into frames, however its bytes arrive.
#[derive(Debug, Default)]
pub struct Frames {
    held: Vec<u8>,
    /// Bytes of `held` that were handed out.
    taken: usize,
}

impl Frames {
    pub fn new() -> Frames {
        Frames::default()
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.held.drain(..self.taken);
            self.taken = 0;
        }
        self.held.extend_from_slice(bytes);
    }

    /// The JSON of the next frame that is there as a whole.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let rest = &self.held[self.taken..];
        let Some((prefix, rest)) = rest.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let said = u32::from_be_bytes(*prefix);
        let length = match usize::try_from(said) {
            Ok(0) => return Err(FrameError::Empty),
            Ok(length) if length <= MAX_FRAME_BYTES => length,
            _ => return Err(FrameError::TooLarge(said)),
        };
        if rest.len() < length {
            return Ok(None);
        }
        let begin = self.taken + PREFIX;
        self.taken = begin + length;
        Ok(Some(&self.held[begin..self.taken]))
    }

    /// Whether the stream ended between two frames.
    pub fn is_between_frames(&self) -> bool {
        self.taken == self.held.len()
    }
}

/// The frame of this JSON; nothing when it is larger than a frame may be.
pub(crate) fn of(json: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(json.len()).ok()?;
    (1..=MAX_FRAME_BYTES)
        .contains(&json.len())
        .then(|| [&length.to_be_bytes()[..], json].concat())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(frames: &mut Frames) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut found = Vec::new();
        while let Some(frame) = frames.next_frame()? {
            found.push(frame.to_vec());
        }
        Ok(found)
    }

    // RQ-10, A52
    #[test]
    fn a_length_is_judged_before_its_bytes_come() {
        for (prefix, wrong) in [
            ([0; 4], FrameError::Empty),
            ([1, 0, 0, 1], FrameError::TooLarge(16_777_217)),
            ([0xff; 4], FrameError::TooLarge(u32::MAX)),
        ] {
            let mut frames = Frames::new();
            frames.push(&prefix);
            assert_eq!(frames.next_frame(), Err(wrong));
        }
        let mut frames = Frames::new();
        frames.push(&[1, 0, 0, 0]);
        assert_eq!(frames.next_frame(), Ok(None), "as large as one may be");
        assert!(!frames.is_between_frames());
    }

    #[test]
    fn the_largest_frame_is_one_and_a_byte_more_is_none() {
        let largest = vec![b' '; MAX_FRAME_BYTES];
        let made = of(&largest).unwrap();
        let mut frames = Frames::new();
        frames.push(&made);
        assert_eq!(frames.next_frame().unwrap().unwrap().len(), MAX_FRAME_BYTES);
        assert!(frames.is_between_frames());
        assert_eq!(of(&[largest, vec![b' ']].concat()), None);
        assert_eq!(of(b""), None);
    }

    proptest! {
        // RQ-10: split and coalesced anywhere.
        #[test]
        fn frames_are_the_same_however_their_bytes_arrive(
            wanted in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8),
            cuts in prop::collection::vec(1usize..20, 0..200),
        ) {
            let stream: Vec<u8> = wanted.iter().flat_map(|json| of(json).unwrap()).collect();
            let (mut frames, mut found, mut rest) = (Frames::new(), Vec::new(), &stream[..]);
            for cut in cuts {
                let (piece, later) = rest.split_at(cut.min(rest.len()));
                frames.push(piece);
                found.extend(all(&mut frames).unwrap());
                rest = later;
            }
            frames.push(rest);
            found.extend(all(&mut frames).unwrap());
            prop_assert_eq!(found, wanted);
            prop_assert!(frames.is_between_frames());
        }
    }
}
