//! What a replay times: the calls of each group, and of each operator at each place of the layer, with their exact costs.
//! Not here: timing them (`replay.rs`), and what the machine could do at most (`floors.rs`).

use ops::{Bound, BoundCall, CacheUse, CallShape, Cost, DType, Group, SequenceShape};
use record::{AbsentGroup, Floor, GroupRow, Known, OperatorRow, Timing, Work};
use std::collections::BTreeSet;

/// The calls that a walk runs, all others left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    Group(Group),
    /// One operator at one place of every layer.
    Operator {
        slot: &'static str,
        operator: &'static str,
    },
}

impl Calls {
    pub(crate) fn has(self, call: &BoundCall) -> bool {
        match self {
            Calls::Group(group) => call.group == group,
            Calls::Operator { slot, operator } => call.slot == slot && call.kernel.operator == operator,
        }
    }
}

/// One row to be timed.
pub(crate) struct Row {
    pub(crate) calls: Calls,
    pub(crate) shapes: Vec<String>,
    pub(crate) work: Work,
    /// Activation bytes of its largest call.
    pub(crate) warm_footprint: u64,
    /// Features of the kernels that it is bound to.
    pub(crate) features: ops::Features,
    /// Most integer products that one of them makes for a multiply-add.
    pub(crate) products: u32,
    pub(crate) row: GroupRow,
}

impl Row {
    /// As it stands in a record.
    pub(crate) fn into_operator(self) -> OperatorRow {
        let (slot, operator) = match self.calls {
            Calls::Operator { slot, operator } => (slot, operator),
            Calls::Group(group) => (group.name(), group.name()),
        };
        OperatorRow { slot: slot.to_owned(), operator: operator.to_owned(), shapes: self.shapes, row: self.row }
    }
}

/// One row for each group that the pass has calls of, in `Group::ALL` order.
pub(crate) fn groups(bound: &Bound, shape: &[SequenceShape]) -> Vec<Row> {
    let present = |group: &Group| bound.calls().iter().any(|call| call.group == *group);
    Group::ALL.into_iter().filter(present).map(|group| describe(bound, shape, Calls::Group(group), group)).collect()
}

/// The groups that the pass has no calls of. New keys and values may be stored by a call of another group.
pub(crate) fn absent(bound: &Bound) -> Vec<AbsentGroup> {
    let present = |group: &Group| bound.calls().iter().any(|call| call.group == *group);
    let stores = |(planned, call): (&ops::Call, &BoundCall)| {
        let stores = matches!(planned.operator.touches_cache(&planned.attributes), CacheUse::Write);
        stores.then(|| format!("{} ({})", call.kernel.operator, call.group.name()))
    };
    let stored: BTreeSet<String> = bound.program().calls.iter().zip(bound.calls()).filter_map(stores).collect();
    let why = |group: Group| match group {
        Group::CacheUpdate if stored.is_empty() => "this checkpoint keeps no cache".to_owned(),
        Group::CacheUpdate => {
            let stored = stored.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            format!("no call of its own: new keys and values are stored by {stored}, whose time contains it")
        }
        _ => "this pass has no such calls".to_owned(),
    };
    let absent = Group::ALL.into_iter().filter(|group| !present(group));
    absent.map(|group| AbsentGroup { group: group.name().to_owned(), why: why(group) }).collect()
}

/// One row for each operator and place, in program order.
pub(crate) fn operators(bound: &Bound, shape: &[SequenceShape]) -> Vec<Row> {
    let mut classes: Vec<(Calls, Group)> = Vec::new();
    for call in bound.calls() {
        let class = Calls::Operator { slot: call.slot, operator: call.kernel.operator };
        if !classes.iter().any(|(known, _)| *known == class) {
            classes.push((class, call.group));
        }
    }
    classes.into_iter().map(|(class, group)| describe(bound, shape, class, group)).collect()
}

fn describe(bound: &Bound, sequences: &[SequenceShape], calls: Calls, group: Group) -> Row {
    let (mut cost, mut count, mut kernels, mut shapes) = (Cost::default(), 0, BTreeSet::new(), Vec::new());
    let (mut work, mut warm_footprint, mut features, mut products) = (Work::default(), 0, ops::Features::NONE, 1);
    // A skipped call leaves its barrier to the next one that runs, as in the walk.
    let mut barrier = false;
    for (index, call) in bound.calls().iter().enumerate() {
        barrier |= call.barrier_before;
        if !calls.has(call) {
            continue;
        }
        work.barriers += u64::from(std::mem::take(&mut barrier));
        let program = bound.program();
        let shape = program.call_shape(&program.calls[index], sequences);
        let own = bound.cost(index, sequences);
        // What a call reads beyond its inputs are weights and cached keys and values.
        let activations = shape.inputs.iter().map(|view| view.bytes()).sum::<u64>().min(own.bytes_read);
        work.cold_bytes += own.bytes_read - activations;
        work.warm_bytes += activations + own.bytes_written;
        warm_footprint = warm_footprint.max(activations + own.bytes_written);
        cost += own;
        count += 1;
        kernels.insert(format!("{}: {}", call.kernel.operator, call.kernel.label()));
        features = features.with(call.kernel.features);
        products = products.max(call.kernel.products);
        let text = spelled(&shape);
        if !shapes.contains(&text) {
            shapes.push(text);
        }
    }
    work.flops = cost.flops;
    let untimed = || Known::unavailable("not timed", "let the replay finish");
    let floor: Known<Floor> = Known::unavailable("no ceilings were given", "`hourglass ceilings`");
    let row = GroupRow {
        group: group.name().to_owned(),
        kernels: kernels.into_iter().collect(),
        calls: count,
        bytes_read: cost.bytes_read,
        bytes_written: cost.bytes_written,
        flops: cost.flops,
        timing: Timing { median: untimed(), spread: untimed(), share: untimed(), samples_us: Vec::new() },
        bandwidth: untimed(),
        arithmetic: untimed(),
        floor,
    };
    Row { calls, shapes, work, warm_footprint, features, products, row }
}

/// `(1, 1024) bf16, weight (2048, 1024) w4-g128 -> (1, 2048) bf16`.
pub(crate) fn spelled(shape: &CallShape) -> String {
    let views = |views: &[ops::ViewShape]| -> Vec<String> {
        let dtype = |dtype| if dtype == DType::F32 { "f32" } else { "bf16" };
        views.iter().map(|view| format!("({}, {}) {}", view.rows, view.width, dtype(view.dtype))).collect()
    };
    let mut from = views(&shape.inputs);
    from.extend(
        shape.weights.iter().map(|weight| format!("weight ({}, {}) {}", weight.rows, weight.cols, weight.format)),
    );
    let to = views(&shape.outputs);
    let none = |list: Vec<String>| if list.is_empty() { "cache".to_owned() } else { list.join(", ") };
    format!("{} -> {}", none(from), none(to))
}
