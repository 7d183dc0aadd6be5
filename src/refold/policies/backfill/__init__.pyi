from .backfill import (
    Conservative as Conservative,
    Easy as Easy,
)
from .bookings import Bookings as Bookings
