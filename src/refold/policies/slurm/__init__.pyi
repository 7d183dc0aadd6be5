from .facts import (
    JobFacts as JobFacts,
    SiteFacts as SiteFacts,
)
from .policy import Slurm as Slurm
from .priorities import fair_tree as fair_tree
