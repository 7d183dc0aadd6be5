from .table import POLICIES as POLICIES, QueueOrder as QueueOrder
