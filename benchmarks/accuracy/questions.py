"""Twelve questions that engineers ask, as `refold plan` answers them: `python -m benchmarks.accuracy.questions`.

Each is a command line without any other option; what experts chose is from the sources named, and their MFU that of
benchmarks/accuracy/published.csv and dgx_cloud_h100.csv. CPU time is that of the first run of the command in a process
that has answered another question before. `--write` stores the table in docs/plan.md.
"""

from __future__ import annotations

import argparse
import json
from time import process_time
from typing import NamedTuple

from typer.testing import CliRunner

from benchmarks.accuracy.reports import DOCS, write_section
from benchmarks.table import markdown
from refold.cli import lazy_group


class Question(NamedTuple):
    """The arguments of `refold plan`, and what experts chose."""

    words: str
    experts: str


QUESTIONS = (
    Question("llama-3.1-8b --gpus 8xH100", "DP4 CP2, 56 % (DGX Cloud)"),
    Question("llama-3.1-70b --gpus 64xH100", "DP2 TP4 PP4 CP2 interleave 5, 51 % (DGX Cloud)"),
    Question("llama-3.1-405b --gpus 1024xH100", "DP8 TP8 PP8 CP2 interleave 8, 83 % in FP8 (Megatron-Bridge)"),
    Question("llama-3.1-405b --gpus 16384xH100", "DP128 TP8 PP16, 41 % (Llama Team 2024)"),
    Question("deepseek-v3 --gpus 2048xH800", "DP128 PP16 EP64 in FP8 (DeepSeek-AI 2024)"),
    Question("deepseek-v3 --gpus 256xGB200 --precision mxfp8", "DP64 PP4 EP64 interleave 4, 52 % (Megatron-Bridge)"),
    Question("qwen3-235b-a22b --gpus 256xH100", "DP16 TP2 PP8 EP32 interleave 4, 25 % in FP8 (Megatron-Bridge)"),
    Question("gpt2-xl --gpus 4xRTX4090", "no published run"),
    Question("llama-3.1-8b --gpus 2xA6000", "no published run; commonly LoRA"),
    Question("llama-2-70b --gpus 1xA6000 --qlora", "QLoRA, checkpointing, micro-batches of 1 (Dettmers et al. 2023)"),
    Question("llama-3.1-8b --gpus 32xH100 --batch 32 --seq 131072", "context parallelism (Llama Team 2024: CP16)"),
    Question("vit-huge-14 --gpus 8xA100-80GB", "no published run; torchvision trains ViT data-parallel"),
)


def answer(question: Question) -> tuple[str, ...]:
    """Return a row of the table: the question, the pick, its MFU, what experts chose, and CPU time."""
    before = process_time()
    best = json.loads(_output(question.words))["best"]
    seconds = process_time() - before
    pick, mfu = (best[0]["plan"], f"{100 * best[0]['mfu']:.0f} %") if best else ("no plan fits; advice is printed", "")
    return (f"`{question.words}`", pick, mfu, question.experts, f"{seconds:.2f} s")


def _output(words: str) -> str:
    return CliRunner().invoke(lazy_group.app, ["plan", *words.split(), "--json"]).stdout


def report() -> str:
    """Return the table in Markdown."""
    _output("bert-large --gpus 1xH100")  # imports
    header = ("`refold plan …`", "pick", "MFU", "what experts chose", "CPU time")
    return markdown(header, [answer(question) for question in QUESTIONS])


def main() -> None:
    """Print the table; write it with --write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.questions", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/plan.md")
    options = parser.parse_args()
    text = report()
    print(text)
    if options.write:
        write_section(DOCS / "plan.md", "questions", text)


if __name__ == "__main__":
    main()
