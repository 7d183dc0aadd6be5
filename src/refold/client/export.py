"""Choose the environment variables that a job inherits from its submitter, as Slurm's `--export` does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from refold.client.api import is_variable_name
from refold.errors import BadInput

EXPORT_ALL, EXPORT_NONE = "ALL", "NONE"

ALWAYS_EXPORTED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TMPDIR", "TZ")
"""Exported besides the variables that are named: few programs work without them."""

NOT_EXPORTED = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "CUDA_VISIBLE_DEVICES", "TF_CONFIG"})
"""Variables of the submitting shell that are wrong in a job."""

_NOT_EXPORTED_PREFIXES = ("REFOLD_", "SLURM_")
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|SESSION_KEY|(?:API|ACCESS|PRIVATE|ACCOUNT|SSH|AUTH)_?KEY|_PWD$",
    re.IGNORECASE,
)


class ExportedVariables(NamedTuple):
    """The variables to export, and the names of those withheld because they look like secrets."""

    variables: dict[str, str]
    withheld: list[str]


def looks_secret(name: str) -> bool:
    """Whether the value of a variable is probably a secret, judging by its name."""
    return _SECRET.search(name) is not None


def choose_exported(environment: Mapping[str, str], export: str = EXPORT_ALL) -> ExportedVariables | None:
    """Return the variables for `--export ALL`, `A,B` or `ALL,A=1`; None for NONE: jobs inherit the daemon's.

    Variables that look like secrets are exported only if they are named.
    """
    words = [word.strip() for word in export.split(",") if word.strip()]
    if words == [EXPORT_NONE]:
        return None
    if not words or EXPORT_NONE in words:
        raise BadInput(f"--export {export}: expected ALL, NONE, or names of variables such as A,B or ALL,A=1")
    given = dict(_parse(word, environment) for word in words if word != EXPORT_ALL)
    inherited = {name: value for name, value in environment.items() if _is_exportable(name, value)}
    if EXPORT_ALL not in words:
        inherited = {name: value for name, value in inherited.items() if name in ALWAYS_EXPORTED}
    withheld = sorted(name for name in inherited if looks_secret(name) and name not in given)
    variables = {name: value for name, value in inherited.items() if name not in withheld} | given
    return ExportedVariables(variables, withheld)


def _is_exportable(name: str, value: str) -> bool:
    return (
        is_variable_name(name)  # Bash exports functions as BASH_FUNC_name%%
        and _is_utf8(value)
        and name not in NOT_EXPORTED
        and not name.startswith(_NOT_EXPORTED_PREFIXES)
    )


def _is_utf8(value: str) -> bool:
    """Whether a value has only valid UTF-8; other bytes appear as surrogates in `os.environ`."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _parse(word: str, environment: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not is_variable_name(name):
        raise BadInput(f"--export {word}: {name!r} is not a valid variable name")
    if not equals and name not in environment:
        raise BadInput(f"--export {word}: the variable is not set; give its value as {name}=VALUE")
    chosen = value if equals else environment[name]
    if not _is_utf8(chosen):
        raise BadInput(f"--export {name}: the value is not UTF-8")
    return name, chosen
