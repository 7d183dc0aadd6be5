from .parts import Part as Part, shorten as shorten
from .structs import (
    Duration as Duration,
    PositiveDuration as PositiveDuration,
    ReadBy as ReadBy,
    convert as convert,
    describe as describe,
    parse as parse,
    read as read,
)
from .yaml_lines import (
    Limits as Limits,
    load_yaml as load_yaml,
    load_yaml_documents as load_yaml_documents,
    read_text as read_text,
)
