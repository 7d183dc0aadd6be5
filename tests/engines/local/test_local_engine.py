"""As whom jobs run: what is needed for jobs of several users, and what the operator is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from other_users import needs_root

from refold.engines.local import engine as local_engine
from refold.engines.local.engine import describe_user, split_privileges
from refold.engines.local.process_host import OwnProcesses
from refold.errors import BadInput
from refold.server.config.settings import Config, ServeConfig
from refold.server.unix_users import user_check


def config(user: str) -> Config:
    return Config(serve=ServeConfig(user=user))


def test_without_a_user_for_the_daemon_nothing_changes(tmp_path: Path) -> None:
    assert isinstance(split_privileges(Config(), tmp_path / "state"), OwnProcesses)
    assert not (tmp_path / "state").exists()
    assert describe_user(Config()).startswith("All jobs run as ")
    assert user_check(False)("anybody") == ""


def test_only_root_can_let_jobs_run_as_their_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BadInput, match="that needs Linux, and root to start the daemon"):
        split_privileges(config("refold"), tmp_path / "state")


@needs_root
@pytest.mark.parametrize(
    ("user", "problem"), [("root", "serve.user is root"), ("nobody-here", "this machine has no account 'nobody-here'")]
)
def test_the_daemon_needs_an_account_of_its_own(user: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=problem):
        split_privileges(config(user), tmp_path / "state")
    assert not (tmp_path / "state").exists()


@needs_root
@pytest.mark.parametrize("content", ["0\n", None])
def test_unprotected_hard_links_are_refused(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = tmp_path / "protected_hardlinks"
    if content is not None:
        setting.write_text(content)
    monkeypatch.setattr(local_engine, "PROTECTED_HARD_LINKS", setting)
    with pytest.raises(BadInput, match=r"run `sysctl fs\.protected_hardlinks=1`"):
        split_privileges(config("60010"), tmp_path / "state")


def test_submissions_of_users_who_cannot_run_jobs_are_rejected_with_a_reason() -> None:
    check = user_check(True)
    assert check("60001") == ""
    assert check("root").startswith("user 'root' cannot run jobs here")
    assert check("owner") == "this machine has no account 'owner'"
