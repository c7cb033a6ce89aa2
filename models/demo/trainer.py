# SPDX-License-Identifier: Apache-2.0
"""The training loop: schedule, log lines, checkpoints that a later run goes on from."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from demo_model import CONFIG, SHORT_ROPE_THETA, DemoModel
from demo_tokenizer import train_tokenizer
from progress import Progress
from training_data import RAISED_THETA_STEP, STAGES, Batch, BatchMaker

WARMUP_STEPS = 50
DECAY_SHARE = 0.25  # of the steps, at the end, with the rate going to zero
MAX_GRADIENT_NORM = 1.0
LOG_EVERY = 50
CHECKPOINT_SECONDS = 120


class Trainer:
    def __init__(self, arguments: argparse.Namespace, checkpoint: Path):
        torch.manual_seed(arguments.seed)
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.arguments, self.checkpoint = arguments, checkpoint
        self.device = torch.device(arguments.device
                                   or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.tokenizer = train_tokenizer()
        self.model = DemoModel(self.tokenizer.get_vocab_size(),
                               differential=not (arguments.twin or arguments.draft)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=arguments.lr,
                                           betas=(0.9, 0.98), weight_decay=0.0, foreach=True)
        self.batches = BatchMaker(self.tokenizer, arguments.seed, arguments.tokens_per_step)
        self.step, self.loss, self.averaged_steps = 0, float("nan"), []
        if arguments.resume or arguments.export_only:
            self._load()

    def learning_rate_scale(self) -> float:
        left = (self.arguments.steps - self.step) / (self.arguments.steps * DECAY_SHARE)
        return min(1.0, (self.step + 1) / WARMUP_STEPS, left)

    def train(self, deadline: float | None) -> None:
        with Progress() as progress:
            self._train(deadline, progress)
        self._save()

    def average_with(self, earlier: Path) -> None:
        """The mean of two points of one run generalises better than either; only for export, not to
        train on."""
        state = torch.load(earlier, map_location=self.device)
        for name, tensor in self.model.state_dict().items():
            tensor.lerp_(state["model"][name], 0.5)
        self.averaged_steps = [state["step"], self.step]

    def summary(self) -> dict:
        return {
            "differential": self.model.differential,
            "draft": self.arguments.draft,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "vocab": self.tokenizer.get_vocab_size(),
            "seed": self.arguments.seed,
            "steps": self.step,
            "averaged": self.averaged_steps,
            "tokens": self.arguments.tokens_per_step,
            "shortest": STAGES[0][0].length,
            "loss": self.loss,
        }

    def _train(self, deadline: float | None, progress: Progress) -> None:
        started = saved = time.time()
        window = _Window()
        while self.step < self.arguments.steps and (deadline is None or time.time() < deadline):
            batch = self.batches.batch(self.step)
            window.add(batch, *self._update(batch))
            self.step += 1
            progress.tell(f"training: step {self.step} of {self.arguments.steps}")
            if self.step % LOG_EVERY == 0:
                self.loss = window.loss()
                seconds = (time.time() - started) / LOG_EVERY
                progress.wipe()
                print(f"step {self.step} {window.line()} {seconds:.3f} s/step", flush=True)
                started, window = time.time(), _Window()
            if time.time() - saved > CHECKPOINT_SECONDS:
                self._save()
                saved = time.time()

    def _update(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, rows, targets = (t.to(self.device)
                                 for t in (batch.tokens, batch.rows, batch.targets))
        self.model.rope_theta = CONFIG[
            "rope_theta"] if self.step >= RAISED_THETA_STEP else SHORT_ROPE_THETA
        logits = self.model(tokens, rows)
        loss = F.cross_entropy(logits, targets)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = self.arguments.lr * self.learning_rate_scale()
        self.optimizer.step()
        return loss.detach().cpu(), (logits.detach().argmax(-1) == targets).cpu()

    def _save(self) -> None:
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "step": self.step, "loss": self.loss
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def _load(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.loss = state["step"], state["loss"]


class _Window:
    """Loss and accuracies since the last log line; first digits by kind and length of row, since
    they tell matching from copying."""

    def __init__(self):
        self.losses: list[float] = []
        self.right = self.predicted = 0
        self.first_digits: dict[tuple[str, int], list[int]] = {}

    def add(self, batch: Batch, loss: torch.Tensor, right: torch.Tensor) -> None:
        self.losses.append(loss.item())
        self.right += right.sum().item()
        self.predicted += len(batch.targets)
        for kind, flags in batch.first_digits.items():
            counts = self.first_digits.setdefault((kind, batch.length), [0, 0])
            counts[0] += (right & flags).sum().item()
            counts[1] += flags.sum().item()

    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)

    def line(self) -> str:
        first = " ".join(f"{kind}{length}:{r / max(1, n):.3f}"
                         for (kind, length), (r, n) in sorted(self.first_digits.items()))
        return (f"loss {self.loss():.4f} tokens right {self.right / self.predicted:.3f} first "
                f"digits {first}")
