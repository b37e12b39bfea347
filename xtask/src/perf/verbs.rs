//! The program's own verbs, called as a user would, and their records read back.
//! Not here: what is asked of them (`measure.rs`).

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use record::bench::BenchRecord;
use record::{Ceilings, Operands, TimelineRecord, WiringPlan};
use serde_json::Value;

use super::gpu_rows::{BF16, W4};
use super::rows::Request;

/// The programs that are asked, and where their records go.
pub(super) struct Verbs {
    pub(super) hourglass: PathBuf,
    pub(super) batch_rates: PathBuf,
    pub(super) step_reads: PathBuf,
    /// Records are written here.
    pub(super) folder: PathBuf,
    /// Where the verbs run, and downloads and adapters lie.
    pub(super) place: PathBuf,
    /// As `--device` names it.
    pub(super) device: String,
    pub(super) peers: Option<PathBuf>,
    pub(super) quick: bool,
}

impl Verbs {
    fn hourglass(&self, words: &[String]) -> Command {
        let mut command = Command::new(&self.hourglass);
        command.args(words).current_dir(&self.place).stdin(Stdio::null());
        command
    }

    /// What this machine reads and multiplies now. What is kept for other commands stays as it is: this is a short look.
    pub(super) fn ceilings(&self, name: &str, threads: u64, rounds: u64) -> Result<Ceilings> {
        let path = self.folder.join(format!("{name}.ceilings.json"));
        let (rounds, threads) = (rounds.to_string(), threads.to_string());
        let words = ["ceilings", "--refresh", "--rounds", &rounds, "--threads", &threads, "--json-output"];
        let mut words = words.map(str::to_owned).to_vec();
        words.push(path.display().to_string());
        let mut command = self.hourglass(&words);
        finish(command.env("XDG_CACHE_HOME", &self.folder))?;
        read(&path)
    }

    /// How often a request runs: every order with its mirror image; three arms are in every place equally often after six.
    pub(super) fn repeats(&self) -> usize {
        if self.quick { 2 } else { 6 }
    }

    /// One `bench`: our checkpoint first, then the peers.
    pub(super) fn bench(&self, name: &str, request: &Request, peers: &[&str], repeats: usize) -> Result<BenchRecord> {
        let path = self.folder.join(format!("{name}.bench.json"));
        let mut words: Vec<String> = vec!["bench".into(), "--variant".into(), request.checkpoint.into()];
        for peer in peers {
            words.extend(["--variant".into(), (*peer).into()]);
        }
        for (flag, value) in [
            ("--model", Some(request.model.to_owned())),
            ("--input-len", Some(request.input_len.to_string())),
            ("--output-len", Some(request.output_len.to_string())),
            ("--warmup", Some(request.warmup.to_string())),
            ("--repeats", Some(repeats.to_string())),
            ("--threads", request.threads.map(|threads| threads.to_string())),
            ("--features-without", request.without.map(str::to_owned)),
            ("--peers", self.peers.as_ref().map(|folder| folder.display().to_string())),
            ("--json-output", Some(path.display().to_string())),
        ] {
            if let Some(value) = value {
                words.extend([flag.to_owned(), value]);
            }
        }
        // Exit code 1 is an arm whose time does not count: the record says which and why.
        let output = self.hourglass(&words).stderr(Stdio::inherit()).output().context("bench cannot be started")?;
        if !path.exists() {
            bail!("bench {name} left no record ({})", output.status);
        }
        read(&path)
    }

    /// One `bench` on the GPU: 4-bit and bfloat16 weights in alternation.
    ///
    /// # Errors
    /// It left no record: what it said.
    pub(super) fn gpu_requests(
        &self,
        name: &str,
        model: &str,
        input_len: usize,
        output_len: usize,
    ) -> Result<BenchRecord> {
        let path = self.folder.join(format!("{name}.bench.json"));
        let [input, output, repeats] = [input_len, output_len, self.repeats()].map(|number| number.to_string());
        let lengths = ["--input-len", &input, "--output-len", &output, "--repeats", &repeats];
        let words = [&["bench", "--variant", W4, "--variant", BF16], &lengths[..]].concat();
        self.on_gpu(&words, model, &path)
    }

    /// `timeline` of decode steps on the GPU in as many processes as a request is clocked in, spans alone: the pauses between
    /// kernels are those of a request that nothing watches.
    ///
    /// # Errors
    /// One left no record: what it said.
    pub(super) fn gpu_pauses(&self, name: &str, model: &str) -> Result<Vec<TimelineRecord>> {
        let words = ["timeline", "--phase", "decode", "--no-samples", "--overhead-rounds", "0"];
        let path = |process: usize| self.folder.join(format!("{name}.{process}.timeline.json"));
        (1..=self.repeats()).map(|process| self.on_gpu(&words, model, &path(process))).collect()
    }

    /// The record that a verb leaves. Exit code 1 beside one is a part of it that does not count: the record says which.
    fn on_gpu<R: record::Record>(&self, words: &[&str], model: &str, path: &Path) -> Result<R> {
        let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        for word in ["--device", &self.device, "--model", model, "--convert", "--json-output"] {
            words.push(word.to_owned());
        }
        words.push(path.display().to_string());
        let output = self.hourglass(&words).output().with_context(|| format!("{} cannot be started", words[0]))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !path.exists() {
            // The last line is the error's one sentence.
            match said.lines().rev().find(|line| !line.trim().is_empty()) {
                Some(last) => bail!("{}", last.strip_prefix("hourglass: ").unwrap_or(last)),
                None => bail!("{} left no record and did not say why ({})", words[0], output.status),
            }
        }
        // Notes, such as of kernels that had to be compiled again.
        eprint!("{said}");
        read(path)
    }

    /// The passes of a request: their calls, bytes and operations. The decode step reaches a context of `context`.
    pub(super) fn wiring(&self, name: &str, request: &Request, context: usize) -> Result<WiringPlan> {
        let path = self.folder.join(format!("{name}.wiring.json"));
        let context = context.to_string();
        let words = ["wiring", request.checkpoint, "--model", request.model, "--input-len", &context, "--json-output"];
        let mut words = words.map(str::to_owned).to_vec();
        words.push(path.display().to_string());
        if let Some(without) = request.without {
            words.extend(["--features-without".to_owned(), without.to_owned()]);
        }
        finish(&mut self.hourglass(&words))?;
        read(&path)
    }

    /// The record of one `run`.
    pub(super) fn run(&self, words: &[&str]) -> Result<Value> {
        let mut all: Vec<String> = vec!["run".into(), "--json".into()];
        all.extend(words.iter().map(|word| (*word).to_owned()));
        let output = self.hourglass(&all).output().context("run cannot be started")?;
        if !output.status.success() {
            bail!("hourglass {}: {}", all.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("run printed no JSON")
    }

    /// Seconds from the start of a `run` to the first byte of its answer.
    pub(super) fn first_byte(&self, words: &[&str]) -> Result<f64> {
        let mut all: Vec<String> = vec!["run".into()];
        all.extend(words.iter().map(|word| (*word).to_owned()));
        let start = Instant::now();
        let mut child = self
            .hourglass(&all)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("run cannot be started")?;
        let mut seconds = None;
        if let Some(mut answer) = child.stdout.take() {
            if answer.read(&mut [0u8]).is_ok_and(|got| got == 1) {
                seconds = Some(start.elapsed().as_secs_f64());
            }
            // The rest is read by nobody, but a closed pipe would end the process early.
            let _ = std::io::copy(&mut answer, &mut std::io::sink());
        }
        let status = child.wait().context("run")?;
        match seconds {
            Some(seconds) if status.success() => Ok(seconds),
            _ => bail!("hourglass {}: no answer ({status})", all.join(" ")),
        }
    }

    /// Milliseconds of decode steps in the middle of the request's output, and of reads of as many bytes around each.
    pub(super) fn steps(&self, request: &Request, threads: u64, bytes: u64) -> Result<Vec<(f64, f64)>> {
        // A long prompt takes a minute or two before the first step.
        let (processes, rounds) = if self.quick || request.input_len > 4096 { (1, 20) } else { (4, 25) };
        let depth = request.input_len + request.output_len / 2 - 1;
        let numbers = [bytes, depth as u64, threads, rounds].map(|number| number.to_string());
        let mut turns = Vec::new();
        for _ in 0..processes {
            let output = Command::new(&self.step_reads)
                .args(&numbers)
                .args([request.checkpoint, request.model])
                .stderr(Stdio::inherit())
                .output()
                .context("step_reads cannot be started")?;
            if !output.status.success() {
                bail!("step_reads failed ({})", output.status);
            }
            turns.extend(
                turns_of(&String::from_utf8_lossy(&output.stdout)).context("step_reads: not of the expected form")?,
            );
        }
        Ok(turns)
    }

    /// Tokens per second of one sequence and of `rows` together, from several processes' medians.
    pub(super) fn batch(&self, rows: u64) -> Result<Vec<(f64, f64)>> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).to_string();
        let (processes, rounds) = if self.quick { (2, "5") } else { (6, "15") };
        let mut rates = Vec::new();
        for _ in 0..processes {
            let output = Command::new(&self.batch_rates)
                .args(["128", &threads, rounds, "fast", &rows.to_string()])
                .stderr(Stdio::inherit())
                .output()
                .context("batch_rates cannot be started")?;
            if !output.status.success() {
                bail!("batch_rates failed ({})", output.status);
            }
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            rates.push(
                batch_line(&text, 1).zip(batch_line(&text, rows)).context("batch_rates: not of the expected form")?,
            );
        }
        Ok(rates)
    }
}

/// Each line's two numbers.
fn turns_of(text: &str) -> Option<Vec<(f64, f64)>> {
    let numbers = |line: &str| {
        let (step, read) = line.split_once(' ')?;
        Some((step.parse().ok()?, read.parse().ok()?))
    };
    text.lines().map(numbers).collect()
}

/// Tokens per second in the line of so many sequences: `sequences ms tokens/s ratio`.
fn batch_line(text: &str, sequences: u64) -> Option<f64> {
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut rows = words.filter(|words| words.len() == 4 && words[0] == sequences.to_string());
    rows.next()?[2].parse().ok()
}

fn finish(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("{command:?} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn read<R: record::Record>(path: &Path) -> Result<R> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(record::read(&path.display().to_string(), &bytes)?)
}

/// All samples, in GFLOP/s, of an instruction fed from the nearest cache, or why there are none.
pub(super) fn peak_rates(ceilings: &[Ceilings], threads: u64, path: &str) -> Result<Vec<f64>, String> {
    let of_threads = ceilings.iter().flat_map(|one| &one.threads).filter(|entry| entry.threads == threads);
    let rows = of_threads.flat_map(|entry| &entry.peaks);
    let (mut samples, mut why) = (Vec::new(), format!("{path} was not measured"));
    for row in rows.filter(|row| row.path.name() == path && row.operands == Operands::Loads) {
        match (row.rate.known(), row.rate.missing()) {
            (Some(measured), _) => samples.extend(&measured.samples),
            (_, Some(missing)) => why.clone_from(&missing.unavailable),
            _ => {}
        }
    }
    if samples.is_empty() { Err(why) } else { Ok(samples) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_read_from_their_lines() {
        assert_eq!(turns_of("8.1 8.0\n7.5 7.25\n"), Some(vec![(8.1, 8.0), (7.5, 7.25)]));
        assert_eq!(turns_of("8.1\n"), None);
    }

    #[test]
    fn a_batchs_rate_is_read_from_its_line() {
        let text = "one decode step of fast after 128 tokens, 2 threads, 30 rounds, medians\n\
                    sequences        ms   tokens/s   ratio\n        1      8.10      123.5    1.00\n        8     20.00      400.0    3.24\n";
        assert_eq!((batch_line(text, 1), batch_line(text, 8), batch_line(text, 4)), (Some(123.5), Some(400.0), None));
    }
}
