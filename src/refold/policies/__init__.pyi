from .table import POLICIES as POLICIES
