//! The processes of an attempt: everything it ever started and its end with a proof ([`tree`]), and
//! what is left of one whose shim is gone ([`mod@mark`], [`strays`]).

pub mod mark;
pub mod strays;
pub mod tree;
