//! Events: the versioned encoding of records, and the hash chain.
