from .job_story import story_of as story_of
from .measures import (
    comparison_table as comparison_table,
    measure_tables as measure_tables,
    promises_tables as promises_tables,
)
from .nodes import print_node_change as print_node_change
from .output import (
    ERROR as ERROR,
    Advance as Advance,
    AsJson as AsJson,
    Column as Column,
    Table as Table,
    bar as bar,
    count as count,
    output_width as output_width,
    percent as percent,
    plural as plural,
    print_json as print_json,
    print_tables as print_tables,
    printable as printable,
    progress as progress,
    say as say,
    tell as tell,
    typed_command as typed_command,
)
from .plans import (
    micro_batch as micro_batch,
    plan_tables as plan_tables,
    rejection_tables as rejection_tables,
    times_text as times_text,
    title_of as title_of,
)
from .sanitize import Sanitizer as Sanitizer
from .screen import paint_again as paint_again
from .times import (
    between_text as between_text,
    clock as clock,
    clock_near as clock_near,
    duration as duration,
    gpus_text as gpus_text,
    moment_text as moment_text,
)
