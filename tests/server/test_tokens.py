"""Tokens and addresses: secrets that are kept as hashes, and word of a daemon that only its user can read."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from refold.api.hosts import AllowedHosts
from refold.api.roles import Caller
from refold.api.tokens import StoredToken, TokenAuthenticator, hash_of, make_token
from refold.api.wire import NewToken, Role, TokenStatus
from refold.client.address import Address, find_address, write_address
from refold.errors import BadFile, BadValue, NoDaemon, Unauthenticated
from refold.server.store.store import Store
from refold.server.tokens import make_owner

ASKED = NewToken("laptop", "member", "vision", "ada")


def test_of_a_token_everything_is_kept_but_itself() -> None:
    token, known = make_token(ASKED, 7.0)
    assert known == StoredToken("laptop", "member", "vision", "ada", 7.0, hash_of(token))
    assert known.status() == TokenStatus("laptop", "member", "vision", "ada", 7.0)
    assert token not in repr(known)


def test_a_token_is_seen_to_be_one_and_never_comes_twice() -> None:
    tokens = {make_token(ASKED, 0.0)[0] for _ in range(100)}
    assert {(token[:3], len(token)) for token in tokens} == {("rf_", 46)}
    assert len(tokens) == 100


def test_the_hash_is_sha_256() -> None:
    assert hash_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_who_brings_a_token_is_known_by_it() -> None:
    token, known = make_token(ASKED, 0.0)
    tokens = TokenAuthenticator({known.hash: known})
    expected = Caller("laptop", "member", "vision", "ada")
    assert [tokens.caller(f"{scheme} {token}") for scheme in ("Bearer", "bearer", "BEARER ")] == [expected] * 3


@given(st.text() | st.text().map("Bearer {}".format))
def test_nothing_else_is_known(authorization: str) -> None:
    _, known = make_token(ASKED, 0.0)
    with pytest.raises(Unauthenticated):
        TokenAuthenticator({known.hash: known}).caller(authorization)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "a/b"}, "name is 'a/b', expected letters, digits, '.', '_' and '-'"),
        ({"name": "a\n"}, "name is 'a\\n', expected letters, digits, '.', '_' and '-'"),
        ({"name": "a", "tenant": "a b"}, "tenant is 'a b', expected letters, digits, '.', '_' and '-'"),
    ],
)
def test_tokens_and_tenants_are_called_as_jobs_are(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadValue) as refused:
        NewToken(**fields)
    assert str(refused.value) == problem


def test_an_owner_who_lost_a_token_gets_another_and_the_old_one_opens_nothing(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        _, of_others = make_token(ASKED, 0.0)
        store.add_token(of_others)
        lost, found = make_owner(store), make_owner(store)
        known = {known.hash: known for known in store.reading.tokens()}
    tokens = TokenAuthenticator(known)
    assert tokens.caller(f"Bearer {found}") == Caller("owner", "owner", "default", "owner")
    assert [tokens.knows(f"Bearer {token}") for token in (lost, found)] == [False, True]
    assert {one.name for one in known.values()} == {"owner", of_others.name}


def test_a_hash_that_leaked_opens_nothing() -> None:
    _, known = make_token(ASKED, 0.0)
    with pytest.raises(Unauthenticated, match="the token is not known"):
        TokenAuthenticator({known.hash: known}).caller(f"Bearer {known.hash}")


def test_a_mapping_that_finds_too_much_is_not_believed() -> None:
    _, known = make_token(ASKED, 0.0)
    with pytest.raises(Unauthenticated, match="the token is not known"):
        TokenAuthenticator({hash_of("rf_x"): known}).caller("Bearer rf_x")


def test_what_is_revoked_is_unknown_at_once() -> None:
    token, known = make_token(ASKED, 0.0)
    kept = {known.hash: known}
    tokens = TokenAuthenticator(kept)
    tokens.caller(f"Bearer {token}")
    kept.clear()
    with pytest.raises(Unauthenticated):
        tokens.caller(f"Bearer {token}")


@pytest.mark.parametrize(
    ("role", "may", "sees"),
    [
        ("reader", ["reader"], ["vision"]),
        ("member", ["member", "reader"], ["vision"]),
        ("owner", ["owner", "member", "reader"], ["vision", "speech"]),
    ],
)
def test_a_role_may_do_what_those_below_it_may(role: Role, may: list[Role], sees: list[str]) -> None:
    caller = Caller("laptop", role, "vision", "ada")
    assert [one for one in get_args(Role) if caller.may(one)] == may
    assert [tenant for tenant in ("vision", "speech") if caller.sees(tenant)] == sees


# Where the daemon is


@pytest.fixture(autouse=True)
def nobody_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFOLD_ADDRESS", raising=False)
    monkeypatch.delenv("REFOLD_TOKEN", raising=False)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))


HERE = Address("http://127.0.0.1:7170", "rf_here")


def test_what_a_daemon_leaves_is_found_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    path = write_address(tmp_path, HERE.address, HERE.token)
    assert path is not None
    assert find_address() == HERE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_daemon_that_comes_back_leaves_word_anew(tmp_path: Path) -> None:
    path = write_address(tmp_path, "http://127.0.0.1:1", "rf_old")
    assert path is not None
    path.chmod(0o644)
    write_address(tmp_path, HERE.address, HERE.token)
    assert (find_address(), stat.S_IMODE(path.stat().st_mode)) == (HERE, 0o600)


def test_without_a_token_no_word_is_left_rather_than_one_of_no_use(tmp_path: Path) -> None:
    assert write_address(tmp_path, HERE.address, "") is None
    write_address(tmp_path, HERE.address, HERE.token)
    assert write_address(tmp_path, HERE.address, "") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("listens_on", "is_left"),
    [
        ("http://0.0.0.0:7170", "http://127.0.0.1:7170"),
        ("http://[::]:7170", "http://[::1]:7170"),
        ("http://10.0.0.0:7170", "http://10.0.0.0:7170"),
        ("http://[fe80::1]:7170", "http://[fe80::1]:7170"),
    ],
)
def test_of_a_daemon_that_listens_everywhere_the_address_here_is_left(
    tmp_path: Path, listens_on: str, is_left: str
) -> None:
    write_address(tmp_path, listens_on, "rf_here")
    assert find_address() == Address(is_left, "rf_here")


HERE_AND_THERE = [
    "127.0.0.1",
    "localhost",
    "::1",
    "0.0.0.0",
    "10.0.0.5",
    "fe80::1",
    "box",
    "Box.Lab.",
    "gpus",
    "evil.example",
    "",
]


@pytest.mark.parametrize(
    ("listens", "known"),
    [
        ((), ["127.0.0.1", "localhost", "::1"]),
        (("localhost", "127.0.0.1", ["GPUs"]), ["127.0.0.1", "localhost", "::1", "gpus"]),
        (("gpus", "10.0.0.5"), ["127.0.0.1", "localhost", "::1", "10.0.0.5", "box", "Box.Lab.", "gpus"]),
        (("::", "::"), ["127.0.0.1", "localhost", "::1", "0.0.0.0", "10.0.0.5", "fe80::1", "box", "Box.Lab."]),
        (
            ("0.0.0.0", "0.0.0.0", ["gpus"]),
            ["127.0.0.1", "localhost", "::1", "0.0.0.0", "10.0.0.5", "fe80::1", "box", "Box.Lab.", "gpus"],
        ),
    ],
)
def test_a_daemon_goes_by_the_names_of_where_it_listens(
    listens: tuple[Any, ...], known: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    monkeypatch.setattr("socket.getfqdn", lambda: "box.lab")
    names = AllowedHosts(*listens)
    assert [name for name in HERE_AND_THERE if name in names] == known


def test_the_environment_comes_before_the_file_and_arguments_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_address(tmp_path, HERE.address, HERE.token)
    monkeypatch.setenv("REFOLD_ADDRESS", "http://far:7170/")
    monkeypatch.setenv("REFOLD_TOKEN", "rf_far")
    assert find_address() == Address("http://far:7170", "rf_far")
    assert find_address("https://farther", "rf_farther") == Address("https://farther", "rf_farther")


def test_a_token_is_not_sent_to_an_address_that_it_is_not_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_address(tmp_path, HERE.address, HERE.token)
    monkeypatch.setenv("REFOLD_ADDRESS", "http://far:7170")
    with pytest.raises(NoDaemon, match="there is no token for http://far:7170: set REFOLD_TOKEN"):
        find_address()


def test_another_token_may_go_to_the_daemon_that_is_here(tmp_path: Path) -> None:
    write_address(tmp_path, HERE.address, HERE.token)
    assert find_address(token="rf_mine") == Address(HERE.address, "rf_mine")


def test_nobody_serves_is_said_with_what_to_do() -> None:
    with pytest.raises(NoDaemon) as caught:
        find_address()
    assert str(caught.value) == (
        "no Refold daemon is known here: start one with `refold serve`, or set REFOLD_ADDRESS and REFOLD_TOKEN"
    )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"address": 1, "token": ""}', '{"address": "nowhere", "token": "rf_a"}']
)
def test_a_file_that_no_daemon_left_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "client.json").write_text(text)
    with pytest.raises(BadFile, match=r"client\.json: is not what a daemon leaves"):
        find_address()


@pytest.mark.parametrize("address", ["", "7365", "127.0.0.1:7170", "ftp://a", "http://", "http://a:b", "http://[a"])
def test_an_address_is_one_of_http(address: str) -> None:
    with pytest.raises(BadValue, match="expected one such as"):
        Address(address, "rf_a")


@pytest.mark.parametrize("token", ["rf_a\nHost: evil", "rf_é"])
def test_a_token_cannot_bring_other_headers_along(token: str) -> None:
    with pytest.raises(BadValue, match="characters that no token has"):
        Address("http://a", token)
