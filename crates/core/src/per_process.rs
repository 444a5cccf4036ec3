//! Values that belong to one process and are never inherited across a fork.

use std::sync::OnceLock;

/// A value for this process, and those of the processes it was forked from, oldest first.
///
/// Spark forks its Python workers. A child sees what its parent had made, but neither the threads behind it nor who holds
/// its locks: it makes a value of its own, and finds it without a lock. The older ones are never dropped.
pub struct PerProcess<T> {
    owner: OnceLock<u32>,
    value: OnceLock<T>,
    next: OnceLock<Box<PerProcess<T>>>,
}

impl<T> PerProcess<T> {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self { owner: OnceLock::new(), value: OnceLock::new(), next: OnceLock::new() }
    }

    /// The value of this process, made on first use.
    pub fn get(&self, make: impl FnOnce() -> T) -> &T {
        self.of(std::process::id(), make)
    }

    fn of(&self, pid: u32, make: impl FnOnce() -> T) -> &T {
        let mut link = self;
        while *link.owner.get_or_init(|| pid) != pid {
            link = link.next.get_or_init(|| Box::new(Self::new()));
        }
        link.value.get_or_init(make)
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_has_a_value_of_its_own_that_stays() {
        let values = PerProcess::new();
        assert_eq!(*values.of(1, || "parent"), "parent");
        assert_eq!(*values.of(2, || "child"), "child");
        assert_eq!(*values.of(3, || "grandchild"), "grandchild");
        assert_eq!(*values.of(2, || "another"), "child");
        assert_eq!(*values.of(1, || "another"), "parent");
    }
}
