//! Which packed format every weight gets under a checkpoint, and the adapters that feed the packer.
//! Not here: reading files (`weights`) and the packed layouts themselves (`ops`).

use crate::error::{Error, Result};
use crate::lower::{EMBEDDING, FINAL_NORM, HEAD, INVERSE_FREQUENCIES, WeightFormats, lower};
use crate::rope::inverse_frequencies;
use ops::{
    Checkpoint, Device, ElementType, Encoding, Features, MechanismControls, Registry, Resolved, RowSource,
    WeightFormat, WeightPolicy, WeightRequest, Weights,
};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use weights::{Config, DenseType, ModelFiles, Tensor};

/// How to load a model. [`LoadOptions::new`] gives the defaults.
#[derive(Clone)]
pub struct LoadOptions {
    /// The rung (or the oracle) that decides formats, fusions, kernels and the cache.
    pub checkpoint: &'static Checkpoint,
    /// Switches over the checkpoint's mechanisms.
    pub controls: MechanismControls,
    /// The kernels to choose from.
    pub registry: Registry,
    /// Worker threads, the caller's among them.
    pub threads: usize,
    /// Pin worker n to the n-th allowed processor, and place the weights that it reads near it.
    pub pin: bool,
    /// Instruction-set features that kernels may use.
    pub features: Features,
    /// Values that the checkpoint's formats cannot hold may be rounded.
    pub convert: bool,
    /// Columns per scale when a bfloat16 file is quantized at load.
    pub w4_group: usize,
    /// Longest run of prompt tokens that one pass takes.
    pub prefill_chunk: usize,
    /// Ends loading and generation early when it becomes true.
    pub cancelled: Arc<AtomicBool>,
    /// What runs the programs in place of the CPU's workers, with its own kernels.
    pub device: Option<Arc<dyn Device>>,
}

impl LoadOptions {
    /// All processors, unpinned; every feature the machine has; exact values; groups of 128; chunks of 512 tokens.
    pub fn new(checkpoint: &'static Checkpoint) -> LoadOptions {
        LoadOptions {
            checkpoint,
            controls: MechanismControls::default(),
            registry: Registry::standard(),
            threads: ops::processors(),
            pin: false,
            features: Features::detect(),
            convert: false,
            w4_group: 128,
            prefill_chunk: 512,
            cancelled: Arc::new(AtomicBool::new(false)),
            device: None,
        }
    }
}

/// Packed weights, their formats, and what a person should know about how they were made.
pub(crate) struct Loaded {
    pub(crate) weights: Arc<Weights>,
    pub(crate) formats: WeightFormats,
    pub(crate) notes: Vec<String>,
}

/// Packs every weight of `files` in the formats that `checkpoint` asks for.
pub(crate) fn load(files: &ModelFiles, checkpoint: &Resolved, options: &LoadOptions) -> Result<Loaded> {
    let config = files.config();
    let plan = Plan::new(files, checkpoint, options)?;
    let formats = plan.formats();
    // The arena holds the weights in the order in which a step reads them.
    let order = lower(config, checkpoint, &formats, 1, 1, 1).weights;
    if let Some(device) = &options.device {
        let bytes = order.iter().map(|spec| spec.format.packed_bytes(spec.rows, spec.cols)).sum();
        let label = device.label();
        let free = device.free_bytes().map_err(|source| Error::DeviceMemory {
            what: "weights",
            bytes,
            label: label.clone(),
            source,
        })?;
        has_room(label, free, bytes, cache_bytes(config, 1024))?;
    }
    let requests: Vec<WeightRequest<'_>> = order
        .iter()
        .map(|spec| {
            let entry = plan.entries.iter().find(|entry| entry.name == spec.name).expect("lowered from these formats");
            WeightRequest {
                name: spec.name.clone(),
                format: spec.format,
                source: &*entry.source,
                may_round: entry.may_round,
            }
        })
        .collect();
    let pack = if options.pin { Weights::pack_near_workers } else { Weights::pack };
    let weights = pack(&requests, options.threads, &options.cancelled).map_err(|error| match error {
        ops::PackError::Cancelled => Error::Interrupted,
        other => Error::Pack(other),
    })?;
    let weights = match &options.device {
        None => weights,
        Some(device) => {
            let (bytes, label) = (weights.bytes(), device.label());
            weights.copied_to(device).map_err(|source| Error::DeviceMemory { what: "weights", bytes, label, source })?
        }
    };
    Ok(Loaded { weights: Arc::new(weights), formats, notes: plan.notes })
}

/// Bytes of the keys and values of so many positions on a device, which keeps them in bfloat16.
fn cache_bytes(config: &Config, positions: usize) -> usize {
    2 * config.layers * config.kv_heads * config.head_dim * positions * 2
}

/// Said before anything is read: packing a model that will not fit takes long.
fn has_room(label: String, free: usize, weights: usize, cache: usize) -> Result<()> {
    if weights.saturating_add(cache) <= free {
        return Ok(());
    }
    Err(Error::DeviceRoom { label, free, weights, cache })
}

/// The format that every weight of `files` would be packed in, without packing anything: what a program is lowered from.
///
/// # Errors
/// A missing tensor, or a matrix that the checkpoint cannot quantize.
pub fn weight_formats(files: &ModelFiles, checkpoint: &Resolved, options: &LoadOptions) -> Result<WeightFormats> {
    Ok(Plan::new(files, checkpoint, options)?.formats())
}

struct Plan {
    entries: Vec<Entry>,
    notes: Vec<String>,
}

struct Entry {
    name: String,
    format: WeightFormat,
    source: Box<dyn RowSource>,
    may_round: bool,
}

impl Plan {
    fn new(files: &ModelFiles, checkpoint: &Resolved, options: &LoadOptions) -> Result<Plan> {
        let config = files.config();
        let matrices = matrix_names(config);
        let tensors = matrices.iter().map(|name| files.tensor(name)).collect::<std::result::Result<Vec<_>, _>>()?;
        // A file that packs some matrices and leaves others dense means it; one that packs none is quantized as a whole.
        let any_packed = tensors.iter().any(|tensor| !matches!(tensor.encoding(), weights::Encoding::Dense(_)));
        let mut plan = Plan { entries: Vec::new(), notes: Vec::new() };
        for tensor in tensors {
            let entry = match checkpoint.weights {
                WeightPolicy::Float32 => Entry::tensor(tensor, WeightFormat::F32, false),
                WeightPolicy::Dense => Entry::dense(tensor, options),
                WeightPolicy::Packed if any_packed => Entry::packed(tensor, options),
                WeightPolicy::Packed => Entry::quantized(tensor, checkpoint, options)?,
            };
            plan.entries.push(entry);
        }
        for name in vector_names(config) {
            plan.entries.push(Entry::tensor(files.tensor(&name)?, WeightFormat::F32, false));
        }
        plan.entries.push(Entry {
            name: INVERSE_FREQUENCIES.to_owned(),
            format: WeightFormat::F32,
            source: Box::new(Values(inverse_frequencies(config))),
            may_round: false,
        });
        let file = files.describe_encoding();
        plan.notes.push(match checkpoint.weights {
            WeightPolicy::Float32 => format!("weights: {file}, held as float32"),
            WeightPolicy::Dense if any_packed => format!("weights: {file}, dequantized to bfloat16 at load"),
            WeightPolicy::Dense => format!("weights: {file}, held as bfloat16"),
            WeightPolicy::Packed if any_packed => format!("weights: {file}, kept packed"),
            WeightPolicy::Packed => {
                format!("weights: {file}, quantized at load to W4 g{} by mlx's rule", options.w4_group)
            }
        });
        if options.convert {
            plan.notes.push("values that bfloat16 cannot hold are rounded (--convert)".to_owned());
        }
        Ok(plan)
    }

    fn formats(&self) -> WeightFormats {
        self.entries.iter().map(|entry| (entry.name.clone(), entry.format)).collect()
    }
}

impl Entry {
    fn tensor(tensor: Tensor, format: WeightFormat, may_round: bool) -> Entry {
        Entry { name: tensor.name().to_owned(), format, source: Box::new(TensorRows(tensor)), may_round }
    }

    /// Dense rungs hold bfloat16. Rounding a dequantized weight is what the rung is; rounding a plain number needs leave.
    fn dense(tensor: Tensor, options: &LoadOptions) -> Entry {
        let packed = !matches!(tensor.encoding(), weights::Encoding::Dense(_));
        Entry::tensor(tensor, WeightFormat::Bf16, packed || options.convert)
    }

    /// The file's own form.
    fn packed(tensor: Tensor, options: &LoadOptions) -> Entry {
        let format = match encoding(&tensor) {
            Encoding::Dense(_) => WeightFormat::Bf16,
            Encoding::Affine4 { group, parameters } => WeightFormat::Affine4 { group, parameters },
            Encoding::Int8 { group } => WeightFormat::Int8 { group },
        };
        Entry::tensor(tensor, format, options.convert)
    }

    /// A dense matrix, quantized by mlx's rule while it is packed.
    fn quantized(tensor: Tensor, checkpoint: &Resolved, options: &LoadOptions) -> Result<Entry> {
        let group = options.w4_group;
        if ![32, 64, 128].contains(&group) {
            return Err(Error::GroupSize(group));
        }
        let (name, cols) = (tensor.name().to_owned(), tensor.cols());
        if cols % group != 0 {
            return Err(Error::Group { tensor: name, cols, group });
        }
        let found = match tensor.encoding() {
            weights::Encoding::Dense(DenseType::F32) => Some("float32"),
            weights::Encoding::Dense(DenseType::F16) => Some("float16"),
            _ => None,
        };
        if let (Some(found), false) = (found, options.convert) {
            return Err(Error::NeedsConversion { tensor: name, found, checkpoint: checkpoint.name });
        }
        let format = WeightFormat::Affine4 { group, parameters: ElementType::BF16 };
        Ok(Entry { name, format, source: Box::new(QuantizedRows { tensor, group }), may_round: false })
    }
}

fn matrix_names(config: &Config) -> Vec<String> {
    let mut names = vec![EMBEDDING.to_owned()];
    for layer in 0..config.layers {
        for module in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"] {
            names.push(format!("model.layers.{layer}.{module}.weight"));
        }
        for module in ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"] {
            names.push(format!("model.layers.{layer}.{module}.weight"));
        }
    }
    if !config.tied_embeddings {
        names.push(HEAD.to_owned());
    }
    names
}

fn vector_names(config: &Config) -> Vec<String> {
    let mut names = vec![FINAL_NORM.to_owned()];
    for layer in 0..config.layers {
        let mut parts = vec!["input_layernorm.weight", "post_attention_layernorm.weight"];
        if config.qk_norm {
            parts.extend(["self_attn.q_norm.weight", "self_attn.k_norm.weight"]);
        }
        if config.qkv_bias {
            parts.extend(["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"]);
        }
        names.extend(parts.iter().map(|part| format!("model.layers.{layer}.{part}")));
    }
    names
}

fn element(dense: DenseType) -> ElementType {
    match dense {
        DenseType::F32 => ElementType::F32,
        DenseType::F16 => ElementType::F16,
        DenseType::BF16 => ElementType::BF16,
    }
}

fn encoding(tensor: &Tensor) -> Encoding {
    match tensor.encoding() {
        weights::Encoding::Dense(dense) => Encoding::Dense(element(dense)),
        weights::Encoding::Affine4 { group } => {
            Encoding::Affine4 { group, parameters: element(tensor.parameter_type()) }
        }
        weights::Encoding::Int8 { group } => Encoding::Int8 { group },
    }
}

/// A file's tensor as it is.
struct TensorRows(Tensor);

impl RowSource for TensorRows {
    fn rows(&self) -> usize {
        self.0.rows()
    }

    fn cols(&self) -> usize {
        self.0.cols()
    }

    fn encoding(&self) -> Encoding {
        encoding(&self.0)
    }

    fn read_f32(&self, row: usize, out: &mut [f32]) {
        self.0.read_f32(row, out);
    }

    fn read_codes(&self, row: usize, codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        self.0.read_codes(row, codes, scales, biases);
    }

    fn finished(&self) {
        self.0.release_pages();
    }
}

/// A dense tensor, rounded to bfloat16 and quantized row by row.
struct QuantizedRows {
    tensor: Tensor,
    group: usize,
}

impl RowSource for QuantizedRows {
    fn rows(&self) -> usize {
        self.tensor.rows()
    }

    fn cols(&self) -> usize {
        self.tensor.cols()
    }

    fn encoding(&self) -> Encoding {
        Encoding::Affine4 { group: self.group, parameters: ElementType::BF16 }
    }

    fn read_f32(&self, row: usize, out: &mut [f32]) {
        let groups = out.len() / self.group;
        let (mut codes, mut scales, mut biases) = (vec![0; out.len()], vec![0.0; groups], vec![0.0; groups]);
        self.read_codes(row, &mut codes, &mut scales, &mut biases);
        for (col, value) in out.iter_mut().enumerate() {
            *value = f32::from(codes[col]) * scales[col / self.group] + biases[col / self.group];
        }
    }

    fn read_codes(&self, row: usize, codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        let mut values = vec![0.0; codes.len()];
        self.tensor.read_f32(row, &mut values);
        if self.tensor.encoding() != weights::Encoding::Dense(DenseType::BF16) {
            values.iter_mut().for_each(|value| *value = ops::bf16_to_f32(ops::f32_to_bf16(*value)));
        }
        weights::quantize_row(&values, self.group, codes, scales, biases);
        // Minimum and maximum skip NaNs: pass one on through the scale, which the packer checks.
        for (values, scale) in values.chunks_exact(self.group).zip(scales) {
            if !values.iter().all(|value| value.is_finite()) {
                *scale = f32::NAN;
            }
        }
    }

    fn finished(&self) {
        self.tensor.release_pages();
    }
}

/// A vector made here.
struct Values(Vec<f32>);

impl RowSource for Values {
    fn rows(&self) -> usize {
        1
    }

    fn cols(&self) -> usize {
        self.0.len()
    }

    fn encoding(&self) -> Encoding {
        Encoding::Dense(ElementType::F32)
    }

    fn read_f32(&self, _row: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.0);
    }

    fn read_codes(&self, _row: usize, _codes: &mut [u8], _scales: &mut [f32], _biases: &mut [f32]) {
        unreachable!("the packer asks only coded sources for codes")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_model_that_does_not_fit_a_device_is_refused_with_the_numbers() {
        has_room("cuda:0".to_owned(), 1000, 900, 100).unwrap();
        let error = has_room("cuda:0 (a GPU)".to_owned(), 1000, 900, 101).unwrap_err().to_string();
        for said in ["cuda:0 (a GPU)", "1000 bytes free", "weights take 900", "101 more", "--device cpu"] {
            assert!(error.contains(said), "{error}");
        }
    }
}
