from .refold import Refold as Refold
from .rubick import Rubick as Rubick, RubickE as RubickE, RubickN as RubickN, RubickR as RubickR
