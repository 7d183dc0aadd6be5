"""Proofs of a token for plain HTTP, by which the token itself never travels; the construction of SCRAM (RFC 5802).

The daemon proves that it has the hash of a token, by an HMAC of a nonce. The client then sends the token encrypted with
a one-time pad, an HMAC of the request with the same key; the daemon decrypts it and compares its hash.
"""

from __future__ import annotations

import hmac
import re
import secrets
from hashlib import sha256

import msgspec

from refold.errors import BadField, BadValue, Unauthenticated, UnknownName

IDENTITY_PATH = "/identity"
"""Path of the call by which a client verifies the daemon."""

SCHEME = "Refold"
"""Scheme of the `Authorization` header of a signed request."""

MAX_AGE_SECONDS = 30.0
"""How long a signature is valid. It has the time of the daemon, which the client learns from the daemon's proof."""

MAX_TOKEN_CHARS = 64
"""Maximum length of a token: that of the pad."""

NONCE_CHARS = 32
"""Length of a nonce, in hexadecimal digits."""


class ServerProof(msgspec.Struct, frozen=True):
    """The daemon's proof, and its time."""

    proof: str
    now: float


class Signature(msgspec.Struct, frozen=True):
    """A signed request. `token_id`: which token; `sealed`: the encrypted token. Both and the hash are hexadecimal."""

    token_id: str
    time: str
    nonce: str
    body_hash: str
    sealed: str

    def header(self) -> str:
        """Return the value of the `Authorization` header."""
        return " ".join((SCHEME, *msgspec.structs.astuple(self)))


def new_nonce() -> str:
    """Return a nonce."""
    return secrets.token_hex(NONCE_CHARS // 2)


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal.

    Slow, salted hashes protect passwords, which can be guessed. A token has 256 random bits, so it cannot be guessed
    and is in no rainbow table; a fast hash keeps the check of every request cheap.
    """
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def hash_body(body: bytes) -> str:
    """Return the hash of a request's body, as signatures have it."""
    return sha256(body).hexdigest()


def token_id(token_hash: str) -> str:
    """Return the public name of a token, from which neither the token nor its hash can be derived."""
    return sha256(f"refold token id {token_hash}".encode()).hexdigest()[:32]


def prove_server(token_hash: str, nonce: str, now: float) -> ServerProof:
    return ServerProof(_mac(token_hash, "server", nonce, repr(now)).hex(), now)


def is_proven(proof: ServerProof, token: str, nonce: str) -> bool:
    return hmac.compare_digest(prove_server(hash_token(token), nonce, proof.now).proof.encode(), proof.proof.encode())


def sign(token: str, method: str, target: str, body: bytes, now: float) -> Signature:
    """Sign a request. `now`: the daemon's time."""
    if len(token) > MAX_TOKEN_CHARS:
        raise BadValue(f"the daemon's token has {len(token)} characters, expected at most {MAX_TOKEN_CHARS}")
    token_hash, nonce, body_hash, time = hash_token(token), new_nonce(), hash_body(body), repr(now)
    pad = _mac(token_hash, "request", method, target, time, nonce, body_hash)
    return Signature(token_id(token_hash), time, nonce, body_hash, _xor(token.encode(), pad).hex())


def parse_signature(words: str) -> Signature:
    """Parse what follows the scheme in an `Authorization` header."""
    parts = words.split(" ")
    if len(parts) != len(Signature.__struct_fields__) or not words.isascii():
        raise Unauthenticated("the Authorization header is malformed, expected five words after 'Refold'")
    return Signature(*parts)


def recover_token(signature: Signature, token_hash: str, method: str, target: str, now: float) -> str:
    """Return the token of a signed request; another text if it was signed with another token or for another request."""
    try:
        age, sealed = now - float(signature.time), bytes.fromhex(signature.sealed)
    except ValueError:
        raise Unauthenticated("the Authorization header is malformed: it has no time, or no encrypted token") from None
    if not abs(age) <= MAX_AGE_SECONDS:
        raise Unauthenticated(f"the request was signed more than {MAX_AGE_SECONDS:g} s ago")
    pad = _mac(token_hash, "request", method, target, signature.time, signature.nonce, signature.body_hash)
    return _xor(sealed, pad).decode("latin-1")


def _mac(token_hash: str, *parts: str) -> bytes:
    """Return 64 bytes. The parts contain no line breaks, so that they cannot be confused."""
    return hmac.digest(token_hash.encode(), "\n".join(parts).encode("utf-8", "surrogatepass"), "sha512")


def _xor(text: bytes, pad: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(text, pad, strict=False))


# Validation errors of msgspec, reworded as errors about a field of the request.

MAX_QUOTED_CHARS = 64
"""Maximum length of a name in a request that an error message quotes."""

_LOCATED = re.compile(r"(?P<problem>.*) - at `\$\.?(?P<field>.*)`", re.DOTALL)
_NAMED = re.compile(r"Object (?P<is>contains unknown|missing required) field `(?P<field>.*)`", re.DOTALL)


def field_error(error: msgspec.ValidationError, kind: object = None) -> BadField:
    """Convert a validation error to a `BadField` whose message names the field; `kind` is the type of the request."""
    problem, field = str(error), ""
    if located := _LOCATED.fullmatch(problem):
        problem, field = located["problem"], located["field"]
    if named := _NAMED.fullmatch(problem):
        field = f"{field}.{named['field'][:MAX_QUOTED_CHARS]}".lstrip(".")
        if named["is"].startswith("missing"):
            return BadField(f"{field} is missing", field)
        known = kind.__struct_fields__ if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()
        near = UnknownName("field", field, known).nearest
        return BadField(f"unknown field {field!r}{f'; did you mean {near!r}?' if near else ''}", field)
    if not field:
        return BadField(problem.replace("`", ""))
    return BadField(f"{field}: {problem[:1].lower()}{problem[1:].replace('`', '')}", field)
