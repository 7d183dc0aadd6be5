from .facts import (
    SiteFacts as SiteFacts,
    SlurmJobFacts as SlurmJobFacts,
)
from .policy import Slurm as Slurm
from .priorities import fair_tree as fair_tree
