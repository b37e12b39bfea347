//! Disjoint stretches of time with a value each, in order: the form in which all computations of the timeline meet.
//! Not here: what the values mean.

/// A stretch from `start_ns` to `end_ns` (exclusive); never empty inside a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<T> {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) value: T,
}

impl<T> Segment<T> {
    pub(super) fn wall_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// Appends a stretch, joined to the last one if it continues it; empty ones are left out.
pub(super) fn append<T: PartialEq>(list: &mut Vec<Segment<T>>, start_ns: u64, end_ns: u64, value: T) {
    if start_ns >= end_ns {
        return;
    }
    match list.last_mut() {
        Some(last) if last.end_ns == start_ns && last.value == value => last.end_ns = end_ns,
        _ => list.push(Segment { start_ns, end_ns, value }),
    }
}

/// The value at each moment where stretches may overlap: the smallest that covers it. Stretches are clipped to the window.
pub(crate) fn smallest<T: Copy + Ord>(stretches: &[(u64, u64, T)], window: (u64, u64)) -> Vec<Segment<T>> {
    let mut events: Vec<(u64, bool, T)> = Vec::with_capacity(2 * stretches.len());
    for &(start, end, value) in stretches {
        let (start, end) = (start.max(window.0), end.min(window.1));
        if start < end {
            events.push((start, true, value));
            events.push((end, false, value));
        }
    }
    events.sort_unstable_by_key(|event| event.0);
    let mut open = std::collections::BTreeMap::<T, u32>::new();
    let (mut list, mut from) = (Vec::new(), window.0);
    for (at, opens, value) in events {
        if let Some((&covering, _)) = open.first_key_value() {
            append(&mut list, from, at, covering);
        }
        from = at;
        let count = open.entry(value).or_insert(0);
        // Stretches are not empty, so an end never comes before its own start.
        *count = if opens { *count + 1 } else { *count - 1 };
        if *count == 0 {
            open.remove(&value);
        }
    }
    list
}

/// Walks through a list by rising times.
pub(super) struct Cursor<'a, T> {
    list: &'a [Segment<T>],
    next: usize,
}

impl<'a, T: Copy> Cursor<'a, T> {
    pub(super) fn new(list: &'a [Segment<T>]) -> Cursor<'a, T> {
        Cursor { list, next: 0 }
    }

    /// The value at `at_ns`, which never falls from call to call.
    pub(super) fn at(&mut self, at_ns: u64) -> Option<T> {
        while self.list.get(self.next).is_some_and(|segment| segment.end_ns <= at_ns) {
            self.next += 1;
        }
        self.list.get(self.next).filter(|segment| segment.start_ns <= at_ns).map(|segment| segment.value)
    }
}

/// Every moment of the window at which one of the lists may change, the window's ends included, in order.
pub(super) fn boundaries<T, U>(window: (u64, u64), first: &[&[Segment<T>]], second: &[&[Segment<U>]]) -> Vec<u64> {
    let mut times = vec![window.0, window.1];
    for list in first {
        times.extend(list.iter().flat_map(|segment| [segment.start_ns, segment.end_ns]));
    }
    for list in second {
        times.extend(list.iter().flat_map(|segment| [segment.start_ns, segment.end_ns]));
    }
    times.retain(|time| (window.0..=window.1).contains(time));
    times.sort_unstable();
    times.dedup();
    times
}

/// The parts of `list` inside `window`, clipped to it.
pub(super) fn within<T: Copy>(list: &[Segment<T>], window: (u64, u64)) -> impl Iterator<Item = Segment<T>> {
    let first = list.partition_point(|segment| segment.end_ns <= window.0);
    list[first..].iter().take_while(move |segment| segment.start_ns < window.1).filter_map(move |segment| {
        let (start_ns, end_ns) = (segment.start_ns.max(window.0), segment.end_ns.min(window.1));
        (start_ns < end_ns).then_some(Segment { start_ns, end_ns, value: segment.value })
    })
}
