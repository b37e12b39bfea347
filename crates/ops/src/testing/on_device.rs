//! A device's kernels against the operators' references: the same cases, operands, poison and comparison as on the CPU, with the
//! call's memory on the device. Not here: fences and races, which a device has tools of its own for.

use super::caches::Storage;
use super::concrete::Concrete;
use super::guarded::Edge;
use super::{Case, Outcome, compare};
use crate::DType;
use crate::arena::Arena;
use crate::bind::Bound;
use crate::bits::{bf16_to_f32, f32_to_bf16};
use crate::device::Device;
use crate::operator::{Kernel, Operator};
use crate::program::View;
use crate::step::{LayerCache, PreviousCache, Sequence, Step};
use std::sync::Arc;

/// Runs `kernel` of `device` on `case` with random operands from `seed`, twice, and compares with the operator's reference.
///
/// # Errors
/// What differs: an error above the tolerance, a NaN, a write outside the outputs, two runs that are not alike bit for bit, or
/// the driver's error.
pub fn check_on(
    device: &Arc<dyn Device>,
    operator: &'static dyn Operator,
    kernel: &'static Kernel,
    case: &Case,
    seed: u64,
) -> Result<Outcome, String> {
    if let Err(reason) = (kernel.supports)(&case.shape()) {
        return Ok(Outcome::Unsupported(reason));
    }
    let want = Concrete::new(operator, case, seed, true).run(operator.kernels()[0], 1)?;
    let tested = Concrete::new(operator, case, seed, false);
    let first = run(&tested, device, kernel)?;
    let again = run(&tested, device, kernel)?;
    let bits = |results: &Named| -> Vec<u32> { results.iter().flat_map(|(_, x)| x).map(|x| x.to_bits()).collect() };
    if bits(&first) != bits(&again) {
        return Err("two runs on the same operands differ: a race, or a read of memory that nothing wrote".to_owned());
    }
    Ok(Outcome::Passed { nmse: compare(&first, &want, kernel)? })
}

type Named = Vec<(&'static str, Vec<f32>)>;

/// Device memory of one sequence's cache, and the host's copy of it.
struct Caches {
    host: Storage,
    memory: [Arena; 4],
}

fn run(tested: &Concrete, device: &Arc<dyn Device>, kernel: &'static Kernel) -> Result<Named, String> {
    let weights = Arc::new(tested.weights.copied_to(device).map_err(text)?);
    let bound = tested.bind_with(&weights, kernel, 1)?;
    let mut image = vec![0xff; bound.activation_arena().len()];
    for (view, values) in &tested.operands {
        seed_view(&bound, &mut image, *view, values);
    }
    device.upload(bound.activation_arena().as_mut_ptr(), &image).map_err(text)?;
    let (scratch, bytes) = bound.scratch(0);
    device.upload(scratch, &vec![0xff; bytes]).map_err(text)?;
    let mut caches = Vec::new();
    for cache in &tested.caches {
        let mut host = cache.allocate(Edge::End);
        let mut memory = Vec::new();
        for operand in host.memories() {
            let arena = Arena::on(Some(device), operand.bytes().len()).map_err(text)?;
            device.upload(arena.as_mut_ptr(), operand.bytes()).map_err(text)?;
            memory.push(arena);
        }
        caches.push(Caches { host, memory: memory.try_into().map_err(|_| "four operands".to_owned())? });
    }
    let layers: Vec<[LayerCache; 1]> = caches
        .iter()
        .map(|caches| {
            let [keys, values, old_keys, old_values] = caches.memory.each_ref().map(Arena::as_mut_ptr);
            let host = caches.host.layer_cache();
            let previous =
                host.previous.map(|previous| PreviousCache { keys: old_keys, values: old_values, ..previous });
            [LayerCache { keys, values, previous, ..host }]
        })
        .collect();
    let mut first_row = 0;
    let mut sequences = Vec::new();
    for (index, shape) in tested.sequences.iter().enumerate() {
        let caches = layers.get(index).map_or(&[][..], |layer| &layer[..]);
        sequences.push(Sequence { first_row, rows: shape.rows, offset: shape.offset, caches });
        first_row += shape.rows;
    }
    let step = Step { tokens: &tested.tokens, sequences: &sequences };
    device.run(&bound, &step, &|_| true, false).map_err(text)?;
    let mut after = vec![0; image.len()];
    device.download(bound.activation_arena().as_ptr(), &mut after).map_err(text)?;
    let allowed: Vec<_> = tested.outputs.iter().map(|view| bound.range(*view)).collect();
    if let Some(at) = (0..after.len()).find(|at| after[*at] != image[*at] && !allowed.iter().any(|r| r.contains(at))) {
        return Err(format!("byte {at} outside the outputs (at {allowed:?}) was written"));
    }
    let mut results: Named = tested.outputs.iter().map(|view| ("output", read_view(&bound, &after, *view))).collect();
    for Caches { mut host, memory } in caches {
        for (operand, arena) in host.memories().into_iter().zip(&memory).take(2) {
            device.download(arena.as_ptr(), operand.bytes_mut()).map_err(text)?;
        }
        host.intact()?;
        results.push(("cached keys", host.valid(false)));
        results.push(("cached values", host.valid(true)));
    }
    Ok(results)
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

fn seed_view(bound: &Bound, image: &mut [u8], view: View, values: &[f32]) {
    let bytes = &mut image[bound.range(view)];
    match bound.program().view_shape(view).dtype {
        DType::F32 => bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, x)| *to = x.to_le_bytes()),
        DType::BF16 => {
            bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, x)| *to = f32_to_bf16(*x).to_le_bytes());
        }
    }
}

fn read_view(bound: &Bound, image: &[u8], view: View) -> Vec<f32> {
    let bytes = &image[bound.range(view)];
    match bound.program().view_shape(view).dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        DType::BF16 => bytes.as_chunks().0.iter().map(|x| bf16_to_f32(u16::from_le_bytes(*x))).collect(),
    }
}
