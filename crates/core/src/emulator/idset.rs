//! A set of message ids that stays small: acknowledged ids are mostly consecutive.

use std::collections::BTreeMap;

/// A set of ids, kept as ranges.
#[derive(Debug, Default)]
pub struct IdSet {
    /// From the first to the last id of each range.
    ranges: BTreeMap<u64, u64>,
}

impl IdSet {
    /// Add an id.
    pub fn insert(&mut self, id: u64) {
        let mut first = id;
        let mut last = id;
        if let Some((start, end)) = self.ranges.range_mut(..=id).next_back() {
            if *end >= id {
                return;
            }
            if *end + 1 == id {
                *end = id;
                first = *start;
            }
        }
        if let Some(end) = id.checked_add(1).and_then(|next| self.ranges.remove(&next)) {
            last = end;
        } else if first != id {
            return;
        }
        self.ranges.insert(first, last);
    }

    /// The ids, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranges.iter().flat_map(|(first, last)| *first..=*last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_order_of_insertion_gives_the_sorted_set() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            let ids: Vec<u64> = (0..random.usize(0..60)).map(|_| random.u64(0..40)).collect();
            let mut set = IdSet::default();
            ids.iter().for_each(|id| set.insert(*id));
            let expected: std::collections::BTreeSet<u64> = ids.into_iter().collect();
            assert_eq!(set.iter().collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn consecutive_ids_are_one_range() {
        let mut set = IdSet::default();
        (0..1_000).rev().for_each(|id| set.insert(id));
        assert_eq!(set.ranges.len(), 1);
    }
}
