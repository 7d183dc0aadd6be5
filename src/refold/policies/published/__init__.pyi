from .antman import AntMan as AntMan
from .gavel import Gavel as Gavel
from .optimus import Optimus as Optimus
from .pollux import Pollux as Pollux
from .sia import Sia as Sia
from .synergy import Synergy as Synergy
from .tiresias import Tiresias as Tiresias
