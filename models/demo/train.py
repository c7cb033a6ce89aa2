#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model (a small DiffLlama), or with --twin its Transformer twin, or with --draft a
smaller Transformer that guesses its tokens, on generated text.

    models/demo/train.py                 # makes models/demo/.venv on first use, trains, exports to
                                         # models/demo/diff
    models/demo/train.py --twin          # the Llama twin, to models/demo/twin
    models/demo/train.py --draft         # the draft model, to models/demo/draft
    models/demo/train.py --resume        # goes on from the last checkpoint
    models/demo/train.py --eval-only     # measures the exported model through transformers

Inside an active virtual environment, or with --python-env-ready, the installed packages are used as
they are.
"""

import argparse
import os
import sys
import time
import venv
from pathlib import Path

from progress import Progress

HERE = Path(__file__).resolve().parent


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", action="store_true", help="train the Transformer twin instead")
    parser.add_argument("--draft", action="store_true", help="train the draft model instead")
    parser.add_argument("--out", type=Path,
                        help="where the model is exported (default: diff, twin or draft beside "
                             "this file)")
    parser.add_argument("--checkpoints", type=Path, default=HERE / "checkpoints",
                        help="where a run can be resumed from")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--steps", type=int, help="default: 3200, of the draft model 1500")
    parser.add_argument("--minutes", type=float, help="stop, save and export after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="CPU threads (default: what torch chooses)")
    parser.add_argument("--tokens-per-step", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", help="default: cuda if there is one, else cpu")
    parser.add_argument("--eval-only", action="store_true",
                        help="measure the model in --out and stop")
    parser.add_argument("--export-only", action="store_true",
                        help="export the last checkpoint and stop")
    parser.add_argument("--average", type=Path,
                        help="export the mean of the weights and those of this earlier checkpoint")
    parser.add_argument("--eval-samples", type=int, default=200)
    parser.add_argument("--python-env-ready", action="store_true",
                        help="use this Python's packages")
    return parser.parse_args()


def enter_environment(arguments: argparse.Namespace) -> None:
    """Re-executes this script in its own virtual environment, made on first use, unless one is
    active."""
    if arguments.python_env_ready or sys.prefix != sys.base_prefix:
        return
    directory = HERE / ".venv"
    python, stamp = directory / "bin" / "python", directory / "requirements-installed"
    requirements = HERE / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        venv.create(directory, with_pip=True)
        with Progress() as progress:
            progress.run("installing the packages",
                         [python, "-m", "pip", "install", "-q", "-r", requirements])
        stamp.write_text(requirements.read_text())
    os.execv(python, [str(python), *sys.argv])


def main() -> None:
    arguments = parse_arguments()
    enter_environment(arguments)
    # The packages exist only now.
    import demo_model
    import evaluation
    from export import export
    from model_card import write_card
    from trainer import Trainer

    arguments.steps = arguments.steps or (1500 if arguments.draft else 3200)
    kind = "draft" if arguments.draft else "twin" if arguments.twin else "diff"
    if arguments.draft:
        demo_model.CONFIG.update(demo_model.DRAFT_SIZES)
    out = arguments.out or HERE / kind
    if not arguments.eval_only:
        trainer = Trainer(arguments, arguments.checkpoints / f"{kind}.pt")
        if not arguments.export_only:
            trainer.train(deadline=time.time() +
                          arguments.minutes * 60 if arguments.minutes else None)
        if arguments.average:
            trainer.average_with(arguments.average)
        export(trainer.model, trainer.tokenizer, out)
    accuracies = evaluation.measure(out, arguments.eval_samples)
    evaluation.print_report(accuracies, evaluation.replies(out))
    if not arguments.eval_only:
        write_card(out, accuracies, trainer.summary())


if __name__ == "__main__":
    main()
