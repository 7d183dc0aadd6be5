"""Measure training steps of Hugging Face models on the GPU of this machine: PyTorch and transformers, nothing else.

`python benchmarks/accuracy/measure_transformers.py --out DIR` builds the models of transformers_models.json with random
weights and writes DIR/transformers.csv, row by row, and DIR/transformers.json with the versions. A step is that of
Trainer: forward pass and loss of the model, backward pass, gradients clipped, fused AdamW, one synchronisation.

Precision: "autocast" keeps weights in float32 and computes in bfloat16 (`TrainingArguments(bf16=True)`); "bf16" has
everything in bfloat16. With LoRA, frozen weights are in bfloat16 and adapters of all linear layers but the output layer
in float32, as PEFT has them.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import multiprocessing
import platform
import statistics
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

MODELS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "transformers_models.json").read_text(encoding="utf-8")
)

WARM_UP, STEPS, MAX_SECONDS = 2, 5, 1.5
"""Steps before the measured ones; measured steps; no further step begins after so many seconds."""


@dataclass(frozen=True)
class Config:
    """What is measured: LoRA's `rank` is 0 for full training; `layers` have its adapters, all or those of attention."""

    model: str
    precision: str
    rank: int
    attention: str
    checkpointing: int
    batch: int
    sequence: int
    layers: str = "all"


@dataclass(frozen=True)
class Result:
    """Times are medians of steps; memory is the peak of allocated and reserved memory."""

    step_s: float | str = ""
    forward_s: float | str = ""
    backward_s: float | str = ""
    optimizer_s: float | str = ""
    memory_gib: float | str = ""
    reserved_gib: float | str = ""
    kernels: int | str = ""
    matmul_s: float | str = ""
    attention_s: float | str = ""
    other_s: float | str = ""
    parameters: int | str = ""
    trained: int | str = ""
    status: str = "ok"


FULL_CONFIGS = (
    ("sdpa", 0, 8, 2048),
    ("sdpa", 0, 1, 512),
    ("sdpa", 0, 4, 512),
    ("sdpa", 0, 4, 1024),
    ("sdpa", 0, 8, 1024),
    ("sdpa", 0, 2, 2048),
    ("sdpa", 0, 4, 4096),
    ("sdpa", 1, 8, 2048),
    ("sdpa", 1, 1, 512),
    ("sdpa", 1, 16, 2048),
    ("sdpa", 1, 4, 4096),
    ("eager", 0, 4, 1024),
    ("eager", 0, 2, 512),
    ("eager", 0, 2, 2048),
    ("eager", 1, 8, 1024),
)
BF16_CONFIGS = (
    ("sdpa", 0, 8, 2048),
    ("sdpa", 0, 1, 512),
    ("sdpa", 0, 8, 1024),
    ("sdpa", 1, 8, 2048),
    ("eager", 0, 4, 1024),
)
LORA_CONFIGS = (
    ("sdpa", 0, 4, 2048),
    ("sdpa", 0, 1, 512),
    ("sdpa", 0, 4, 1024),
    ("sdpa", 1, 8, 2048),
    ("sdpa", 1, 2, 1024),
)
LONG_LORA_CONFIGS = (
    ("sdpa", 1, 1, 32768),
    ("sdpa", 1, 4, 2048),
    ("sdpa", 1, 1, 16384),
    ("sdpa", 0, 1, 8192),
    ("sdpa", 1, 2, 8192),
)


def configs_of(
    model: str, precision: str, ranks: tuple[int, ...], *, layers: str = "all", long: bool = False
) -> Iterator[Config]:
    """Yield what is measured of a model in this precision, the most informative first."""
    longest = MODELS[model].get("n_positions") or MODELS[model]["max_position_embeddings"]
    for rank in ranks:
        lora = LONG_LORA_CONFIGS if long else LORA_CONFIGS
        table = lora if rank else FULL_CONFIGS if precision == "autocast" else BF16_CONFIGS
        seen = set()
        for attention, checkpointing, batch, sequence in table:
            factor = max(1, sequence // longest)  # the same tokens in shorter sequences
            key = (attention, checkpointing, batch * factor, sequence // factor)
            if key not in seen:
                seen.add(key)
                yield Config(model, precision, rank, *key, layers)


def main() -> None:
    """Measure models one after the other, each in a forked process, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument("--precision", choices=("autocast", "bf16"), default="autocast")
    parser.add_argument("--ranks", default="0", help="ranks of LoRA, comma-separated; 0: full training")
    parser.add_argument("--layers", choices=("all", "attention"), default="all", help="layers that have adapters")
    parser.add_argument("--long", action="store_true", help="LoRA with sequences of up to 32,768 tokens")
    parser.add_argument("--tiny", action="store_true", help="toy models and short sequences on a CPU, as a check")
    options = parser.parse_args()
    end = monotonic() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "transformers.json").write_text(json.dumps(versions(), indent=2) + "\n")
    path, ranks = options.out / "transformers.csv", tuple(map(int, options.ranks.split(",")))
    if not path.exists():
        _append(path, [field.name for kind in (Config, Result) for field in fields(kind)])
    for model in options.models.split(","):
        for precision_ranks in [(rank,) for rank in ranks]:
            configs = list(
                configs_of(model, options.precision, precision_ranks, layers=options.layers, long=options.long)
            )
            fork = multiprocessing.get_context("fork")
            process = fork.Process(target=measure_model, args=(configs, path, options.tiny, end))
            process.start()
            process.join(max(1.0, end + 20 - monotonic()))
            if process.is_alive():
                process.kill()
            if monotonic() > end:
                return


def versions() -> dict[str, Any]:
    """Return the versions that figures belong to. Does not initialise CUDA, so that processes can be forked."""
    import torch
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
    }


def _append(path: Path, row: list[Any]) -> None:
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerow(row)


def measure_model(configs: list[Config], path: Path, tiny: bool, end: float) -> None:
    """Measure configurations that share a model, precision and rank."""
    first = configs[0]
    trainer, done = Trainer(first, tiny), set[Config]()
    for planned in configs:
        if monotonic() > end:
            return
        config = trainer.supported(replace(planned, batch=1, sequence=32) if tiny else planned)
        if config in done:
            continue
        done.add(config)
        result = trainer.measure(config)
        _append(path, [*asdict(config).values(), *(_rounded(value) for value in asdict(result).values())])
        print(f"{monotonic() - end:6.0f} {config} {result}", flush=True)


def _rounded(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


class Trainer:
    """One model with its optimizer, and the step that is measured."""

    def __init__(self, config: Config, tiny: bool) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        keys = dict(MODELS[config.model])
        if tiny:
            keys |= {key: 2 for key in keys if key in ("num_hidden_layers", "n_layer")}
            keys |= {key: 1000 for key in keys if key == "vocab_size"}
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.float32 if config.precision == "autocast" and not config.rank else torch.bfloat16
        model_config = AutoConfig.for_model(**keys, use_cache=False)
        with torch.device(self.device):
            self.model = AutoModelForCausalLM.from_config(model_config, dtype=dtype)
        self.model.train()
        self.default_attention = self.model.config._attn_implementation
        self.parameters = sum(one.numel() for one in self.model.parameters())
        if config.rank:
            add_adapters(self.model, config.rank, config.layers)
        self.trained = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-5, fused=True)
        self.autocast: Callable[[], Any] = nullcontext
        if config.precision == "autocast":
            self.autocast = lambda: torch.autocast(self.device, torch.bfloat16)

    def supported(self, config: Config) -> Config:
        """Return the configuration with eager attention if this model has no other."""
        return config if self.default_attention == "sdpa" else replace(config, attention=self.default_attention)

    def measure(self, config: Config) -> Result:
        """Measure one configuration."""
        import torch

        self.model.set_attn_implementation(config.attention)
        if config.checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.model.gradient_checkpointing_disable()
        try:
            return self._measure(config)
        except torch.OutOfMemoryError:
            return Result(status="oom")
        finally:
            self.optimizer.zero_grad(set_to_none=True)
            gc.collect()
            if self.device == "cuda":
                torch.cuda.empty_cache()

    def _measure(self, config: Config) -> Result:
        import torch

        vocabulary = self.model.config.vocab_size
        tokens = torch.randint(0, vocabulary, (config.batch, config.sequence), device=self.device)
        cuda = torch.cuda if self.device == "cuda" else None
        for _ in range(WARM_UP):
            self.step(tokens)
        if cuda:
            cuda.reset_peak_memory_stats()
        times: list[tuple[float, ...]] = []
        begin = perf_counter()
        while len(times) < STEPS and (len(times) < 2 or perf_counter() - begin < MAX_SECONDS):
            times.append(self.step(tokens))
        step, forward, backward, optimizer = (statistics.median(column) for column in zip(*times, strict=True))
        used = cuda.max_memory_allocated() / 2**30 if cuda else 0.0
        reserved = cuda.max_memory_reserved() / 2**30 if cuda else 0.0
        trained = sum(one.numel() for one in self.trained)
        count, matmul, attention, other = self._kernels(tokens) if cuda else (0, 0.0, 0.0, 0.0)
        phases = (step, forward, backward, optimizer)
        return Result(*phases, used, reserved, count, matmul, attention, other, self.parameters, trained)

    def step(self, tokens: Any) -> tuple[float, ...]:
        """Return the seconds of a step, and of its forward pass, backward pass and update."""
        import torch

        cuda = self.device == "cuda"
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)] if cuda else []
        begin = perf_counter()
        if cuda:
            marks[0].record()
        with self.autocast():
            loss = self.model(input_ids=tokens, labels=tokens).loss
        if cuda:
            marks[1].record()
        loss.backward()
        if cuda:
            marks[2].record()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not cuda:
            return perf_counter() - begin, 0.0, 0.0, 0.0
        marks[3].record()
        loss.item()
        torch.cuda.synchronize()
        seconds = perf_counter() - begin
        return seconds, *(marks[at].elapsed_time(marks[at + 1]) / 1e3 for at in range(3))

    def _kernels(self, tokens: Any) -> tuple[int, float, float, float]:
        """Return the number of kernels of a step, and the seconds in matrix products, attention and all others."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            self.step(tokens)
            torch.cuda.synchronize()
        count, seconds = 0, {"matmul": 0.0, "attention": 0.0, "other": 0.0}
        for event in profiler.key_averages():
            name = event.key.lower()
            if not event.self_device_time_total or name.startswith(("cuda", "memcpy", "activity")):
                continue
            fused = any(word in name for word in ("flash", "fmha", "sdpa", "attention"))
            product = any(word in name for word in ("gemm", "cutlass", "nvjet", "matmul", "splitk"))
            kind = "attention" if fused else "matmul" if product else "other"
            count += event.count
            seconds[kind] += event.self_device_time_total / 1e6
        return count, seconds["matmul"], seconds["attention"], seconds["other"]


ATTENTION_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj")


def add_adapters(model: Any, rank: int, layers: str) -> None:
    """Freeze the model and add LoRA adapters to its linear layers but the output layer: all, or those of attention."""
    import torch

    class Adapted(torch.nn.Module):  # type: ignore[misc]
        """A frozen linear layer with two low-rank matrices beside it, in float32."""

        def __init__(self, base: Any) -> None:
            super().__init__()
            columns, rows = base.weight.shape
            if type(base).__name__ == "Conv1D":  # of GPT-2: transposed
                columns, rows = rows, columns
            self.base = base
            device = base.weight.device
            self.down = torch.nn.Linear(rows, rank, bias=False, device=device, dtype=torch.float32)
            self.up = torch.nn.Linear(rank, columns, bias=False, device=device, dtype=torch.float32)
            torch.nn.init.zeros_(self.up.weight)

        def forward(self, inputs: Any) -> Any:
            return self.base(inputs) + 2.0 * self.up(self.down(inputs.to(self.down.weight.dtype)))

    model.requires_grad_(False)
    model.enable_input_require_grads()
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            is_chosen = child is not head and (layers == "all" or name in ATTENTION_LAYERS)
            if is_chosen and type(child).__name__ in ("Linear", "Conv1D") and not isinstance(module, Adapted):
                setattr(module, name, Adapted(child))


if __name__ == "__main__":
    main()
