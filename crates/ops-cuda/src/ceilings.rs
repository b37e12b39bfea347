//! What a GPU does at most, by kernels that do nothing else (`kernels/ceilings.cu`): bytes read, products of bfloat16, launches.
//! Not here: the record of it (`probe`), and what a pass reaches of it.

use crate::driver::Driver;
use crate::queue::Queue;
use ops::DeviceCeilings;
use std::io;
use std::time::Instant;

const FILE: &str = "ceilings.cu";
const TILE_BYTES: u64 = 65_536;
/// Bytes that are read from memory, if there are so many, and at least.
const MOST_BYTES: u64 = 2 << 30;
const LEAST_BYTES: u64 = 256 << 20;
/// Of a second-level cache, read this many times in a launch.
const CACHE_BYTES: u64 = 16 << 20;
const CACHE_PASSES: u64 = 128;
/// Launches in a sample, and links of a chain.
const LAUNCHES: u32 = 4;
const LINKS: u32 = 1000;
/// Rounds of products in a launch, and floating-point operations of one round of a block.
const ROUNDS: u32 = 4000;
const ROUND_FLOPS: f64 = 2.0 * 256.0 * 64.0 * 128.0;
/// Two operands of a pair of warpgroups, and what aligning them takes.
const SHARED_BYTES: u32 = 49_152 + 1024;

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    data: u64,
    sink: u64,
    tiles: u32,
    rounds: u32,
}

/// What is measured with.
pub(crate) struct Bench<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) queue: &'a Queue,
    pub(crate) hopper: bool,
    /// Bytes of the second-level cache.
    pub(crate) cache_bytes: u64,
}

impl Bench<'_> {
    /// `rounds` samples of each quantity, one of each in turn.
    ///
    /// # Errors
    /// The driver's; a GPU without room for 256 MiB.
    pub(crate) fn measure(&self, rounds: usize) -> io::Result<DeviceCeilings> {
        let bytes = (self.driver.free_bytes()? as u64 / 2).min(MOST_BYTES) / TILE_BYTES * TILE_BYTES;
        if bytes < LEAST_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!("ceilings: {bytes} bytes can be had, {LEAST_BYTES} are needed; free the GPU's memory"),
            ));
        }
        let data = self.driver.allocate(bytes as usize)?;
        let measured = self.driver.fill(data, 0x5a, bytes as usize).and_then(|()| self.samples(rounds, data, bytes));
        self.driver.free(data);
        measured
    }

    fn samples(&self, rounds: usize, data: u64, bytes: u64) -> io::Result<DeviceCeilings> {
        let mut found = DeviceCeilings {
            memory_bytes: bytes,
            cache_bytes: CACHE_BYTES,
            // Half of it is near to a processor, on GPUs whose cache has two halves.
            cache_up_to: self.cache_bytes / 2,
            ..DeviceCeilings::default()
        };
        let one = self.chain(data, 1)?;
        let many = self.chain(data, LINKS)?;
        // The first of each meets everything for the first time.
        for round in 0..=rounds {
            let samples = [
                (bytes * u64::from(LAUNCHES)) as f64 / self.read(data, bytes, 1)? / 1e3,
                (CACHE_BYTES * CACHE_PASSES * u64::from(LAUNCHES)) as f64
                    / self.read(data, CACHE_BYTES, CACHE_PASSES)?
                    / 1e3,
                self.products(data)?,
            ];
            let (dispatch, all) = (self.replay(one)?, self.replay(many)?);
            if round == 0 {
                continue;
            }
            found.memory.push(samples[0]);
            found.cache.push(samples[1]);
            found.products.push(samples[2]);
            found.dispatch.push(dispatch);
            found.launch.push((all - dispatch).max(0.0) / f64::from(LINKS - 1));
        }
        self.driver.drop_graph(one);
        self.driver.drop_graph(many);
        Ok(found)
    }

    /// Microseconds from the first launch to the end of the last.
    fn timed(&self, launch: impl Fn()) -> io::Result<f64> {
        self.driver.wait(self.queue.stream)?;
        let start = Instant::now();
        (0..LAUNCHES).for_each(|_| launch());
        self.queue.finish()?;
        self.driver.wait(self.queue.stream)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }

    /// Reading the first `bytes` so many times.
    fn read(&self, data: u64, bytes: u64, passes: u64) -> io::Result<f64> {
        let tiles = bytes / TILE_BYTES;
        let arguments = Arguments { data, sink: data, tiles: tiles as u32, rounds: 0 };
        let grid = [(tiles * passes) as u32, 1, 1];
        self.timed(|| self.queue.launch(FILE, "ceiling_read", (grid, [512, 1, 1], 0), &arguments))
    }

    /// GFLOP/s.
    fn products(&self, data: u64) -> io::Result<f64> {
        let arguments = Arguments { data, sink: data, tiles: 0, rounds: ROUNDS };
        // Other GPUs' warps hold their operands in registers: more of them find room.
        let (blocks, shared) =
            if self.hopper { (self.queue.multiprocessors, SHARED_BYTES) } else { (2 * self.queue.multiprocessors, 0) };
        let shape = ([blocks, 1, 1], [256, 1, 1], shared);
        let us = self.timed(|| self.queue.launch(FILE, "ceiling_products", shape, &arguments))?;
        Ok(f64::from(LAUNCHES) * f64::from(blocks) * f64::from(ROUNDS) * ROUND_FLOPS / us / 1e3)
    }

    /// A graph of kernels that do nothing, each of which waits for the one before it.
    pub(crate) fn chain(&self, data: u64, links: u32) -> io::Result<crate::driver::GraphExec> {
        let arguments = Arguments { data, sink: data, tiles: 0, rounds: 0 };
        self.driver.begin_capture(self.queue.stream)?;
        for _ in 0..links {
            self.queue.launch(FILE, "ceiling_nothing", ([1, 1, 1], [32, 1, 1], 0), &arguments);
        }
        let put = self.queue.finish();
        let graph = self.driver.end_capture(self.queue.stream);
        put?;
        graph
    }

    /// Microseconds of one replay and waiting for its end.
    fn replay(&self, graph: crate::driver::GraphExec) -> io::Result<f64> {
        let start = Instant::now();
        self.driver.replay(graph, self.queue.stream)?;
        self.driver.wait(self.queue.stream)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }
}
