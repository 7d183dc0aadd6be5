from .addresses import check_address as check_address
from .messages import Telling as Telling
from .notifier import Notifier as Notifier
