# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's server and its files of models, for measurements beside it."""

import json
import re
import subprocess
import time
import urllib.request

THREADS = 2
GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down"}


def write_llama(path, config, arrays):
    """Writes a Llama with 4-bit weights as GGUF. `arrays` yields (name in a checkpoint, float32
    array). Needs the package gguf."""
    import gguf
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    # The server needs a text of each token. Requests and answers here are token ids.
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += [f"t{token}" for token in range(len(texts), config["vocab_size"])]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores([0.0] * len(texts))
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL] * 3 + [kinds.BYTE] * 256 +
                           [kinds.NORMAL] * (len(texts) - 259))
    for name, values in arrays:
        layer, part = re.match(r"(?:model\.layers\.(\d+)\.)?(.*)\.weight", name).groups()
        title = (f"blk.{layer}." if layer else "") + f"{GGUF_NAMES[part]}.weight"
        if values.ndim == 1:
            writer.add_tensor(title, values)
        else:
            kind = gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor(title, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def version(peers):
    said = subprocess.run([peers / "llama-server", "--version"], capture_output=True, text=True)
    return re.search(r"version: (.*)", said.stderr)[1]


class LlamaServer:
    """`with LlamaServer(peers, model, flag...) as server:`; `peers` is a folder with llama-server,
    `model` a GGUF."""

    def __init__(self, peers, model, *flags):
        from server_process import free_port
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.command = [peers / "llama-server", "-m", model, "--port", port, "-t", THREADS, "-tb",
                        THREADS, "-fa", "on", *flags]

    def __enter__(self):
        self.process = subprocess.Popen(list(map(str, self.command)), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return self
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit("llama-server has ended") from None
                time.sleep(0.05)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def post(self, route, body):
        """Seconds, and the reply."""
        request = urllib.request.Request(self.url + route, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        begin = time.monotonic()
        with urllib.request.urlopen(request, timeout=600) as reply:
            answer = json.loads(reply.read())
        return time.monotonic() - begin, answer
