"""Train a model of Hugging Face, by name, with random weights: llama, qwen2, mistral, gpt2, …

python examples/train/hugging_face.py --model llama --steps 50
refold submit examples/train/hugging_face.yaml
"""

from __future__ import annotations

import torch
from options import SIZES, read_options
from synthetic_data import MarkovText, SlowData
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import refold.train

VOCABULARY = 256

DROPOUTS = ("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout")
"""Off, since losses under dropout depend on the plan."""


def build(name: str, size_name: str) -> PreTrainedModel:
    """Return a model of this family; nothing is downloaded."""
    size = SIZES[size_name]
    config = AutoConfig.for_model(
        name,
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        max_position_embeddings=size.length,
        bos_token_id=0,
        eos_token_id=0,
    )
    more = {"intermediate_size": 4 * size.hidden, "num_key_value_heads": size.heads}
    for field, value in {**more, **dict.fromkeys(DROPOUTS, 0.0)}.items():
        if hasattr(config, field):
            setattr(config, field, value)
    return AutoModelForCausalLM.from_config(config)


def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean loss of the tokens of a micro-batch."""
    return cross_entropy(logits.flatten(0, -2).float(), batch["labels"].flatten())


def main() -> None:
    """Train."""
    options = read_options(__doc__, model="llama")
    torch.manual_seed(options.seed)
    model = build(options.model, options.size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)

    session = refold.train.start(
        model,
        optimizer,
        loss=loss,
        data=SlowData(MarkovText(VOCABULARY, SIZES[options.size].length, seed=options.seed), options.load_ms),
        batch=options.batch,
        steps=options.steps,
        seed=options.seed,
    )
    for batch in session:
        value = session.step(batch)
        if session.rank == 0 and session.steps_done % 10 == 0:
            print(f"step {session.steps_done}, loss {value:.4f}, {session.plan}", flush=True)


if __name__ == "__main__":
    main()
