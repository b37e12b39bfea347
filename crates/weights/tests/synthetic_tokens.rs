//! The synthetic models' promise, checked with a plain forward pass: greedy tokens follow the circuit by a wide margin,
//! and what they are depends on positions and on the cache. Not here: the engine (it has its own tests).
#![allow(clippy::unwrap_used, reason = "tests")]

use weights::{ModelFiles, ModelSource, OpenOptions, Tensor, open};

fn model(text: &str) -> ModelFiles {
    open(&ModelSource::parse(text).unwrap(), &OpenOptions::default()).unwrap()
}

fn vector(files: &ModelFiles, name: &str) -> Vec<f32> {
    let tensor = files.tensor(name).unwrap();
    let mut values = vec![0.0; tensor.cols()];
    tensor.read_f32(0, &mut values);
    values
}

/// `x` (tokens, cols) times the transposed matrix: (tokens, rows).
fn linear(tensor: &Tensor, x: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let mut out = vec![vec![0.0; tensor.rows()]; x.len()];
    let mut weights = vec![0.0; tensor.cols()];
    for row in 0..tensor.rows() {
        tensor.read_f32(row, &mut weights);
        for (out, x) in out.iter_mut().zip(x) {
            out[row] = x.iter().zip(&weights).map(|(a, b)| a * b).sum();
        }
    }
    out
}

fn norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mean = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

fn rotate(head: &mut [f32], position: usize, theta: f64) {
    let half = head.len() / 2;
    for i in 0..half {
        let angle = position as f64 * theta.powf(-(i as f64) / half as f64);
        let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * cos - b * sin;
        head[i + half] = b * cos + a * sin;
    }
}

/// Logits of every position. `at` gives each token's position.
fn logits(files: &ModelFiles, tokens: &[u32], at: impl Fn(usize) -> usize) -> Vec<Vec<f32>> {
    let config = files.config();
    let (dim, eps) = (config.head_dim, config.norm_eps as f32);
    let embedding = files.tensor("model.embed_tokens.weight").unwrap();
    let mut stream: Vec<Vec<f32>> = tokens
        .iter()
        .map(|token| {
            let mut row = vec![0.0; config.hidden_size];
            embedding.read_f32(*token as usize, &mut row);
            row
        })
        .collect();
    for layer in 0..config.layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let project = |part: &str, x: &[Vec<f32>]| linear(&files.tensor(&name(part)).unwrap(), x);
        let weight = vector(files, &name("input_layernorm"));
        let x: Vec<_> = stream.iter().map(|row| norm(row, &weight, eps)).collect();
        let mut q = project("self_attn.q_proj", &x);
        let mut k = project("self_attn.k_proj", &x);
        let v = project("self_attn.v_proj", &x);
        for (part, rows) in [("self_attn.q_norm", &mut q), ("self_attn.k_norm", &mut k)] {
            let weight = vector(files, &name(part));
            for (token, row) in rows.iter_mut().enumerate() {
                for head in row.chunks_exact_mut(dim) {
                    head.copy_from_slice(&norm(head, &weight, eps));
                    rotate(head, at(token), config.rope_theta);
                }
            }
        }
        let mut mixed = vec![vec![0.0; config.heads * dim]; tokens.len()];
        for token in 0..tokens.len() {
            for head in 0..config.heads {
                let shared = head / (config.heads / config.kv_heads) * dim;
                let query = &q[token][head * dim..][..dim];
                let scores: Vec<f32> = (0..=token)
                    .map(|past| {
                        let dot: f32 = query.iter().zip(&k[past][shared..][..dim]).map(|(a, b)| a * b).sum();
                        dot / (dim as f32).sqrt()
                    })
                    .collect();
                let top = scores.iter().copied().fold(f32::MIN, f32::max);
                let sum: f32 = scores.iter().map(|s| (s - top).exp()).sum();
                for (past, score) in scores.iter().enumerate() {
                    let share = (score - top).exp() / sum;
                    for i in 0..dim {
                        mixed[token][head * dim + i] += share * v[past][shared + i];
                    }
                }
            }
        }
        add(&mut stream, &project("self_attn.o_proj", &mixed));
        let weight = vector(files, &name("post_attention_layernorm"));
        let x: Vec<_> = stream.iter().map(|row| norm(row, &weight, eps)).collect();
        let (gate, up) = (project("mlp.gate_proj", &x), project("mlp.up_proj", &x));
        let inner: Vec<Vec<f32>> = gate
            .iter()
            .zip(&up)
            .map(|(g, u)| g.iter().zip(u).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect())
            .collect();
        add(&mut stream, &project("mlp.down_proj", &inner));
    }
    let weight = vector(files, "model.norm.weight");
    let x: Vec<_> = stream.iter().map(|row| norm(row, &weight, eps)).collect();
    let head = if config.tied_embeddings { embedding } else { files.tensor("lm_head.weight").unwrap() };
    linear(&head, &x)
}

fn add(stream: &mut [Vec<f32>], more: &[Vec<f32>]) {
    for (row, more) in stream.iter_mut().zip(more) {
        for (value, more) in row.iter_mut().zip(more) {
            *value += more;
        }
    }
}

/// The best token of a row of logits and by how many standard deviations of the row it leads.
fn best(row: &[f32]) -> (u32, f32) {
    let mean = row.iter().sum::<f32>() / row.len() as f32;
    let deviation = (row.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / row.len() as f32).sqrt();
    let first = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
    let second = (0..row.len()).filter(|i| *i != first).map(|i| row[i]).fold(f32::MIN, f32::max);
    (first as u32, (row[first] - second) / deviation)
}

fn prompt(len: usize, vocab: usize) -> Vec<u32> {
    let mut state = 12_345u64;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % vocab as u64) as u32
        })
        .collect()
}

/// The token after `token` in its orbit, or None where the vocabulary ends inside the orbit.
fn successor(token: u32, files: &ModelFiles) -> Option<u32> {
    let hidden = files.config().hidden_size;
    let orbit = (hidden - 128.min(hidden / 8)) as u32 / 16;
    let next = if token % orbit == orbit - 1 { token + 1 - orbit } else { token + 1 };
    (next < files.config().vocab_size as u32).then_some(next)
}

#[test]
fn greedy_tokens_follow_the_circuit_by_a_wide_margin() {
    for seed in [0, 1, 2] {
        let files = model(&format!("synthetic:tiny@{seed}"));
        let tokens = prompt(200, files.config().vocab_size);
        let rows = logits(&files, &tokens, |at| at);
        let mut worst = f32::MAX;
        for at in 3..tokens.len() {
            let Some(expected) = successor(tokens[at - 3], &files) else { continue };
            let (token, lead) = best(&rows[at]);
            assert_eq!(token, expected, "seed {seed}, position {at}, lead {lead}");
            worst = worst.min(lead);
        }
        println!("seed {seed}: smallest lead {worst:.2} standard deviations");
        // About half a logit: ten times what BF16 activations move. The real shapes lead by more than six deviations.
        assert!(worst > 0.3, "seed {seed}: smallest lead {worst}");
    }
}

#[test]
fn a_wrong_position_or_a_lost_past_changes_the_tokens() {
    let files = model("synthetic:tiny");
    let tokens = prompt(60, files.config().vocab_size);
    let right = logits(&files, &tokens, |at| at);
    let stuck = logits(&files, &tokens, |_| 0);
    let doubled = logits(&files, &tokens, |at| 2 * at);
    let lost = logits(&files, &tokens[30..], |at| at);
    let differ = |wrong: &[Vec<f32>], from: usize| {
        (from..wrong.len()).filter(|at| best(&right[*at]).0 != best(&wrong[*at]).0).count()
    };
    assert!(differ(&stuck, 5) > 40, "{}", differ(&stuck, 5));
    assert!(differ(&doubled, 5) > 40, "{}", differ(&doubled, 5));
    // Without its past, the first tokens see nothing three back; later ones are whole again.
    let head = (0..3).filter(|at| best(&right[30 + at]).0 != best(&lost[*at]).0).count();
    assert!(head >= 2, "{head}");
}

/// The circuit alone would leave all other logits near zero; the random layers spread them.
#[test]
fn the_random_layers_are_visible_in_every_logit() {
    let files = model("synthetic:tiny");
    let tokens = prompt(20, files.config().vocab_size);
    let rows = logits(&files, &tokens, |at| at);
    let expected = successor(tokens[10], &files).unwrap() as usize;
    let others: Vec<f32> = (0..512).filter(|t| *t != expected).map(|t| rows[13][t]).collect();
    let spread = (others.iter().map(|v| v * v).sum::<f32>() / others.len() as f32).sqrt();
    assert!(spread > 0.05 * rows[13][expected], "{spread} {}", rows[13][expected]);
}
