from .job_timeline import read_timeline as read_timeline
from .json_option import AsJson as AsJson
from .live_queue import DEFAULT_LIMIT as DEFAULT_LIMIT
from .measures import (
    comparison_table as comparison_table,
    guarantee_tables as guarantee_tables,
    measure_tables as measure_tables,
    outlook_table as outlook_table,
    start_estimate_tables as start_estimate_tables,
)
from .output import (
    ERROR_COLOUR as ERROR_COLOUR,
    Advance as Advance,
    Sanitizer as Sanitizer,
    call_slots as call_slots,
    current_command_line as current_command_line,
    draw_bar as draw_bar,
    format_number as format_number,
    format_percent as format_percent,
    output_width as output_width,
    plural as plural,
    print_json as print_json,
    print_line as print_line,
    print_notes as print_notes,
    print_paragraph as print_paragraph,
    printable as printable,
    progress as progress,
    resource_text as resource_text,
)
from .plans import (
    format_factor as format_factor,
    format_parameters as format_parameters,
    format_rate as format_rate,
    format_step_time as format_step_time,
    micro_batch as micro_batch,
    plan_tables as plan_tables,
    plan_title as plan_title,
    print_section as print_section,
    rejection_tables as rejection_tables,
    training_table as training_table,
)
from .previews import preview_table as preview_table
from .screen import refresh_screen as refresh_screen
from .tables import Column as Column, Table as Table, fact_table as fact_table, print_tables as print_tables
from .times import (
    format_clock as format_clock,
    format_clock_near as format_clock_near,
    format_elapsed as format_elapsed,
    format_gpus as format_gpus,
    format_interval as format_interval,
    format_moment as format_moment,
    format_peak as format_peak,
)
from .tuning import (
    describe_parts as describe_parts,
    describe_verdict as describe_verdict,
    format_ratio as format_ratio,
    tuning_tables as tuning_tables,
)
