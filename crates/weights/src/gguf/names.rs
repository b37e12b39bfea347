//! Tensor names: GGUF's to the canonical (Hugging Face) ones.
//! Not here: which of them a model must have (`config`), and reading them.

/// The canonical name of a GGUF tensor of the architectures this program runs, or None for a name it does not know.
pub(crate) fn canonical(name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some("model.embed_tokens.weight".into()),
        "output_norm.weight" => return Some("model.norm.weight".into()),
        "output.weight" => return Some("lm_head.weight".into()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    // The number as it would be printed: "007" and "+7" are not layer 7.
    let number: usize = layer.parse().ok()?;
    if number.to_string() != layer {
        return None;
    }
    let (slot, suffix) = rest.split_once('.')?;
    let module = match (slot, suffix) {
        ("attn_norm", "weight") => "input_layernorm",
        ("ffn_norm", "weight") => "post_attention_layernorm",
        ("attn_q", "weight" | "bias") => "self_attn.q_proj",
        ("attn_k", "weight" | "bias") => "self_attn.k_proj",
        ("attn_v", "weight" | "bias") => "self_attn.v_proj",
        ("attn_output", "weight") => "self_attn.o_proj",
        ("attn_q_norm", "weight") => "self_attn.q_norm",
        ("attn_k_norm", "weight") => "self_attn.k_norm",
        ("ffn_gate", "weight") => "mlp.gate_proj",
        ("ffn_up", "weight") => "mlp.up_proj",
        ("ffn_down", "weight") => "mlp.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{number}.{module}.{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn known_names_map_and_others_do_not() {
        let pairs = [
            ("token_embd.weight", Some("model.embed_tokens.weight")),
            ("blk.0.attn_q.weight", Some("model.layers.0.self_attn.q_proj.weight")),
            ("blk.35.attn_k.bias", Some("model.layers.35.self_attn.k_proj.bias")),
            ("blk.10.ffn_norm.weight", Some("model.layers.10.post_attention_layernorm.weight")),
            ("blk.3.attn_q_norm.weight", Some("model.layers.3.self_attn.q_norm.weight")),
            ("blk.3.ffn_gate_inp.weight", None),
            ("blk.3.attn_output.bias", None),
            ("blk.03.attn_q.weight", None),
            ("blk.-1.attn_q.weight", None),
            ("blk.3.attn_q.scale", None),
            ("blk.99999999999999999999.attn_q.weight", None),
            ("", None),
        ];
        for (gguf, expected) in pairs {
            assert_eq!(canonical(gguf).as_deref(), expected, "{gguf}");
        }
    }
}
