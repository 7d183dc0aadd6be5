from .files import WebFiles as WebFiles
