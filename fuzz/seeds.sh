#!/usr/bin/env bash
# Fills fuzz/corpus/ with valid inputs: small fixtures of the repository, cut where they are long.
set -euo pipefail
cd "$(dirname "$0")/.."
fixtures=crates/model/tests/fixtures
mkdir -p fuzz/corpus/{safetensors,gguf,config,tokenizer,template,records,gates,manifest,captures,ledger}

# The parsers look at headers first; the weights behind them only make an input slow.
seed() { # target, name, file
    head -c 65536 "$3" >"fuzz/corpus/$1/$2"
}
for file in "$fixtures"/*.oracle.safetensors "$fixtures"/*/*.safetensors; do
    seed safetensors "$(echo "${file#"$fixtures"/}" | tr / -)" "$file"
done
for file in "$fixtures"/*.gguf; do
    seed gguf "$(basename "$file")" "$file"
done
for file in "$fixtures"/*/config.json; do
    seed config "$(basename "$(dirname "$file")").json" "$file"
done
printf '%s' '{"version":"1.0","added_tokens":[{"id":3,"content":"<x>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}' \
    >fuzz/corpus/tokenizer/bpe.json
printf '%s' '{% for m in messages %}<|im_start|>{{ m.role }}{{ m["content"].strip().split("x")[-1] | tojson }}{% endfor %}{% if add_generation_prompt %}{{ raise_exception("no") }}{% endif %}' \
    >fuzz/corpus/template/loop.jinja
python3 - <<'PYTHON'
import json, pathlib
source = pathlib.Path("downloads/qwen3-tokenizer/tokenizer_config.json")
if source.exists():
    template = json.loads(source.read_text())["chat_template"]
    pathlib.Path("fuzz/corpus/template/qwen3.jinja").write_text(template)
PYTHON
printf '%s' 'decode < 0.97 * (baseline + 1 tok/s)' >fuzz/corpus/gates/numbers
printf '%s' 'peak.verdict != smaller' >fuzz/corpus/gates/verdict
echo '{"schema":"find/2"}' >fuzz/corpus/records/header.json
printf "%064d  a/b\n%064d  c\n" 0 1 >fuzz/corpus/manifest/two
printf 'events: Ir\nfn=(1) f\n1 2\ntotals: 2\n' >fuzz/corpus/captures/callgrind
echo '{"event":"cycles","counter-value":"1.0","pcnt-running":100.00}' >fuzz/corpus/captures/perf.jsonl
printf '%s' 'replay.decode.projections.ratio.high < 80 %' >fuzz/corpus/gates/parts
echo '{"decisions":[{"change":"a","dominated_before":"b","evidence":["c"],"kept":true}]}' >fuzz/corpus/ledger/decisions.json
