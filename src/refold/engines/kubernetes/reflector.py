"""Follow all objects of a kind: list them, then watch their changes; list again when the watch cannot be continued."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from refold.engines.kubernetes.api_server import ApiError, ApiServer, ObjectList, Watch, WatchEvent, watch_error
from refold.engines.kubernetes.objects import Metadata
from refold.model import Seconds

GONE = 410
"""The API server no longer has the changes since the last known version."""

FIRST_PAUSE: Seconds = 0.2
MAX_PAUSE: Seconds = 10.0

log = logging.getLogger("refold")


class HasMetadata(Protocol):
    """An object of the API."""

    @property
    def metadata(self) -> Metadata:
        """Its name and version."""


T = TypeVar("T", bound=HasMetadata)


class Reflector(Generic[T]):
    """Follows the objects of a kind from a thread of its own.

    `replaced` is called with all objects: at first, and after changes may have been missed. `changed` is called with an
    object that was created, changed or deleted. Both are called from that thread.
    """

    def __init__(
        self,
        api: ApiServer,
        path: str,
        kind: type[T],
        replaced: Callable[[Sequence[T]], None],
        changed: Callable[[T, bool], None],
    ) -> None:
        self.problem = ""
        """Why the objects cannot be followed at present; '' if they can."""
        self._api = api
        self._path = path
        self._list: msgspec.json.Decoder[ObjectList[T]] = msgspec.json.Decoder(ObjectList[kind])  # type: ignore[valid-type]
        self._object = msgspec.json.Decoder(kind)
        self._metadata = msgspec.json.Decoder(_Bookmark)
        self._replaced = replaced
        self._changed = changed
        self._version = ""
        self._stopped = threading.Event()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._run, name=f"refold-watch {path}", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the thread to end."""
        self._stopped.set()
        if self._watch is not None:
            self._watch.close()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                self._follow()
                pause = FIRST_PAUSE
            except ApiError as error:
                if error.status == GONE:
                    self._version = ""
                    continue
                if not self.problem:
                    log.warning("cannot watch %s: %s; retrying", self._path, error)
                self.problem = str(error)
                self._stopped.wait(max(pause, error.retry_after))
                pause = min(2 * pause, MAX_PAUSE)
            except Exception:  # whatever happens must not end the thread
                log.exception("cannot process the changes of %s; listing again", self._path)
                self._version = ""
                self._stopped.wait(pause)
                pause = min(2 * pause, MAX_PAUSE)

    def _follow(self) -> None:
        """List if that is needed, then watch until the watch ends."""
        if not self._version:
            found = self._decode_list(self._api.call("GET", self._path))
            self._replaced(found.items)
            self._version = found.metadata.resource_version
        self._watch = self._api.watch(self._path, self._version)
        self.problem = ""
        if self._stopped.is_set():
            self._watch.close()
        for event in self._watch:
            self._apply(event)

    def _apply(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            raise watch_error(event)
        if event.type != "BOOKMARK" and (found := self._decode(event.object)) is not None:
            self._changed(found, event.type == "DELETED")
        self._version = self._metadata.decode(event.object).metadata.resource_version

    def _decode_list(self, text: bytes) -> ObjectList[T]:
        """Decode a list. Objects that cannot be decoded are left out: one of them must not hide all others."""
        try:
            return self._list.decode(text)
        except msgspec.ValidationError:
            encoded = msgspec.json.decode(text, type=ObjectList[msgspec.Raw])
            items = [found for item in encoded.items if (found := self._decode(item)) is not None]
            return ObjectList(items, encoded.metadata)

    def _decode(self, encoded: msgspec.Raw) -> T | None:
        try:
            return self._object.decode(encoded)
        except msgspec.ValidationError as error:
            log.error("an object of %s is ignored: %s: %s", self._path, error, bytes(encoded)[:300])
            return None


class _Bookmark(msgspec.Struct):
    metadata: Metadata
