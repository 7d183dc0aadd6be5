from .builtin import (
    GENERAL_ENGINE as GENERAL_ENGINE,
    base_gpu_type as base_gpu_type,
    engines as engines,
    find_engine as find_engine,
    find_gpu as find_gpu,
    find_model as find_model,
    gpu_key as gpu_key,
    gpu_link as gpu_link,
    gpu_names as gpu_names,
    gpus as gpus,
    known_model as known_model,
    matching_gpu_names as matching_gpu_names,
    model_aliases as model_aliases,
    model_names as model_names,
    models as models,
)
from .measurements import read_samples as read_samples, write_samples as write_samples
from .model_files import read_model as read_model, shape_from_config as shape_from_config
