from .gpu_requests import wanted_from_text as wanted_from_text
from .jobs_file import KEYS as KEYS, read_jobs as read_jobs
from .pattern_process import read_pattern as read_pattern
from .patterns import Matcher as Matcher, TooSlow as TooSlow, check_patterns as check_patterns
from .quantities import gib_or_more as gib_or_more
from .reader import parse_spec as parse_spec, read_spec as read_spec
from .submission import (
    Submittable as Submittable,
    asked_once as asked_once,
    from_command as from_command,
    one_submission as one_submission,
)
