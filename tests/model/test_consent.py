"""Consent to preemption."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from refold.client.api import Submission
from refold.model import Consent, consent_of, find_consent, saves_checkpoints
from refold.testing import make_job

NO_CONSENT = Consent(False, "not requested")


@pytest.mark.parametrize(
    ("requested", "job_class", "reshapable", "by_consent", "always"),
    [
        (None, "guaranteed", False, NO_CONSENT, (True, "the daemon's configuration has preemption: always")),
        (None, "best-effort", False, (True, "it is best-effort"), (True, "it is best-effort")),
        (None, "guaranteed", True, (True, "it is reshapable"), (True, "it is reshapable")),
        (True, "guaranteed", False, (True, "as requested"), (True, "as requested")),
        (False, "best-effort", True, (False, "as requested"), (False, "as requested")),
    ],
)
def test_a_job_is_preemptible_by_its_own_word_then_its_class_then_its_shape_then_the_configuration(
    requested: bool | None, job_class: Any, reshapable: bool, by_consent: Any, always: Any
) -> None:
    assert find_consent(requested, job_class, reshapable) == by_consent
    assert find_consent(requested, job_class, reshapable, "always") == always


@pytest.mark.parametrize(
    ("command", "environment", "saves"),
    [
        ("python -m refold.train train.py", {}, True),
        ("sh -c|python -m refold.train --ranks 2 train.py", {}, True),
        ("python -m refold.train change --plan tp2", {}, False),
        ("python -m refold.trainer", {}, False),
        ("python train.py", {}, False),
        ("python train.py", {"REFOLD_CHECKPOINT": "/data/run"}, True),
    ],
)
def test_a_job_that_saves_checkpoints_consents_unless_it_says_no(
    command: str, environment: dict[str, str], saves: bool
) -> None:
    words = command.split("|") if "|" in command else command.split()
    assert saves_checkpoints(words, environment) == saves
    expected = Consent(True, "it saves checkpoints") if saves else NO_CONSENT
    job = Submission("train", words, environment=environment)
    assert job.consent("consent") == expected
    assert str(consent_of(job.to_job("train-1", "default", "", 0.0))) == str(expected)
    assert not msgspec.structs.replace(job, preemptible=False).consent("always").is_given
    assert not job.consent("never").is_given


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"preemptible": False}, "no, not requested"),
        ({"preemptible": False, "job_class": "best-effort"}, "no, as requested or configured"),
        ({"job_class": "best-effort"}, "yes, it is best-effort"),
        ({"reshapable": True}, "yes, it is reshapable"),
        ({}, "yes, as requested or configured"),
    ],
)
def test_the_consent_of_an_admitted_job_is_described(fields: dict[str, Any], text: str) -> None:
    assert str(consent_of(make_job(**fields))) == text
