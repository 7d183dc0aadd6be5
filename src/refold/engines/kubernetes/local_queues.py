"""LocalQueues of Kueue: whether the one that a gang names exists."""

from __future__ import annotations

import time
from collections.abc import Callable

from refold.engines.kubernetes.api_server import FORBIDDEN, NOT_FOUND, ApiError, ApiServer, as_dict
from refold.engines.kubernetes.owner_specs import Json
from refold.model import Seconds

GROUP = "/apis/kueue.x-k8s.io"
KEPT_SECONDS: Seconds = 10.0
"""How long an answer is used again: many gangs name the same queue."""


class LocalQueues:
    """Asks an API server for LocalQueues, if it has their API and the daemon may read them."""

    def __init__(self, api: ApiServer, clock: Callable[[], Seconds] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._answers: dict[str, tuple[Json | None, Seconds]] = {}
        """Objects by path, None if there is none, and until when that is used."""

    def is_missing(self, namespace: str, name: str) -> bool:
        """Whether there is no such LocalQueue although there could be. Blocks while the API server answers."""
        group = self._get(GROUP) or {}
        version = group.get("preferredVersion", {}).get("version", "")
        return bool(version) and self._get(f"{GROUP}/{version}/namespaces/{namespace}/localqueues/{name}") is None

    def _get(self, path: str) -> Json | None:
        """Return an object: None if it does not exist, empty if the daemon may not read it."""
        now = self._clock()
        self._answers = {key: known for key, known in self._answers.items() if now < known[1]}
        if path not in self._answers:
            self._answers[path] = self._read(path), now + KEPT_SECONDS
        return self._answers[path][0]

    def _read(self, path: str) -> Json | None:
        try:
            return as_dict(self._api.call("GET", path))
        except ApiError as error:
            if error.status not in (FORBIDDEN, NOT_FOUND):
                raise
            return {} if error.status == FORBIDDEN else None
