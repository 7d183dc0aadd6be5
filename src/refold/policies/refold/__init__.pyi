from .policy import Refold as Refold
