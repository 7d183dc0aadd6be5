from .tasks import RayTasks as RayTasks, WorkersLost as WorkersLost, connected as connected, load_ray as load_ray
