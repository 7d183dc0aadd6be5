"""Tokens are stored as hashes, and the daemon's address file is private."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from refold.client.address import Address, find_address, write_address
from refold.client.api.access import NewToken, TokenStatus
from refold.client.api.queries import Caller
from refold.client.api.signatures import hash_token
from refold.client.api.submissions import Role
from refold.errors import BadFile, BadValue, NoDaemon, Unauthenticated
from refold.server.http.authentication import AllowedHosts
from refold.server.http.tokens import StoredToken, TokenAuthenticator, make_token
from refold.server.store.store import Store
from refold.server.tokens import create_owner_token

NEW_TOKEN = NewToken("laptop", "member", "vision", "ada")


def test_a_stored_token_does_not_contain_the_secret() -> None:
    token, known = make_token(NEW_TOKEN, 7.0)
    assert known == StoredToken("laptop", "member", "vision", "ada", 7.0, hash_token(token))
    assert known.status() == TokenStatus("laptop", "member", "vision", "ada", 7.0)
    assert token not in repr(known)


def test_tokens_have_a_prefix_and_are_unique() -> None:
    tokens = {make_token(NEW_TOKEN, 0.0)[0] for _ in range(100)}
    assert {(token[:3], len(token)) for token in tokens} == {("rf_", 46)}
    assert len(tokens) == 100


def test_the_hash_is_sha_256() -> None:
    assert hash_token("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def authenticate(tokens: TokenAuthenticator, authorization: str) -> Caller:
    """Return the caller that a header identifies."""
    return tokens.identify(authorization, "GET", "/")[0].caller()


def test_a_token_identifies_its_caller() -> None:
    token, known = make_token(NEW_TOKEN, 0.0)
    tokens = TokenAuthenticator({known.hash: known})
    expected = Caller("laptop", "member", "vision", "ada")
    assert [authenticate(tokens, f"{scheme} {token}") for scheme in ("Bearer", "bearer", "BEARER ")] == [expected] * 3


@given(st.text() | st.text().map("Bearer {}".format))
def test_other_authorization_headers_are_rejected(authorization: str) -> None:
    _, known = make_token(NEW_TOKEN, 0.0)
    with pytest.raises(Unauthenticated):
        authenticate(TokenAuthenticator({known.hash: known}), authorization)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "a/b"}, "name is 'a/b', expected letters, digits, '.', '_' and '-'"),
        ({"name": "a\n"}, "name is 'a\\n', expected letters, digits, '.', '_' and '-'"),
        ({"name": "a", "tenant": "a b"}, "tenant is 'a b', expected letters, digits, '.', '_' and '-'"),
    ],
)
def test_names_of_tokens_and_tenants_are_checked(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadValue) as refused:
        NewToken(**fields)
    assert str(refused.value) == problem


def test_a_new_owner_token_revokes_the_lost_one(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        _, other_token = make_token(NEW_TOKEN, 0.0)
        store.add_token(other_token)
        lost, renewed = create_owner_token(store), create_owner_token(store)
        known = {known.hash: known for known in store.reader.tokens()}
    tokens = TokenAuthenticator(known)
    assert authenticate(tokens, f"Bearer {renewed}") == Caller("owner", "owner", "default", "owner")
    with pytest.raises(Unauthenticated):
        authenticate(tokens, f"Bearer {lost}")
    assert {one.name for one in known.values()} == {"owner", other_token.name}


def test_a_leaked_hash_is_not_a_token() -> None:
    _, known = make_token(NEW_TOKEN, 0.0)
    with pytest.raises(Unauthenticated, match="unknown token"):
        authenticate(TokenAuthenticator({known.hash: known}), f"Bearer {known.hash}")


def test_a_mapping_with_wrong_keys_is_not_trusted() -> None:
    _, known = make_token(NEW_TOKEN, 0.0)
    with pytest.raises(Unauthenticated, match="unknown token"):
        authenticate(TokenAuthenticator({hash_token("rf_x"): known}), "Bearer rf_x")


def test_a_revoked_token_is_rejected_immediately() -> None:
    token, known = make_token(NEW_TOKEN, 0.0)
    stored = {known.hash: known}
    tokens = TokenAuthenticator(stored)
    authenticate(tokens, f"Bearer {token}")
    stored.clear()
    with pytest.raises(Unauthenticated):
        authenticate(tokens, f"Bearer {token}")


@pytest.mark.parametrize(
    ("role", "roles", "tenants"),
    [
        ("reader", ["reader"], ["vision"]),
        ("member", ["member", "reader"], ["vision"]),
        ("owner", ["owner", "member", "reader"], ["vision", "speech"]),
    ],
)
def test_a_role_includes_the_roles_below_it(role: Role, roles: list[Role], tenants: list[str]) -> None:
    caller = Caller("laptop", role, "vision", "ada")
    assert [one for one in get_args(Role) if caller.has_role(one)] == roles
    assert [tenant for tenant in ("vision", "speech") if caller.can_read(tenant, "bob")] == tenants


# The address file


@pytest.fixture(autouse=True)
def no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFOLD_ADDRESS", raising=False)
    monkeypatch.delenv("REFOLD_TOKEN", raising=False)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))


LOCAL = Address("http://127.0.0.1:7170", "rf_here")


def test_the_address_file_is_found_and_private(tmp_path: Path) -> None:
    path = write_address(tmp_path, LOCAL.address, LOCAL.token)
    assert path is not None
    assert find_address() == LOCAL
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_restarted_daemon_rewrites_the_address_file(tmp_path: Path) -> None:
    path = write_address(tmp_path, "http://127.0.0.1:1", "rf_old")
    assert path is not None
    path.chmod(0o644)
    write_address(tmp_path, LOCAL.address, LOCAL.token)
    assert (find_address(), stat.S_IMODE(path.stat().st_mode)) == (LOCAL, 0o600)


def test_without_a_token_no_address_file_is_written(tmp_path: Path) -> None:
    assert write_address(tmp_path, LOCAL.address, "") is None
    write_address(tmp_path, LOCAL.address, LOCAL.token)
    assert write_address(tmp_path, LOCAL.address, "") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("listens_on", "written"),
    [
        ("http://0.0.0.0:7170", "http://127.0.0.1:7170"),
        ("http://[::]:7170", "http://[::1]:7170"),
        ("http://10.0.0.0:7170", "http://10.0.0.0:7170"),
        ("http://[fe80::1]:7170", "http://[fe80::1]:7170"),
    ],
)
def test_wildcard_addresses_are_written_as_loopback(tmp_path: Path, listens_on: str, written: str) -> None:
    write_address(tmp_path, listens_on, "rf_here")
    assert find_address() == Address(written, "rf_here")


HOST_NAMES = [
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
def test_allowed_hosts_follow_from_the_listen_address(
    listens: tuple[Any, ...], known: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    monkeypatch.setattr("socket.getfqdn", lambda: "box.lab")
    hosts = AllowedHosts(*listens)
    assert [name for name in HOST_NAMES if name in hosts] == known


def test_arguments_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_address(tmp_path, LOCAL.address, LOCAL.token)
    monkeypatch.setenv("REFOLD_ADDRESS", "http://far:7170/")
    monkeypatch.setenv("REFOLD_TOKEN", "rf_far")
    assert find_address() == Address("http://far:7170", "rf_far")
    assert find_address("https://farther", "rf_farther") == Address("https://farther", "rf_farther")


def test_a_stored_token_is_not_sent_to_another_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_address(tmp_path, LOCAL.address, LOCAL.token)
    monkeypatch.setenv("REFOLD_ADDRESS", "http://far:7170")
    with pytest.raises(NoDaemon, match="no token for http://far:7170: set REFOLD_TOKEN"):
        find_address()


def test_another_token_can_be_used_with_the_local_daemon(tmp_path: Path) -> None:
    write_address(tmp_path, LOCAL.address, LOCAL.token)
    assert find_address(token="rf_mine") == Address(LOCAL.address, "rf_mine")


def test_a_missing_daemon_is_an_error_with_a_hint() -> None:
    with pytest.raises(NoDaemon) as caught:
        find_address()
    assert str(caught.value) == (
        "no Refold daemon found: start one with `refold serve`, or set REFOLD_HOME to its state folder, "
        "or REFOLD_ADDRESS and REFOLD_TOKEN"
    )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"address": 1, "token": ""}', '{"address": "nowhere", "token": "rf_a"}']
)
def test_an_invalid_address_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "client.json").write_text(text)
    with pytest.raises(BadFile, match=r"client\.json: is not an address file"):
        find_address()


@pytest.mark.parametrize("address", ["", "7365", "127.0.0.1:7170", "ftp://a", "http://", "http://a:b", "http://[a"])
def test_an_address_must_be_an_http_url(address: str) -> None:
    with pytest.raises(BadValue, match="expected one such as"):
        Address(address, "rf_a")


@pytest.mark.parametrize("token", ["rf_a\nHost: evil", "rf_é"])
def test_a_token_cannot_inject_headers(token: str) -> None:
    with pytest.raises(BadValue, match="contains invalid characters"):
        Address("http://a", token)
