from .ranges import (
    Choices as Choices,
    Range as Range,
    SettingRange as SettingRange,
    range_by_default as range_by_default,
)
from .table import POLICIES as POLICIES
