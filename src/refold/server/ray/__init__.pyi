from .engine import DAEMON_KEY as DAEMON_KEY, RayEngine as RayEngine
