from .app import Api as Api, Page as Page
from .asgi import (
    BodyLimits as BodyLimits,
    Reply as Reply,
    Scope as Scope,
    accepts_gzip as accepts_gzip,
    header as header,
)
from .authentication import UNIX_CLIENT as UNIX_CLIENT, AllowedHosts as AllowedHosts, user_subject as user_subject
from .event_stream import MAX_BUFFERED_EVENTS as MAX_BUFFERED_EVENTS, EventStream as EventStream
from .sessions import Sessions as Sessions, WebSession as WebSession
from .tokens import StoredToken as StoredToken, TokenAuthenticator as TokenAuthenticator, make_token as make_token
