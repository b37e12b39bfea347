//! CPU samples: where threads were, as stacks of functions with inlined ones expanded.
//! Not here: taking samples and naming addresses, which is `probe`'s.

use crate::trace::Name;
use std::collections::HashMap;

/// A frame's number in its [`CpuSamples`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// A stack's number in its [`CpuSamples`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

/// All samples of a trace; frames and stacks are kept once each.
#[derive(Clone, Debug, Default)]
pub struct CpuSamples {
    frames: Vec<Frame>,
    /// Outermost frame first.
    stacks: Vec<Vec<FrameId>>,
    /// By time.
    pub samples: Vec<Sample>,
    /// Samples that the kernel or the ring lost.
    pub lost: u64,
    frame_numbers: HashMap<Frame, FrameId>,
    stack_numbers: HashMap<Vec<FrameId>, StackId>,
}

/// One function in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    pub function: Name,
    /// Source file, where debugging information has it.
    pub file: Option<Name>,
    /// From 1; line 0 of debugging information means that there is none.
    pub line: Option<u32>,
    /// Inlined into the frame before it (its caller).
    pub inlined: bool,
}

/// A thread was seen in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub at_ns: u64,
    pub thread: u32,
    pub stack: StackId,
    /// Time that this sample stands for, ending at `at_ns`.
    pub weight_ns: u64,
}

impl CpuSamples {
    /// The number of `frame`, a new one if it has none yet.
    pub fn frame(&mut self, frame: Frame) -> FrameId {
        let next = FrameId(self.frames.len() as u32);
        *self.frame_numbers.entry(frame).or_insert_with(|| {
            self.frames.push(frame);
            next
        })
    }

    /// The number of a stack, outermost frame first; a new one if it has none yet.
    pub fn stack(&mut self, frames: &[FrameId]) -> StackId {
        if let Some(&known) = self.stack_numbers.get(frames) {
            return known;
        }
        let id = StackId(self.stacks.len() as u32);
        self.stacks.push(frames.to_vec());
        self.stack_numbers.insert(frames.to_vec(), id);
        id
    }

    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    pub fn stacks(&self) -> &[Vec<FrameId>] {
        &self.stacks
    }

    /// The frames of one of this trace's stacks, outermost first; of a foreign one none.
    pub fn frames_of(&self, stack: StackId) -> impl DoubleEndedIterator<Item = &Frame> {
        let frames = self.stacks.get(stack.0 as usize).map_or(&[][..], Vec::as_slice);
        frames.iter().filter_map(|frame| self.frames.get(frame.0 as usize))
    }
}

// The indices follow from the tables.
impl PartialEq for CpuSamples {
    fn eq(&self, other: &CpuSamples) -> bool {
        self.frames == other.frames
            && self.stacks == other.stacks
            && self.samples == other.samples
            && self.lost == other.lost
    }
}
