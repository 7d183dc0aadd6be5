from .backfill import (
    Conservative as Conservative,
    Easy as Easy,
)
