from .fit import read_fit as read_fit
