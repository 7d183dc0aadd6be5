from .backend import Backend as Backend, Report as Report
