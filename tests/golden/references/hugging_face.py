# SPDX-License-Identifier: Apache-2.0
"""Reference for diffllama and llama: transformers' own models, eager attention."""
import sys

import torch
import transformers

VERSION = "5.23.0"


class HuggingFace:
    def __init__(self):
        if transformers.__version__ != VERSION:
            print(
                f"warning: this is transformers {transformers.__version__}, the cases in the tree "
                f"were made with {VERSION}",
                file=sys.stderr)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()

    def name(self, config):
        return f"transformers {transformers.__version__}, eager"

    def shapes(self, folder):
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.from_pretrained(folder))
        return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}

    def load(self, folder, dtype):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager").eval()
        return lambda tokens: model(tokens[None]).logits[0].float()
