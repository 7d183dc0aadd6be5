"""Signed requests: what a signature covers, and what those who see it cannot do."""

from __future__ import annotations

from collections.abc import Callable
from time import time

import msgspec
import pytest
from api_requests import request
from fake_service import MEMBER, OWNER, FakeService, make_app

from refold.client.api.signatures import (
    IDENTITY_PATH,
    ServerProof,
    Signature,
    hash_token,
    is_proven,
    new_nonce,
    prove_server,
    sign,
    token_id,
)
from refold.client.api.wire import Problem
from refold.errors import BadValue

TARGET = "/api/v1/info"
SUBMIT = "/api/v1/jobs"
BODY = b'{"name": "train", "command": ["true"]}'


def headers_of(signature: Signature | str) -> list[tuple[str, str]]:
    return [("authorization", signature if isinstance(signature, str) else signature.header())]


def status_of(signature: Signature | str, target: str = TARGET, body: bytes = b"", method: str = "GET") -> int:
    answer = request(make_app(), method, target, body, token=None, headers=headers_of(signature))
    return answer.status


def test_a_signed_request_is_answered() -> None:
    assert status_of(sign(OWNER, "GET", TARGET, b"", time())) == 200
    assert status_of(sign(MEMBER, "POST", SUBMIT, BODY, time()), SUBMIT, BODY, "POST") == 201
    target = "/api/v1/jobs?limit=3&name=a%20b"
    assert status_of(sign(OWNER, "GET", target, b"", time()), target) == 200


@pytest.mark.parametrize(
    "signature",
    [
        lambda: sign("rf_unknown", "GET", TARGET, b"", time()),
        lambda: sign(OWNER, "POST", TARGET, b"", time()),
        lambda: sign(OWNER, "GET", "/api/v1/nodes", b"", time()),
        lambda: sign(OWNER, "GET", TARGET, b"", time() - 31),
        lambda: sign(OWNER, "GET", TARGET, b"", time() + 31),
        lambda: sign(OWNER, "GET", TARGET, b"", float("nan")),
        lambda: msgspec.structs.replace(sign(OWNER, "GET", TARGET, b"", time()), nonce=new_nonce()),
        lambda: msgspec.structs.replace(sign(OWNER, "GET", TARGET, b"", time()), sealed=""),
        lambda: msgspec.structs.replace(sign(OWNER, "GET", TARGET, b"", time()), sealed="xyz"),
        lambda: msgspec.structs.replace(sign(OWNER, "GET", TARGET, b"", time()), time="soon"),
        lambda: msgspec.structs.replace(sign(MEMBER, "GET", TARGET, b"", time()), token_id=token_id(hash_token(OWNER))),
        lambda: "Refold",
        lambda: "Refold a b c",
        lambda: "Refold " + " ".join("é" * 5),
    ],
)
def test_a_signature_for_another_request_time_or_token_is_rejected(signature: Callable[[], Signature]) -> None:
    assert status_of(signature()) == 401


def test_a_changed_body_is_rejected() -> None:
    changed = BODY.replace(b"true", b"evil")
    service = FakeService()
    answer = request(
        make_app(service),
        "POST",
        SUBMIT,
        changed,
        token=None,
        headers=headers_of(sign(MEMBER, "POST", SUBMIT, BODY, time())),
    )
    assert (answer.status, answer.problem.error) == (401, "the body of the request is not the one that was signed")


def test_the_stored_hash_is_not_enough_to_sign() -> None:
    stored = hash_token(OWNER)
    forged = msgspec.structs.replace(sign(stored, "GET", TARGET, b"", time()), token_id=token_id(stored))
    assert status_of(forged) == 401


def test_the_token_is_not_in_the_signature() -> None:
    token = "rf_" + "x" * 43
    first, second = (sign(token, "GET", TARGET, b"", 1.0) for _ in range(2))
    assert first.sealed != second.sealed
    assert token not in first.header()
    assert token.encode().hex() not in first.header()
    assert hash_token(token) not in first.header()


def test_a_token_that_is_longer_than_the_pad_cannot_be_signed() -> None:
    with pytest.raises(BadValue, match="the daemon's token has 65 characters, expected at most 64"):
        sign("x" * 65, "GET", TARGET, b"", 1.0)


def test_the_daemon_proves_that_it_knows_a_token() -> None:
    nonce = new_nonce()
    target = f"{IDENTITY_PATH}?token={token_id(hash_token(OWNER))}&nonce={nonce}"
    answer = request(make_app(), "GET", target, token=None)
    proof = msgspec.json.decode(answer.body, type=ServerProof)
    assert answer.status == 200
    assert is_proven(proof, OWNER, nonce)
    assert not is_proven(proof, OWNER, new_nonce())
    assert not is_proven(proof, MEMBER, nonce)
    assert not is_proven(msgspec.structs.replace(proof, now=proof.now + 1), OWNER, nonce)
    assert not is_proven(ServerProof("é", 1.0), OWNER, nonce)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 422),
        ("?nonce=" + "0" * 32, 401),
        ("?token=unknown&nonce=" + "0" * 32, 401),
        (f"?token={token_id(hash_token(OWNER))}&nonce=short", 422),
        (f"?token={token_id(hash_token(OWNER))}&nonce=" + "%0a" * 32, 422),
        ("?a&b&c&d&e&f&g&h&i", 422),
        (f"?token={token_id(hash_token(OWNER))}&nonce={'0' * 32}&nonce={'1' * 32}", 422),
    ],
)
def test_no_proof_without_a_known_token_and_a_nonce(query: str, status: int) -> None:
    assert (request(make_app(), "GET", IDENTITY_PATH + query, token=None)).status == status


def test_an_unknown_parameter_of_a_proof_is_named() -> None:
    answer = request(make_app(), "GET", f"{IDENTITY_PATH}?Nonce={'0' * 32}", token=None)
    assert answer.problem == Problem("unknown parameter 'Nonce'; did you mean 'nonce'? (known: nonce, token)", "Nonce")


def test_the_methods_of_the_proof_can_be_asked() -> None:
    answer = request(make_app(), "OPTIONS", IDENTITY_PATH, token=None)
    assert (answer.status, answer.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
    assert request(make_app(), "POST", IDENTITY_PATH, token=None).status == 405


def test_a_proof_depends_on_all_of_its_parts() -> None:
    proofs = {prove_server(token, nonce, now).proof for token in "ab" for nonce in "cd" for now in (1.0, 2.0)}
    assert len(proofs) == 8
