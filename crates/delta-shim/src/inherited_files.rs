//! What whoever started this program had open: none of it is handed on to what this program starts.
//!
//! A descriptor is a right that no user, rule or environment takes away again: a job that inherits
//! one reads the file behind it, whatever it may open itself. Everything this project opens is
//! closed when a child begins; what it was born with is not, unless it is told to.

/// Behind standard input, output and error, which each child is given for itself.
const FIRST_FURTHER: i32 = 3;

/// Marks every open descriptor but the standard three to be closed in whatever is started. Nothing
/// is closed in this process. For the beginning of a program, in all of its roles.
pub fn keep_from_children() {
    close_fds::set_fds_cloexec(FIRST_FURTHER, &[]);
}
