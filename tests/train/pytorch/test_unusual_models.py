"""Models, optimizers and schedulers with less common state train alike in every shape."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import RepeatedWords, SmallGpt, next_token_loss
from torch import Tensor, nn
from torch_ranks import run_ranks

import refold.train
from refold.errors import BadInput, StateNotMoved
from refold.model import Plan, parse_plan
from refold.train import progress
from refold.train.checkpoints import Checkpoints
from refold.train.elementwise import is_elementwise
from refold.train.host_tensors import plain, restored
from refold.train.layout import RankMesh
from refold.train.local_model import SplittableModel
from refold.train.local_optimizer import LocalOptimizer
from refold.train.process_group import Rendezvous
from refold.train.reshaper import Reshaper
from refold.train.session import Session
from refold.train.training_options import TrainingOptions
from refold.train.training_state import TrainingState

STEPS = 2
"""Steps per plan."""


class CountingSgd(torch.optim.Optimizer):
    """Divides the learning rate by the number of steps, which is not a tensor."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.5})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["steps"] = state.get("steps", 0) + 1
                parameter.add_(parameter.grad, alpha=-group["lr"] / state["steps"])


class RowScaledSgd(torch.optim.Optimizer):
    """Counts the steps of each row, in state of a shape of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.5})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["rows"] = state.get("rows", torch.zeros(parameter.shape[:1])) + 1
                parameter.add_(parameter.grad, alpha=-group["lr"] / float(state["rows"].max()))


def adamw_with_decay_of_matrices(parameters: Any) -> torch.optim.Optimizer:
    everything = [*parameters]
    matrices, others = ([each for each in everything if (each.dim() > 1) == is_matrix] for is_matrix in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.3, "lr": 0.02}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.003, foreach=True)


class MuonOfMatrices(torch.optim.Muon):
    """Muon for matrices; other parameters are not trained."""

    def __init__(self, parameters: Any) -> None:
        super().__init__([each for each in parameters if each.dim() == 2], lr=0.02)


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(1.5))

    def forward(self, logits: Tensor) -> Tensor:
        return logits * self.value


class GptWithTemperature(SmallGpt):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = Temperature()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.temperature(super().forward(tokens))


def gpt_with_shared_layer() -> SmallGpt:
    model = SmallGpt()
    model.blocks[3] = model.blocks[1]
    return model


def gpt_with_tied_layers() -> SmallGpt:
    model = SmallGpt()
    model.blocks[2].mlp.up.weight = model.blocks[0].mlp.up.weight
    return model


def tied_gpt_with_buffers() -> SmallGpt:
    model = SmallGpt(tied=True)
    model.register_buffer("mask", torch.rand(7) > 0.5)
    model.register_buffer("noise", torch.randn(5).to(torch.bfloat16))
    return model


def momentum_sgd_with_groups(parameters: Any) -> torch.optim.Optimizer:
    first, *others = parameters
    return torch.optim.SGD([{"params": others}, {"params": [first], "lr": 0.01}], lr=0.1, momentum=0.9, nesterov=True)


def make_session(
    meeting: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    plan: Plan | None = None,
    *,
    compile_layers: bool = False,
    checkpoints: Checkpoints | None = None,
) -> Session:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    state = TrainingState(model, optimizer, SplittableModel(model, compile_layers=compile_layers))
    options = TrainingOptions(batch=8, steps=steps, clip=1.0, save_every=0.0)
    reshaper = Reshaper(state, 8, torch.device("cpu"))
    session = Session(reshaper, next_token_loss, options.batches_of(RepeatedWords()), options, checkpoints=checkpoints)
    session.begin_alone(plan, Rendezvous(rank, ranks, meeting))
    return session


def losses_under(session: Session, plans: list[Plan]) -> list[float]:
    """Train a few steps with each plan; the first one is that of the session."""
    losses: list[float] = []
    for batch in session:
        losses.append(session.step(batch).item())
        shape, steps = divmod(len(losses), STEPS)
        if steps == 0 and shape < len(plans):
            session.change(plans[shape])
    return losses


def train(
    meeting: Path, make: Callable[[], nn.Module], optimizer: Callable[[Any], Any], plans: list[Plan]
) -> tuple[list[float], dict[str, Any]]:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(int(os.environ["RANK"]))  # the initial values of rank 0 count
    model = make()
    session = make_session(meeting, model, optimizer(model.parameters()), STEPS * len(plans))
    losses = losses_under(session, plans)
    values = session.full_state_dict()
    make().load_state_dict(values)
    return losses, {name: value.tolist() for name, value in values.items()}


@pytest.mark.parametrize(
    ("make", "optimizer", "plans"),
    [
        (SmallGpt, CountingSgd, ["dp2", "tp2", "dp2 offload", "pp2 accumulate 2"]),
        (SmallGpt, momentum_sgd_with_groups, ["dp2 zero1 offload", "tp2", "pp2 accumulate 2", "dp2 zero3"]),
        (SmallGpt, adamw_with_decay_of_matrices, ["dp2 zero1 offload", "tp2", "pp2 accumulate 2", "dp2 zero3"]),
        (SmallGpt, MuonOfMatrices, ["dp2", "dp2 offload", "pp2 accumulate 2", "dp2 accumulate 2"]),
        (SmallGpt, torch.optim.Adafactor, ["dp2", "dp2 accumulate 2", "pp2 accumulate 2", "dp2"]),
        (GptWithTemperature, torch.optim.AdamW, ["dp2", "dp2 zero3 accumulate 2", "tp2", "pp2 accumulate 2"]),
        (gpt_with_shared_layer, torch.optim.AdamW, ["dp2", "dp2 zero3", "dp2 zero1 accumulate 2"]),
        (gpt_with_tied_layers, torch.optim.AdamW, ["dp2", "dp2 zero3", "dp2 zero1 recompute full"]),
        (tied_gpt_with_buffers, torch.optim.AdamW, ["dp2", "dp2 zero3"]),
    ],
)
def test_losses_and_weights_do_not_depend_on_the_plans(
    make: Callable[[], nn.Module], optimizer: Callable[[Any], Any], plans: list[str]
) -> None:
    [expected] = run_ranks(1, train, make, optimizer, [Plan()] * len(plans), form_group=False)
    for losses, values in run_ranks(2, train, make, optimizer, list(map(parse_plan, plans)), form_group=False):
        assert losses == pytest.approx(expected[0], rel=1e-10, abs=0)
        assert values.keys() == expected[1].keys()
        for name, value in expected[1].items():
            torch.testing.assert_close(torch.tensor(values[name]), torch.tensor(value), msg=name)


def test_state_that_depends_on_the_division_of_parameters_starts_anew() -> None:
    plans = [parse_plan(plan) for plan in ("dp2", "dp2 zero3", "tp2", "dp2")]
    (losses, _), _ = run_ranks(2, train, SmallGpt, RowScaledSgd, plans, form_group=False)
    assert losses[-1] < losses[0]


def change_to_a_plan_that_divides(meeting: Path, plan: str) -> tuple[str, str, Plan]:
    model = SmallGpt()
    session = make_session(meeting, model, MuonOfMatrices(model.parameters()), 2, Plan(data=2, zero=3))
    first = session.plan
    for batch in session:
        session.step(batch)
        if session.steps_done == 1:
            with pytest.raises(BadInput) as error:
                session.change(parse_plan(plan))
    return str(error.value), str(session.plan), first


@pytest.mark.parametrize("plan", ["tp2", "dp2 zero1"])
def test_plans_that_divide_parameters_are_refused_for_optimizers_of_whole_matrices(plan: str) -> None:
    [(error, later, first), _] = run_ranks(2, change_to_a_plan_that_divides, plan, form_group=False)
    assert error.startswith("MuonOfMatrices needs whole parameters, and ")
    assert error.endswith("divides them; use data parallelism without ZeRO, or pipeline stages")
    assert (later, first) == ("DP2", Plan(data=2))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (torch.optim.AdamW, True),
        (adamw_with_decay_of_matrices, True),
        (CountingSgd, True),
        (RowScaledSgd, True),
        (MuonOfMatrices, False),
        (torch.optim.Adafactor, False),
        (torch.optim.LBFGS, True),  # cannot make a step without a closure
    ],
)
def test_steps_of_halves_tell_whether_an_optimizer_is_elementwise(make: Callable[[Any], Any], expected: bool) -> None:
    model = SmallGpt()
    optimizer = make(model.parameters())
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.0)
    before = [value.detach().clone() for value in model.parameters()]
    assert is_elementwise(optimizer) == expected
    assert not any(optimizer.state.values()), "the probe leaves no state"
    assert all(map(torch.equal, before, model.parameters()))


def train_in(meeting: Path, dtype: torch.dtype, plans: list[Plan]) -> list[float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmallGpt().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    session = make_session(meeting, model, optimizer, STEPS * len(plans))
    losses = losses_under(session, plans)
    assert {value.dtype for value in session.full_state_dict().values()} == {dtype}
    return losses


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_parameters_of_16_bits_train_alike_up_to_rounding(dtype: torch.dtype) -> None:
    plans = [parse_plan(plan) for plan in ("dp2", "dp2 zero3", "tp2", "pp2 accumulate 2", "dp2 offload")]
    [expected] = run_ranks(1, train_in, dtype, [Plan()] * len(plans), form_group=False)
    for losses in run_ranks(2, train_in, dtype, plans, form_group=False):
        assert losses == pytest.approx(expected, rel=0.02)
    assert expected[-1] < expected[0]


@pytest.mark.parametrize("plan", ["tp2", "pp2 accumulate 2"])
@pytest.mark.parametrize("make", [gpt_with_shared_layer, gpt_with_tied_layers])
def test_layers_with_tied_parameters_are_not_split(make: Callable[[], nn.Module], plan: str) -> None:
    with pytest.raises(BadInput, match=r"blocks\.\d\.[a-z_.]+ is tied to blocks\.\d\.[a-z_.]+: .* cannot share it"):
        SplittableModel(make()).check(parse_plan(plan))


@pytest.mark.parametrize("kind", ["MultiStepLR", "OneCycleLR", "ChainedScheduler"])
def test_schedulers_continue_from_json(kind: str) -> None:
    def make() -> tuple[LocalOptimizer, Any]:
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=torch.tensor(1.0))
        schedulers = torch.optim.lr_scheduler
        scheduler: Any = schedulers.MultiStepLR(optimizer, [2, 4], 0.5)
        if kind == "OneCycleLR":
            scheduler = schedulers.OneCycleLR(optimizer, 1.0, 10, cycle_momentum=False)
        elif kind == "ChainedScheduler":
            scheduler = schedulers.ChainedScheduler([scheduler, schedulers.ExponentialLR(optimizer, 0.9)])
        return LocalOptimizer(optimizer, {id(weight): "weight"}), scheduler

    def advance(optimizer: LocalOptimizer, scheduler: Any, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            optimizer.optimizer.step()
            scheduler.step()
            rates.append(float(optimizer.optimizer.param_groups[0]["lr"]))
        return rates

    optimizer, scheduler = make()
    advance(optimizer, scheduler, 3)
    settings, state = json.loads(json.dumps([optimizer.settings(), plain(scheduler.state_dict())]))
    other, other_scheduler = make()
    other.restore_settings(settings)
    other_scheduler.load_state_dict(restored(state, other_scheduler.state_dict()))
    assert advance(other, other_scheduler, 4) == pytest.approx(advance(optimizer, scheduler, 4))


def test_a_checkpoint_with_other_groups_of_parameters_is_an_error() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = LocalOptimizer(torch.optim.SGD([weight]), {id(weight): "weight"})
    with pytest.raises(BadInput, match="the checkpoint has 2 groups of parameters, the optimizer 1"):
        optimizer.restore_settings([{}, {}])


def start_again(meeting: Path, folder: Path, width: int) -> str:
    """Train a step, or fail because the checkpoint is one of another model."""
    del meeting
    os.environ.pop("MASTER_PORT", None)
    torch.manual_seed(0)
    model = SmallGpt(width=width)
    try:
        session = refold.train.start(
            model,
            torch.optim.AdamW(model.parameters()),
            loss=next_token_loss,
            data=RepeatedWords(),
            batch=4,
            steps=1,
            checkpoint=folder,
        )
    except BadInput as error:
        return str(error)
    for batch in session:
        session.step(batch)
    return ""


def test_a_checkpoint_of_another_model_is_an_error_that_names_a_tensor(tmp_path: Path) -> None:
    assert run_ranks(1, start_again, tmp_path, 32, form_group=False) == [""]
    [error] = run_ranks(1, start_again, tmp_path, 16, form_group=False)
    assert error.startswith(f"{tmp_path}/step-1: is a checkpoint of another model: 'model.blocks.0.attention.k.bias'")
    assert run_ranks(1, start_again, tmp_path, 32, form_group=False) == [""], "the checkpoint is intact"


def fail_to_move(meeting: Path) -> tuple[str, list[float]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmallGpt()
    session = make_session(meeting, model, torch.optim.AdamW(model.parameters()), 4)
    losses: list[float] = []
    message = ""
    for batch in session:
        losses.append(session.step(batch).item())
        if session.steps_done == 2 and session.plan.gpus == 2:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "posix_fallocate", fail_with_full_disk)
                with pytest.raises(StateNotMoved) as error:
                    session.change(Plan(tensor=2))
            message = str(error.value)
            assert session.plan == Plan(data=2)
    return message, losses


def fail_with_full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_change_without_room_for_the_state_fails_on_all_ranks_and_training_continues() -> None:
    [(_, expected)] = run_ranks(1, fail_to_move, form_group=False)
    for message, losses in run_ranks(2, fail_to_move, form_group=False):
        assert "bytes of model state: No space left on device" in message
        assert losses == pytest.approx(expected, rel=1e-4)


def save_to_full_disk(meeting: Path, folder: Path) -> tuple[list[float], int | None]:
    """Write checkpoints after every step, of which those of rank 1 do not fit on its disk from the second one on."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmallGpt()
    checkpoints = Checkpoints(folder)
    session = make_session(meeting, model, torch.optim.AdamW(model.parameters()), 4, checkpoints=checkpoints)
    losses: list[float] = []
    for batch in session:
        losses.append(session.step(batch).item())
        if session.steps_done == 1:
            session.save()
            if session.rank == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, resource.RLIM_INFINITY))
    return losses, checkpoints.latest()


def test_training_continues_if_checkpoints_cannot_be_written(tmp_path: Path) -> None:
    [(expected, latest)] = run_ranks(1, save_to_full_disk, tmp_path / "one", form_group=False)
    assert latest == 4
    for losses, latest in run_ranks(2, save_to_full_disk, tmp_path / "two", form_group=False):
        assert losses == pytest.approx(expected, rel=1e-4)
        assert latest == 1


def train_compiled(meeting: Path, plans: list[Plan], compile_layers: bool) -> list[float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmallGpt(layers=2)
    optimizer = torch.optim.AdamW(model.parameters())
    steps = STEPS * len(plans)
    return losses_under(make_session(meeting, model, optimizer, steps, compile_layers=compile_layers), plans)


@pytest.mark.filterwarnings("ignore")
def test_compiled_layers_train_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are traced, but not compiled to machine code, which takes minutes."""
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="eager"))
    plans = [parse_plan(plan) for plan in ("dp2", "dp2 zero3", "tp2")]
    [expected] = run_ranks(1, train_compiled, [Plan()] * len(plans), False, form_group=False)
    for losses in run_ranks(2, train_compiled, plans, True, form_group=False):
        assert losses == pytest.approx(expected, rel=1e-4)


def plan_in_use(meeting: Path, plan: Plan) -> Plan:
    model = SmallGpt()
    return make_session(meeting, model, torch.optim.AdamW(model.parameters()), 1, plan).plan


@pytest.mark.parametrize(
    ("plan", "used"),
    [
        ("tp2", Plan(tensor=2)),
        ("dp2 accumulate 3", Plan(data=2, zero=3)),
        ("dp4", Plan(data=2, zero=3)),
    ],
)
def test_without_an_agent_a_plan_that_does_not_fit_is_replaced(plan: str, used: Plan) -> None:
    assert run_ranks(2, plan_in_use, parse_plan(plan), form_group=False) == [used, used]


def test_without_an_agent_a_batch_that_the_ranks_cannot_divide_is_an_error() -> None:
    with pytest.raises(AssertionError, match="a batch of 8 samples cannot be divided into 3 micro-batches"):
        run_ranks(3, plan_in_use, Plan(data=3), form_group=False)


def number_of_shards(shard_group: int | None, replicate: int = 1) -> int:
    plan = Plan(data=4, zero=3, replicate=replicate)
    return RankMesh(plan, torch.distributed.get_rank(), torch.device("cpu"), shard_group).sizes["shard"]


@pytest.mark.parametrize("shard_group", [None, 4])
def test_a_plan_says_how_many_groups_have_all_shards(shard_group: int | None) -> None:
    assert run_ranks(4, number_of_shards, shard_group, 2) == [2] * 4


@pytest.mark.parametrize(("shard_group", "used"), [(2, 2), (3, 4), (8, 4)])
def test_ranks_that_are_no_multiple_of_the_shard_group_shard_over_all(shard_group: int, used: int) -> None:
    assert run_ranks(4, number_of_shards, shard_group) == [used] * 4


def be_stopped(meeting: Path) -> int:
    progress._stop_signal_handler.cache_clear()
    os.environ["REFOLD_STOP_SIGNAL"] = "TERM"
    model = SmallGpt()
    session = make_session(meeting, model, torch.optim.AdamW(model.parameters()), 10_000)
    with pytest.raises(SystemExit):
        for batch in session:
            session.step(batch)
            if session.steps_done == 1:
                os.kill(os.getpid(), signal.SIGTERM)
    return session.steps_done


def test_without_an_agent_the_stop_signal_ends_all_ranks_at_the_same_step() -> None:
    first, second = run_ranks(2, be_stopped, form_group=False)
    assert first == second < 10_000
