from .files import (
    as_struct as as_struct,
    format_value as format_value,
    parse_json as parse_json,
    parse_yaml as parse_yaml,
    read_description as read_description,
)
from .parts import BadLine as BadLine, Part as Part, shorten as shorten
from .yaml_lines import load_yaml as load_yaml, load_yaml_documents as load_yaml_documents, read_text as read_text
