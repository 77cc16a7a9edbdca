//! Tables by a few neighbouring bytes, as large as what is in them needs and small enough to stay
//! near the processor: they say of most places that nothing is there.

/// Pairs of bytes.
const PAIRS: usize = 1 << 16;

/// A set of pairs.
pub(super) struct Pairs(Box<[u64; PAIRS / 64]>);

impl Default for Pairs {
    fn default() -> Pairs {
        Pairs(Box::new([0; PAIRS / 64]))
    }
}

impl Pairs {
    pub fn add(&mut self, pair: u16) {
        self.0[usize::from(pair / 64)] |= 1 << (pair % 64);
    }

    pub fn has(&self, pair: u16) -> bool {
        self.0[usize::from(pair / 64)] & (1 << (pair % 64)) != 0
    }
}

pub(super) fn pair(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// A value for each word of four bytes, by its hash: several words share one.
pub(super) struct Table<T> {
    values: Box<[T]>,
    shift: u32,
}

impl<T: Copy> Table<T> {
    /// Places for each word that will be in it: few others are taken for one of them then.
    const ROOM: usize = 32;
    const FEWEST_BITS: u32 = 12;
    const MOST_BITS: u32 = 20;

    pub fn new(words: usize, value: T) -> Table<T> {
        let bits = (words * Table::<T>::ROOM).next_power_of_two().ilog2();
        let bits = bits.clamp(Table::<T>::FEWEST_BITS, Table::<T>::MOST_BITS);
        Table {
            values: vec![value; 1 << bits].into_boxed_slice(),
            shift: u32::BITS - bits,
        }
    }

    #[inline]
    pub fn at(&self, word: u32) -> T {
        self.values[self.index(word)]
    }

    pub fn at_mut(&mut self, word: u32) -> &mut T {
        let index = self.index(word);
        &mut self.values[index]
    }

    /// The upper bits of a product depend on all that is multiplied.
    #[inline]
    fn index(&self, word: u32) -> usize {
        (word.wrapping_mul(0x9e37_79b1) >> self.shift) as usize
    }
}

/// Bytes of a word.
pub(super) const WORD: usize = 4;

#[inline]
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let word = &bytes[at..at + WORD];
    u32::from_le_bytes([word[0], word[1], word[2], word[3]])
}
