"""How models are split: tensor rules, pipeline stages, fused layers, and models of Hugging Face."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import SEQUENCE, VOCABULARY, RepeatedWords, SmallGpt, next_token_loss
from torch import Tensor, nn
from torch_ranks import run_ranks

import refold.train
from refold.errors import BadInput
from refold.model import parse_plan
from refold.train import PipelineRule
from refold.train.local_model import SplittableModel
from refold.train.losses import IGNORED_LABEL, first_input
from refold.train.pipeline_stages import find_rule, layers_of_stage
from refold.train.template import Template
from refold.train.tensor_rules import Split, check_splits, find_splits

STEPS = 3


class MeanPooling(nn.Module):
    """A model whose forward pass does something between its layers and its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the whole sequence."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(dim=1))


class NormInAttention(nn.Module):
    """An attention module with a norm of unknown place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))


def test_pipeline_stages_have_all_layers_in_order_and_almost_equal_shares() -> None:
    for layers in range(1, 12):
        for stages in range(1, layers + 1):
            shares = [layers_of_stage(layers, stage, stages) for stage in range(stages)]
            assert [layer for share in shares for layer in share] == [*range(layers)]
            assert {len(share) for share in shares} <= {layers // stages, -(-layers // stages)}


def test_the_largest_list_of_modules_is_divided_into_stages() -> None:
    assert find_rule(SmallGpt()) == PipelineRule("blocks", ("tokens", "positions"), ("norm", "head"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2), "no nn.ModuleList of layers"),
        (type("Loose", (SmallGpt,), {})(), "uses the parameter 'token' outside of a module"),
    ],
)
def test_models_without_a_rule_are_errors(model: nn.Module, message: str) -> None:
    model.token = nn.Parameter(torch.zeros(1))
    with pytest.raises(BadInput, match=message):
        find_rule(model)


def test_a_model_whose_stages_compute_something_else_is_not_divided_into_stages() -> None:
    model = MeanPooling()
    splittable = SplittableModel(model)
    splittable.try_pipeline(model, first_input(torch.zeros(1, 4, dtype=torch.int64)))
    with pytest.raises(BadInput, match="pipeline stages"):
        splittable.check(parse_plan("pp2 accumulate 2"))
    splittable.check(parse_plan("dp2"))

    good = SmallGpt()
    splittable = SplittableModel(good)
    splittable.try_pipeline(good, first_input(RepeatedWords()[0][0][None]))
    splittable.check(parse_plan("pp2 accumulate 2"))


def test_layers_are_split_by_their_names_or_by_annotation() -> None:
    splits = find_splits(SmallGpt(layers=1), {})
    attention = dict.fromkeys((f"blocks.0.attention.{name}" for name in "qkv"), "column")
    assert splits == {
        **attention,
        "blocks.0.attention.o": "row",
        "blocks.0.mlp.up": "column",
        "blocks.0.mlp.down": "row",
    }
    assert find_splits(MeanPooling(), {"layers.0": "column", "layers.1": "row"}) == {
        "layers.0": "column",
        "layers.1": "row",
    }


@pytest.mark.parametrize(
    ("model", "annotated", "degree", "message"),
    [
        (MeanPooling(), {}, 2, "needs layers that can be split, and none was found"),
        (SmallGpt(heads=2), {}, 4, "num_heads = 2, which tensor parallelism of 4 cannot split"),
        (SmallGpt(width=36, heads=4), {}, 8, "outputs, which tensor parallelism of 8 cannot split evenly"),
        (nn.ModuleDict({"attention": NormInAttention()}), {}, 2, "attention.norm.weight is within split layers"),
    ],
)
def test_layers_that_cannot_be_split_are_errors(
    model: nn.Module, annotated: dict[str, Split], degree: int, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        check_splits(model, find_splits(model, annotated), degree)


def test_annotations_that_match_nothing_or_no_linear_layer_are_errors() -> None:
    with pytest.raises(BadInput, match=r"'blok\.\*' matches no module"):
        find_splits(SmallGpt(), {"blok.*": "column"})
    with pytest.raises(BadInput, match=r"'tokens' matches 'tokens', a Embedding; expected nn\.Linear"):
        find_splits(SmallGpt(), {"tokens": "column"})


def test_a_template_has_no_storage_and_keeps_ties() -> None:
    template = Template(SmallGpt(tied=True))
    built = template.build()
    assert template.aliases == {"head.weight": "tokens.weight"}
    assert all(parameter.is_meta for parameter in built.parameters())
    assert built.head.weight is built.tokens.weight
    assert built.head.weight is not template.model.head.weight


# Models of Hugging Face.


def make_hugging_face_model(family: str) -> nn.Module:
    import transformers

    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    narrow = {**sizes, "intermediate_size": 64}
    match family:
        case "llama":
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(**narrow, num_key_value_heads=2))
        case "qwen3":
            config = transformers.Qwen3Config(**narrow, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True)
            return transformers.Qwen3ForCausalLM(config)
        case "gpt2":
            no_dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "bos_token_id": 0, "eos_token_id": 0}
            return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **no_dropout))
        case "phi3":
            config = transformers.Phi3Config(**narrow, num_key_value_heads=2, pad_token_id=0)
            return transformers.Phi3ForCausalLM(config)
        case "lora":
            peft = pytest.importorskip("peft")
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**narrow, num_key_value_heads=2))
            targets = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
            config = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
            adapted: nn.Module = peft.get_peft_model(model, config)
            return adapted
        case _:
            no_dropout = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
            return transformers.BertForMaskedLM(transformers.BertConfig(**narrow, **no_dropout))


class PaddedText:
    """Sequences of different lengths, padded on the right, as a tokeniser of Hugging Face makes them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(1, VOCABULARY, (SEQUENCE,), generator=torch.Generator().manual_seed(index))
        used = torch.arange(SEQUENCE) < 4 + index % (SEQUENCE - 4)
        labels = tokens.where(used, IGNORED_LABEL)
        return {"input_ids": tokens.where(used, 0), "attention_mask": used.long(), "labels": labels}


def train_hugging_face_model(
    family: str, plans: list[str], padded: bool
) -> tuple[list[float], dict[str, Any], set[str]]:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = make_hugging_face_model(family)
    names = {name for name, _ in model.named_parameters()}
    session = refold.train.start(
        model,
        torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1),
        loss=None if padded else next_token_loss,
        data=PaddedText() if padded else RepeatedWords(),
        batch=4,
        steps=STEPS * len(plans),
    )
    losses: list[float] = []
    for batch in session:
        losses.append(session.step(batch).item())
        shape, steps = divmod(len(losses), STEPS)
        if steps == 0 and shape < len(plans):
            session.change(parse_plan(plans[shape]))
    weights = {name: value.tolist() for name, value in session.full_state_dict().items()}
    return losses, weights, names


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:`is_gradient_checkpointing` is deprecated")
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded, with masks and losses of their own"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "bert", "phi3", "lora"])
def test_models_of_hugging_face_give_the_same_losses_in_every_shape(family: str, padded: bool) -> None:
    run = partial(run_ranks, form_group=False)
    [(expected, weights, names)] = run(1, _in_environment, family, ["dp1"] * 5, padded)
    plans = ["dp2", "tp2", "pp2 accumulate 2 recompute full", "dp2 zero3", "tp2 accumulate 4"]
    (losses, moved_weights, _), _ = run(2, _in_environment, family, plans, padded)
    precision = 1e-6 if padded else 1e-10  # Transformers computes the loss of tokens in float32
    assert losses == pytest.approx(expected, rel=precision)
    assert moved_weights.keys() == weights.keys() >= names
    for name, values in weights.items():
        torch.testing.assert_close(
            torch.tensor(moved_weights[name]), torch.tensor(values), rtol=precision, atol=precision, msg=name
        )


def _in_environment(meeting: Path, family: str, plans: list[str], padded: bool) -> Any:
    """Train as under torchrun: ranks meet at an address."""
    if int(os.environ["WORLD_SIZE"]) > 1:
        port = meeting.with_name("port")
        if os.environ["RANK"] == "0":
            import socket

            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port.with_suffix(".new").write_text(str(probe.getsockname()[1]))
            port.with_suffix(".new").rename(port)
        while not port.exists():
            pass
        os.environ["MASTER_PORT"] = port.read_text()
    return train_hugging_face_model(family, plans, padded)
