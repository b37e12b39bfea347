//! What an engine asks of a device, and what it makes of its errors: with one that computes nothing and notes what it was asked.
//! Not here: a device (`ops-cuda`), and whether what it computes is right (`check_device`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{options, synthetic};
use model::{Engine, Error, GenerateOptions, Keep, LoadOptions, SamplingOptions, generate};
use ops::recording::{DeviceState, Launch, Record, Recording};
use ops::{Bound, BoundCall, Device, DeviceCeilings, Kernel, Matrix, Packed, Registry, Step};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Its addresses are of nothing: nobody here may follow them.
struct Noting {
    kernels: &'static [&'static Kernel],
    next: AtomicUsize,
    /// Of each run: rows, position of the first, and whether the next step may be begun.
    asked: Mutex<Vec<(usize, usize, bool)>>,
    lost: AtomicBool,
    /// Runs after which the logits are no longer finite.
    finite_runs: AtomicUsize,
}

impl Noting {
    fn still_there(&self) -> io::Result<()> {
        if self.lost.load(Relaxed) { Err(io::Error::other("the GPU has fallen off the bus")) } else { Ok(()) }
    }

    fn asked(&self) -> Vec<(usize, usize, bool)> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

impl Device for Noting {
    fn label(&self) -> String {
        "noting".to_owned()
    }

    fn driver(&self) -> String {
        "none".to_owned()
    }

    fn state(&self) -> Result<DeviceState, String> {
        Err("no sensors".to_owned())
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        self.kernels
    }

    fn free_bytes(&self) -> io::Result<usize> {
        Ok(1 << 40)
    }

    fn peak_bytes(&self) -> usize {
        0
    }

    fn reset_peak(&self) {}

    fn allocate(&self, bytes: usize) -> io::Result<*mut u8> {
        Ok(self.next.fetch_add(bytes.next_multiple_of(256), Relaxed) as *mut u8)
    }

    fn free(&self, _start: *mut u8) {}

    fn upload(&self, _to: *mut u8, _from: &[u8]) -> io::Result<()> {
        self.still_there()
    }

    fn download(&self, _from: *const u8, _to: &mut [u8]) -> io::Result<()> {
        self.still_there()
    }

    fn place(&self, _weight: &Packed<'_>, _to: *mut u8) -> io::Result<()> {
        self.still_there()
    }

    fn run(&self, _bound: &Bound, step: &Step<'_>, _wants: &dyn Fn(&BoundCall) -> bool, ahead: bool) -> io::Result<()> {
        let first = step.sequences[0];
        self.asked.lock().unwrap().push((step.tokens.len(), first.offset, ahead));
        Ok(())
    }

    fn argmax(&self, _bound: &Bound, _output: &Matrix<'_>, _row: usize) -> io::Result<u32> {
        self.still_there()?;
        if self.asked.lock().unwrap().len() > self.finite_runs.load(Relaxed) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the largest of the row is no number"));
        }
        Ok(7)
    }

    fn ceilings(&self, _rounds: usize) -> io::Result<DeviceCeilings> {
        Err(io::Error::other("it does nothing"))
    }

    fn record(&self, _what: Record) -> io::Result<()> {
        Err(io::Error::other("no profiler"))
    }

    fn recorded(&self) -> io::Result<Recording> {
        Err(io::Error::other("no profiler"))
    }

    fn calls_ns(&self) -> Option<u64> {
        None
    }

    fn watched(&self, _on: bool) -> io::Result<()> {
        Ok(())
    }

    fn launched(&self) -> Vec<Launch> {
        Vec::new()
    }
}

/// A model under `rung` on such a device, whose kernels are the CPU's by name.
fn on_noting(rung: &str) -> (Arc<Noting>, Engine) {
    let registry = Registry::standard();
    let kernels: Vec<&'static Kernel> =
        registry.operators().iter().flat_map(|operator| registry.kernels(*operator)).collect();
    let kernels: &'static [&'static Kernel] = kernels.leak();
    let (next, asked, lost) = (AtomicUsize::new(4096), Mutex::default(), AtomicBool::new(false));
    let noting = Arc::new(Noting { kernels, next, asked, lost, finite_runs: AtomicUsize::new(usize::MAX) });
    let device: Arc<dyn Device> = noting.clone();
    let engine = Engine::load(&synthetic("tiny"), LoadOptions { device: Some(device), ..options(rung) }).unwrap();
    (noting, engine)
}

#[test]
fn the_next_step_may_be_begun_where_the_caller_says_so_and_there_is_room() {
    for (rung, bounded) in [("selected", true), ("kv-cache", false)] {
        let (noting, mut engine) = on_noting(rung);
        let mut cache = engine.new_cache(6);
        let mut fed = |tokens: &[u32], keep| {
            assert_eq!(engine.forward(&mut cache, tokens, keep).unwrap().argmax(0).unwrap(), 7);
            noting.asked().pop().unwrap()
        };
        assert_eq!(fed(&[1, 2, 3], Keep::Last), (3, 0, false));
        assert_eq!(fed(&[7], Keep::Next), (1, 3, bounded), "{rung}");
        assert_eq!(fed(&[7], Keep::Last), (1, 4, false));
        assert_eq!(fed(&[7], Keep::Next), (1, 5, false), "the last place");
    }
}

#[test]
fn a_generation_lets_steps_be_begun_where_nobody_looks_at_logits() {
    let (noting, mut engine) = on_noting("selected");
    let mut asked = |options: GenerateOptions| -> Vec<bool> {
        let mut cache = engine.new_cache(20);
        let tokens = generate(&mut engine, &mut cache, &[1, 2, 3], options).unwrap();
        assert!(tokens.map(Result::unwrap).count() > 0);
        noting.asked().iter().map(|asked| asked.2).collect()
    };
    let greedy = GenerateOptions { max_tokens: 5, ..GenerateOptions::default() };
    assert_eq!(asked(greedy.clone()), [false, true, true, true, false]);
    assert_eq!(asked(GenerateOptions { stop_tokens: vec![7], ..greedy.clone() }), [false, true], "it found 7");
    assert_eq!(asked(GenerateOptions { log_probabilities: true, ..greedy.clone() }), [false; 5]);
    let sampling = SamplingOptions { temperature: 1.0, ..SamplingOptions::default() };
    assert_eq!(asked(GenerateOptions { sampling, ..greedy.clone() }), [false; 5]);
    let sampling = SamplingOptions { repetition_penalty: 1.1, ..SamplingOptions::default() };
    assert_eq!(asked(GenerateOptions { sampling, ..greedy }), [false; 5]);
}

#[test]
fn a_device_that_is_lost_behind_a_step_is_an_error() {
    let (noting, mut engine) = on_noting("selected");
    let (mut cache, mut row) = (engine.new_cache(10), Vec::new());
    let logits = engine.forward(&mut cache, &[1, 2, 3], Keep::Last).unwrap();
    noting.lost.store(true, Relaxed);
    for lost in [logits.row(0, &mut row), logits.argmax(0).map(|_| ())] {
        assert!(matches!(lost, Err(Error::Device { label, .. }) if label == "noting"));
    }
}

#[test]
fn logits_that_a_device_finds_not_finite_are_the_models_fault_and_not_the_devices() {
    let (noting, mut engine) = on_noting("selected");
    let mut cache = engine.new_cache(10);
    // The prompt's logits are read; then two steps find a largest one, and the third none.
    noting.finite_runs.store(3, Relaxed);
    let options = GenerateOptions { max_tokens: 6, ..GenerateOptions::default() };
    let generated: Vec<_> = generate(&mut engine, &mut cache, &[1, 2, 3], options).unwrap().collect();
    assert_eq!(generated.iter().filter(|step| step.is_ok()).count(), 3);
    assert!(matches!(generated[3..], [Err(Error::Logits)]), "{generated:?}");
}

#[test]
#[should_panic(expected = "row 1 of 1")]
fn the_largest_of_a_row_that_is_not_there_is_asked_of_no_device() {
    let (_, mut engine) = on_noting("selected");
    let mut cache = engine.new_cache(10);
    let _ = engine.forward(&mut cache, &[1, 2, 3], Keep::Last).unwrap().argmax(1);
}
