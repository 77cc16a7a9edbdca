//! The doctor: folds the events of each run and compares with the tables.
