"""The environment variables that a job inherits from its submitter."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from refold.client.export import ExportedVariables, choose_exported, looks_secret
from refold.errors import BadInput

SHELL = {
    "PATH": "/venv/bin:/usr/bin",
    "HOME": "/home/ana",
    "VIRTUAL_ENV": "/venv",
    "FOO": "1",
    "PWD": "/somewhere",
    "SHLVL": "2",
    "_": "/venv/bin/refold",
    "WANDB_API_KEY": "abc",
    "REFOLD_TOKEN": "rf_1",
    "SLURM_JOB_ID": "7",
    "CUDA_VISIBLE_DEVICES": "3",
    "BASH_FUNC_module%%": "() { :; }",
    "LATIN1": "caf\udce9",
}


def exported(export: str) -> ExportedVariables:
    chosen = choose_exported(SHELL, export)
    assert chosen is not None
    return chosen


def test_by_default_all_variables_but_secrets_and_those_of_the_shell_are_exported() -> None:
    assert exported("ALL") == ExportedVariables(
        {"PATH": "/venv/bin:/usr/bin", "HOME": "/home/ana", "VIRTUAL_ENV": "/venv", "FOO": "1"}, ["WANDB_API_KEY"]
    )


def test_a_secret_is_exported_if_it_is_named() -> None:
    chosen = exported("ALL,WANDB_API_KEY")
    assert (chosen.variables["WANDB_API_KEY"], chosen.variables["FOO"], chosen.withheld) == ("abc", "1", [])


def test_named_variables_come_with_those_that_programs_need() -> None:
    assert exported("FOO").variables == {"PATH": "/venv/bin:/usr/bin", "HOME": "/home/ana", "FOO": "1"}


def test_values_can_be_given() -> None:
    assert exported("ALL,FOO=2,NEW=a=b").variables | {} == exported("ALL").variables | {"FOO": "2", "NEW": "a=b"}


def test_with_none_the_job_inherits_the_environment_of_the_daemon() -> None:
    assert choose_exported(SHELL, "NONE") is None


@pytest.mark.parametrize(
    ("export", "problem"),
    [
        ("", "expected ALL, NONE, or names"),
        ("NONE,FOO", "expected ALL, NONE, or names"),
        ("MISSING", "the variable is not set; give its value as MISSING=VALUE"),
        ("a-b", "'a-b' is not a valid variable name"),
        ("ALL,=1", "'' is not a valid variable name"),
    ],
)
def test_a_bad_option_is_an_error(export: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        choose_exported(SHELL, export)


def test_a_named_variable_must_be_utf8() -> None:
    with pytest.raises(BadInput, match="--export LATIN1: the value is not UTF-8"):
        choose_exported(SHELL, "ALL,LATIN1")


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("HF_TOKEN", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("aws_access_key_id", True),
        ("OPENAI_API_KEY", True),
        ("WANDB_APIKEY", True),
        ("DB_PASSWORD", True),
        ("PGPASSWORD", True),
        ("SSH_PRIVATE_KEY", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", True),
        ("MYSQL_PWD", True),
        ("PATH", False),
        ("KEYBOARD_LAYOUT", False),
        ("MONKEY", False),
        ("SSH_AUTH_SOCK", False),
        ("CONDA_PREFIX", False),
    ],
)
def test_secrets_are_recognised_by_name(name: str, is_secret: bool) -> None:
    assert looks_secret(name) is is_secret


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8)))
def test_nothing_but_variables_of_the_submitter_is_exported_and_every_secret_is_accounted_for(
    environment: dict[str, str],
) -> None:
    chosen = choose_exported(environment)
    assert chosen is not None
    assert chosen.variables.items() <= environment.items()
    assert not any(looks_secret(name) for name in chosen.variables)
    assert not set(chosen.withheld) & set(chosen.variables)
