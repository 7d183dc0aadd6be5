from .files import (
    as_struct as as_struct,
    from_json as from_json,
    from_yaml as from_yaml,
    shown as shown,
    text_of as text_of,
)
from .parts import BadLine as BadLine, Part as Part, short as short
from .yaml_lines import load as load, load_all as load_all, read_text as read_text
