from .profiling import (
    Effort as Effort,
    ProfileConfig as ProfileConfig,
    check_device as check_device,
    measure as measure,
    name_of_device as name_of_device,
    need_torch as need_torch,
    needs_no_less as needs_no_less,
    profile as profile,
    samples_to_take as samples_to_take,
    usual_device as usual_device,
    with_layers as with_layers,
)
from .steps import Trainer as Trainer
