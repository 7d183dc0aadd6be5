from .builder import make_job_name as make_job_name
from .gpu_requests import parse_gpu_request as parse_gpu_request
from .job_fields import EXPECTED_BEGIN as EXPECTED_BEGIN, parse_begin as parse_begin
from .manifests import kueue_topology as kueue_topology
from .patterns import Pattern as Pattern, check_patterns as check_patterns
from .quantities import parse_cpus as parse_cpus, parse_gib as parse_gib, parse_switches as parse_switches
from .reader import array_jobs as array_jobs, parse_spec as parse_spec, read_jobs as read_jobs, read_spec as read_spec
from .submission import (
    Submittable as Submittable,
    export_of as export_of,
    make_submission as make_submission,
    submission_from_command as submission_from_command,
    with_request_id as with_request_id,
)
