from .addresses import SAFE_SCHEMES as SAFE_SCHEMES, check_address as check_address
from .messages import JobMessages as JobMessages
from .notifier import Notifier as Notifier
