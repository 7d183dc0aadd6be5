from .ranges import (
    Choices as Choices,
    Range as Range,
    SettingRange as SettingRange,
    range_by_default as range_by_default,
)
from .registry import (
    START_ESTIMATES as START_ESTIMATES,
    PolicyFile as PolicyFile,
    PolicyInfo as PolicyInfo,
    chooses_plans as chooses_plans,
    default_policies as default_policies,
    default_settings as default_settings,
    is_policy_file as is_policy_file,
    list_policies as list_policies,
    make_policy as make_policy,
    policy_names as policy_names,
    resolve_policy as resolve_policy,
    setting_ranges as setting_ranges,
    split_settings as split_settings,
    with_run_watch as with_run_watch,
    with_start_estimates as with_start_estimates,
    without_start_estimates as without_start_estimates,
)
from .table import POLICIES as POLICIES
