from .policies import (
    Rubick as Rubick,
    RubickE as RubickE,
    RubickN as RubickN,
    RubickR as RubickR,
)
