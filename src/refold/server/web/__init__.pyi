from .export import make_page as make_page
from .files import WebFiles as WebFiles
