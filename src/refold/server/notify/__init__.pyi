from .addresses import check_address as check_address
from .messages import JobMessages as JobMessages
from .notifier import Notifier as Notifier
